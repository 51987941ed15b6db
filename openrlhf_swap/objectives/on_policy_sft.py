"""On-policy SFT: every correct response within the limit is imitated, and nothing else is done.

After github.com/EIT-NLP/On-Policy-SFT (commit e71d0d4; arXiv 2602.13407): no baseline, no deviation, no KL term. The
limit is OpenRLHF's (`--rollout.max_new_tokens`, there 3,500).
"""

from __future__ import annotations

from torch import Tensor

from openrlhf_swap.objectives.base import Objective
from openrlhf_swap.rollouts.batch import Batch


class OnPolicySFT(Objective):
    """A = T/T_correct for correct responses, 0 for the others: the loss is the cross entropy of the correct ones."""

    normaliser = "none"
    needs_end = True

    def rewards(self, batch: Batch) -> Tensor:
        """The advantage itself; T_correct are the batch's tokens of correct responses."""
        correct = self.correct(batch).double()
        imitated = (batch.lengths * correct).sum()
        return correct * (batch.lengths.sum() / imitated.clamp(min=1))
