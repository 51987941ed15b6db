"""LASER, LASER-D and LASER-DE, after github.com/hkust-nlp/Laser (commit 78b09dd)."""

import torch
from torch import Tensor

from openrlhf_swap.config import SwapConfig
from openrlhf_swap.errors import ConfigError
from openrlhf_swap.objectives.base import Batch, Objective, setting
from openrlhf_swap.objectives.group_statistics import group_mean
from openrlhf_swap.objectives.peers.formats import CORRECT, WRONG, base_scores
from openrlhf_swap.objectives.peers.monitored import Monitored

EXPECTED_RIGHT = {"high": 5, "medium": 2, "low": 1}
"""By accuracy: how many of eight responses are expected to be correct."""


class Laser(Objective):
    """R = s + bonus [s = 1 and L <= L_T], in the group; s = 1 right, -.5 wrong, -1 unformatted."""

    boxes_answers = True
    target_length: int = setting(8192, "L_T, in tokens")
    bonus: float = setting(0.5, "added to a correct answer within L_T")

    def rewards(self, batch: Batch) -> Tensor:
        scores = base_scores(batch)
        earns = (scores == CORRECT) & (batch.lengths <= self.target_length)
        return scores + self.bonus * earns.double()


class LaserD(Monitored):
    """R = s + bonus [s = 1 and L <= L_A(difficulty)], in the group.

    L_A is estimated on a monitoring set, for groups with an accuracy of at least 2/3, of at least
    1/3, and below. While it is not known the longest response of the batch stands in for it.
    """

    boxes_answers = True
    state = ("targets", "monitored_at")
    explores = False
    """Whether a wrong, formatted response above the target earns the bonus, too."""
    bonus: float = setting(0.5, "added to a correct answer within the target")
    shortest: int = setting(
        4096, "shortest target, in tokens (the released code: 1024, 2048 or 4096)", ge=1
    )
    longest: int = setting(16384, "longest target, in tokens", ge=1)
    grid: int = setting(1024, "targets are shortest, shortest + grid, ..., longest", ge=1)

    def __init__(self, config: SwapConfig) -> None:
        super().__init__(config)
        if self.shortest > self.longest:
            raise ConfigError(
                f"--swap.{self.name}.shortest is {self.shortest}, .longest {self.longest}; "
                "use shortest <= longest"
            )
        self.targets: dict[str, int] = {}  # where they are known

    def observe_monitor(self, batch: Batch) -> None:
        super().observe_monitor(batch)
        accuracy = group_mean(batch.correct).squeeze(-1)
        low = accuracy <= 1 / 3
        high = accuracy > 2 / 3
        bands = {"low": low, "medium": ~(low | high), "high": high}
        self.targets = {}
        for band, members in bands.items():
            target = self.shortest_target(batch.lengths[members], EXPECTED_RIGHT[band])
            if target is not None:
                self.targets[band] = target

    def shortest_target(self, lengths: Tensor, expected_right: int) -> int | None:
        """The shortest target within which one correct answer is expected.

        That is int(share of lengths within it * expected_right) >= 1.
        """
        targets = list(range(self.shortest, self.longest, self.grid))
        targets.append(self.longest)
        for target in targets:
            share = (lengths <= target).double().mean().nan_to_num()  # NaN without lengths
            if int(share * expected_right) >= 1:
                return target
        return None

    def rewards(self, batch: Batch) -> Tensor:
        scores = base_scores(batch)
        correct = scores == CORRECT
        longest = int(batch.lengths.max())
        accuracy = group_mean(correct)
        target = torch.full_like(accuracy, self.targets.get("low", longest))
        target[accuracy >= 1 / 3] = self.targets.get("medium", longest)
        target[accuracy >= 2 / 3] = self.targets.get("high", longest)
        earns = correct & (batch.lengths <= target)
        if self.explores:
            earns |= (scores == WRONG) & (batch.lengths > target)
        return scores + self.bonus * earns.double()

    def metrics(self) -> dict[str, float]:
        name = f"swap/{self.name}_target_"
        return {name + band: float(target) for band, target in self.targets.items()}


class LaserDE(LaserD):
    """As LASER-D; a wrong, formatted response above the target earns the bonus, too."""

    explores = True
