"""SmartThinker (2026): correct answers pay for what exceeds the length at which accuracy should be highest.

After github.com/SJTU-RTEAS/SmartThinker (commit e64d877; arXiv 2603.08000).
"""

from __future__ import annotations

import torch
from torch import Tensor

from openrlhf_swap.objectives.base import Objective
from openrlhf_swap.objectives.groups import mean_of, variance_of
from openrlhf_swap.rollouts.batch import Batch


class SmartThinker(Objective):
    """R = c - alpha e, normalised in the group; e = max(0, L - L*) of correct answers, 0 of wrong ones.

    alpha = (1 - p)/(largest e - mean e), so that no correct answer falls below a wrong one; 0 unless both are there.
    """

    def rewards(self, batch: Batch) -> Tensor:
        """As above; groups that are all correct get no signal, as published."""
        correct, lengths = batch.correct, batch.lengths.double()
        excess = torch.where(correct, (lengths - best_lengths(lengths, correct)).clamp(min=0), 0.0)
        accuracy = correct.double().mean(-1, keepdim=True)
        scale = (1 - accuracy) / (excess.amax(-1, keepdim=True) - excess.mean(-1, keepdim=True) + 1e-6)
        mixed = correct.any(-1, keepdim=True) & ~correct.all(-1, keepdim=True)
        return correct.double() - torch.where(mixed, scale, 0.0) * excess


def best_lengths(lengths: Tensor, correct: Tensor) -> Tensor:
    """(G, 1) L*: where two Gaussians, of all lengths and of the correct ones, put the highest accuracy.

    Args:
        lengths: (G, N) float64.
        correct: (G, N) bool.
    """
    everyone = torch.ones_like(correct)
    shortest, longest = lengths.amin(-1, keepdim=True), lengths.amax(-1, keepdim=True)
    mean, variance = mean_of(lengths, everyone), variance_of(lengths, everyone, unbiased=False)
    correct_mean, correct_variance = mean_of(lengths, correct), variance_of(lengths, correct, unbiased=False)
    peak = (variance * correct_mean - correct_variance * mean) / (variance - correct_variance)
    best = torch.where(correct_variance > variance, shortest, peak.maximum(shortest).minimum(longest))
    tied = torch.where(correct_mean < mean, longest, shortest)
    best = torch.where(correct_variance == variance, tied, best)
    best = torch.where(correct.all(-1, keepdim=True), shortest, best)
    return torch.where(correct.any(-1, keepdim=True), best, longest)
