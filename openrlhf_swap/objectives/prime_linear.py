"""prime-rl's `linear` length penalty (commit 559b447)."""

from torch import Tensor

from openrlhf_swap.config import setting
from openrlhf_swap.objectives.base import Objective
from openrlhf_swap.objectives.group_statistics import group_mean
from openrlhf_swap.rollouts.rollout import Batch


class PrimeLinear(Objective):
    """A = R - mean, R = c - p weight L/longest, p the group's accuracy. Wrong answers pay, too."""

    normaliser = "centre"
    weight: float = setting(0.25, "what the longest response of an all-correct group pays")

    def rewards(self, batch: Batch) -> Tensor:
        longest = batch.lengths.amax(-1, keepdim=True)
        price = self.weight * group_mean(batch.correct)
        return batch.correct.double() - price * batch.lengths / longest
