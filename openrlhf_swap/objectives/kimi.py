"""The length reward of Kimi k1.5.

Its own weight and warm-up are not published; 1 is that of open-r1 (commit 1416fa0), LASER's comparison takes 0.4.
"""

from __future__ import annotations

import torch
from torch import Tensor

from openrlhf_swap.config import FlagSettings, setting
from openrlhf_swap.objectives.base import Objective
from openrlhf_swap.objectives.groups import relative_place
from openrlhf_swap.rollouts.batch import Batch


class Kimi(Objective):
    """R = c + weight l; l = .5 - (L - shortest)/(longest - shortest) of the group, at most 0 for a wrong answer."""

    class Settings(FlagSettings):
        """Flags `--swap.kimi.*`."""

        weight: float = setting(1.0, "of the length reward beside the answer's")

    settings: Settings

    def rewards(self, batch: Batch) -> Tensor:
        """The length reward is 0 where all are as long."""
        everyone = torch.ones_like(batch.correct)
        length_reward = (0.5 - relative_place(batch.lengths, everyone)).nan_to_num(0.0)
        length_reward = torch.where(batch.correct, length_reward, length_reward.clamp(max=0))
        return batch.correct.double() + self.settings.weight * length_reward
