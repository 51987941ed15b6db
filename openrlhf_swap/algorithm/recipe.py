"""What each objective turns on and off: the rows of the paper's ablation table."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

from openrlhf_swap.config import SwapConfig
from openrlhf_swap.errors import ConfigError


@dataclass(frozen=True)
class Recipe:
    """The numbers that an objective hands to the arithmetic."""

    length_coef: float
    temperature: float
    outcome_weight: float
    process_weight: float
    step_constant: float = 0.0
    """Taken from every *normalised* step reward: before the normalisation a constant would cancel exactly."""
    penalises_outcome: bool = False
    """The outcome reward becomes c - c P instead of c."""

    @property
    def needs_scores(self) -> bool:
        """Whether the policy has to score the answer at all."""
        return self.process_weight > 0


VARIANTS = ("swap", "grpo", "outcome_only", "step_only", "no_penalty", "static_penalty", "uniform_penalty")


def recipe(config: SwapConfig) -> Recipe:
    """The recipe of `config.objective` with the numbers of `config`.

    Raises:
        ConfigError: for an objective that is not one of the paper's own.
    """
    if config.objective not in VARIANTS:
        raise ConfigError(
            f"--swap.objective is {config.objective}, which is not made of step rewards; use one of: "
            + ", ".join(VARIANTS)
        )
    swap = Recipe(config.length_coef, config.temperature, config.outcome_weight, config.process_weight)
    variants = {
        "swap": {},
        "grpo": {"process_weight": 0.0},
        "outcome_only": {"process_weight": 0.0, "penalises_outcome": True},
        "step_only": {"outcome_weight": 0.0},
        "no_penalty": {"length_coef": 0.0},
        "static_penalty": {"length_coef": 0.0, "step_constant": config.static_penalty},
        "uniform_penalty": {"temperature": math.inf},
    }
    return replace(swap, **variants[config.objective])
