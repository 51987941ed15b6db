"""Kimi k1.5's length reward, after open-r1 (commit 1416fa0)."""

import torch
from torch import Tensor

from openrlhf_swap.config import setting
from openrlhf_swap.objectives.base import Objective
from openrlhf_swap.objectives.group_statistics import extremes
from openrlhf_swap.rollouts.rollout import Batch


class Kimi(Objective):
    """R = c + weight l; l = .5 - (L - shortest)/(longest - shortest), at most 0 if wrong.

    Without a spread of lengths l is 0.
    """

    weight: float = setting(1.0, "of the length reward beside the answer's")

    def rewards(self, batch: Batch) -> Tensor:
        shortest, longest = extremes(batch.lengths, torch.ones_like(batch.correct))
        place = (batch.lengths - shortest) / (longest - shortest)
        length_reward = (0.5 - place).nan_to_num(0.0)
        length_reward[~batch.correct] = length_reward[~batch.correct].clamp(max=0)
        return batch.correct.double() + self.weight * length_reward
