"""What an objective returns, checked on every batch where a mistake would otherwise pass for a training signal.

Shapes: G groups, N responses a group, A tokens of the longest response.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from openrlhf_swap.errors import ObjectiveError
from openrlhf_swap.objectives.base import Objective, SamplingRequest
from openrlhf_swap.rollouts.reader import ResponseReader
from openrlhf_swap.rollouts.rollout import Batch, Rollout


def rewards_of(objective: Objective, batch: Batch) -> Tensor:
    """(G, N) the objective's rewards; ObjectiveError for another shape, or a number that is not finite."""
    rewards = objective.rewards(batch)
    _check_tensor(objective, "rewards", rewards, torch.ones_like(batch.correct))
    return rewards


def token_advantages_of(objective: Objective, batch: Batch) -> Tensor | None:
    """(G, N, A) what the objective adds to each token, or None; ObjectiveError as in `rewards_of`.

    What stands after the end of a response reaches no update, so it may be anything.
    """
    values = objective.token_advantages(batch)
    if values is not None:
        is_token = torch.arange(int(batch.lengths.max())) < batch.lengths.unsqueeze(-1)
        _check_tensor(objective, "token_advantages", values, is_token)
    return values


def sampling_of(objective: Objective, prompt: str, count: int, max_new_tokens: int) -> list[SamplingRequest]:
    """How the objective samples the responses to a prompt; ObjectiveError for another number of responses."""
    requests = objective.sampling(prompt, count, max_new_tokens)
    total = sum(request.count for request in requests)
    if total != count and objective.continues != "join":
        raise _error(objective, "sampling", f"{count} responses to a prompt", str(total))
    return requests


def edited_rollout(objective: Objective, rollout: Rollout, reader: ResponseReader) -> Rollout:
    """The response that the objective trains on; ObjectiveError if no token of it is left."""
    edited = objective.edit(rollout, reader)
    if rollout.response_ids and not edited.response_ids:
        raise _error(objective, "edit", "a response of at least one token", "none")
    return edited


def _check_tensor(objective: Objective, method: str, values: Any, counts: Tensor) -> None:
    """Raise ObjectiveError unless the values have the shape of `counts`, and are finite where it is True."""
    shape = tuple(counts.shape)
    found = tuple(values.shape) if isinstance(values, Tensor) else f"a {type(values).__name__}"
    if found != shape:
        axes = ("groups", "responses a group", "tokens of the longest response")[: len(shape)]
        raise _error(objective, method, f"a tensor of shape {shape}, ({', '.join(axes)})", str(found))
    wrong = ~values.isfinite() & counts
    if wrong.any():
        place = wrong.nonzero()[0].tolist()
        names = ", ".join(f"{axis} {i}" for axis, i in zip(("group", "response", "token"), place, strict=False))
        more = int(wrong.sum()) - 1
        first = values[tuple(place)].item()
        raise _error(objective, method, "finite numbers", f"{first} at {names}, and {more} more that are not finite")


def _error(objective: Objective, method: str, expected: str, found: str) -> ObjectiveError:
    return ObjectiveError(
        f"--swap.objective is {objective.config.objective}, whose `{method}` returned {found}; expected {expected}: "
        f"fix {type(objective).__qualname__}.{method}"
    )
