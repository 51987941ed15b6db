"""A-DLP: a price for each token, which rises while accuracy is above a target.

After its code (commit afbc411). GRPO's deviation cancels most of the price's size wherever lengths decide the spread.
"""

from __future__ import annotations

from typing import Any

from torch import Tensor

from openrlhf_swap.config import FlagSettings, SwapConfig, setting
from openrlhf_swap.objectives.base import Objective
from openrlhf_swap.rollouts.batch import Batch


class ADLP(Objective):
    """R = c - lambda L, wrong answers too; then lambda <- max(0, lambda + eta (accuracy - target)); in the group."""

    remembers_batches = True
    needs_closed_thought = True

    class Settings(FlagSettings):
        """Flags `--swap.a_dlp.*`."""

        start: float = setting(0.001, "lambda of the first step, a token", "use at least 0", ge=0)
        rate: float = setting(0.001, "eta")
        target: float = setting(0.62, "accuracy to keep: the base policy's", "use a number in [0, 1]", ge=0, le=1)

    settings: Settings

    def __init__(self, config: SwapConfig) -> None:
        super().__init__(config)
        self._price: float = self.settings.start

    def rewards(self, batch: Batch) -> Tensor:
        """At the price before this batch."""
        correct = self.correct(batch).double()
        rewards = correct - self._price * batch.lengths.double()
        accuracy = correct.mean().item()
        self._price = max(0.0, self._price + self.settings.rate * (accuracy - self.settings.target))
        return rewards

    def metrics(self) -> dict[str, float]:
        """The price of the next step."""
        return {"swap/a_dlp_price": self._price}

    def state_dict(self) -> dict[str, Any]:
        """The price."""
        return {"price": self._price}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """As saved."""
        self._price = state["price"]
