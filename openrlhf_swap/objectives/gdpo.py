"""GDPO: each reward is normalised by itself before they are added.

After its verl code (commit b080e63).
"""

from __future__ import annotations

from torch import Tensor

from openrlhf_swap.algorithm.advantages import outcome_advantages
from openrlhf_swap.config import FlagSettings, setting
from openrlhf_swap.objectives.base import Objective
from openrlhf_swap.objectives.groups import EPS, whitened
from openrlhf_swap.rollouts.batch import Batch


class GDPO(Objective):
    """A = whiten(GRPO(c) + weight GRPO([L <= L_T])), whitened over the tokens of the batch."""

    normaliser = "none"

    class Settings(FlagSettings):
        """Flags `--swap.gdpo.*`."""

        target_length: int = setting(4000, "L_T, in tokens", "use a number of tokens", ge=1)
        length_weight: float = setting(1.0, "of the length's advantage beside the answer's")

    settings: Settings

    def rewards(self, batch: Batch) -> Tensor:
        """The advantage itself."""
        answer = outcome_advantages(batch.correct.double(), EPS)
        length = outcome_advantages((batch.lengths <= self.settings.target_length).double(), EPS)
        return whitened(answer + self.settings.length_weight * length, batch.lengths)
