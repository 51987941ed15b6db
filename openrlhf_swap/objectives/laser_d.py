"""LASER-D: LASER with a target length for each difficulty, re-estimated on a monitoring set.

After github.com/hkust-nlp/Laser (2025-05-22), whose code differs from the paper: the expected number of correct
answers uses 5, 2 and 1 of eight responses (the paper: 6, 3, 1), whatever the group size.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from openrlhf_swap.config import SwapConfig, setting
from openrlhf_swap.errors import ConfigError
from openrlhf_swap.objectives.laser import CORRECT, base_scores
from openrlhf_swap.objectives.monitored import Monitored, MonitorSettings
from openrlhf_swap.rollouts.batch import Batch

EXPECTED_RIGHT = {"high": 5, "medium": 2, "low": 1}  # responses of eight that count as expected to be correct


class LaserD(Monitored):
    """R = s + bonus [s = 1 and L <= L_A(difficulty)], normalised in the group."""

    boxes_answers = True

    class Settings(MonitorSettings):
        """Flags `--swap.laser_d.*`."""

        bonus: float = setting(0.5, "added to a correct answer within the target")
        shortest: int = setting(4096, "shortest target, in tokens (the released code: 1024, 2048 or 4096)", ge=1)
        longest: int = setting(16384, "longest target, in tokens", ge=1)
        grid: int = setting(1024, "targets are shortest, shortest + grid, ..., longest", ge=1)

    settings: Settings

    def __init__(self, config: SwapConfig) -> None:
        super().__init__(config)
        shortest, longest = self.settings.shortest, self.settings.longest
        if shortest > longest:
            found = f"--swap.{self.name}.shortest is {shortest}, .longest {longest}"
            raise ConfigError(f"{found}; use shortest <= longest")
        # None: not known; the longest response of the current batch stands in for it.
        self._targets: dict[str, int | None] = dict.fromkeys(EXPECTED_RIGHT)

    def observe_monitor(self, batch: Batch) -> None:
        """Choose each difficulty's target: the shortest that is expected to hold one correct answer."""
        super().observe_monitor(batch)
        accuracy = batch.correct.double().mean(-1)
        low, high = accuracy <= 1 / 3, accuracy > 2 / 3
        for band, members in {"low": low, "medium": ~(low | high), "high": high}.items():
            self._targets[band] = self._choose(batch.lengths[members].flatten(), EXPECTED_RIGHT[band])

    def _choose(self, lengths: Tensor, expected_right: int) -> int | None:
        """The shortest target for which int(share of all responses within it * expected_right) is at least 1."""
        for target in range(self.settings.shortest, self.settings.longest + self.settings.grid, self.settings.grid):
            target = min(target, self.settings.longest)
            if len(lengths) and int((lengths <= target).double().mean().item() * expected_right) >= 1:
                return target
        return None

    def rewards(self, batch: Batch) -> Tensor:
        """Base score and bonus."""
        return self.with_bonus(base_scores(batch), batch)

    def with_bonus(self, scores: Tensor, batch: Batch) -> Tensor:
        """(G, N) the base scores, and the bonus of correct answers within the target."""
        earns = (scores == CORRECT) & (batch.lengths <= self.targets(scores, batch))
        return scores + self.settings.bonus * earns

    def targets(self, scores: Tensor, batch: Batch) -> Tensor:
        """(G, 1) each group's target, by the share of its responses that are correct."""
        fallback = int(batch.lengths.max())
        known = {band: fallback if target is None else target for band, target in self._targets.items()}
        accuracy = (scores == CORRECT).double().mean(-1, keepdim=True)
        target = torch.where(accuracy >= 1 / 3, known["medium"], known["low"])
        return torch.where(accuracy >= 2 / 3, known["high"], target)

    def metrics(self) -> dict[str, float]:
        """The targets that are known."""
        name = self.name
        return {f"swap/{name}_target_{band}": float(t) for band, t in self._targets.items() if t is not None}

    def state_dict(self) -> dict[str, Any]:
        """The targets, and when they were estimated."""
        return {"targets": dict(self._targets), "monitored_at": self.monitored_at}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """As saved."""
        self._targets = dict(state["targets"])
        self.monitored_at = state["monitored_at"]
