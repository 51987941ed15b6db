"""SmartThinker, after github.com/SJTU-RTEAS/SmartThinker (commit e64d877)."""

import torch
from torch import Tensor

from openrlhf_swap.algorithm.advantages import moments
from openrlhf_swap.objectives.base import Batch, Objective
from openrlhf_swap.objectives.group_statistics import EPS, group_mean


class SmartThinker(Objective):
    """R = c - alpha e, in the group; e = max(0, L - L*) of correct answers, 0 of wrong ones.

    alpha = (1 - p)/(largest e - mean e), so that no correct answer falls below a wrong one. It is
    0 unless the group has both.
    """

    def rewards(self, batch: Batch) -> Tensor:
        correct = batch.correct
        best = best_lengths(batch.lengths, correct)
        excess = (batch.lengths - best).clamp(min=0) * correct
        accuracy = group_mean(correct)
        most_above_mean = excess.amax(-1, keepdim=True) - group_mean(excess)
        alpha = (1 - accuracy) / (most_above_mean + EPS)
        mixed = (accuracy > 0) & (accuracy < 1)
        return correct.double() - torch.where(mixed, alpha, 0.0) * excess


def best_lengths(lengths: Tensor, correct: Tensor) -> Tensor:
    """(G, 1) L*, where accuracy should peak, from (G, N) lengths and verdicts.

    Two Gaussians, one of all lengths and one of the correct ones, have their largest ratio there.
    """
    lengths = lengths.double()
    least = lengths.amin(-1, keepdim=True)
    most = lengths.amax(-1, keepdim=True)
    every = moments(lengths, unbiased=False)
    right = moments(lengths, correct, unbiased=False)
    variance = every.deviation.square()
    of_right = right.deviation.square()

    peak = (variance * right.mean - of_right * every.mean) / (variance - of_right)
    best = peak.maximum(least).minimum(most)
    alike = of_right == variance
    all_right = correct.all(-1, keepdim=True)
    no_peak = alike | (of_right > variance) | all_right
    best = torch.where(no_peak, least, best)
    all_wrong = ~correct.any(-1, keepdim=True)
    longer_is_better = alike & (right.mean < every.mean) | all_wrong
    return torch.where(longer_is_better, most, best)
