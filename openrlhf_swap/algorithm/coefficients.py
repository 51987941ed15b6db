"""The coefficients of the step arithmetic."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal

DEVIATIONS = "sd"  # the unit of a tau that is a number of deviations


@dataclass(frozen=True)
class Tau:
    """The temperature of the penalty's softmax.

    Attributes:
        number: nats, or standard deviations of a group's gains.
        in_deviations: whether it is a number of deviations.
    """

    number: float
    in_deviations: bool = False

    @classmethod
    def parse(cls, value: Tau | float | str) -> Tau:
        """Read 0.5 or "0.5" as nats, and "0.5sd" as deviations; ValueError for any other value."""
        if isinstance(value, Tau):
            return value
        text = str(value)
        number = float(text.removesuffix(DEVIATIONS))
        in_deviations = text.endswith(DEVIATIONS)
        if not number > 0 or (in_deviations and math.isinf(number)):
            raise ValueError(f"{value} is not a valid tau")
        return cls(number, in_deviations)

    @property
    def plain(self) -> float | str:
        """The value that `parse` reads."""
        return f"{self.number}{DEVIATIONS}" if self.in_deviations else self.number

    def __str__(self) -> str:
        return str(self.plain)


@dataclass(frozen=True)
class Coefficients:
    """Weights and constants of the unified advantage.

    A field that has the name of a setting has its meaning too (`SwapConfig.coefficients`).
    """

    length_coef: float = 1.0  # lambda, of the penalty mass
    tau: Tau = Tau(1.0)
    weights_from: Literal["local", "monotone"] = "local"  # whether the softmax ranks g or Delta
    outcome_weight: float = 1.0  # beta
    process_weight: float = 0.3  # theta; 0 needs no step scores
    step_price: Literal["steps", "weights"] = "steps"
    step_reward: Literal["gain", "need"] = "gain"
    step_discount: float = 1.0  # gamma: of a later step's reward, per step in between
    turn_weight: float = 0.0  # of an environment's rewards by turn, beside the step rewards
    step_noise: float = 0.0  # lower bound, in nats, of the deviation of step rewards
    step_constant: float = 0.0  # taken off every *normalised* step reward; before, it would cancel
    penalises_outcome: bool = False  # the outcome reward becomes c - c P instead of c
    eps: float = 1e-6  # added to standard deviations; a deviation below it counts as zero

    @property
    def rewards_need(self) -> bool:
        """Whether a step earns its gain plus its need, instead of its gain less its penalty."""
        return self.step_reward == "need"

    @property
    def baseline_by_weights(self) -> bool:
        """Whether the steps of a response share the baseline by w, not equally."""
        return self.step_price == "weights"

    @property
    def needs_scores(self) -> bool:
        """Whether the policy has to score the answer after each step."""
        return self.process_weight > 0

    @property
    def chooses_steps(self) -> bool:
        """Whether tau decides how steps share a penalty or a baseline."""
        if self.rewards_need or math.isinf(self.tau.number):  # weights are uniform
            return False
        return self.needs_scores and (self.length_coef > 0 or self.baseline_by_weights)
