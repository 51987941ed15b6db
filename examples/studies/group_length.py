r"""A length term like the one of `length_critic`, without a critic.

`--swap.objective group_length:GroupLength`.

    WORLD=decomposition PYTHONPATH=$PWD/examples/studies \
        bash examples/worlds/compare.sh --configurations examples/studies/objectives/critics.json

Every token of a correct response pays for all of its tokens, against the mean of its group's
correct ones, in units of the batch's deviation of lengths. `length_critic` has a baseline that
knows the state, and by default another unit.
"""

from __future__ import annotations

import torch
from torch import Tensor

from openrlhf_swap.config import SwapConfig
from openrlhf_swap.objectives.base import Objective
from openrlhf_swap.rollouts.rollout import Batch


class GroupLength(Objective):
    """A = beta A_out - theta c (L - mean L)/deviation.

    The mean is over the group's correct responses, the deviation over these differences in the
    batch.
    """

    def __init__(self, config: SwapConfig) -> None:
        super().__init__(config)
        self.outcome_weight = self.coefficients.outcome_weight
        self.process_weight = self.coefficients.process_weight

    def token_advantages(self, batch: Batch) -> Tensor:
        """The same number for every token of a response."""
        correct, lengths = batch.correct, batch.lengths.double()
        means = torch.where(correct, lengths, 0.0).sum(-1, keepdim=True) / correct.sum(
            -1, keepdim=True
        ).clamp(min=1)
        excess = torch.where(correct, lengths - means, 0.0)
        paid = excess[correct]
        deviation = paid.std() if len(paid) > 1 else torch.zeros(())
        scaled = excess / (deviation + self.coefficients.eps)
        return -scaled.unsqueeze(-1).expand(-1, -1, int(batch.lengths.max()))
