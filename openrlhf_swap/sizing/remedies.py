"""Which flags make a run fit."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass, replace
from itertools import chain, product
from typing import Any

from openrlhf_swap.sizing.memory import host_bytes, phases, vllm_capacity
from openrlhf_swap.sizing.models import Model
from openrlhf_swap.sizing.settings import Settings

Choice = tuple[str, dict[str, Any]]
"""A flag, which may name settings, and the settings that it changes."""
UNCHANGED: Choice = ("", {})
MOST_UTILIZATION = 0.95
SAVE_GPU_MEMORY = {"vllm_sleeps": "--vllm.enable_sleep", "actor_sleeps": "--ds.enable_sleep"}
TAKE_MAIN_MEMORY = SAVE_GPU_MEMORY | {"adam_offload": "--ds.adam_offload", "averages": "--train.enable_ema"}


@dataclass(frozen=True)
class Machine:
    """What a run has to fit into, in bytes."""

    gpu: int
    gpus_of_node: int
    node: int | None = None  # main memory of a node, if known

    def holds(self, model: Model, settings: Settings) -> bool:
        """Whether each phase fits the GPU, vLLM's part of it one response of full length, and a node the rest."""
        if self.node and sum(host_bytes(model, settings, self.gpus_of_node).values()) > self.node:
            return False
        vllm = vllm_capacity(model, settings, self.gpu)
        enough = vllm["cache"] >= settings.context * vllm["token"]
        return enough and all(sum(parts.values()) <= self.gpu for parts in phases(model, settings, self.gpu).values())


def find_remedy(model: Model, settings: Settings, machine: Machine, response: int) -> str | None:
    """The flags with which everything fits, all of them together; None if no flags are enough.

    All combinations are tried. A flag is part of the remedy only if no combination of cheaper flags fits: first those
    of `_cheap`, then those of `_costly`, each in its order. `response` is the most tokens of a response.
    """
    cheap, costly = _cheap(settings), _costly(model, settings, machine, response)
    smallest = [choices[-1] for choices in cheap]  # each of them only lowers what a phase needs
    for chosen in product(*reversed(costly)):  # the last one varies fastest
        if not machine.holds(model, _changed(model, settings, machine, [*chosen, *smallest])):
            continue
        for others in product(*reversed(cheap)):
            choices = [*reversed(others), *reversed(chosen)]
            changed = _changed(model, settings, machine, choices)
            if machine.holds(model, changed):
                longest = response - settings.context + changed.context
                return " ".join(flag.format(changed, longest) for flag, _ in choices if flag)
    return None


def _cheap(now: Settings) -> list[list[Choice]]:
    """Flags that cost little time, cheapest first."""
    chunk = [] if now.logits_chunk else [("--swap.logits_chunk 1024", {"logits_chunk": 1024})]
    choices: list[list[Choice]] = [[UNCHANGED, *chunk]]
    for name, section in (("score", "rollout"), ("update", "train")):
        rows = range(getattr(now, f"{name}_rows") - 1, 0, -1)
        flag = f"--{section}.micro_batch_size {{0.{name}_rows}}"
        fewer: list[Choice] = [(flag, {f"{name}_rows": n}) for n in rows if now.batch % (n * now.ranks) == 0]
        if now.dynamic:
            fewer = [(f"--{section}.max_tokens_per_gpu {{0.context}}", {f"{name}_tokens": 0})]
        choices.append([UNCHANGED, *fewer])
    return choices


def _costly(model: Model, now: Settings, machine: Machine, response: int) -> list[list[Choice]]:
    """Flags that cost time in each step, cheapest first; then those that change the run."""
    places = now.engines * now.tensor_parallel
    sizes = [n for n in range(now.tensor_parallel + 1, places + 1) if places % n == 0 and model.heads % n == 0]
    tensor_parallel = "--vllm.tensor_parallel_size {0.tensor_parallel} --vllm.num_engines {0.engines}"
    contexts = range((now.context - 1) // 1000 * 1000, max(0, now.context - response), -1000)
    flags: list[list[Choice]] = [
        *([(flag, {name: True})] for name, flag in SAVE_GPU_MEMORY.items() if now.shared and not getattr(now, name)),
        [("--actor.gradient_checkpointing_enable", {"checkpointing": True})],
        [(tensor_parallel, {"tensor_parallel": n, "engines": places // n}) for n in sizes],
        [("--vllm.gpu_memory_utilization {0.utilization:.2f}", {"utilization": None})],
        [("--ds.zero_stage 3", {"stage": 3})] if now.can_shard else [],
        [] if now.adam_offload else [("--ds.adam_offload", {"adam_offload": True})],
        [("--data.max_len {0.context} --rollout.max_new_tokens {1}", {"context": n}) for n in contexts],
    ]
    if machine.node:
        given = ((name, flag) for name, flag in TAKE_MAIN_MEMORY.items() if getattr(now, name))
        flags += [[(flag.replace("--", "--no-"), {name: False})] for name, flag in given]
    return [[UNCHANGED, *choices] for choices in flags]


def _changed(model: Model, now: Settings, machine: Machine, choices: Iterable[Choice]) -> Settings:
    """The settings after some choices, and what follows from them."""
    changes = dict(chain.from_iterable(change.items() for _, change in choices))
    share = changes.pop("utilization", now.utilization)
    changed = replace(now, **changes)
    score, update = changed.score_rows * changed.context, changed.update_rows * changed.context
    if now.dynamic:
        score, update = max(changed.context, changed.score_tokens), max(changed.context, changed.update_tokens)
    rows = score // changed.context
    changed = replace(changed, score_tokens=score, score_rows=rows, update_tokens=update)
    return replace(changed, utilization=free_share(model, changed, machine.gpu) if share is None else share)


def free_share(model: Model, settings: Settings, gpu: int) -> float:
    """The share of a GPU that all phases leave to vLLM, in whole hundredths."""
    without = phases(model, replace(settings, utilization=0.0), gpu).values()
    taken = max(sum(parts.values()) for parts in without if "vLLM" in parts)
    return min(MOST_UTILIZATION, max(0, math.floor(100 - 100 * taken / gpu)) / 100)


def host_remedy(held: dict[str, int]) -> str:
    """The flag that frees the most of a node's main memory, given `host_bytes`."""
    flags = {
        "weights of sleeping vLLM": "a larger --vllm.tensor_parallel_size",
        "moving average": "no --train.enable_ema",
        "optimizer": "no --ds.adam_offload",
        "sleeping optimizer": "no --ds.enable_sleep",
    }
    return f"{flags[max(held, key=lambda part: held[part])]} (if the GPUs have the capacity), or nodes with more"
