"""LASER, LASER-D and LASER-DE: a bonus for correct answers within a target length.

After github.com/hkust-nlp/Laser (2025-05-22).
"""

from __future__ import annotations

import torch
from torch import Tensor

from openrlhf_swap.config import SwapConfig, setting
from openrlhf_swap.errors import ConfigError
from openrlhf_swap.objectives.base import Objective
from openrlhf_swap.objectives.formats import CORRECT, WRONG, base_scores, is_repetitive
from openrlhf_swap.rollouts.rollout import Batch

EXPECTED_RIGHT = {"high": 5, "medium": 2, "low": 1}  # responses of eight that count as expected to be correct


class Laser(Objective):
    """R = s + bonus [s = 1 and L <= L_T], normalised in the group."""

    boxes_answers = True
    target_length: int = setting(8192, "L_T, in tokens")
    bonus: float = setting(0.5, "added to a correct answer within L_T")

    def rewards(self, batch: Batch) -> Tensor:
        scores = base_scores(batch)
        return scores + self.bonus * ((scores == CORRECT) & (batch.lengths <= self.target_length))


class Monitored(Objective):
    """Measures the policy on training prompts every so many steps; the objective decides what to learn from it."""

    monitored_at = -1
    """The step of the last measurement, which belongs to the state: none is made twice before the same step."""
    monitor_prompts: int = setting(500, "training prompts of the monitoring set", ge=1)
    monitor_samples: int = setting(8, "responses to each", ge=1)
    monitor_every: int = setting(20, "training steps between two measurements; the first is before step 1", ge=1)

    def monitor(self) -> tuple[int, int] | None:
        if self.step % self.monitor_every or self.monitored_at == self.step:
            return None
        return self.monitor_prompts, self.monitor_samples

    def observe_monitor(self, batch: Batch) -> None:
        self.monitored_at = self.step


class LaserD(Monitored):
    """R = s + bonus [s = 1 and L <= L_A(difficulty)], normalised in the group.

    The target length of each difficulty is estimated on a monitoring set, again and again.
    """

    boxes_answers = True
    state = ("targets", "monitored_at")
    bonus: float = setting(0.5, "added to a correct answer within the target")
    shortest: int = setting(4096, "shortest target, in tokens (the released code: 1024, 2048 or 4096)", ge=1)
    longest: int = setting(16384, "longest target, in tokens", ge=1)
    grid: int = setting(1024, "targets are shortest, shortest + grid, ..., longest", ge=1)

    def __init__(self, config: SwapConfig) -> None:
        super().__init__(config)
        if self.shortest > self.longest:
            found = f"--swap.{self.name}.shortest is {self.shortest}, .longest {self.longest}"
            raise ConfigError(f"{found}; use shortest <= longest")
        # None: not known; the longest response of the current batch stands in for it.
        self.targets: dict[str, int | None] = dict.fromkeys(EXPECTED_RIGHT)

    def observe_monitor(self, batch: Batch) -> None:
        """Choose each difficulty's target: the shortest that is expected to hold one correct answer."""
        super().observe_monitor(batch)
        accuracy = batch.correct.double().mean(-1)
        low, high = accuracy <= 1 / 3, accuracy > 2 / 3
        for band, members in {"low": low, "medium": ~(low | high), "high": high}.items():
            self.targets[band] = self._choose(batch.lengths[members].flatten(), EXPECTED_RIGHT[band])

    def _choose(self, lengths: Tensor, expected_right: int) -> int | None:
        """The shortest target for which int(share of all responses within it * expected_right) is at least 1."""
        for target in range(self.shortest, self.longest + self.grid, self.grid):
            target = min(target, self.longest)
            if len(lengths) and int((lengths <= target).double().mean().item() * expected_right) >= 1:
                return target
        return None

    def rewards(self, batch: Batch) -> Tensor:
        scores = base_scores(batch)
        return scores + self.bonus * self._earns(scores, batch)

    def _earns(self, scores: Tensor, batch: Batch) -> Tensor:
        """(G, N) bool, the responses that earn the bonus."""
        return (scores == CORRECT) & (batch.lengths <= self._target_lengths(scores, batch))

    def _target_lengths(self, scores: Tensor, batch: Batch) -> Tensor:
        """(G, 1) each group's target, by the share of its responses that are correct."""
        fallback = int(batch.lengths.max())
        known = {band: fallback if target is None else target for band, target in self.targets.items()}
        accuracy = (scores == CORRECT).double().mean(-1, keepdim=True)
        target = torch.where(accuracy >= 1 / 3, known["medium"], known["low"])
        return torch.where(accuracy >= 2 / 3, known["high"], target)

    def metrics(self) -> dict[str, float]:
        name = self.name
        return {f"swap/{name}_target_{band}": float(t) for band, t in self.targets.items() if t is not None}


class LaserDE(LaserD):
    """As LASER-D; a wrong, formatted, longer, orderly response earns the bonus too. Flags `--swap.laser_de.*`.

    So a wrong answer may explore beyond the target.
    """

    orderly: int = setting(1, "1: no bonus for a repetitive wrong answer; 0: as the released code ran")

    def _earns(self, scores: Tensor, batch: Batch) -> Tensor:
        explores = (scores == WRONG) & (batch.lengths > self._target_lengths(scores, batch))
        if self.orderly:
            for group, number in explores.nonzero().tolist():
                explores[group, number] = not is_repetitive(list(batch.groups[group][number].response_ids))
        return super()._earns(scores, batch) | explores
