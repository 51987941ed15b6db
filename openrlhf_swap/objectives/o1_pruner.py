"""O1-Pruner's reward, online.

The published method (github.com/StarDewXXX/O1-Pruner, commit 04c0863) trains offline: the means are the reference
model's, two samples a problem are kept, and a ratio of mean log-probabilities is clipped. Here the group stands in for
the reference and the batch for the data set; results are not comparable.
"""

from __future__ import annotations

import torch
from torch import Tensor

from openrlhf_swap.config import FlagSettings, setting
from openrlhf_swap.objectives.base import Objective
from openrlhf_swap.objectives.groups import EPS
from openrlhf_swap.rollouts.batch import Batch


class O1Pruner(Objective):
    """A = z-score over the batch of clip(mean L/L - 1 + alpha (c - p), -2, 4)."""

    normaliser = "none"

    class Settings(FlagSettings):
        """Flags `--swap.o1_pruner.*`."""

        alpha: float = setting(5.0, "weight of the answer; low values make short wrong answers attractive")

    settings: Settings

    def rewards(self, batch: Batch) -> Tensor:
        """The advantage itself; the deviation is the population's."""
        lengths, correct = batch.lengths.double(), batch.correct.double()
        shortness = lengths.mean(-1, keepdim=True) / lengths - 1
        weights = (shortness + self.settings.alpha * (correct - correct.mean(-1, keepdim=True))).clamp(-2, 4)
        deviation = weights.std(correction=0)
        return torch.zeros_like(weights) if deviation < EPS else (weights - weights.mean()) / deviation
