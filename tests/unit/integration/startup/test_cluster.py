"""Waiting for the nodes of a cluster, and what the processes of a CPU run share."""

import os

import pytest
import ray

from openrlhf_swap.errors import ConfigError
from openrlhf_swap.flags.configuration import configure
from openrlhf_swap.integration.startup import ray as ray_start


@pytest.fixture
def polls(monkeypatch):
    """The GPUs of the cluster at each look, of which one follows the other at once."""
    counts = []
    monkeypatch.setattr(ray, "cluster_resources", lambda: {"CPU": 4.0, **counts.pop(0)})
    monkeypatch.setattr(ray_start, "POLL_SECONDS", 0)
    return counts


def test_a_run_waits_for_the_gpus_of_its_nodes(polls, capsys):
    polls += [{}, {"GPU": 8.0}, {"GPU": 8.0}, {"GPU": 16.0}]
    polls.append("not asked for")
    ray_start.wait_for_gpus(16)
    assert polls == ["not asked for"]
    # A state is said once, not at every look.
    assert capsys.readouterr().out.splitlines() == [
        "[swap] 0 of the 16 GPUs that the run takes are in the cluster",
        "[swap] 8 of the 16 GPUs that the run takes are in the cluster",
    ]


def test_gpus_that_do_not_come_end_the_run(polls, monkeypatch):
    monkeypatch.setattr(ray_start, "NODES_SECONDS", -1)
    polls += [{"GPU": 8.0}]
    with pytest.raises(ConfigError, match=r"^8 of the 16 GPUs .* start more nodes, or ask for few"):
        ray_start.wait_for_gpus(16)


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
