"""The cosine length reward of Demystifying Long Chain-of-Thought Reasoning.

After its code (commit e90cf9b), with the numbers of TRL (commit f2cd577), which counts tokens and clamps.
The authors' own scripts: correct 2 to 1, wrong -10 to 0.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

from openrlhf_swap.config import FlagSettings, setting
from openrlhf_swap.objectives.base import Objective
from openrlhf_swap.rollouts.batch import Batch


class Cosine(Objective):
    """R = long + (short - long)/2 (1 + cos(pi L/L_max)), with numbers for correct and for wrong answers; in the group.

    As published, a wrong answer earns more the longer it is: watch for repetition.
    """

    class Settings(FlagSettings):
        """Flags `--swap.cosine.*`."""

        right_short: float = setting(1.0, "reward of a correct answer of no length")
        right_long: float = setting(0.5, "of one of L_max tokens")
        wrong_short: float = setting(-1.0, "reward of a wrong answer of no length")
        wrong_long: float = setting(-0.5, "of one of L_max tokens")
        max_length: int = setting(
            12000, "L_max: the run's longest response, in tokens", "use a number of tokens", ge=1
        )

    settings: Settings

    def rewards(self, batch: Batch) -> Tensor:
        """Beyond L_max as at L_max."""
        chosen, correct = self.settings, batch.correct
        share = (batch.lengths.double() / chosen.max_length).clamp(max=1)
        short = torch.where(correct, chosen.right_short, chosen.wrong_short).double()
        long = torch.where(correct, chosen.right_long, chosen.wrong_long).double()
        return long + (short - long) / 2 * (1 + torch.cos(math.pi * share))
