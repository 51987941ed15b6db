"""What fits into a machine: where the optimizer stays, what is recomputed, and which flags help."""

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from operator import itemgetter
from typing import Any

from openrlhf_swap.flags.placement import MOST_SEQUENCES
from openrlhf_swap.sizing.engine import (
    BLOCK_TOKENS,
    VLLM_GRAPHS,
    VLLM_OVERHEAD,
    cache_room,
    cached_token,
    engine_capacity,
    engine_weights,
)
from openrlhf_swap.sizing.host import cpu_bytes, host_bytes
from openrlhf_swap.sizing.memory import ADAM, partition, phases, total
from openrlhf_swap.sizing.models import Model, gib
from openrlhf_swap.sizing.settings import BytesByUse, Settings

MOST_UTILIZATION = 0.95
# Of a GPU, where the plan lets an update keep or hold more: rows of other lengths leave gaps.
MOST_KEPT = 0.9
MOST_CHUNK = 8192  # tokens whose logits are held at a time: more would save next to nothing
VLLM_CACHE = "vLLM's cache"  # what may be too small besides
NODE_MEMORY = "main memory"


@dataclass(frozen=True)
class Machine:
    """What a run has to fit into, in bytes."""

    gpu: int
    gpus_of_node: int
    node: int | None = None  # main memory of a node, if known

    def missing(self, model: Model, settings: Settings) -> dict[str, int]:
        """Bytes that each phase, vLLM's cache and a node lack; less than 0 where some are left.

        The cache has to hold one response of full length.
        """
        lacking = {}
        for phase, parts in phases(model, settings, self.gpu).items():
            lacking[phase] = total(parts) - self.gpu
        longest = settings.context * cached_token(model, settings)
        lacking[VLLM_CACHE] = longest - cache_room(model, settings, self.gpu)
        if self.node:
            held = host_bytes(model, settings, self.gpus_of_node)
            lacking[NODE_MEMORY] = total(held) - self.node
        return lacking

    def holds(self, model: Model, settings: Settings) -> bool:
        """Whether nothing is missing."""
        return max(self.missing(model, settings).values()) <= 0


def fit(model: Model, given: Settings, machine: Machine) -> Settings:
    """The settings as a run follows them: the places, what an update keeps, the logits it holds.

    The first choice is taken that leaves a tenth of the GPU free.
    """
    placed = place_optimizer(model, given, machine)
    kept = _keep_most(model, placed, machine.gpu)
    return _raise_chunk(model, kept, machine.gpu)


def _keep_most(model: Model, placed: Settings, gpu: int) -> Settings:
    """Settings whose update recomputes nothing; or all but products and attention; or layers."""
    choices = []
    if placed.may_keep_all:
        choices.append(replace(placed, checkpointing=False))
    if placed.may_keep_products:
        choices.append(replace(placed, keeps_products=True))
    for choice in choices:
        if _leave_a_tenth(model, choice, gpu, ["update"]):
            return choice
    return placed


def _raise_chunk(model: Model, kept: Settings, gpu: int) -> Settings:
    """Settings with which each pass holds the logits of as many tokens as fit."""
    if not kept.may_raise_chunk:
        return kept
    chunk = MOST_CHUNK
    while chunk > kept.logits_chunk:
        raised = replace(kept, logits_chunk=chunk)
        if _leave_a_tenth(model, raised, gpu, ["update", "score"]):
            return raised
        chunk //= 2
    return kept


def _leave_a_tenth(model: Model, settings: Settings, gpu: int, names: Sequence[str]) -> bool:
    """Whether each of these phases leaves a tenth of the GPU free."""
    needed = phases(model, settings, gpu)
    return all(total(needed[name]) <= MOST_KEPT * gpu for name in names)


def describe_update(given: Settings, settings: Settings) -> str | None:
    """What the plan has decided about an update; None where flags say all."""
    holds = f"holds the logits of {settings.logits_chunk:,} tokens at a time"
    holds_more = settings.logits_chunk > given.logits_chunk
    if not settings.may_keep_all:
        return holds if holds_more else None
    recomputes = _describe_recomputing(settings)
    return f"{recomputes}; it {holds}" if holds_more else recomputes


