"""A length penalty in proportion to the group's accuracy, as prime-rl's `linear`.

After its code (commit 559b447), without its terms for input tokens and turns.
"""

from __future__ import annotations

from torch import Tensor

from openrlhf_swap.config import FlagSettings, setting
from openrlhf_swap.objectives.base import Objective
from openrlhf_swap.rollouts.batch import Batch


class PrimeLinear(Objective):
    """A = R - mean, R = c - p weight L/longest; p is the group's accuracy, and wrong answers pay too."""

    normaliser = "centre"

    class Settings(FlagSettings):
        """Flags `--swap.prime_linear.*`."""

        weight: float = setting(0.25, "what the longest response of an all-right group pays")

    settings: Settings

    def rewards(self, batch: Batch) -> Tensor:
        """Nobody pays where nobody is right."""
        right = batch.correct.double()
        lengths = batch.lengths.double()
        share = lengths / lengths.amax(-1, keepdim=True)
        return right - right.mean(-1, keepdim=True) * self.settings.weight * share
