"""How many responses a vLLM engine generates at a time: as OpenRLHF starts it, 128, however many fit."""

from __future__ import annotations

from contextlib import suppress
from types import SimpleNamespace

from openrlhf_swap.config import SwapConfig
from openrlhf_swap.errors import ConfigError
from openrlhf_swap.sizing.memory import vllm_capacity
from openrlhf_swap.sizing.models import GIB, Model, read_model
from openrlhf_swap.sizing.settings import Settings, read_settings, responses_of_an_engine

PROMPT = 200  # assumed mean tokens of a prompt
MOST_SEQUENCES = 1024  # vLLM's own default on large GPUs
BATCHED_TOKENS = 8192  # of prompts, and more than there are sequences
LEAST_CACHE, MOST_CACHE = GIB // 8, GIB  # of keys and values of an engine on a CPU, in bytes
# Tokens of a block of an engine's cache on a CPU, which keeps a prefix in whole ones: the least for which vLLM has its
# fast kernels there. Its default is 128, which few prefixes fill.
CPU_PREFIX_BLOCK = 32


def longest_response(args: SimpleNamespace) -> int:
    """Most tokens of a response."""
    return int(min(args.rollout.max_new_tokens or args.data.max_len, args.data.max_len))


def engine_sequences(model: Model, settings: Settings, gpu: int, mean: int) -> int:
    """Responses that an engine generates at a time.

    The configured number; otherwise all that it gets in a step, as far as their keys and values fit at mean length.

    Args:
        model: the model.
        settings: the run's.
        gpu: bytes of a GPU.
        mean: tokens of a prompt and its response.
    """
    capacity = vllm_capacity(model, settings, gpu)
    fit = max(0, capacity["cache"]) // (capacity["token"] * mean)
    return settings.sequences or max(1, min(settings.engine_responses, fit, MOST_SEQUENCES))


def engine_limits(config: SwapConfig, args: SimpleNamespace, gpu: int | None, on_cpu: bool) -> dict[str, int]:
    """The limits of vLLM's engines, by the names of vLLM's arguments.

    `max_num_seqs` and `max_num_batched_tokens`; on a CPU these only where asked for, `kv_cache_memory_bytes`, and with
    prefix caching `block_size`.

    Args:
        config: the objective's settings.
        args: OpenRLHF's, with the run's in `swap_run`.
        gpu: bytes of a GPU; None if none is seen from here.
        on_cpu: whether there is no accelerator.
    """
    run, lora = args.swap_run, args.ds.lora
    if on_cpu:
        asked = {"max_num_seqs": run.engine_sequences, "max_num_batched_tokens": run.engine_batched_tokens}
        limits = {name: number for name, number in asked.items() if number}
        if args.vllm.enable_prefix_caching:
            limits["block_size"] = CPU_PREFIX_BLOCK
        return {**limits, "kv_cache_memory_bytes": _cpu_cache(config, args)}
    sequences = run.engine_sequences or min(responses_of_an_engine(args), MOST_SEQUENCES)
    if gpu is not None:
        with suppress(ConfigError):  # no formula for this run: vLLM itself queues what does not fit
            settings = read_settings(config, args, reserve=0)
            model = read_model(args.actor.model_name_or_path, settings.context, lora.rank, lora.target_modules)
            sequences = engine_sequences(model, settings, gpu, PROMPT + longest_response(args) // 2)
    tokens = run.engine_batched_tokens or max(BATCHED_TOKENS, sequences)
    return {"max_num_seqs": sequences, "max_num_batched_tokens": tokens}


def _cpu_cache(config: SwapConfig, args: SimpleNamespace) -> int:
    """Bytes of keys and values of all responses that an engine gets in a step: vLLM allocates all that it is given."""
    needed: float = MOST_CACHE
    with suppress(ConfigError):  # no formula for this run
        settings = read_settings(config, args, reserve=0)
        model = read_model(args.actor.model_name_or_path, settings.context)
        needed = settings.engine_responses * settings.context * vllm_capacity(model, settings, 0)["token"]
    return int(min(max(needed, LEAST_CACHE), MOST_CACHE))
