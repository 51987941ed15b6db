"""Whether the optimizer can stay on a GPU while vLLM generates there."""

from __future__ import annotations

from dataclasses import replace

from openrlhf_swap.errors import ConfigError
from openrlhf_swap.flags.configuration import Configuration
from openrlhf_swap.flags.placement import MOST_SEQUENCES
from openrlhf_swap.sizing.memory import phases, vllm_capacity
from openrlhf_swap.sizing.models import GIB, Model
from openrlhf_swap.sizing.remedies import Machine, free_share
from openrlhf_swap.sizing.settings import PROMPT, Settings, read_run

RESERVE = 4 * GIB  # of a GPU, for CUDA contexts, NCCL, CUDA graphs and fragmentation


def optimizer_stays(configuration: Configuration, gpu: int) -> float | None:
    """The share of a GPU that vLLM takes beside an optimizer that stays there; None where the optimizer must leave.

    It stays if every phase of a step fits without --ds.enable_sleep, and vLLM still holds one response of full length
    and as many of mean length (half of the longest) at a time as with the share that the run gives it. The share is
    the run's, or as much less as it takes.

    Args:
        configuration: a run with vLLM and DeepSpeed in turn on the same GPUs.
        gpu: bytes of one of them, all of it.
    """
    try:
        model, asleep = read_run(configuration, RESERVE)
    except ConfigError:  # there is no formula for it
        return None
    if asleep.adam_offload or not asleep.shared:
        return None
    longest = configuration.args.rollout.max_new_tokens or asleep.context
    mean = min(PROMPT, asleep.context // 2) + longest // 2
    awake = replace(asleep, actor_sleeps=False)
    if any(sum(parts.values()) > gpu for parts in phases(model, awake, gpu).values()):
        awake = replace(awake, utilization=min(asleep.utilization, free_share(model, awake, gpu)))
    enough = running_responses(model, awake, gpu, mean) >= running_responses(model, asleep, gpu, mean)
    return awake.utilization if enough and Machine(gpu, 1).holds(model, awake) else None


def running_responses(model: Model, settings: Settings, gpu: int, mean: int) -> int:
    """Responses of `mean` tokens, prompt included, that an engine generates at a time."""
    capacity = vllm_capacity(model, settings, gpu)
    fitting = max(0, capacity["cache"]) // capacity["token"] // mean
    # vLLM is not told: it starts as many as fit and queues the others.
    return settings.sequences or max(1, min(settings.engine_responses, fitting, MOST_SEQUENCES))
