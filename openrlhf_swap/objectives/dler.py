"""DLER, after its code (commit ea7d4f7)."""

from torch import Tensor

from openrlhf_swap.objectives.base import Objective
from openrlhf_swap.objectives.group_statistics import group_mean, whitened
from openrlhf_swap.rollouts.rollout import Batch


class DLER(Objective):
    """A = whiten(c - p) over the batch's tokens; cut off or unclosed is wrong."""

    normaliser = "none"
    needs_all_groups = False

    def correct(self, batch: Batch) -> Tensor:
        return batch.correct & batch.closed & ~batch.truncated

    def rewards(self, batch: Batch) -> Tensor:
        correct = self.correct(batch).double()
        return whitened(correct - group_mean(correct), batch.lengths)
