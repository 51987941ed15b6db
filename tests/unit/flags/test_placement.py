"""How many GPUs a run takes, and how much each rollout engine may take on at a time."""

from dataclasses import replace

import pytest
from support.paths import POLICY
from support.sizing import R1

from openrlhf_swap.config import RunConfig
from openrlhf_swap.flags.configuration import configure
from openrlhf_swap.flags.placement import engine_gpus, engine_limits, gpu_actors, policy_ranks

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
    assert (policy_ranks(args), engine_gpus(args), gpu_actors(args)) == (12, 10, total)


def limits(model, *flags, on_cpu=False, engines=8, **run):
    words = ["--actor.model_name_or_path", str(model), "--vllm.num_engines", str(engines), *flags]
    configuration = configure(words, on_cpu)
    return engine_limits(replace(configuration, run=RunConfig(**run)))


def test_an_engine_is_given_all_of_a_step_whatever_its_gpu():
    model = R1 + "1.5B"
    assert limits(model) == {"max_num_seqs": 256, "max_num_batched_tokens": 8192}
    assert limits(model, engine_sequences=9) == {"max_num_seqs": 9, "max_num_batched_tokens": 8192}
    assert limits(model, engines=3)["max_num_seqs"] == 683  # 2,048 responses: 682 or 683 each
    assert limits(model, engines=1)["max_num_seqs"] == 1024
    many = {"max_num_seqs": 9000, "max_num_batched_tokens": 9000}
    assert limits(model, engine_sequences=9000) == many


def test_a_cache_on_a_cpu_is_as_large_as_what_an_engine_gets():
    flags = "--rollout.batch_size=64 --rollout.n_samples_per_prompt=8 --train.batch_size=512 "
    flags = [*(flags + "--rollout.max_new_tokens=320").split(), "--data.max_len"]
    # Four layers of two heads of 32, keys and values, two bytes each: 1,024 bytes a token.
    cache = {"kv_cache_memory_bytes": 64 * 8 * 400 * 1024}
    assert limits(POLICY, *flags, "400", on_cpu=True, engines=1) == cache
    own = limits(POLICY, *flags, "400", on_cpu=True, engines=1, engine_sequences=9)
    assert own == {"max_num_seqs": 9, **cache}
    assert limits(POLICY, *flags, "4000", on_cpu=True, engines=1) == {"kv_cache_memory_bytes": GIB}
    few = ["--rollout.batch_size=1", "--rollout.n_samples_per_prompt=8", "--data.max_len=4000"]
    small = {"kv_cache_memory_bytes": GIB // 8}
    assert limits(POLICY, *few, on_cpu=True, engines=1) == small
    few += ["--vllm.enable_prefix_caching"]
    assert limits(POLICY, *few, on_cpu=True, engines=1) == {**small, "block_size": 32}
