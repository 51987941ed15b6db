"""Statistics that objectives share.

Shapes: G groups, N responses a group, K steps, A tokens of the longest response. Statistics are
float64. `mask` is bool and tells which values count.
"""

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import NamedTuple

import torch
from torch import Tensor
from torch.nn.functional import pad

from openrlhf_swap.algorithm.advantages import per_token
from openrlhf_swap.rollouts.rollout import Batch, Rollout

EPS = 1e-6  # a deviation below it is float noise


def shortest(lengths: Tensor, mask: Tensor) -> Tensor:
    """(..., 1) float64, the least of the lengths where `mask`; infinity where nothing counts."""
    counted = torch.where(mask, lengths.double(), math.inf)
    return counted.amin(-1, keepdim=True)


def longest(lengths: Tensor, mask: Tensor) -> Tensor:
    """(..., 1) float64, the largest of the lengths where `mask`; -infinity where nothing counts."""
    counted = torch.where(mask, lengths.double(), -math.inf)
    return counted.amax(-1, keepdim=True)


def group_mean(values: Tensor) -> Tensor:
    """(G, 1) float64 mean of each group; of `correct` it is the group's accuracy."""
    return values.double().mean(-1, keepdim=True)


def leave_one_out(rewards: Tensor) -> Tensor:
    """N/(N-1) R of a group of N: less their mean, it is R less the mean of the other responses."""
    size = rewards.shape[-1]
    return rewards * (size / max(1, size - 1))


def known_lengths(lengths: Mapping[str, float], keys: Sequence[str]) -> Tensor:
    """(G, 1) float64 what is remembered of each group's problem; NaN for an unknown one."""
    known = [lengths.get(key, math.nan) for key in keys]
    return torch.tensor(known, dtype=torch.float64).unsqueeze(-1)


def of_each_token(batch: Batch, of_steps: Tensor, rest: float) -> Tensor:
    """(G, N, A) the (G, N, K) value of each token's step, and `rest` after the last step."""
    steps = batch.steps
    exists = steps.has_step
    values = torch.where(exists, of_steps, rest)
    values = pad(values, (0, 1), value=rest)
    return per_token(values, steps.step_ends, exists, int(batch.lengths.max()))


class Span(NamedTuple):
    """Tokens of a response that have the same value."""

    start: int
    stop: int  # after the last token
    value: float


def fill_spans(
    batch: Batch, default: Tensor | float, spans_of: Callable[[Rollout], Iterable[Span]]
) -> Tensor:
    """(G, N, A) float64, the values of the spans of each response, and elsewhere the default."""
    shape = (*batch.lengths.shape, int(batch.lengths.max()))
    values = torch.zeros(shape, dtype=torch.float64) + default
    for rows, group in zip(values, batch.groups, strict=True):
        for row, rollout in zip(rows, group, strict=True):
            for span in spans_of(rollout):
                row[span.start : span.stop] = span.value
    return values
