"""ARLCP: a correct answer pays for more reflection and more tokens than the group's other correct ones.

After github.com/ZeweiYu1/ARLCP (commit c8ff44f; ICLR 2026). Its KL penalty of .001 in the reward is a flag of
OpenRLHF, and stands in the loss here.
"""

from __future__ import annotations

import re

import torch
from torch import Tensor

from openrlhf_swap.config import FlagSettings, setting
from openrlhf_swap.objectives.adaptthink import is_right
from openrlhf_swap.objectives.base import Objective
from openrlhf_swap.objectives.groups import mean_of, variance_of
from openrlhf_swap.rollouts.batch import Batch

WORDS = (
    "wait|alternatively|hold on|another thought|verify|think again|but|however|alternative|check|double-check|oh|hmm"
)
_REFLECTION = re.compile(rf"\b(?:{WORDS})\b", re.IGNORECASE)


class ARLCP(Objective):
    """A = N/(N-1) (R - mean), R = c - w sigmoid(z of its reflections) - (.2 - w) sigmoid(z of its length).

    Both z are taken among the group's correct responses. Reflections are words such as "wait" and "however"; w is .05
    of up to 40 of them, .1 of up to 80, else .15. A thought has to be closed once, and not opened again.
    """

    normaliser = "centre"

    class Settings(FlagSettings):
        """Flags `--swap.arlcp.*`."""

        penalty: float = setting(0.2, "most that a correct answer can lose", "use a number in (0, 1)", gt=0, lt=1)

    settings: Settings

    def correct(self, batch: Batch) -> Tensor:
        """With the thought in its place."""
        return batch.each(
            lambda r: is_right(r.correct, r.prompt, batch.reader.text(r.response_ids), self.config)
        ).bool()

    def rewards(self, batch: Batch) -> Tensor:
        """Leave-one-out rewards: R N/(N-1), for the mean of the other responses is the baseline."""
        counts = batch.each(lambda r: len(_REFLECTION.findall(batch.reader.text(r.response_ids))))
        share = torch.where(counts <= 40, 0.25, torch.where(counts <= 80, 0.5, 0.75)).double()
        lost = share * _place(counts, batch.correct) + (1 - share) * _place(batch.lengths.double(), batch.correct)
        size = batch.lengths.shape[-1]
        return torch.where(self.correct(batch), 1 - self.settings.penalty * lost, 0.0) * (size / max(1, size - 1))


def _place(values: Tensor, correct: Tensor) -> Tensor:
    """(G, N) sigmoid of a value's z-score among those of the correct responses."""
    deviation = variance_of(values, correct, unbiased=True).sqrt()
    return torch.sigmoid((values - mean_of(values, correct)) / (deviation + 1e-6))