def _describe_recomputing(settings: Settings) -> str:
    if not settings.checkpointing:
        return "recomputes nothing, because all activations fit"
    if settings.keeps_products:
        return "recomputes all but products and attention, because their results fit"
    return "recomputes each layer, because not all activations fit"


def place_optimizer(model: Model, given: Settings, machine: Machine) -> Settings:
    """The settings as a run follows them: what may leave the GPUs stays there if it fits.

    With --ds.enable_sleep and --vllm.enable_sleep on one machine a run takes the first of three
    ways that fits: nothing leaves; the optimizer stays while vLLM sleeps; both leave.
    """
    may_leave = given.actor_sleeps and given.vllm_sleeps and not given.adam_offload
    several_nodes = given.ranks > machine.gpus_of_node
    if not may_leave or several_nodes:
        return given
    of_gpus = replace(machine, node=None)
    side_by_side = _side_by_side(model, given, machine.gpu)
    fits = side_by_side.utilization <= given.utilization
    if fits and of_gpus.holds(model, side_by_side):
        return side_by_side
    staying = replace(given, actor_sleeps=False)
    free = _free_share(model, staying, machine.gpu)
    staying = replace(staying, utilization=min(given.utilization, free))
    # vLLM has to run as many responses at a time with what the optimizer leaves to it.
    if _at_a_time(model, staying, machine.gpu) < _at_a_time(model, given, machine.gpu):
        return given
    return staying if of_gpus.holds(model, staying) else given


def _side_by_side(model: Model, given: Settings, gpu: int) -> Settings:
    """Settings with which nothing leaves a GPU.

    vLLM's share then holds its weights, its graphs, and all responses that it generates at a time
    at their full length.
    """
    responses = given.sequences or min(given.engine_responses, MOST_SEQUENCES)
    tokens = responses * (given.context + BLOCK_TOKENS)
    cache = tokens * cached_token(model, given)
    needed = engine_weights(model, given) + VLLM_OVERHEAD + VLLM_GRAPHS + cache
    share = math.ceil(100 * needed / gpu) / 100
    return replace(given, actor_sleeps=False, vllm_sleeps=False, utilization=share)


def lower_micro_batches(model: Model, given: Settings, cache: int, available: int) -> Settings:
    """The settings with the micro-batches that fit into a CPU's `available` bytes of main memory.

    Those that responses of mean length overfill are halved until responses of full length fit, or
    to one response. `cache` has the bytes of an engine's keys and values.
    """

    def fits(settings: Settings) -> bool:
        return total(cpu_bytes(model, settings, cache)) <= available

    if fits(of_mean_length(given)):
        return given
    lowered = given
    while not fits(lowered) and max(lowered.update_rows, lowered.score_rows) > 1:
        lowered = replace(
            lowered,
            update_rows=_fewer(lowered.update_rows),
            score_rows=_fewer(lowered.score_rows),
        )
    return lowered


def of_mean_length(settings: Settings) -> Settings:
    """The settings with responses of mean length in place of the longest."""
    return replace(settings, context=settings.mean)


def copied_bytes(model: Model, settings: Settings) -> int:
    """Bytes of a GPU that a step copies to the main memory and back, because a side sleeps."""
    leaving = 0
    if settings.actor_sleeps and not settings.adam_offload:
        leaving += ADAM * partition(model, settings)
    if settings.vllm_sleeps:
        leaving += engine_weights(model, settings)
    return 2 * leaving


def describe_place(model: Model, given: Settings, settings: Settings) -> str:
    """What an optimizer does while vLLM generates, and the copies that this saves."""
    copied = copied_bytes(model, settings)
    saved = copied_bytes(model, given) - copied
    copies = f"a step copies {gib(copied)} GiB on each GPU"
    if saved:
        copies += f", {gib(saved)} less than if both left"
    if settings.adam_offload:
        return f"is in main memory: {copies}"
    if settings.actor_sleeps:
        return f"leaves the GPU while vLLM generates: {copies}"
    stays = f"stays on the GPU beside vLLM, which takes {settings.utilization:.0%} of it"
    if settings.vllm_sleeps:
        return f"{stays} and sleeps in turn: {copies}"
    return f"{stays} and never sleeps: {copies}"


