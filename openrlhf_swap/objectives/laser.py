"""LASER: a bonus for right answers within a target length.

After github.com/hkust-nlp/Laser (2025-05-22).
"""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor

from openrlhf_swap.objectives.base import Batch, Objective, setting
from openrlhf_swap.objectives.reading import is_formatted
from openrlhf_swap.rollout import Rollout

RIGHT, WRONG, UNFORMATTED = 1.0, -0.5, -1.0


def base_score(rollout: Rollout, batch: Batch) -> float:
    """1 for a right answer in the right format, -0.5 for a wrong one, -1 without the format (or cut off)."""
    if not is_formatted(batch.reader.text(rollout.response_ids)):
        return UNFORMATTED
    return RIGHT if rollout.correct else WRONG


class Laser(Objective):
    """R = s + bonus [s = 1 and L <= L_T], normalised in the group."""

    @dataclass(frozen=True)
    class Settings:
        """Flags `--swap.laser.*`."""

        target_length: int = setting(8192, "L_T, in tokens")
        bonus: float = setting(0.5, "added to a right answer within L_T")

    def rewards(self, batch: Batch) -> Tensor:
        """Base score and bonus."""
        scores = batch.each(lambda rollout: base_score(rollout, batch))
        earns = (scores == RIGHT) & (batch.lengths <= self.settings.target_length)
        return scores + self.settings.bonus * earns
