"""What an engine of vLLM takes of a GPU, and how many responses it has room for."""

import math
from dataclasses import dataclass

from openrlhf_swap.flags.placement import MOST_SEQUENCES
from openrlhf_swap.sizing.models import GIB, Model
from openrlhf_swap.sizing.settings import BIT16, FP32, Settings

# Assumed: activations of vLLM's profiling run and memory outside torch.
VLLM_OVERHEAD = int(1.5 * GIB)
VLLM_GRAPHS = GIB  # assumed: CUDA graphs of an engine that is told how large its cache is
BLOCK_TOKENS = 32  # of a response's cache: its last block of 16 tokens, and one to spare


@dataclass(frozen=True, kw_only=True)
class EngineCapacity:
    """Memory of vLLM on one GPU, and the responses that it has room for."""

    weights_bytes: int
    cache_bytes: int  # for keys and values
    cache_tokens: int
    full_sequences: int  # responses of full length that the cache holds
    mean_sequences: int  # responses of mean length that the cache holds
    most_sequences: int  # responses that an engine runs at a time
    sequences_a_step: int  # responses that an engine gets in a step


def engine_weights(model: Model, settings: Settings) -> int:
    """Bytes of an engine's weights on one GPU."""
    return math.ceil(BIT16 * model.parameters / settings.tensor_parallel)


def cache_room(model: Model, settings: Settings, gpu: int) -> int:
    """Bytes that vLLM has on a GPU for keys and values; less than 0 if its weights do not fit."""
    taken = engine_weights(model, settings) + VLLM_OVERHEAD
    return int(settings.utilization * gpu) - taken


def cached_token(model: Model, settings: Settings) -> int:
    """Bytes of a token in vLLM's cache on one GPU, averaged over a response of full length.

    vLLM keeps no more of a layer than its window.
    """
    windows = [min(window / settings.context, 1.0) for window in model.windows]
    keys = BIT16 * model.cached * sum(windows)
    states = FP32 * model.states / settings.context
    return math.ceil((keys + states) / settings.tensor_parallel)


def kept_cache(model: Model, tokens: int) -> int:
    """Bytes of the keys and values, or latent vectors, of `tokens` tokens in bf16.

    The windows of layers do not count.
    """
    return BIT16 * len(model.windows) * model.cached * tokens


def engine_capacity(model: Model, settings: Settings, gpu: int, mean: int) -> EngineCapacity:
    """What an engine holds on a GPU of `gpu` bytes.

    `mean` has the tokens of a response of mean length, its prompt included.
    """
    cache = max(0, cache_room(model, settings, gpu))
    tokens = cache // cached_token(model, settings)
    # vLLM is not told: it starts as many as fit and queues the others.
    fitting = min(settings.engine_responses, tokens // mean, MOST_SEQUENCES)
    return EngineCapacity(
        weights_bytes=engine_weights(model, settings),
        cache_bytes=cache,
        cache_tokens=tokens,
        full_sequences=tokens // settings.context,
        mean_sequences=tokens // mean,
        most_sequences=settings.sequences or max(1, fitting),
        sequences_a_step=settings.engine_responses,
    )


def cache_bytes(model: Model, settings: Settings, gpu: int) -> int:
    """Bytes for keys and values of an engine that is told them, and does not measure its room."""
    return cache_room(model, settings, gpu) - VLLM_GRAPHS
