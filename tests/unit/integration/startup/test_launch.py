"""What a CPU run's processes share."""

from types import SimpleNamespace

import pytest

from openrlhf_swap.integration.startup.ray_start import threads


@pytest.mark.parametrize(
    ("cores", "actors", "engines", "asynchronous", "expected"),
    [
        (2, 1, 1, False, 2),  # the policy waits while the engine generates, and the other way round
        (2, 1, 1, True, 1),  # both are at work
        (16, 2, 1, False, 8),
        (16, 2, 3, True, 3),
        (2, 4, 1, False, 1),  # more processes than cores
    ],
)
def test_processes_at_work_at_the_same_time_share_the_cores(cores, actors, engines, asynchronous, expected):
    args = SimpleNamespace(
        actor=SimpleNamespace(num_nodes=1, num_gpus_per_node=actors),
        vllm=SimpleNamespace(num_engines=engines, tensor_parallel_size=1),
        train=SimpleNamespace(async_enable=asynchronous),
    )
    assert threads(args, cores) == expected
