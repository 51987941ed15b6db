"""The Ray that a training starts is closed to other users of the machine."""

import json
import os

import pytest
from support.paths import POLICY
from support.running import words
from support.scripts import python

from openrlhf_swap.integration.patches import TRAINS, TRAINS_ALONE, VARIABLES

pytestmark = pytest.mark.slow
# The command itself, with a look from outside in the place of a training.
SCRIPT = """
import json, os, stat, sys, urllib.error, urllib.request
from pathlib import Path
from openrlhf_swap import train

def answers_by_who_asks(address):
    answers = {}
    tokens = {"nobody": None, "a guess": "0" * 64, "owner": os.environ.get("RAY_AUTH_TOKEN")}
    for who, token in tokens.items():
        headers = {"authorization": f"Bearer {token}"} if token else {}
        try:
            request = urllib.request.Request(address, data=b"", headers=headers)
            answers[who] = urllib.request.urlopen(request, timeout=30).status
        except urllib.error.HTTPError as error:
            answers[who] = error.code
    return answers

def environments(folder):
    # Of the processes that Ray itself starts in its folder, by the name of the program.
    import psutil
    found = {}
    for process in psutil.process_iter(["cmdline"]):
        line = process.info["cmdline"] or []
        name = Path(line[0]).name if line else ""
        if name in ("gcs_server", "raylet") and str(folder) in " ".join(line):
            found[name] = process.environ()
    return found

def look(configuration, _):
    import ray
    from openrlhf_swap.integration.startup.ray import starting_ray

    with starting_ray(configuration) as wait_for_ray:
        wait_for_ray()  # nothing is imported meanwhile: no raylet can be quicker

        @ray.remote
        def work():
            return "done"

        node = ray.nodes()[0]
        host = f"{node['NodeManagerAddress']}:{node['RuntimeEnvAgentPort']}"
        folder = Path(ray._private.worker._global_node.get_session_dir_path())
        sockets = [str(path) for path in folder.rglob("*") if path.is_socket()]
        parents = (folder, *folder.parents)
        found = {
            "answers": answers_by_who_asks(f"http://{host}/get_or_create_runtime_env"),
            "modes": [stat.S_IMODE(parent.stat().st_mode) for parent in parents][:3],
            "sockets": max(map(len, sockets)),
            "work": ray.get(work.remote()),
            "environments": environments(folder),
            "folder": str(folder),
        }
        Path(sys.argv[1]).write_text(json.dumps(found))

train._train = look
sys.exit(train.main(sys.argv[2:]))
"""


def test_nobody_without_the_token_is_answered_or_reads_its_files(
    tmp_path, prompts_file, monkeypatch
):
    result = tmp_path / "found.json"
    flags = words(
        f"--data.prompt_dataset {prompts_file} --data.input_key problem --data.label_key answer "
        f"--actor.model_name_or_path {POLICY} --data.max_len 400 --rollout.max_new_tokens 320 "
        "--rollout.batch_size 16 --rollout.n_samples_per_prompt 8 --train.batch_size 128 "
        f"--swap.output_dir {tmp_path / 'run'} --ckpt.path {tmp_path / 'run' / 'checkpoints'}"
    )
    for name in list(os.environ):
        if name.startswith("RAY_"):
            monkeypatch.delenv(name)
    done = python("-c", SCRIPT, result, *flags)
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-2000:]
    found = json.loads(result.read_text())
    assert found["work"] == "done"
    answers = found["answers"]
    assert answers["nobody"] == 401
    assert answers["a guess"] == 403
    assert answers["owner"] not in (401, 403)
    assert 0o700 in found["modes"], [oct(mode) for mode in found["modes"]]
    assert found["sockets"] <= 107  # what the kernel takes
    assert not os.path.exists(found["folder"])  # after an end without an error
    # Without these, a killed rollout actor would leave vLLM's engine on its GPU.
    variables = {**VARIABLES[TRAINS], **VARIABLES[TRAINS_ALONE]}
    assert found["environments"].keys() == {"gcs_server", "raylet"}
    for environment in found["environments"].values():
        assert variables.items() <= environment.items()
