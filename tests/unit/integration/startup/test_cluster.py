"""The start of Ray, and what the processes of a CPU run share."""

import os
import socket

import pytest
import ray

from openrlhf_swap.errors import ConfigError, RunError
from openrlhf_swap.flags.configuration import configure
from openrlhf_swap.integration.startup import launch
from openrlhf_swap.integration.startup import ray as ray_start

TIMED_OUT = Exception("The current node timed out during startup. This could happen because some")


@pytest.fixture
def starts(monkeypatch):
    """Starts Ray, of which the first starts end with these errors; counts the starts."""
    monkeypatch.delenv("RAY_ADDRESS", raising=False)

    def start(*errors):
        left = list(errors)
        started = []

        def init(**options):
            started.append(options)
            if left:
                raise left.pop(0)

        monkeypatch.setattr(ray, "init", init)
        ray_start.start_ray(2, on_cpu=True)
        return len(started)

    return start


def test_a_ray_that_a_busy_machine_starts_too_slowly_is_started_again(starts, capsys):
    assert starts() == 1
    assert starts(TIMED_OUT, TIMED_OUT) == 3
    slow = "[swap] Ray has not started within 30 s: the machine is busy"
    assert capsys.readouterr().out.splitlines() == [slow] * 2
    with pytest.raises(RunError, match=r"^Ray has not started in 3 tries of 30 s; end other"):
        starts(*[TIMED_OUT] * 3)
    with pytest.raises(ValueError, match=r"^a fault$"):
        starts(ValueError("a fault"))


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
        # A worker for each of the two processes, and one for tasks: not one for each core.
        assert given == {"address": "local", "include_dashboard": False, "num_cpus": 3}
        assert os.environ == variables
