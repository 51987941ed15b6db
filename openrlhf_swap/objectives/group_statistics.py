"""Statistics that objectives share.

Shapes: G groups, N responses a group. Statistics are float64. `mask` is bool and tells which
values count.
"""

import math
from collections.abc import Callable, Iterable

import torch
from torch import Tensor

from openrlhf_swap.rollouts.rollout import Batch, Rollout

EPS = 1e-6  # a deviation below it is float noise


def extremes(values: Tensor, mask: Tensor) -> tuple[Tensor, Tensor]:
    """(..., 1) smallest and largest where `mask`; infinity and -infinity where nothing counts."""
    smallest = torch.where(mask, values.double(), math.inf).amin(-1, keepdim=True)
    largest = torch.where(mask, values.double(), -math.inf).amax(-1, keepdim=True)
    return smallest, largest


def group_mean(values: Tensor) -> Tensor:
    """(G, 1) float64 mean of each group; of `correct` it is the group's accuracy."""
    return values.double().mean(-1, keepdim=True)


def whitened(values: Tensor, lengths: Tensor) -> Tensor:
    """(G, N) (value - mean)/deviation over the tokens of the batch; 0 without a spread.

    A response of L tokens counts L times. The deviation is unbiased.
    """
    tokens = lengths.sum()
    mean = (lengths * values).sum() / tokens
    squares = lengths * (values - mean).square()
    variance = squares.sum() / (tokens - 1).clamp(min=1)
    if variance < EPS**2:
        return torch.zeros_like(values)
    return (values - mean) / (variance + 1e-8).sqrt()


def leave_one_out(rewards: Tensor) -> Tensor:
    """N/(N-1) R of a group of N: less their mean, it is R less the mean of the other responses."""
    size = rewards.shape[-1]
    return rewards * (size / max(1, size - 1))


def step_entropies(batch: Batch) -> tuple[Tensor, Tensor]:
    """(G, N, K) float64 mean token entropy of each step in nats, and bool whether it exists."""
    steps = batch.steps
    exists = steps.state_mask[..., 1:]
    nothing = torch.zeros(exists.shape, dtype=torch.float64)
    return steps.signals.get("entropy", nothing), exists


Span = tuple[int, int, float]
"""The first token, the one after the last, and the value of each of them."""


def fill_spans(
    batch: Batch,
    default: Tensor | float,
    spans_of: Callable[[int, int, Rollout], Iterable[Span]],
) -> Tensor:
    """(G, N, A) float64, the values of the spans of response n of group g, else the default."""
    shape = (*batch.lengths.shape, int(batch.lengths.max()))
    values = torch.zeros(shape, dtype=torch.float64) + default
    for g, group in enumerate(batch.groups):
        for n, rollout in enumerate(group):
            for start, end, value in spans_of(g, n, rollout):
                values[g, n, start:end] = value
    return values
