"""How many processes and GPUs each part of a run takes, and what each vLLM engine is given."""

import math
from types import SimpleNamespace

from openrlhf_swap.flags.configuration import Configuration

MOST_SEQUENCES = 1024  # vLLM's own default on large GPUs
BATCHED_TOKENS = 8192  # of prompts, and more than there are sequences
LEAST_CACHE, MOST_CACHE = 2**27, 2**30  # of keys and values of an engine on a CPU, in bytes
# Tokens of a block of an engine's cache on a CPU, which keeps a prefix in whole ones: the least for which vLLM has its
# fast kernels there. Its default is 128, which few prefixes fill.
CPU_PREFIX_BLOCK = 32
BYTES = 2  # of a number in bfloat16
ATTENTION = {"full_attention", "sliding_attention", "chunked_attention"}  # layers that keep keys and values


def policy_ranks(args: SimpleNamespace) -> int:
    """Processes that train the policy, one for each of its GPUs."""
    return int(args.actor.num_nodes * args.actor.num_gpus_per_node)


def engine_gpus(args: SimpleNamespace) -> int:
    """GPUs of all vLLM engines."""
    return int(args.vllm.num_engines * args.vllm.tensor_parallel_size)


def reference_ranks(args: SimpleNamespace) -> int:
    """Processes of the reference model, which only a KL penalty needs."""
    return int(args.ref.num_nodes * args.ref.num_gpus_per_node) if args.algo.kl.init_coef > 0 else 0


def gpu_actors(args: SimpleNamespace) -> int:
    """Ray actors with a GPU of their own: policy, engines and the reference model, unless that shares the policy's."""
    own = policy_ranks(args) + engine_gpus(args)
    return own if args.train.colocate_actor_ref else own + reference_ranks(args)


def responses_of_an_engine(args: SimpleNamespace) -> int:
    """Responses that an engine generates in a step."""
    share: int = math.ceil(args.rollout.batch_size * args.rollout.n_samples_per_prompt / args.vllm.num_engines)
    return share


def engine_limits(configuration: Configuration) -> dict[str, int]:
    """Arguments of vLLM's engines, by vLLM's names. OpenRLHF has no flags for them and sets 128 responses at a time.

    On a GPU `max_num_seqs` and `max_num_batched_tokens`, whatever its size: vLLM itself queues responses that its
    memory has no room for. On a CPU these only if given, `kv_cache_memory_bytes`, and `block_size` with prefix
    caching.
    """
    args, run = configuration.args, configuration.run
    if configuration.on_cpu:
        limits = {"max_num_seqs": run.engine_sequences} if run.engine_sequences else {}
        if args.vllm.enable_prefix_caching:
            limits["block_size"] = CPU_PREFIX_BLOCK
        return {**limits, "kv_cache_memory_bytes": _cpu_cache(args)}
    sequences = run.engine_sequences or min(responses_of_an_engine(args), MOST_SEQUENCES)
    return {"max_num_seqs": sequences, "max_num_batched_tokens": max(BATCHED_TOKENS, sequences)}


def _cpu_cache(args: SimpleNamespace) -> int:
    """Bytes of keys and values of all responses that an engine gets in a step: vLLM occupies all that it is given."""
    from transformers import AutoConfig

    # Code that comes with a model was allowed or refused before.
    config = AutoConfig.from_pretrained(args.actor.model_name_or_path, trust_remote_code=True).get_text_config()
    kinds = getattr(config, "layer_types", None) or ()
    if getattr(config, "kv_lora_rank", None) or not ATTENTION.issuperset(kinds):
        return MOST_CACHE  # other layers keep something else
    heads = config.num_attention_heads
    size = getattr(config, "head_dim", None) or config.hidden_size // heads
    token = 2 * BYTES * config.num_hidden_layers * (getattr(config, "num_key_value_heads", None) or heads) * size
    return int(min(max(responses_of_an_engine(args) * args.data.max_len * token, LEAST_CACHE), MOST_CACHE))
