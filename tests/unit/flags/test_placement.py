"""How many GPUs a run takes."""

import pytest

from openrlhf_swap.flags.configuration import configure
from openrlhf_swap.flags.placement import engine_gpus, gpu_actors, policy_ranks, takes_turns

NODES = ["--actor.num_nodes", "3", "--actor.num_gpus_per_node", "4"]
ENGINES = ["--vllm.num_engines", "5", "--vllm.tensor_parallel_size", "2"]
GIB = 2**30


@pytest.mark.parametrize(
    ("flags", "total"),
    [
        ([], 22),
        (["--algo.kl.init_coef=0.1"], 34),
        (["--algo.kl.init_coef=0.1", "--train.colocate_actor_ref"], 22),
    ],
)
def test_gpus_of_each_part(flags, total):
    args = configure([*NODES, *ENGINES, *flags], on_cpu=False).args
    assert policy_ranks(args) == 12
    assert engine_gpus(args) == 10
    assert gpu_actors(args) == total


@pytest.mark.parametrize(
    ("flags", "expected"),
    [
        ({}, False),
        ({"train.colocate_all": True, "vllm.enable_sleep": True}, True),
        ({"train.colocate_all": True, "ds.enable_sleep": True}, True),
        ({"algo.kl.init_coef": 0.1}, False),  # the reference model has GPUs of its own
        ({"algo.kl.init_coef": 0.1, "train.colocate_actor_ref": True}, True),
        ({"train.colocate_all": True}, False),
        ({"algo.kl.init_coef": 0.1, "train.colocate_all": True}, True),
    ],
)
def test_who_takes_turns_with_the_memory_of_a_gpu(flags, expected):
    apart = {
        "vllm.enable_sleep": False,
        "ds.enable_sleep": False,
        "train.colocate_all": False,
        "train.colocate_actor_ref": False,
        "algo.kl.init_coef": 0.0,
    }
    args = configure([], on_cpu=False).replace_flags({**apart, **flags}).args
    assert takes_turns(args) is expected
