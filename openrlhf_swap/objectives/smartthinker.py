"""SmartThinker, after github.com/SJTU-RTEAS/SmartThinker (commit e64d877)."""

import torch
from torch import Tensor

from openrlhf_swap.algorithm.advantages import moments
from openrlhf_swap.objectives.base import Batch, Objective
from openrlhf_swap.objectives.group_statistics import EPS, extremes, group_mean


class SmartThinker(Objective):
    """R = c - alpha e, in the group; e = max(0, L - L*) of correct answers, 0 of wrong ones.

    alpha = (1 - p)/(largest e - mean e), so that no correct answer falls below a wrong one. It is
    0 unless the group has both.
    """

    def rewards(self, batch: Batch) -> Tensor:
        correct = batch.correct
        excess = (batch.lengths - best_lengths(batch.lengths, correct)).clamp(min=0) * correct
        accuracy = group_mean(correct)
        most_above_mean = excess.amax(-1, keepdim=True) - group_mean(excess)
        alpha = (1 - accuracy) / (most_above_mean + EPS)
        mixed = (accuracy > 0) & (accuracy < 1)
        return correct.double() - torch.where(mixed, alpha, 0.0) * excess


def best_lengths(lengths: Tensor, correct: Tensor) -> Tensor:
    """(G, 1) L*, where accuracy should peak, from (G, N) lengths and verdicts.

    Two Gaussians, one of all lengths and one of the correct ones, have their largest ratio there.
    """
    everyone = torch.ones_like(correct)
    shortest, longest = extremes(lengths, everyone)
    mean, deviation, _ = moments(lengths.double(), everyone, unbiased=False)
    correct_mean, correct_deviation, _ = moments(lengths.double(), correct, unbiased=False)
    variance = deviation.square()
    correct_variance = correct_deviation.square()

    peak = (variance * correct_mean - correct_variance * mean) / (variance - correct_variance)
    best = peak.maximum(shortest).minimum(longest)
    alike = correct_variance == variance
    no_peak = alike | (correct_variance > variance) | correct.all(-1, keepdim=True)
    best = torch.where(no_peak, shortest, best)
    longer_is_better = alike & (correct_mean < mean) | ~correct.any(-1, keepdim=True)
    return torch.where(longer_is_better, longest, best)
