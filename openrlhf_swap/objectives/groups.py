"""Statistics of groups and batches that several objectives share.

Shapes: G groups, N responses a group. Everything is float64.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

EPS = 1e-6  # a deviation below it is float noise


def mean_of(values: Tensor, mask: Tensor) -> Tensor:
    """(G, 1) mean of (G, N) values where `mask`; NaN for a group without any."""
    return torch.where(mask, values.double(), 0.0).sum(-1, keepdim=True) / mask.sum(-1, keepdim=True)


def variance_of(values: Tensor, mask: Tensor, unbiased: bool) -> Tensor:
    """(G, 1) variance of (G, N) values where `mask`; 0 for a group with less than two of them."""
    squares = torch.where(mask, (values.double() - mean_of(values, mask)).square(), 0.0)
    return squares.sum(-1, keepdim=True) / (mask.sum(-1, keepdim=True) - int(unbiased)).clamp(min=1)


def z_scores(values: Tensor, mask: Tensor, guard: float = EPS, unbiased: bool = True) -> Tensor:
    """(G, N) (value - mean)/(deviation + guard) of those where `mask`; 0 in a group where these do not spread."""
    deviation = variance_of(values, mask, unbiased).sqrt()
    return torch.where(deviation > EPS, (values - mean_of(values, mask)) / (deviation + guard), 0.0)


def smallest_of(values: Tensor, mask: Tensor) -> Tensor:
    """(G, 1) smallest of (G, N) values where `mask`; infinity for a group without any."""
    return torch.where(mask, values.double(), math.inf).amin(-1, keepdim=True)


def largest_of(values: Tensor, mask: Tensor) -> Tensor:
    """(G, 1) largest of (G, N) values where `mask`; minus infinity for a group without any."""
    return torch.where(mask, values.double(), -math.inf).amax(-1, keepdim=True)


def relative_place(lengths: Tensor, mask: Tensor, guard: float = 0.0) -> Tensor:
    """(G, N) (L - shortest)/(longest - shortest + guard) of those where `mask`; NaN where all are as long."""
    shortest, longest = smallest_of(lengths, mask), largest_of(lengths, mask)
    return (lengths - shortest) / (longest - shortest + guard)


def whitened(values: Tensor, lengths: Tensor) -> Tensor:
    """(G, N) (value - m)/sd over the whole batch, where a response of L tokens counts L times; 0 without a spread.

    The deviation is unbiased.
    """
    tokens = lengths.sum()
    mean = (lengths * values).sum() / tokens
    variance = (lengths * (values - mean).square()).sum() / (tokens - 1).clamp(min=1)
    return torch.zeros_like(values) if variance < EPS**2 else (values - mean) / (variance + 1e-8).sqrt()
