"""Limits of vLLM's engines. OpenRLHF has no flags for them, and starts engines with 128 responses at a time."""

from __future__ import annotations

import math
from types import SimpleNamespace

from openrlhf_swap.config import RunConfig

MOST_SEQUENCES = 1024  # vLLM's own default on large GPUs
BATCHED_TOKENS = 8192  # of prompts, and more than there are sequences
LEAST_CACHE, MOST_CACHE = 2**27, 2**30  # of keys and values of an engine on a CPU, in bytes
# Tokens of a block of an engine's cache on a CPU, which keeps a prefix in whole ones: the least for which vLLM has its
# fast kernels there. Its default is 128, which few prefixes fill.
CPU_PREFIX_BLOCK = 32
BYTES = 2  # of a number in bfloat16
ATTENTION = {"full_attention", "sliding_attention", "chunked_attention"}  # layers that keep keys and values


def responses_of_an_engine(args: SimpleNamespace) -> int:
    """How many responses an engine gets in a step, from OpenRLHF's arguments."""
    share: int = math.ceil(args.rollout.batch_size * args.rollout.n_samples_per_prompt / args.vllm.num_engines)
    return share


def engine_limits(args: SimpleNamespace, run: RunConfig, on_cpu: bool) -> dict[str, int]:
    """Arguments of vLLM's engines, by vLLM's names.

    `max_num_seqs` and `max_num_batched_tokens`, whatever the GPU: vLLM itself queues responses that its memory has no
    capacity for. On a CPU these only where asked for, `kv_cache_memory_bytes`, and with prefix caching `block_size`.

    Args:
        args: OpenRLHF's arguments.
        run: the run's settings.
        on_cpu: whether there is no accelerator.
    """
    if on_cpu:
        asked = {"max_num_seqs": run.engine_sequences, "max_num_batched_tokens": run.engine_batched_tokens}
        limits = {name: number for name, number in asked.items() if number}
        if args.vllm.enable_prefix_caching:
            limits["block_size"] = CPU_PREFIX_BLOCK
        return {**limits, "kv_cache_memory_bytes": _cpu_cache(args)}
    sequences = run.engine_sequences or min(responses_of_an_engine(args), MOST_SEQUENCES)
    tokens = run.engine_batched_tokens or max(BATCHED_TOKENS, sequences)
    return {"max_num_seqs": sequences, "max_num_batched_tokens": tokens}


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
