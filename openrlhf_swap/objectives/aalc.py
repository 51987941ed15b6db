"""AALC: the length counts once accuracy has reached its target.

After `length_reward.py` of its code (commit f12452d), which the release itself never calls: published numbers cannot
come from it. Accuracy is that of a set of training prompts, sampled every so many steps.
"""

from __future__ import annotations

from typing import Any

from torch import Tensor

from openrlhf_swap.config import SwapConfig, setting
from openrlhf_swap.objectives.monitored import Monitored, MonitorSettings
from openrlhf_swap.rollouts.batch import Batch

LENGTH_WEIGHT, SHARPNESS, EPS = 1e-6, 128, 1e-6


class AALC(Monitored):
    """R = c (1 - .1 a) + 1e-6 (1 - min(a^128, min(1, L/long))), a = min(1, accuracy/target); in the group.

    The second term decides in groups that are all correct or all wrong, and nowhere else.
    """

    normaliser = "none"

    class Settings(MonitorSettings):
        """Flags `--swap.aalc.*`."""

        target: float = setting(
            1.0, "accuracy from which the length counts in full", "use a number in (0, 1]", gt=0, le=1
        )
        long: int = setting(1024, "tokens from which a response counts as long", ge=1)
        monitor_samples: int = setting(1, "responses to each", ge=1)
        monitor_every: int = setting(10, "training steps between two measurements; the first is before step 1", ge=1)

    settings: Settings

    def __init__(self, config: SwapConfig) -> None:
        super().__init__(config)
        self._accuracy = 0.0

    def observe_monitor(self, batch: Batch) -> None:
        """The share of correct responses."""
        super().observe_monitor(batch)
        self._accuracy = batch.correct.double().mean().item()

    def rewards(self, batch: Batch) -> Tensor:
        """The advantage itself: the deviation may be as small as the second term."""
        reached = min(1.0, self._accuracy / self.settings.target)
        shortness = 1 - (batch.lengths / self.settings.long).clamp(max=min(1.0, reached**SHARPNESS)).double()
        rewards = (1 - 0.1 * reached) * batch.correct.double() + LENGTH_WEIGHT * shortness
        return (rewards - rewards.mean(-1, keepdim=True)) / (rewards.std(-1, keepdim=True) + EPS)

    def metrics(self) -> dict[str, float]:
        """The accuracy that was measured last."""
        return {"swap/aalc_accuracy": self._accuracy}

    def state_dict(self) -> dict[str, Any]:
        """That accuracy, and when it was measured."""
        return {"accuracy": self._accuracy, "monitored_at": self.monitored_at}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """As saved."""
        self._accuracy, self.monitored_at = state["accuracy"], state["monitored_at"]
