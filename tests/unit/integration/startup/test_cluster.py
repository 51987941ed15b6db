"""Waiting for the nodes of a cluster, and what the processes of a CPU run share."""

import os
import socket

import pytest
import ray

from openrlhf_swap.errors import ConfigError
from openrlhf_swap.flags.configuration import configure
from openrlhf_swap.integration.startup import launch
from openrlhf_swap.integration.startup import ray as ray_start


@pytest.fixture
def polls(monkeypatch):
    """The GPUs of the cluster at each look, of which one follows the other at once."""
    counts = []
    monkeypatch.setattr(ray, "available_resources", lambda: {"CPU": 4.0, **counts.pop(0)})
    monkeypatch.setattr(ray_start, "POLL_SECONDS", 0)
    return counts


def test_a_run_waits_for_the_gpus_of_its_nodes(polls, capsys):
    polls += [{}, {"GPU": 8.0}, {"GPU": 8.0}, {"GPU": 16.0}]
    polls.append("not asked for")
    ray_start.wait_for_gpus(16)
    assert polls == ["not asked for"]
    # A state is said once, not at every look.
    assert capsys.readouterr().out.splitlines() == [
        "[swap] 0 of the 16 GPUs that the run takes are free in the cluster",
        "[swap] 8 of the 16 GPUs that the run takes are free in the cluster",
    ]


def test_gpus_that_do_not_come_end_the_run(polls, monkeypatch):
    monkeypatch.setattr(ray_start, "NODES_SECONDS", -1)
    polls += [{"GPU": 8.0}]
    with pytest.raises(
        ConfigError, match=r"^8 of the 16 GPUs .* start more nodes, .* or ask for few"
    ):
        ray_start.wait_for_gpus(16)


def test_an_address_where_nothing_answers_is_refused_at_once():
    with socket.create_server(("127.0.0.1", 0)) as server:
        address = f"127.0.0.1:{server.getsockname()[1]}"
        ray_start.check_address(address)
    refused = f"^RAY_ADDRESS is {address}, where no Ray answers .*refused.* unset RAY_ADDRESS"
    with pytest.raises(ConfigError, match=refused):
        ray_start.check_address(address)
    ray_start.check_address("auto")


def test_what_ray_ends_for_lack_of_memory_is_one_line_with_numbers_and_a_remedy(tmp_path):
    """The text is that of Ray 2.55, shortened."""
    args = configure(["--swap.output_dir", str(tmp_path)], on_cpu=True).args
    text = (
        "1 worker(s) were killed due to the node running low on memory. Memory on the node (IP: "
        "10.0.0.1, ID: 6a) was 22.91GB / 23.46GB (0.976586), which exceeds the memory usage "
        "threshold of 0.950000; Object store memory usage: []; Ray killed 1 worker(s) based on the "
        "killing policy: [(Worker with lease granted: job ID=01, lease ID=07, task "
        "name=IntrinsicRewardActor.__init__, required resources={CPU: 1}, pid=417, actual memory "
        "used=14.40GB, worker ID=5f)]; To see more information about memory usage on this node"
    )
    line = launch.describe_lack_of_memory(text, args)
    assert "\n" not in line
    assert "22.91 of 23.46 GB" in line
    assert "IntrinsicRewardActor, which had 14.40 GB" in line
    assert "--ds.lora.rank 32" in line
    assert "no checkpoint was written yet" in line
    assert "--train.micro_batch_size (" in line
    args.ds.lora.rank = 32
    args.train.dynamic_batch_enable = True
    args.train.max_tokens_per_gpu = 1024
    of_adapters = launch.describe_lack_of_memory("killed", args)
    assert "ran out of main memory" in of_adapters
    assert "--train.max_tokens_per_gpu (1024)" in of_adapters
    assert "--ds.lora.rank" not in of_adapters


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
