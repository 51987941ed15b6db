"""On-Policy SFT, after github.com/EIT-NLP/On-Policy-SFT (commit e71d0d4)."""

from torch import Tensor

from openrlhf_swap.objectives.base import Objective
from openrlhf_swap.rollouts.rollout import Batch


class OnPolicySFT(Objective):
    """A = T/T_correct for correct responses, cut off or not, 0 for the others: cross entropy.

    T and T_correct are the batch's tokens.
    """

    normaliser = "none"

    def rewards(self, batch: Batch) -> Tensor:
        correct = batch.correct.double()
        imitated = (batch.lengths * correct).sum()
        return correct * (batch.lengths.sum() / imitated.clamp(min=1))
