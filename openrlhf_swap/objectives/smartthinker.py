"""SmartThinker (2026): right answers pay for what is longer than the length at which accuracy should be highest.

After github.com/SJTU-RTEAS/SmartThinker (commit e64d877; arXiv 2603.08000).
"""

from __future__ import annotations

import torch
from torch import Tensor

from openrlhf_swap.objectives.base import Objective
from openrlhf_swap.objectives.groups import mean_of, variance_of
from openrlhf_swap.rollouts.batch import Batch


class SmartThinker(Objective):
    """R = c - alpha e, normalised in the group; e = max(0, L - L*) of right answers, 0 of wrong ones.

    alpha = (1 - p)/(largest e - mean e), so that no right answer falls below a wrong one; 0 unless both are there.
    """

    def rewards(self, batch: Batch) -> Tensor:
        """As above; groups that are all right get no signal, as published."""
        right, lengths = batch.correct, batch.lengths.double()
        excess = torch.where(right, (lengths - best_lengths(lengths, right)).clamp(min=0), 0.0)
        accuracy = right.double().mean(-1, keepdim=True)
        scale = (1 - accuracy) / (excess.amax(-1, keepdim=True) - excess.mean(-1, keepdim=True) + 1e-6)
        mixed = right.any(-1, keepdim=True) & ~right.all(-1, keepdim=True)
        return right.double() - torch.where(mixed, scale, 0.0) * excess


def best_lengths(lengths: Tensor, right: Tensor) -> Tensor:
    """(G, 1) L*: where two Gaussians, of all lengths and of the right ones, put the highest accuracy.

    Args:
        lengths: (G, N) float64.
        right: (G, N) bool.
    """
    everyone = torch.ones_like(right)
    shortest, longest = lengths.amin(-1, keepdim=True), lengths.amax(-1, keepdim=True)
    mean, variance = mean_of(lengths, everyone), variance_of(lengths, everyone, unbiased=False)
    right_mean, right_variance = mean_of(lengths, right), variance_of(lengths, right, unbiased=False)
    peak = (variance * right_mean - right_variance * mean) / (variance - right_variance)
    best = torch.where(right_variance > variance, shortest, peak.maximum(shortest).minimum(longest))
    tied = torch.where(right_mean < mean, longest, shortest)
    best = torch.where(right_variance == variance, tied, best)
    best = torch.where(right.all(-1, keepdim=True), shortest, best)
    return torch.where(right.any(-1, keepdim=True), best, longest)
