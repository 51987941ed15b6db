"""GFPO: only the best of each group, by length, are trained on.

After TRL's trainer (commit 0a0b612; arXiv 2508.09726), which ships no score. What share to keep is not verified.
"""

from __future__ import annotations

from typing import Literal

import torch
from torch import Tensor

from openrlhf_swap.config import FlagSettings, setting
from openrlhf_swap.objectives.base import Objective
from openrlhf_swap.objectives.groups import EPS, mean_of, variance_of
from openrlhf_swap.rollouts.batch import Batch


class GFPO(Objective):
    """A = (c - mean)/(sd + 1e-4) over the kept responses of a group, 0 for the others."""

    normaliser = "none"

    class Settings(FlagSettings):
        """Flags `--swap.gfpo.*`."""

        share: float = setting(0.5, "of a group that is kept", "use a number in (0, 1]", gt=0, le=1)
        score: Literal["length", "efficiency"] = setting(
            "length",
            "length keeps the shortest, efficiency those with the most reward per token",
            "use length or efficiency",
        )

    settings: Settings

    def rewards(self, batch: Batch) -> Tensor:
        """The advantage itself. Of equals, the first are kept."""
        rewards, size = batch.correct.double(), batch.lengths.shape[-1]
        worst_last = batch.lengths.double() if self.settings.score == "length" else -rewards / batch.lengths.double()
        best = worst_last.argsort(dim=-1, stable=True)[..., : max(1, round(size * self.settings.share))]
        kept = torch.zeros_like(batch.correct).scatter(-1, best, True)
        deviation = variance_of(rewards, kept, unbiased=True).sqrt()
        advantages = (rewards - mean_of(rewards, kept)) / (deviation + 1e-4)
        return torch.where(kept & (deviation > EPS), advantages, 0.0)
