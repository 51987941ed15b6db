"""Which flags make a run fit, and whether the optimizer stays on the GPU."""

import math
from collections.abc import Iterable
from dataclasses import dataclass, replace
from itertools import chain, product
from typing import Any

from openrlhf_swap.sizing.memory import engine_capacity, host_bytes, phases
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
        enough = engine_capacity(model, settings, self.gpu, settings.mean)["full_sequences"] > 0
        return enough and all(sum(parts.values()) <= self.gpu for parts in phases(model, settings, self.gpu).values())


def find_remedy(model: Model, settings: Settings, machine: Machine) -> str | None:
    """The flags with which everything fits, all of them together; None if no flags are enough.

    All combinations are tried. A flag is part of the remedy only if no combination of cheaper flags fits: first those
    of `_cheap`, then those of `_costly`, each in its order.
    """
    cheap, costly = _cheap(settings), _costly(model, settings, machine)
    smallest = [choices[-1] for choices in cheap]  # each of them only lowers what a phase needs
    for chosen in product(*reversed(costly)):  # the last one varies fastest
        if not machine.holds(model, _changed(model, settings, machine, [*chosen, *smallest])):
            continue
        for others in product(*reversed(cheap)):
            choices = [*reversed(others), *reversed(chosen)]
            changed = _changed(model, settings, machine, choices)
            if machine.holds(model, changed):
                return " ".join(flag.format(changed) for flag, _ in choices if flag)
    return None


def place_optimizer(model: Model, given: Settings, machine: Machine) -> Settings:
    """The settings as a run follows them: an optimizer that may leave stays on the GPUs if it fits beside vLLM.

    With --ds.enable_sleep and --vllm.enable_sleep on one machine it stays if every phase of a step fits without the
    former, and vLLM still holds one response of full length and as many of mean length (half of the longest) at a time
    as with the share that the run gives it. The share is the run's, or as much less as it takes.
    """
    several_nodes = given.ranks > machine.gpus_of_node
    if not (given.actor_sleeps and given.vllm_sleeps) or given.adam_offload or several_nodes:
        return given
    gpu, staying = machine.gpu, replace(given, actor_sleeps=False)
    if any(sum(parts.values()) > gpu for parts in phases(model, staying, gpu).values()):
        staying = replace(staying, utilization=min(given.utilization, _free_share(model, staying, gpu)))
    running, before = (engine_capacity(model, run, gpu, run.mean)["most_sequences"] for run in (staying, given))
    return staying if running >= before and replace(machine, node=None).holds(model, staying) else given


def _cheap(now: Settings) -> list[list[Choice]]:
    """Flags that cost little time, cheapest first."""
    chunk = [] if now.logits_chunk else [("--swap.logits_chunk 1024", {"logits_chunk": 1024})]
    choices: list[list[Choice]] = [[UNCHANGED, *chunk]]
    for name, section in (("score", "rollout"), ("update", "train")):
        rows = range(getattr(now, f"{name}_rows") - 1, 0, -1)
        flag = f"--{section}.micro_batch_size {{0.{name}_rows}}"
        fewer: list[Choice] = [(flag, {f"{name}_rows": n}) for n in rows if now.batch % (n * now.ranks) == 0]
        if now.update_limit:
            fewer = [(f"--{section}.max_tokens_per_gpu {{0.context}}", {f"{name}_limit": 1})]  # a response at a time
        choices.append([UNCHANGED, *fewer])
    return choices


def _costly(model: Model, now: Settings, machine: Machine) -> list[list[Choice]]:
    """Flags that cost time in each step, cheapest first; then those that change the run."""
    places = now.engines * now.tensor_parallel
    sizes = [n for n in range(now.tensor_parallel + 1, places + 1) if places % n == 0 and model.heads % n == 0]
    tensor_parallel = "--vllm.tensor_parallel_size {0.tensor_parallel} --vllm.num_engines {0.engines}"
    contexts = range((now.context - 1) // 1000 * 1000, max(0, now.context - now.longest), -1000)
    flags: list[list[Choice]] = [
        *([(flag, {name: True})] for name, flag in SAVE_GPU_MEMORY.items() if now.shared and not getattr(now, name)),
        [("--actor.gradient_checkpointing_enable", {"checkpointing": True})],
        [(tensor_parallel, {"tensor_parallel": n, "engines": places // n}) for n in sizes],
        [("--vllm.gpu_memory_utilization {0.utilization:.2f}", {"utilization": None})],
        [("--ds.zero_stage 3", {"stage": 3})] if now.can_shard else [],
        [] if now.adam_offload else [("--ds.adam_offload", {"adam_offload": True})],
        [("--data.max_len {0.context} --rollout.max_new_tokens {0.longest}", {"context": n}) for n in contexts],
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
    changed = replace(changed, engine_responses=math.ceil(now.engine_responses * now.engines / changed.engines))
    if share is not None:
        return place_optimizer(model, replace(changed, utilization=share), machine)
    # With all that vLLM can get, or with what an optimizer that stays leaves to it: that takes less main memory.
    shares = (_free_share(model, now, machine.gpu) for now in (changed, replace(changed, actor_sleeps=False)))
    leaving, staying = (place_optimizer(model, replace(changed, utilization=free), machine) for free in shares)
    return leaving if machine.holds(model, leaving) else staying


def _free_share(model: Model, settings: Settings, gpu: int) -> float:
    """The share of a GPU that all phases leave to vLLM, in whole hundredths."""
    without = phases(model, replace(settings, utilization=0.0), gpu).values()
    taken = max(sum(parts.values()) for parts in without if "vLLM" in parts)
    return min(MOST_UTILIZATION, max(0, math.floor(100 - 100 * taken / gpu)) / 100)
