import os
import shlex
import socket
import sys
import tempfile
from contextlib import ExitStack
from pathlib import Path

import pytest
from support.scripts import MULTINODE, bash

pytestmark = pytest.mark.slow


def free_ports(count):
    with ExitStack() as stack:
        sockets = [stack.enter_context(socket.socket()) for _ in range(count)]
        for each in sockets:
            each.bind(("", 0))
        return [str(each.getsockname()[1]) for each in sockets]


@pytest.mark.skipif(
    "TEST_CLUSTER" not in os.environ,
    reason="TEST_CLUSTER=1 starts a cluster; on a busy machine Ray gives up after 30 s",
)
def test_a_cluster_starts_runs_a_job_and_stops(tmp_path):
    port, dashboard, client, agent = free_ports(4)
    command = "import os, ray; ray.init(); print('found', ray.cluster_resources()['CPU'], os.environ['WANDB_API_KEY'])"
    with tempfile.TemporaryDirectory(prefix="ray", dir="/tmp") as folder:  # the path of a socket has to be short
        settings = {"PORT": port, "DASHBOARD_PORT": dashboard, "RAY_FOLDER": folder, "NUM_GPUS": "0", "NUM_NODES": "1"}
        settings["WAIT"] = "120"
        flags = ["--num-cpus", "3", "--ray-client-server-port", client, "--dashboard-agent-listen-port", agent]
        for _ in range(3):  # Ray gives its processes 30 s to find each other, too little on a busy machine
            head = bash(MULTINODE, "head", *flags, WANDB_KEY="secret", **settings)
            if head.returncode == 0:
                break
        assert head.returncode == 0, head.stderr
        ray_pid = int(Path(folder, "started.pid").read_text())
        try:
            again = bash(MULTINODE, "head", **settings)
            assert again.returncode == 2 and f"already runs here, as process {ray_pid}" in again.stderr
            # Quotes and angle brackets have to reach the job as they are.
            line = f"{sys.executable} -c {shlex.quote(command)} && printf '%s\\n' '<it\"s done>'"
            job = bash(MULTINODE, "submit", COMMAND=line, OUTPUT=str(tmp_path), **settings)
            assert job.returncode == 0, job.stdout + job.stderr
            assert "found 3.0 secret" in job.stdout and '<it"s done>' in job.stdout
        finally:
            stopped = bash(MULTINODE, "stop", **settings)
        assert stopped.returncode == 0, stopped.stderr
        with pytest.raises(ConnectionRefusedError):
            socket.create_connection(("127.0.0.1", int(dashboard)), timeout=5)
