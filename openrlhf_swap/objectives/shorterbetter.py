"""ShorterBetter: the shortest correct response of a group is the length to aim at.

After github.com/JingyangYi/ShorterBetter (commit 6399366).
"""

from __future__ import annotations

import torch
from torch import Tensor

from openrlhf_swap.config import FlagSettings, setting
from openrlhf_swap.objectives.base import Objective
from openrlhf_swap.objectives.groups import least_of
from openrlhf_swap.rollouts.batch import Batch


class ShorterBetter(Objective):
    """R = 2 c - rate |L - L*|, normalised in the group; L* is the shortest correct length, or the mean without any."""

    class Settings(FlagSettings):
        """Flags `--swap.shorterbetter.*`."""

        correct_weight: float = setting(2.0, "reward of a correct answer")
        rate: float = setting(0.001, "taken off for each token of difference, of wrong answers too")

    settings: Settings

    def rewards(self, batch: Batch) -> Tensor:
        """Right answers longer than L* by over correct_weight/rate tokens fall below a wrong one of L* tokens."""
        lengths = batch.lengths.double()
        best = least_of(lengths, batch.correct)
        best = torch.where(best.isinf(), lengths.mean(-1, keepdim=True), best)
        return self.settings.correct_weight * batch.correct - self.settings.rate * (lengths - best).abs()
