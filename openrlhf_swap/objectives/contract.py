"""What an objective returns, checked on every batch: a wrong shape would train on other responses' rewards.

Shapes: G groups, N responses a group, A tokens of the longest response.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from openrlhf_swap.errors import ObjectiveError
from openrlhf_swap.objectives.base import Continuation, Objective, SamplingRequest
from openrlhf_swap.rollouts.batch import Batch
from openrlhf_swap.rollouts.reader import ResponseReader
from openrlhf_swap.rollouts.rollout import Rollout

LEAST = {"count": 1, "max_new_tokens": 1, "kept": 0}
TEXTS = ("prompt", "forced", "suffix")


def rewards_of(objective: Objective, batch: Batch) -> Tensor:
    """(G, N) floating point, the objective's rewards.

    Raises:
        ObjectiveError: when they have another type or shape, or are not finite.
    """
    rewards = objective.rewards(batch)
    _check_tensor(objective, "rewards", rewards, tuple(batch.rewards.shape), "(groups, responses a group)")
    _check_finite(objective, "rewards", rewards)
    return rewards


def token_advantages_of(objective: Objective, batch: Batch) -> Tensor | None:
    """(G, N, A) floating point, what the objective adds to each token; None for nothing.

    Raises:
        ObjectiveError: when it has another type or shape, or is not finite at a token of a response.
    """
    values: Any = objective.token_advantages(batch)
    if values is None:
        return None
    shape = (*batch.lengths.shape, int(batch.lengths.max()))
    axes = "(groups, responses a group, tokens of the longest response)"
    _check_tensor(objective, "token_advantages", values, shape, axes)
    if not values.isfinite().all():  # what stands behind the end of a response reaches no update
        is_token = torch.arange(shape[-1]) < batch.lengths.unsqueeze(-1)
        _check_finite(objective, "token_advantages", values.where(is_token, 0.0))
    checked: Tensor = values
    return checked


def sampling_of(objective: Objective, prompt: str, count: int, max_new_tokens: int) -> list[SamplingRequest]:
    """How the objective samples the responses to a prompt.

    Raises:
        ObjectiveError: for a request of another type, or requests that do not make `count` responses.
    """
    requests: Any = objective.sampling(prompt, count, max_new_tokens)
    _check_requests(objective, "sampling", requests, SamplingRequest)
    total = sum(request.count for request in requests)
    if total != count and objective.continues != "join":
        raise _error(objective, "sampling", f"{count} responses to a prompt", f"{total}")
    return list(requests)


def continuations_of(objective: Objective, rollout: Rollout, reader: ResponseReader) -> list[Continuation]:
    """What the objective generates from a response; ObjectiveError for a wrong type or a negative number."""
    continuations: Any = objective.continuations(rollout, reader)
    _check_requests(objective, "continuations", continuations, Continuation)
    return list(continuations)


def edited(objective: Objective, rollout: Rollout, reader: ResponseReader) -> Rollout:
    """The response that the objective trains on; ObjectiveError when it is no rollout, or has no token left."""
    result: Any = objective.edit(rollout, reader)
    if not isinstance(result, Rollout):
        raise _error(objective, "edit", "a Rollout", _type(result))
    if rollout.response_ids and not result.response_ids:
        raise _error(objective, "edit", "a response of at least one token", "none")
    return result


def first_logprob_of(objective: Objective, rollout: Rollout, logprob: float) -> float:
    """Behaviour log-probability of a response's first token; ObjectiveError when it is not a finite number.

    One that the policy's own makes so is left to the guard that skips such a step.
    """
    found: Any = objective.first_logprob(rollout, logprob)
    if isinstance(found, bool) or not isinstance(found, int | float):
        raise _error(objective, "first_logprob", "a number", _type(found))
    if math.isfinite(logprob) and not math.isfinite(found):
        raise _error(objective, "first_logprob", "a finite log-probability", repr(found))
    return float(found)


def metrics_of(objective: Objective) -> dict[str, float]:
    """The objective's metrics; ObjectiveError when they are not numbers under names."""
    metrics: Any = objective.metrics()
    if not isinstance(metrics, Mapping):
        raise _error(objective, "metrics", "a dict of names and numbers", _type(metrics))
    for name, value in metrics.items():
        if not isinstance(name, str) or isinstance(value, bool) or not isinstance(value, int | float):
            raise _error(objective, "metrics", "a number under each name", f"{value!r} under {name!r}")
    return dict(metrics)


def _check_requests(objective: Objective, method: str, requests: Any, kind: type) -> None:
    if not isinstance(requests, Sequence):
        raise _error(objective, method, f"a list of {kind.__name__}", _type(requests))
    for request in requests:
        if not isinstance(request, kind):
            raise _error(objective, method, f"a list of {kind.__name__}", f"{_type(request)} in it")
        for name, value in vars(request).items():
            if name in TEXTS and not isinstance(value, str):
                raise _error(objective, method, f"a text as `{name}`", repr(value))
            if name not in TEXTS and not (type(value) is int and value >= LEAST[name]):
                raise _error(objective, method, f"a whole number of at least {LEAST[name]} as `{name}`", repr(value))


def _check_tensor(objective: Objective, method: str, values: Any, shape: tuple[int, ...], axes: str) -> None:
    if not isinstance(values, Tensor):
        raise _error(objective, method, f"a tensor of shape {shape}", _type(values))
    if values.shape != shape:
        raise _error(objective, method, f"shape {shape}, {axes}", f"{tuple(values.shape)}")
    if not values.is_floating_point():
        raise _error(objective, method, "a tensor of float64", f"one of {str(values.dtype).removeprefix('torch.')}")


def _check_finite(objective: Objective, method: str, values: Tensor) -> None:
    if values.isfinite().all():
        return
    wrong = (~values.isfinite()).nonzero()
    place = wrong[0].tolist()
    names = ", ".join(f"{axis} {i}" for axis, i in zip(("group", "response", "token"), place, strict=False))
    found = f"{values[tuple(place)].item()} at {names}, and {len(wrong) - 1} more that are not finite"
    raise _error(objective, method, "finite numbers", found)


def _error(objective: Objective, method: str, expected: str, found: str) -> ObjectiveError:
    return ObjectiveError(
        f"--swap.objective is {objective.config.objective}, whose `{method}` returned {found}; expected {expected}: "
        f"mend {type(objective).__qualname__}.{method}"
    )


def _type(value: object) -> str:
    return f"a {type(value).__name__}"
