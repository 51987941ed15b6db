"""DLER: a hard limit, and an advantage that is whitened over the batch.

After its verl code (commit ea7d4f7). The clip range .2/.28, the KL loss 5e-4 and the limit of 4,000 tokens
(`--rollout.max_new_tokens`) are OpenRLHF's flags.
"""

from __future__ import annotations

from torch import Tensor

from openrlhf_swap.objectives.base import Objective
from openrlhf_swap.objectives.groups import whitened
from openrlhf_swap.rollouts.batch import Batch


class DLER(Objective):
    """A = whiten(c - p), p the group's accuracy, whitened over the batch's tokens; cut off or unclosed is wrong."""

    normaliser = "none"
    needs_all_groups = False
    needs_closed_thought = True
    needs_end = True

    def rewards(self, batch: Batch) -> Tensor:
        """The advantage itself."""
        correct = self.correct(batch).double()
        return whitened(correct - correct.mean(-1, keepdim=True), batch.lengths)
