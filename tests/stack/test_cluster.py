import os
import re
import shlex
import socket
import tempfile
from contextlib import ExitStack
from pathlib import Path

import pytest
from support.running import training_command, words
from support.scripts import MULTINODE, bash

from openrlhf_swap.files import read_rows

REASON = "TEST_CLUSTER=1 starts a cluster; on a busy machine Ray gives up after 30 s"
pytestmark = [pytest.mark.slow, pytest.mark.skipif("TEST_CLUSTER" not in os.environ, reason=REASON)]


def free_ports(count):
    with ExitStack() as stack:
        sockets = [stack.enter_context(socket.socket()) for _ in range(count)]
        for each in sockets:
            each.bind(("", 0))
        return [str(each.getsockname()[1]) for each in sockets]


def start(subcommand, *flags, **settings):
    """Run `head` or `worker`, up to three times.

    Ray gives its processes 30 s to find each other, which is too little on a busy machine.
    """
    for _ in range(3):
        result = bash(MULTINODE, subcommand, *flags, **settings)
        if result.returncode == 0:
            break
    started = Path(settings["RAY_FOLDER"], "started.log")
    assert result.returncode == 0, result.stderr + (started.read_text() if started.exists() else "")
    return result.stdout


def test_an_asynchronous_training_over_two_nodes(tmp_path, prompts_file):
    """Policy and engine on a node each, both of this machine; a place stands for a GPU."""
    from ray.util.state import list_actors

    port, dashboard, client, *agents = free_ports(5)
    settings = {
        "PORT": port,
        "DASHBOARD_PORT": dashboard,
        "NUM_GPUS": "1",
        "NUM_NODES": "2",
        "WAIT": "120",
    }
    flags = words("--num-cpus 3 --object-store-memory 200000000 --dashboard-agent-listen-port")
    flags_of_training = ("--train.async_enable", "--data.max_samples", "48")
    training = training_command(tmp_path / "run", prompts_file, *flags_of_training)
    with ExitStack() as stack:
        of_head = dict(settings)
        of_worker = dict(settings)
        for each in (of_head, of_worker):
            folder = tempfile.TemporaryDirectory(prefix="ray", dir="/tmp")
            each["RAY_FOLDER"] = stack.enter_context(folder)
        own = [*flags, agents[0], "--ray-client-server-port", client]
        head = start("head", *own, **of_head)
        stack.callback(bash, MULTINODE, "stop", **of_head)
        of_worker["HEAD_IP"] = re.search(r"HEAD_IP=(\S+)", head)[1]
        start("worker", *flags, agents[1], **of_worker)
        stack.callback(bash, MULTINODE, "stop", **of_worker)
        command = ["--command", shlex.join(training)]
        job = bash(MULTINODE, "submit", *command, OUTPUT=str(tmp_path), **of_head)
        assert job.returncode == 0, job.stdout[-3000:] + job.stderr
        rows = list(read_rows(tmp_path / "run" / "metrics.jsonl"))
        actors = list_actors(address=f"http://127.0.0.1:{dashboard}", limit=100)
    assert [(row["step"], row["swap/batch_age"]) for row in rows] == [(1, 0), (2, 1), (3, 1)]
    nodes = {actor.class_name: actor.node_id for actor in actors}
    assert nodes["SwapRolloutActor"] != nodes["IntrinsicRewardActor"]
