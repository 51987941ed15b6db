"""SWAP and the rows of the paper's ablation table, each as what it changes in the coefficients."""

import math
from collections.abc import Callable
from dataclasses import replace
from typing import Any

from openrlhf_swap.algorithm.coefficients import Coefficients
from openrlhf_swap.config import SwapConfig, nats_or_deviations
from openrlhf_swap.errors import ConfigError

ABLATION: dict[str, Callable[[SwapConfig], dict[str, Any]]] = {
    "swap": lambda config: {},
    "grpo": lambda config: {"process_weight": 0.0},
    "outcome_only": lambda config: {"process_weight": 0.0, "penalises_outcome": True},
    "step_only": lambda config: {"outcome_weight": 0.0},
    "no_penalty": lambda config: {"length_coef": 0.0},
    "static_penalty": lambda config: {"length_coef": 0.0, "step_constant": config.static_penalty},
    "uniform_penalty": lambda config: {"tau": math.inf},
}


def coefficients(config: SwapConfig) -> Coefficients:
    """The numbers of `config` as its objective uses them; raises ConfigError for one that is not of the table."""
    if config.objective not in ABLATION:
        remedy = "use one of: " + ", ".join(ABLATION)
        raise ConfigError(f"--swap.objective is {config.objective}, which is not made of step rewards; {remedy}")
    return replace(plain_coefficients(config), **ABLATION[config.objective](config))


def penalty_temperature(config: SwapConfig) -> float | str | None:
    """The tau that decides which steps pay; None for an objective without such a penalty, or with an infinite tau."""
    if config.objective in ABLATION:
        numbers = coefficients(config)
        if numbers.needs_scores and numbers.length_coef > 0 and not math.isinf(numbers.tau):
            return config.tau
    return None


def plain_coefficients(config: SwapConfig) -> Coefficients:
    """The numbers of `config` as they stand."""
    tau, in_deviations = nats_or_deviations(config.tau)
    return Coefficients(
        length_coef=config.length_coef,
        tau=tau,
        in_deviations=in_deviations,
        outcome_weight=config.outcome_weight,
        process_weight=config.process_weight,
        monotone_weights=config.weights_from == "monotone",
        centres_steps=config.step_baseline == "mean",
        price_by_weights=config.step_price == "weights",
        step_noise=config.step_noise,
        eps=config.eps,
    )
