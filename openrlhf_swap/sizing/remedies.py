"""Which flags make a run fit."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

from openrlhf_swap.sizing.memory import phases, vllm_capacity
from openrlhf_swap.sizing.models import Model
from openrlhf_swap.sizing.settings import Settings


def most_update_rows(model: Model, settings: Settings, gpu: int) -> int:
    """Responses of full length that a micro-batch of the update can hold; 0 for none."""
    rows = 0
    while rows < settings.batch // settings.ranks:
        more = replace(settings, update_tokens=(rows + 1) * settings.context)
        if sum(phases(model, more, gpu)["update"].values()) > gpu:
            break
        rows += 1
    return rows


def remedy(model: Model, settings: Settings, gpu: int, phase: str) -> str:
    """The first flag that makes a phase fit, alone or together with those before it.

    Args:
        model: the model.
        settings: those with which it does not fit.
        gpu: bytes of a GPU.
        phase: a key of `phases`.
    """

    def fits(changed: Settings) -> bool:
        return sum(phases(model, changed, gpu)[phase].values()) <= gpu

    flags: list[str] = []
    changed = settings
    for flag, change in _changes(model, settings, gpu, phase):
        if fits(replace(settings, **change)):
            return flag
        flags.append(flag)
        changed = replace(changed, **change)
        if fits(changed):
            return " ".join(flags)
    for context in range(settings.context - 1000, 0, -1000):
        shorter = replace(changed, context=context, update_tokens=context, score_tokens=context, score_rows=1)
        if fits(shorter):
            return " ".join([*flags, f"--data.max_len {context} (and a smaller --rollout.max_new_tokens)"])
    return "more or larger GPUs"


def _changes(model: Model, now: Settings, gpu: int, phase: str) -> Iterator[tuple[str, dict[str, Any]]]:
    """Flags that lower what a phase needs, those that cost the least speed first, with the settings each changes."""
    if now.shared and not now.vllm_sleeps and phase != "generate":
        yield "--vllm.enable_sleep", {"vllm_sleeps": True}
    if now.shared and not now.actor_sleeps and phase in ("generate", "score"):
        yield "--ds.enable_sleep", {"actor_sleeps": True}
    if phase == "generate":
        others = sum(phases(model, replace(now, utilization=0.0), gpu)[phase].values())
        share = math.floor(100 * (gpu - others) / gpu) / 100
        if share > 0:
            yield f"--vllm.gpu_memory_utilization {share:.2f}", {"utilization": share}
    if phase in ("update", "score") and not now.logits_chunk:
        yield "--swap.logits_chunk 1024", {"logits_chunk": 1024}
    if phase == "update" and not now.checkpointing:
        yield "--actor.gradient_checkpointing_enable", {"checkpointing": True}
    for name, section in (("update", "train"), ("score", "rollout")):
        if phase == name and now.dynamic:
            yield f"--{section}.max_tokens_per_gpu {now.context}", {f"{name}_tokens": now.context}
        elif phase == name:
            for rows in range(getattr(now, f"{name}_rows") - 1, 0, -1):
                if now.batch % (rows * now.ranks) == 0:
                    change = {f"{name}_rows": rows, f"{name}_tokens": rows * now.context}
                    yield f"--{section}.micro_batch_size {rows}", change
    if now.stage < 3 and now.ranks > 1 and not model.adapters:
        yield "--ds.zero_stage 3", {"stage": 3}
    if not now.adam_offload and phase in ("update", "adam"):
        yield "--ds.adam_offload", {"adam_offload": True}


def capacity_remedy(model: Model, settings: Settings, gpu: int) -> str | None:
    """Flags that give vLLM capacity for one response of full length; None if it has it."""

    def enough(size: int) -> bool:
        capacity = vllm_capacity(model, replace(settings, tensor_parallel=size), gpu)
        return capacity["cache"] >= settings.context * capacity["token"]

    places = settings.engines * settings.tensor_parallel
    sizes = [size for size in range(settings.tensor_parallel, places + 1) if not (places % size or model.heads % size)]
    for size in filter(enough, sizes):
        engines = places // size
        same = size == settings.tensor_parallel
        return None if same else f"--vllm.tensor_parallel_size {size} --vllm.num_engines {engines}"
    return "a larger --vllm.gpu_memory_utilization, more or larger GPUs"


def host_remedy(held: dict[str, int]) -> str:
    """The flag that frees the most of a node's main memory, given `host_bytes`."""
    flags = {
        "weights of sleeping vLLM": "a larger --vllm.tensor_parallel_size",
        "moving average": "no --train.enable_ema",
        "optimizer": "no --ds.adam_offload",
        "sleeping optimizer": "no --ds.enable_sleep",
    }
    return f"{flags[max(held, key=lambda part: held[part])]} (if the GPUs have the capacity), or nodes with more"
