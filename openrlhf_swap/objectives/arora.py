"""Training Language Models to Reason Efficiently (Arora and Zanette), after commit e3611e4."""

import torch
from torch import Tensor

from openrlhf_swap.algorithm.advantages import standardise
from openrlhf_swap.config import setting
from openrlhf_swap.objectives.base import Objective
from openrlhf_swap.objectives.group_statistics import leave_one_out
from openrlhf_swap.rollouts.rollout import Batch


class Arora(Objective):
    """A = N/(N-1) (R - mean), R = c (1 - alpha sigmoid((L - m)/s)); m and s of correct lengths.

    Without a spread of correct lengths the sigmoid is 1/2.
    """

    normaliser = "centre"
    alpha: float = setting(0.1, "most that a correct answer can lose", ge=0, lt=1)

    def correct(self, batch: Batch) -> Tensor:
        return batch.correct & ~batch.truncated

    def rewards(self, batch: Batch) -> Tensor:
        correct = self.correct(batch)
        place = standardise(batch.lengths, correct, eps=1e-7, unbiased=False).sigmoid()
        return leave_one_out(torch.where(correct, 1 - self.alpha * place, 0.0))
