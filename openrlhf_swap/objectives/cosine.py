"""The cosine reward of Demystifying Long CoT (commit e90cf9b), with TRL's numbers (f2cd577)."""

import math

import torch
from torch import Tensor

from openrlhf_swap.config import setting
from openrlhf_swap.objectives.base import Objective
from openrlhf_swap.rollouts.rollout import Batch


class Cosine(Objective):
    """R = long + (short - long)/2 (1 + cos(pi L/L_max)); own numbers for wrong answers.

    As published, a wrong answer earns more the longer it is: watch for repetition.
    """

    right_short: float = setting(1.0, "reward of a correct answer of no length")
    right_long: float = setting(0.5, "of one of L_max tokens")
    wrong_short: float = setting(-1.0, "reward of a wrong answer of no length")
    wrong_long: float = setting(-0.5, "of one of L_max tokens")
    max_length: int = setting(12000, "L_max: the run's longest response, in tokens", ge=1)

    def rewards(self, batch: Batch) -> Tensor:
        share = (batch.lengths.double() / self.max_length).clamp(max=1)
        short = torch.where(batch.correct, self.right_short, self.wrong_short).double()
        long = torch.where(batch.correct, self.right_long, self.wrong_long).double()
        return long + (short - long) / 2 * (1 + torch.cos(math.pi * share))
