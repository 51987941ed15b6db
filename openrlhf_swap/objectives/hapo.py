"""HAPO: each problem remembers its shortest correct response so far.

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
    """R = c + weight max(-.7, f) correct, c + weight min(0, f) wrong; f = cos(pi/2 L/h), -1 from 2 h on; in the group.

    h is the problem's shortest correct length of earlier encounters, or their mean; without one, f is 0.
    """

    remembers_batches = True

    class Settings(FlagSettings):
        """Flags `--swap.hapo.*`."""

        weight: float = setting(1.0, "of the length reward beside the answer's")
        memory: Literal["shortest", "mean"] = setting(
            "shortest", "h: the shortest correct length so far, or the mean of all of them", "use shortest or mean"
        )

    settings: Settings

    def __init__(self, config: SwapConfig) -> None:
        super().__init__(config)
        self._lengths: dict[str, float] = {}
        self._counts: dict[str, int] = {}

    def rewards(self, batch: Batch) -> Tensor:
        """By what was known before this batch; then remembers its correct lengths."""
        known = batch.each(lambda rollout: self._lengths.get(prompt_key(rollout.prompt), math.nan))
        f = torch.cos(math.pi / 2 * (batch.lengths / known).clamp(max=2)).nan_to_num(0.0)
        length_reward = torch.where(batch.correct, f.clamp(min=-0.7), f.clamp(max=0))
        self._remember(batch)
        return batch.correct.double() + self.settings.weight * length_reward

    def _remember(self, batch: Batch) -> None:
        """The least length, or the mean in which every correct response of every encounter counts once."""
        for group in batch.groups:
            lengths = [float(len(rollout.response_ids)) for rollout in group if rollout.correct]
            if not lengths:
                continue
            key = prompt_key(group[0].prompt)
            before, count = self._lengths.get(key, math.inf), self._counts.get(key, 0)
            self._counts[key] = count + len(lengths)
            if self.settings.memory == "shortest":
                self._lengths[key] = min(before, *lengths)
            else:
                self._lengths[key] = ((before * count if count else 0.0) + sum(lengths)) / self._counts[key]

    def metrics(self) -> dict[str, float]:
        """How many problems have a length."""
        return {"swap/hapo_known_problems": float(len(self._lengths))}

    def state_dict(self) -> dict[str, Any]:
        """The lengths and how many there were, by the problem's key."""
        return {"lengths": dict(self._lengths), "counts": dict(self._counts)}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """As saved."""
        self._lengths, self._counts = dict(state["lengths"]), dict(state["counts"])
