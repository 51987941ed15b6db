"""A response in the two forms that OpenRLHF knows: what its rollout actor returns, and the sample made of that.

Everything in between, and everything after, reads the `Rollout` that travels with the sample.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field, replace
from typing import Any, TypedDict

from openrlhf.trainer.ppo_utils.experience import Experience
from typing_extensions import NotRequired

from openrlhf_swap.errors import DataError
from openrlhf_swap.rewards.verifiers import GRADED_CORRECT, Reference
from openrlhf_swap.rollouts.rollout import Rollout

FAILED = "swap/reward_function_failed"
"""In `extra_logs`: why the reward function gave no reward."""


class EngineResponse(TypedDict):
    """One response as OpenRLHF's rollout actor returns it; other keys are OpenRLHF's own business.

    The last three keys are ours: they are set on responses that were continued (`continuations.py`).
    """

    prompt: str
    label: str
    observation_tokens: list[int]
    """Prompt and response."""
    action_ranges: list[tuple[int, int]]
    """Where the model's turns start and end in `observation_tokens`; `action_range` reads the only one."""
    reward: float | None
    scores: float | None
    truncated: NotRequired[bool]
    rollout_log_probs: list[float] | None
    extra_logs: NotRequired[dict[str, Any]]
    probes: NotRequired[list[tuple[int, float]]]
    metadata: NotRequired[dict[str, float]]
    continued_tokens: NotRequired[int]


@dataclass
class Sample(Experience):
    """One response as OpenRLHF batches it, with the rollout that it was made from.

    OpenRLHF concatenates samples field by field and drops `rollout`, but numbers them first: `Experience.index`
    finds the rollouts of a micro-batch in the list of all samples.
    """

    rollout: Rollout = field(kw_only=True)


def action_range(response: EngineResponse) -> tuple[int, int]:
    """Start and end of the response in `observation_tokens`: a rollout has one turn."""
    ((start, end),) = response["action_ranges"]
    return start, end


def reward_of(response: EngineResponse) -> float:
    """The response's reward; raises DataError when the reward function returned none, or no finite number."""
    reward = response["reward"]
    if reward is None:
        reason = response.get("extra_logs", {}).get(FAILED, "its own error is in the log above")
        raise DataError(f"the reward function of --reward.remote_url gave no reward for a response: {reason}")
    try:
        value = float(reward)  # of a tensor with one number, too
    except (TypeError, ValueError):
        raise DataError(
            f"--reward.remote_url gave {reward!r} as the reward of a response; it has to be one number"
        ) from None
    if not math.isfinite(value):
        raise DataError(
            f"the reward function of --reward.remote_url gave {value} for a response; rewards have to be finite"
        )
    return value


def with_numbers(response: dict[str, Any]) -> dict[str, Any]:
    """The response with numbers where a reward server such as OpenRLHF's own gives lists of one, for its one query."""
    logs = {name: _only(value) for name, value in (response.get("extra_logs") or {}).items()}
    return {**response, "reward": _only(response["reward"]), "scores": _only(response["scores"]), "extra_logs": logs}


def _only(value: Any) -> Any:
    return value[0] if isinstance(value, list) and len(value) == 1 else value


def rollout_of(response: EngineResponse) -> Rollout:
    """The rollout of a response.

    Raises:
        DataError: when the reward function returned no reward, or one that is not finite.
    """
    start, end = action_range(response)
    return Rollout(
        prompt=response["prompt"],
        answer=Reference.parse(response["label"]).answer,
        response_ids=response["observation_tokens"][start:end],
        start=start,
        reward=reward_of(response),
        truncated=bool(response.get("truncated", False)),
        probes=response.get("probes", ()),
        graded_correct=None if (said := response.get("extra_logs", {}).get(GRADED_CORRECT)) is None else said > 0,
        metadata=response.get("metadata", {}),
    )


def with_rollout(response: EngineResponse, rollout: Rollout) -> EngineResponse:
    """The response with the prompt and the tokens of a rollout that was made from it and changed since."""
    start, ids = rollout.start, list(rollout.response_ids)
    changed = {
        "prompt": rollout.prompt,
        "observation_tokens": response["observation_tokens"][:start] + ids,
        "action_ranges": [(start, start + len(ids))],
    }
    return {**response, **changed}  # type: ignore[typeddict-item]  # `changed` has the right types


def within_context(rollout: Rollout, context: int) -> Rollout:
    """The rollout without the tokens beyond `context`, which OpenRLHF drops from its samples."""
    return replace(rollout, response_ids=rollout.response_ids[: max(0, context - rollout.start)])
