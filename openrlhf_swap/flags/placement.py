"""How many processes and GPUs each part of a run takes, and what each vLLM engine is given."""

import math
from types import SimpleNamespace

from openrlhf_swap.flags.configuration import Configuration

MOST_SEQUENCES = 1024  # vLLM's own default on large GPUs
BATCHED_TOKENS = 8192  # of prompts, and more than there are sequences
LEAST_CACHE, MOST_CACHE = 2**27, 2**30  # of keys and values of an engine on a CPU, in bytes
# Tokens of a block of an engine's cache on a CPU, which keeps a prefix in whole ones: the least for
# which vLLM has its fast kernels there. Its default is 128, which few prefixes fill.
CPU_PREFIX_BLOCK = 32
BYTES = 2  # of a number in bfloat16
# Layers that keep keys and values.
ATTENTION = {"full_attention", "sliding_attention", "chunked_attention"}


def policy_ranks(args: SimpleNamespace) -> int:
    """Processes that train the policy, one for each of its GPUs."""
    return int(args.actor.num_nodes * args.actor.num_gpus_per_node)


def engine_gpus(args: SimpleNamespace) -> int:
    """GPUs of all vLLM engines."""
    return int(args.vllm.num_engines * args.vllm.tensor_parallel_size)


def gpu_actors(args: SimpleNamespace) -> int:
    """Ray actors with a GPU of their own: policy, engines, and a reference model that needs one."""
    total = policy_ranks(args) + engine_gpus(args)
    if args.algo.kl.init_coef > 0 and not args.train.colocate_actor_ref:
        total += args.ref.num_nodes * args.ref.num_gpus_per_node
    return int(total)


def gpus_of_run(args: SimpleNamespace) -> int:
    """GPUs of the whole run; with `--train.colocate_all` all of it shares those of the policy."""
    return policy_ranks(args) if args.train.colocate_all else gpu_actors(args)


def responses_of_an_engine(args: SimpleNamespace) -> int:
    """The most responses that an engine generates in a step."""
    responses = int(args.rollout.batch_size * args.rollout.n_samples_per_prompt)
    return math.ceil(responses / int(args.vllm.num_engines))


def engine_limits(configuration: Configuration) -> dict[str, int]:
    """Arguments of vLLM's engines for which OpenRLHF has no flags, by vLLM's names.

    On a GPU these are as many responses as a step has, instead of 128: vLLM itself queues those
    that its memory has no room for.
    """
    args = configuration.args
    given = configuration.run.engine_sequences
    if configuration.on_cpu:
        limits = {"kv_cache_memory_bytes": _cpu_cache(args)}
        if given:
            limits["max_num_seqs"] = given
        if args.vllm.enable_prefix_caching:
            limits["block_size"] = CPU_PREFIX_BLOCK
        return limits
    sequences = given or min(responses_of_an_engine(args), MOST_SEQUENCES)
    return {"max_num_seqs": sequences, "max_num_batched_tokens": max(BATCHED_TOKENS, sequences)}


def _cpu_cache(args: SimpleNamespace) -> int:
    """Bytes of the keys and values of all responses that an engine gets in a step.

    vLLM occupies all that it is given, so there are limits.
    """
    from transformers import AutoConfig

    # Code that comes with a model was allowed or refused before.
    path = args.actor.model_name_or_path
    config = AutoConfig.from_pretrained(path, trust_remote_code=True).get_text_config()
    kinds = getattr(config, "layer_types", None) or ()
    if getattr(config, "kv_lora_rank", None) or not ATTENTION.issuperset(kinds):
        return MOST_CACHE  # other layers keep something else
    heads = config.num_attention_heads
    size = getattr(config, "head_dim", None) or config.hidden_size // heads
    width = size * (getattr(config, "num_key_value_heads", None) or heads)
    token = 2 * BYTES * config.num_hidden_layers * width
    needed = responses_of_an_engine(args) * args.data.max_len * token
    return int(min(max(needed, LEAST_CACHE), MOST_CACHE))
