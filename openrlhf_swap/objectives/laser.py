"""LASER: a bonus for correct answers within a target length.

After github.com/hkust-nlp/Laser (2025-05-22).
"""

from __future__ import annotations

from torch import Tensor

from openrlhf_swap.config import FlagSettings, setting
from openrlhf_swap.objectives.base import Objective
from openrlhf_swap.rollouts.batch import Batch
from openrlhf_swap.rollouts.reader import is_formatted
from openrlhf_swap.rollouts.rollout import Rollout

CORRECT, WRONG, UNFORMATTED = 1.0, -0.5, -1.0


def base_scores(batch: Batch) -> Tensor:
    """(G, N) 1 for a correct answer, -0.5 for a wrong one, -1 for a response without the format (or cut off)."""

    def score(rollout: Rollout) -> float:
        if not is_formatted(rollout.response_ids, batch.reader):
            return UNFORMATTED
        return CORRECT if rollout.correct else WRONG

    return batch.each(score)


class Laser(Objective):
    """R = s + bonus [s = 1 and L <= L_T], normalised in the group."""

    boxes_answers = True

    class Settings(FlagSettings):
        """Flags `--swap.laser.*`."""

        target_length: int = setting(8192, "L_T, in tokens")
        bonus: float = setting(0.5, "added to a correct answer within L_T")

    settings: Settings

    def rewards(self, batch: Batch) -> Tensor:
        """Base score and bonus."""
        scores = base_scores(batch)
        earns = (scores == CORRECT) & (batch.lengths <= self.settings.target_length)
        return scores + self.settings.bonus * earns
