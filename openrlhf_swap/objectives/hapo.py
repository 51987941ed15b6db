"""HAPO: each problem remembers the shortest right response that was ever seen of it.

After its code (commit c91ae3b). It acts from a problem's second encounter on: train for several episodes.
"""

from __future__ import annotations

import math
from typing import Any, Literal

import torch
from torch import Tensor

from openrlhf_swap.config import FlagSettings, SwapConfig, setting
from openrlhf_swap.objectives.base import Objective
from openrlhf_swap.rollouts.batch import Batch
from openrlhf_swap.rollouts.rollout import prompt_key


class HAPO(Objective):
    """R = c + weight max(-.7, f) right, c + weight min(0, f) wrong; f = cos(pi/2 L/h), -1 from 2 h on; in the group.

    h is the problem's shortest right length of earlier encounters; without one, f is 0.
    """

    remembers_batches = True

    class Settings(FlagSettings):
        """Flags `--swap.hapo.*`."""

        weight: float = setting(1.0, "of the length reward beside the answer's")
        memory: Literal["shortest", "mean"] = setting(
            "shortest", "what is remembered of a group's right lengths", "use shortest or mean"
        )

    settings: Settings

    def __init__(self, config: SwapConfig) -> None:
        super().__init__(config)
        self._lengths: dict[str, float] = {}

    def rewards(self, batch: Batch) -> Tensor:
        """By what was known before this batch; then remembers its right lengths."""
        known = batch.each(lambda rollout: self._lengths.get(prompt_key(rollout.prompt), math.nan))
        f = torch.cos(math.pi / 2 * (batch.lengths / known).clamp(max=2)).nan_to_num(0.0)
        length_reward = torch.where(batch.correct, f.clamp(min=-0.7), f.clamp(max=0))
        self._remember(batch)
        return batch.correct.double() + self.settings.weight * length_reward

    def _remember(self, batch: Batch) -> None:
        for group in batch.groups:
            lengths = [float(len(rollout.response_ids)) for rollout in group if rollout.correct]
            if lengths:
                seen = min(lengths) if self.settings.memory == "shortest" else sum(lengths) / len(lengths)
                key = prompt_key(group[0].prompt)
                self._lengths[key] = min(seen, self._lengths.get(key, math.inf))

    def metrics(self) -> dict[str, float]:
        """How many problems have a length."""
        return {"swap/hapo_known_problems": float(len(self._lengths))}

    def state_dict(self) -> dict[str, Any]:
        """The lengths, by the problem's key."""
        return {"lengths": dict(self._lengths)}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """As saved."""
        self._lengths = dict(state["lengths"])
