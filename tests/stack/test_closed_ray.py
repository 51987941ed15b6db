"""The Ray that a training starts is closed to other users of the machine."""

import json
import os
import socket
import subprocess
import sys
import time
from pathlib import Path

import psutil
import pytest
from support.paths import POLICY
from support.scripts import python

pytestmark = pytest.mark.slow
# The command itself, with a look from outside in the place of a training.
SCRIPT = """
import json, os, stat, sys, urllib.error, urllib.request
from pathlib import Path
from openrlhf_swap import train

def look(*_):
    import ray
    from openrlhf_swap.integration.patches import CPU_COMMAND, install
    from openrlhf_swap.integration.startup.ray_start import start_ray

    install(CPU_COMMAND)
    start_ray(1, on_cpu=True)

    @ray.remote
    def work():
        return "done"

    node = ray.nodes()[0]
    address = f"http://{node['NodeManagerAddress']}:{node['RuntimeEnvAgentPort']}/get_or_create_runtime_env"
    answers = {}
    for who, token in (("nobody", None), ("a guess", "0" * 64), ("owner", os.environ.get("RAY_AUTH_TOKEN"))):
        headers = {"authorization": f"Bearer {token}"} if token else {}
        try:
            request = urllib.request.Request(address, data=b"", headers=headers)
            answers[who] = urllib.request.urlopen(request, timeout=30).status
        except urllib.error.HTTPError as error:
            answers[who] = error.code
    folder = Path(ray._private.worker._global_node.get_session_dir_path())
    modes = [stat.S_IMODE(parent.stat().st_mode) for parent in (folder, *folder.parents)][:3]
    sockets = max(len(str(path)) for path in folder.rglob("*") if path.is_socket())
    found = {"answers": answers, "modes": modes, "sockets": sockets, "work": ray.get(work.remote())}
    Path(sys.argv[1]).write_text(json.dumps({**found, "folder": str(folder)}))
    ray.shutdown()

train._train = look
sys.exit(train.main(sys.argv[2:]))
"""


def test_nobody_without_the_token_is_answered_or_reads_its_files(
    tmp_path, prompts_file, monkeypatch
):
    result = tmp_path / "found.json"
    flags = [
        "--data.prompt_dataset",
        str(prompts_file),
        "--data.input_key",
        "problem",
        "--data.label_key",
        "answer",
    ]
    flags += [
        "--actor.model_name_or_path",
        str(POLICY),
        "--data.max_len",
        "400",
        "--rollout.max_new_tokens",
        "320",
    ]
    flags += [
        "--rollout.batch_size",
        "16",
        "--rollout.n_samples_per_prompt",
        "8",
        "--train.batch_size",
        "128",
    ]
    flags += [
        "--swap.output_dir",
        str(tmp_path / "run"),
        "--ckpt.path",
        str(tmp_path / "run" / "checkpoints"),
    ]
    for name in [name for name in os.environ if name.startswith("RAY_")]:
        monkeypatch.delenv(name)
    done = python("-c", SCRIPT, result, *flags)
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-2000:]
    found = json.loads(result.read_text())
    assert found["work"] == "done"
    assert (found["answers"]["nobody"], found["answers"]["a guess"]) == (401, 403)
    assert found["answers"]["owner"] not in (401, 403)
    assert 0o700 in found["modes"], [oct(mode) for mode in found["modes"]]
    assert found["sockets"] <= 107  # what the kernel takes
    assert not os.path.exists(found["folder"])  # after an end without an error


RANKS = """
import os, sys, time
from pathlib import Path
from types import SimpleNamespace
import torch
from openrlhf_swap.integration.policy.strategy import SwapStrategy

ours = SwapStrategy.__new__(SwapStrategy)
ours.args, ours._trains_policy = SimpleNamespace(local_rank=-1, actor=SimpleNamespace(num_nodes=1)), True
ours.full_determinism, ours.seed, ours.ring_attn_size, ours.ds_tensor_parallel_size = False, 1, 1, 1
ours.train_batch_size, ours.micro_train_batch_size = 2, 1
ours.setup_distributed()
numbers = [None, None]
torch.distributed.all_gather_object(numbers, int(os.environ["RANK"]))
assert numbers == [0, 1], numbers
Path(f"{sys.argv[1]}_{os.environ['RANK']}").touch()
while not Path(sys.argv[1] + "_end").exists():
    time.sleep(0.1)
"""
INTRUDER = """
import os, pwd, sys, threading
from datetime import timedelta
from torch.distributed import TCPStore  # which nobody may not read everywhere

other = pwd.getpwnam("nobody")
os.setgroups([])
os.setgid(other.pw_gid)
os.setuid(other.pw_uid)

def write(port):
    TCPStore("127.0.0.1", port, is_master=False, timeout=timedelta(seconds=10)).set("a key", "a value")
    print("wrote to port", port, flush=True)

tries = [threading.Thread(target=write, args=[int(port)], daemon=True) for port in sys.argv[2:]]
for each in tries:
    each.start()
for each in tries:
    each.join(20)
try:
    open(sys.argv[1], "ab").close()
    print("opened the file", flush=True)
except PermissionError:
    pass
os._exit(0)  # whatever other kinds of ports have not answered yet
"""


@pytest.mark.skipif(os.getuid() != 0, reason="another user is asked, which root alone can")
@pytest.mark.parametrize("closed", [True, False])
def test_nobody_writes_where_the_policys_ranks_meet(tmp_path, closed):
    """And does where torch's own store is used, without Ray's folder: what is tried would be seen
    to work.
    """
    folder, sign = tmp_path / "ray", tmp_path / "sign"
    folder.mkdir(mode=0o700)
    with socket.socket() as place:
        place.bind(("127.0.0.1", 0))
        port = place.getsockname()[1]
    common = {
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": str(port),
        "WORLD_SIZE": "2",
        "LOCAL_RANK": "0",
    }
    common |= {**os.environ, "DS_ACCELERATOR": "cpu", "OMP_NUM_THREADS": "1"}
    common |= {"RAY_TMPDIR": str(folder)} if closed else {}
    command = [sys.executable, "-c", RANKS, str(sign)]
    ranks = [subprocess.Popen(command, env={**common, "RANK": str(rank)}) for rank in range(2)]
    try:
        deadline = time.monotonic() + 240
        while not all(Path(f"{sign}_{rank}").exists() for rank in range(2)):
            assert time.monotonic() < deadline and all(rank.poll() is None for rank in ranks)
            time.sleep(0.2)
        ports = {
            str(connection.laddr.port)
            for rank in ranks
            for connection in psutil.Process(rank.pid).net_connections("tcp")
            if connection.status == psutil.CONN_LISTEN
        }
        tried = python("-c", INTRUDER, folder / f"store_{port}", *ports)
        assert tried.returncode == 0, tried.stderr
        assert tried.stdout.splitlines() == ([] if closed else [f"wrote to port {port}"])
        assert (folder / f"store_{port}").exists() == closed
    finally:
        Path(f"{sign}_end").touch()
        assert [rank.wait(60) for rank in ranks] == [0, 0]
