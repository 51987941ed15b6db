"""Training Language Models to Reason Efficiently (Arora and Zanette): correct answers lose with their length.

After the authors' code (commit e3611e4).
"""

from __future__ import annotations

import torch
from torch import Tensor

from openrlhf_swap.config import FlagSettings, setting
from openrlhf_swap.objectives.base import Objective
from openrlhf_swap.objectives.groups import mean_of, variance_of
from openrlhf_swap.rollouts.batch import Batch


class Arora(Objective):
    """A = N/(N-1) (R - mean), R = c (1 - alpha sigmoid((L - m)/s)); m and s of the group's correct lengths."""

    normaliser = "centre"

    class Settings(FlagSettings):
        """Flags `--swap.arora.*`."""

        alpha: float = setting(0.1, "most that a correct answer can lose", "use a number between 0 and 1", ge=0, lt=1)

    settings: Settings

    def rewards(self, batch: Batch) -> Tensor:
        """Leave-one-out rewards: R N/(N-1), for the mean of the other responses is the baseline.

        A response that was cut off earns nothing.
        """
        lengths, correct = batch.lengths.double(), batch.correct & ~batch.truncated
        deviation = variance_of(lengths, correct, unbiased=False).sqrt()
        place = torch.sigmoid((lengths - mean_of(lengths, correct)) / (deviation + 1e-7))
        size = lengths.shape[-1]
        return torch.where(correct, 1 - self.settings.alpha * place, 0.0) * (size / max(1, size - 1))
