"""The objectives by name; a command line imports the one that it names."""

from __future__ import annotations

from pkgutil import resolve_name
from typing import TYPE_CHECKING, Any

from openrlhf_swap.algorithm.coefficients import Coefficients, Tau
from openrlhf_swap.command import did_you_mean
from openrlhf_swap.config import ABLATION, SwapConfig
from openrlhf_swap.errors import ConfigError
from openrlhf_swap.objectives.table import GROUPS
from openrlhf_swap.packages import import_named

if TYPE_CHECKING:
    from openrlhf_swap.objectives.base import Objective

OBJECTIVES: dict[str, str] = {}
for _group in GROUPS.values():
    OBJECTIVES |= _group


def coefficients(config: SwapConfig) -> Coefficients:
    """The numbers of a row of the ablation; ConfigError for an objective that is none."""
    if config.objective not in ABLATION:
        raise ConfigError(
            f"--swap.objective is {config.objective}, which is not made of step rewards; "
            f"use one of: {', '.join(ABLATION)}"
        )
    return config.coefficients()


def penalty_temperature(config: SwapConfig) -> Tau | None:
    """The tau that decides how steps share the penalty; None where tau decides nothing."""
    chooses = config.objective in ABLATION and config.coefficients().chooses_steps
    return config.tau if chooses else None


def default_flags(name: str) -> dict[str, Any]:
    """Defaults of OpenRLHF's flags that an objective needs."""
    if name in ABLATION:  # which need none, and the command's help is faster without torch
        return {}
    return objective_class(name).flags


def objective_class(name: str) -> type[Objective]:
    """The class of an objective, by its name or as `module:Class`; ConfigError for another name."""
    if name in OBJECTIVES:
        known: type[Objective] = resolve_name(f"{__package__}.{OBJECTIVES[name]}")
        return known
    if ":" not in name:
        raise ConfigError(
            f"--swap.objective is {name!r}; {did_you_mean(name, OBJECTIVES)}, "
            "or a class: module:Class"
        )
    found = import_named(name, "--swap.objective")
    from openrlhf_swap.objectives.base import Objective

    if not (isinstance(found, type) and issubclass(found, Objective)):
        raise ConfigError(
            f"--swap.objective is {name!r}, which is not a subclass of "
            f"{Objective.__module__}.Objective"
        )
    return found


def build(config: SwapConfig) -> Objective:
    """The objective that a configuration names.

    Raises ConfigError for an unknown one, or a bad setting of its own.
    """
    return objective_class(config.objective)(config)
