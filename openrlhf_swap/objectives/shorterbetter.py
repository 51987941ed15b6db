"""ShorterBetter, after github.com/JingyangYi/ShorterBetter (commit 6399366)."""

import torch
from torch import Tensor

from openrlhf_swap.config import setting
from openrlhf_swap.objectives.base import Objective
from openrlhf_swap.objectives.group_statistics import extremes, group_mean
from openrlhf_swap.rollouts.rollout import Batch


class ShorterBetter(Objective):
    """R = 2 c - rate |L - L*|, in the group; L* is the shortest correct length.

    Without a correct response L* is the mean length.
    """

    correct_weight: float = setting(2.0, "reward of a correct answer")
    rate: float = setting(0.001, "taken off for each token of difference, of wrong answers too")

    def rewards(self, batch: Batch) -> Tensor:
        shortest, _ = extremes(batch.lengths, batch.correct)
        best = torch.where(shortest.isinf(), group_mean(batch.lengths), shortest)
        distance = (batch.lengths - best).abs()
        return self.correct_weight * batch.correct.double() - self.rate * distance
