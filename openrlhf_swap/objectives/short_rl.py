"""Short-RL: the length counts among correct answers only, and only while accuracy is near its best.

After github.com/lblankl/Short-RL (commit 07cea8a; arXiv 2505.12284). There the best accuracy is forgotten on a resume.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from openrlhf_swap.config import FlagSettings, SwapConfig, setting
from openrlhf_swap.objectives.base import Objective
from openrlhf_swap.objectives.groups import least_of, relative_place
from openrlhf_swap.objectives.laser import CORRECT, UNFORMATTED, base_scores
from openrlhf_swap.rollouts.batch import Batch


class ShortRL(Objective):
    """R = answer (2, -1.5 wrong, -2 unformatted) + format (1 or -1) + [accuracy is near its best] l, in the group."""

    boxes_answers = True
    remembers_batches = True

    class Settings(FlagSettings):
        """Flags `--swap.short_rl.*`."""

        tolerance: int = setting(
            200, "a correct answer longer than the shortest by at most this many tokens loses nothing"
        )
        accuracy_margin: float = setting(0.05, "the length counts while accuracy is at most this far below its best")

    settings: Settings

    def __init__(self, config: SwapConfig) -> None:
        super().__init__(config)
        self._best = 0.0

    def rewards(self, batch: Batch) -> Tensor:
        """The best accuracy so far includes this batch."""
        scores = base_scores(batch)
        formatted, correct = scores != UNFORMATTED, scores == CORRECT
        answer = torch.where(formatted, torch.where(correct, 2.0, -1.5), -2.0)
        rewards = answer.double() + torch.where(formatted, 1.0, -1.0)
        accuracy = correct.double().mean().item()
        self._best = max(self._best, accuracy)
        if accuracy < self._best - self.settings.accuracy_margin:
            return rewards
        shortness = 0.5 - relative_place(batch.lengths, correct, guard=1e-5)
        is_short = batch.lengths <= least_of(batch.lengths, correct) + self.settings.tolerance
        return rewards + torch.where(correct, torch.where(is_short, 0.5, shortness), 0.0)

    def metrics(self) -> dict[str, float]:
        """The best accuracy."""
        return {"swap/short_rl_best_accuracy": self._best}

    def state_dict(self) -> dict[str, Any]:
        """The best accuracy."""
        return {"best": self._best}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """As saved."""
        self._best = state["best"]
