"""A length penalty in proportion to the group's accuracy, as prime-rl's `linear`.

After its code (commit 559b447), without its terms for input tokens and turns. As merged, wrong answers pay too, so
that among them the shortest fares best: "fail fast". `gated` is the change proposed there (pull request 3376).
"""

from __future__ import annotations

from torch import Tensor

from openrlhf_swap.config import FlagSettings, setting
from openrlhf_swap.objectives.base import Objective
from openrlhf_swap.rollouts.batch import Batch


class PrimeLinear(Objective):
    """A = R - mean, R = c - p weight L/longest, p the group's accuracy; wrong answers pay unless it is gated."""

    normaliser = "centre"

    class Settings(FlagSettings):
        """Flags `--swap.prime_linear.*`."""

        weight: float = setting(0.25, "what the longest response of an all-correct group pays")
        gated: int = setting(0, "1: only correct answers pay; 0: all, as merged", "use 0 or 1", ge=0, le=1)

    settings: Settings

    def rewards(self, batch: Batch) -> Tensor:
        """Nothing is paid in a group without a correct answer."""
        correct = batch.correct.double()
        lengths = batch.lengths.double()
        price = correct.mean(-1, keepdim=True) * self.settings.weight * lengths / lengths.amax(-1, keepdim=True)
        return correct - price * (correct if self.settings.gated else 1.0)
