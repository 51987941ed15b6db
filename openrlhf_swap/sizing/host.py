"""What a run takes of the disk and of a node's main memory, in bytes."""

import math
from collections.abc import Iterable
from dataclasses import dataclass
from types import SimpleNamespace

from openrlhf_swap.sizing.engine import engine_weights
from openrlhf_swap.sizing.memory import (
    ADAM,
    ALLOWANCE,
    SUB_GROUP,
    cpu_update_bytes,
    partition,
    phases,
    total,
)
from openrlhf_swap.sizing.models import Model
from openrlhf_swap.sizing.settings import BIT16, FP32, BytesByUse, Settings

MIB = 2**20
SEGMENT = 20 * MIB  # in which torch puts tensors of less than LARGE on a GPU
LARGE = 10 * MIB
LARGE_ROUNDING = 2 * MIB
PROCESS = 896 * MIB  # of one that has imported torch, and vLLM or DeepSpeed
SHARED = 640 * MIB  # the libraries that all of them map, and the processes of Ray
OBJECT_STORE = 256 * MIB  # Ray's on a CPU, for rollouts and weights; it would take 30% of memory
LEAST_CACHE, MOST_CACHE = 2**27, 2**30  # of keys and values of an engine on a CPU, in bytes


@dataclass(frozen=True)
class CheckpointBytes:
    """Bytes on disk."""

    deepspeed: int  # one checkpoint of DeepSpeed
    model: int  # the exported model


def checkpoint_bytes(model: Model, settings: Settings) -> CheckpointBytes:
    """What one checkpoint takes.

    DeepSpeed's has the optimizer, and the weights (not under ZeRO-3).
    """
    checkpoint = ADAM * model.trained
    if settings.stage < 3:
        checkpoint += BIT16 * model.held
    return CheckpointBytes(deepspeed=checkpoint, model=BIT16 * model.trained)


def host_bytes(model: Model, settings: Settings, gpus_of_node: int) -> BytesByUse:
    """What a node's main memory holds in addition to the processes, most of it pinned."""
    held = {}
    if settings.shared and settings.vllm_sleeps:
        held["weights of sleeping vLLM"] = gpus_of_node * _sleeping_weights(model, settings)
    own = partition(model, settings)
    if settings.adam_offload:
        # Pinned are the master copy, gradients in float32, bf16 weights, and the gradients of
        # earlier micro-batches one by one; the two moments are not.
        earlier = pinned(BIT16 * weight for weight in model.weights) // settings.ranks
        moments = 2 * FP32 * own
        master = FP32 * own
        copies = pinned([master, FP32 * own, BIT16 * own])
        held["optimizer"] = gpus_of_node * (copies + moments + earlier)
    elif settings.actor_sleeps:
        groups = [own]
        summed = 0
        if settings.stage == 3:  # which updates and moves the optimizer group by group
            groups = [SUB_GROUP] * (own // SUB_GROUP) + [own % SUB_GROUP]
            summed = pinned([settings.accumulate_bytes * own])
        states = ADAM // FP32 * pinned(FP32 * group for group in groups)
        held["sleeping optimizer"] = gpus_of_node * (states + summed)
    return held


def cpu_bytes(model: Model, settings: Settings, cache: int) -> BytesByUse:
    """What a run without GPUs takes of the main memory, by process.

    `cache` has the bytes of an engine's keys and values. vLLM keeps a second, packed copy of its
    weights, and an engine has an actor of its own beside it.
    """
    peaks = [total(parts) for parts in phases(model, settings, gpu=0).values()]
    policy = max(max(peaks) - ALLOWANCE, total(cpu_update_bytes(model, settings)))
    engine = 2 * engine_weights(model, settings) + cache
    return {
        "policy": settings.ranks * (policy + PROCESS) + OBJECT_STORE,
        "engines": settings.engines * settings.tensor_parallel * (engine + 2 * PROCESS),
        "driver": PROCESS + SHARED,
    }


def ways_to_fit(args: SimpleNamespace) -> str:
    """What lets a run without GPUs take less than it does with the smallest micro-batches."""
    adapters = "" if args.ds.lora.rank else "train adapters (--ds.lora.rank 32), "
    return f"lower --data.max_len ({args.data.max_len}), {adapters}or take a smaller model"


def cpu_cache(needed: int) -> int:
    """Bytes of an engine's keys and values on a CPU, where all responses would take `needed`.

    vLLM occupies all that it is given, so there are limits.
    """
    return min(max(needed, LEAST_CACHE), MOST_CACHE)


def _sleeping_weights(model: Model, settings: Settings) -> int:
    """Bytes of pinned main memory for the weights of one GPU of a sleeping engine.

    Every GPU of an engine has its share of each weight. vLLM copies what torch has allocated: large
    weights in whole 2 MiB, the others together in segments.
    """
    shares = [BIT16 * weight / settings.tensor_parallel for weight in model.served]
    large = [size for size in shares if size >= LARGE]
    rounded = [math.ceil(size / LARGE_ROUNDING) * LARGE_ROUNDING for size in large]
    segments = math.ceil((sum(shares) - sum(large)) / SEGMENT)
    return pinned([*rounded, *[SEGMENT] * segments])


def pinned(sizes: Iterable[float]) -> int:
    """Bytes of pinned main memory for tensors of these sizes in bytes.

    torch keeps a power of two for each.
    """
    return sum(2 ** (math.ceil(size) - 1).bit_length() for size in sizes if size)