def _at_a_time(model: Model, settings: Settings, gpu: int) -> int:
    """Responses of mean length that an engine runs at a time."""
    return engine_capacity(model, settings, gpu, settings.mean).most_sequences


def _free_share(model: Model, settings: Settings, gpu: int) -> float:
    """The share of a GPU that all phases leave to vLLM, in whole hundredths."""
    without = phases(model, replace(settings, utilization=0.0), gpu)
    taken = [total(parts) for parts in without.values() if "vLLM" in parts]
    hundredths = math.floor(100 - 100 * max(taken) / gpu)
    return min(MOST_UTILIZATION, max(0, hundredths) / 100)


def savings(model: Model, given: Settings, machine: Machine) -> dict[str, BytesByUse]:
    """What each flag saves, by itself, of what is missing: place -> flags -> bytes, most first."""
    missing = machine.missing(model, fit(model, given, machine))
    lacking = [place for place, size in missing.items() if size > 0]
    saved: dict[str, BytesByUse] = {place: {} for place in lacking}
    for flag, changes in _alternatives(model, given, machine.gpu).items():
        changed = fit(model, replace(given, **changes), machine)
        left = machine.missing(model, changed)
        for place, flags in saved.items():
            if left[place] < missing[place]:
                flags[flag] = missing[place] - left[place]
    for place, flags in saved.items():
        saved[place] = dict(sorted(flags.items(), key=itemgetter(1), reverse=True))
    return saved


def _alternatives(model: Model, now: Settings, gpu: int) -> dict[str, dict[str, Any]]:
    """Flags that may save memory, and the settings that each changes; some change nothing."""
    update_rows = _fewer(now.update_rows)
    score_rows = _fewer(now.score_rows)
    free = _free_share(model, now, gpu)
    flags: dict[str, dict[str, Any]] = {
        "--swap.logits_chunk 1024": {"logits_chunk": 1024},
        f"--rollout.micro_batch_size {score_rows}": {"score_rows": score_rows},
        f"--train.micro_batch_size {update_rows}": {"update_rows": update_rows},
        f"--rollout.max_tokens_per_gpu {now.context}": {
            "score_limit": min(now.score_limit, now.context)
        },
        f"--train.max_tokens_per_gpu {now.context}": {
            "update_limit": min(now.update_limit, now.context)
        },
        "--actor.gradient_checkpointing_enable": {"checkpointing": True},
        "--ds.adam_offload": {"adam_offload": True},
        "--no-vllm.enable_sleep": {"vllm_sleeps": False},
        "--no-ds.enable_sleep": {"actor_sleeps": False},
        "--no-ds.adam_offload": {"adam_offload": False},
    }
    if free:
        flags[f"--vllm.gpu_memory_utilization {free:.2f}"] = {"utilization": free}
    if now.shared:
        flags["--vllm.enable_sleep"] = {"vllm_sleeps": True}
        flags["--ds.enable_sleep"] = {"actor_sleeps": True}
    if now.can_shard:
        flags["--ds.zero_stage 3"] = {"stage": 3}
    size = 2 * now.tensor_parallel
    engines = now.engines // 2
    if now.engines % 2 == 0 and model.heads % size == 0:
        flags[f"--vllm.tensor_parallel_size {size} --vllm.num_engines {engines}"] = {
            "tensor_parallel": size,
            "engines": engines,
            "engine_responses": 2 * now.engine_responses,
        }
    tokens = now.longest // 2
    context = now.context - now.longest + tokens
    flags[f"--data.max_len {context} --rollout.max_new_tokens {tokens}"] = {"context": context}
    return flags


def _fewer(rows: int) -> int:
    """Half of the rows, or one where they have no half: a divisor of what `rows` divides."""
    return rows // 2 if rows % 2 == 0 else 1
