"""Waiting for the nodes of a cluster, and what the processes of a CPU run share."""

import os
from types import SimpleNamespace

import pytest
import ray
import ray.util.state

from openrlhf_swap.command import run_command
from openrlhf_swap.flags.configuration import configure
from openrlhf_swap.integration.startup import cluster, ray_start

NOWHERE = "http://127.0.0.1:9"  # nothing listens on the port for discarding


def node(gpus, state="ALIVE"):
    resources = {"CPU": 4.0, "GPU": gpus} if gpus else {"CPU": 4.0}
    return SimpleNamespace(state=state, resources_total=resources)


@pytest.fixture
def answers(monkeypatch):
    """What Ray answers, one list of nodes a poll; polls follow each other at once."""
    lists = []
    monkeypatch.setattr(ray.util.state, "list_nodes", lambda address: lists.pop(0))
    monkeypatch.setattr(cluster, "POLL_SECONDS", 0)
    return lists


def run(nodes=2, gpus=8, wait=60, address=NOWHERE):
    flags = {"--address": address, "--nodes": nodes, "--gpus": gpus, "--wait": wait}
    return run_command(cluster.main, [str(word) for pair in flags.items() for word in pair])


def test_it_waits_for_nodes_that_live_and_have_the_gpus(answers, capsys):
    few = [node(8), node(4), node(8, "DEAD")]
    answers += [few, few, [node(8), node(8)], "not asked for"]
    assert run() == 0
    assert answers == ["not asked for"]
    said = capsys.readouterr().out
    assert said == "[ray] 1 of 2 nodes with 8 GPUs are there\n"  # once, not at every poll


@pytest.mark.parametrize(
    ("cores", "actors", "engines", "asynchronous", "expected"),
    [
        (2, 1, 1, False, 2),  # the policy waits while the engine generates, and the engine for it
        (2, 1, 1, True, 1),  # both are at work
        (16, 2, 1, False, 8),
        (16, 2, 3, True, 3),
        (2, 4, 1, False, 1),  # more processes than cores
    ],
)
def test_processes_at_work_at_the_same_time_share_the_cores(
    cores, actors, engines, asynchronous, expected
):
    flags = {"actor.num_gpus_per_node": actors, "vllm.num_engines": engines}
    args = configure([], on_cpu=True).replace_flags(flags).args
    args.train.async_enable = asynchronous
    assert ray_start.threads(args, cores) == expected


@pytest.mark.parametrize("address", [None, "10.0.0.2:6379"])
def test_openrlhfs_variables_reach_the_processes_on_gpus(monkeypatch, address):
    """A cluster's by a `runtime_env`; those of a Ray of our own inherit, and wait for nothing."""
    given = {}
    monkeypatch.setattr(ray, "init", given.update)
    monkeypatch.setattr(os, "environ", {"NCCL_DEBUG": "INFO"})
    if address:
        os.environ["RAY_ADDRESS"] = address
    ray_start.start_ray(2, on_cpu=False)
    variables = {**ray_start.OPENRLHFS_VARIABLES, "NCCL_DEBUG": "INFO"}
    if address:
        assert given == {"runtime_env": {"env_vars": variables}}
    else:
        assert given == {"address": "local", "include_dashboard": False}
        assert os.environ == variables
