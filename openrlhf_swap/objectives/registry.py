"""The methods by name: one line each. Data only, so that reading a command line imports no method."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING

from openrlhf_swap.errors import ConfigError

if TYPE_CHECKING:
    from openrlhf_swap.config import SwapConfig
    from openrlhf_swap.objectives.base import Objective

# Name -> module and class.
METHODS = {
    "swap": "openrlhf_swap.objectives.swap:Swap",
    "grpo": "openrlhf_swap.objectives.swap:Swap",
    "outcome_only": "openrlhf_swap.objectives.swap:Swap",
    "step_only": "openrlhf_swap.objectives.swap:Swap",
    "no_penalty": "openrlhf_swap.objectives.swap:Swap",
    "static_penalty": "openrlhf_swap.objectives.swap:Swap",
    "uniform_penalty": "openrlhf_swap.objectives.swap:Swap",
    "thinkprune": "openrlhf_swap.objectives.thinkprune:ThinkPrune",
    "laser": "openrlhf_swap.objectives.laser:Laser",
    "laser_d": "openrlhf_swap.objectives.laser_d:LaserD",
    "laser_de": "openrlhf_swap.objectives.laser_de:LaserDE",
    "l1_exact": "openrlhf_swap.objectives.l1:L1Exact",
    "l1_max": "openrlhf_swap.objectives.l1:L1Max",
    "adaptthink": "openrlhf_swap.objectives.adaptthink:AdaptThink",
    "lc_r1": "openrlhf_swap.objectives.lc_r1:LCR1",
}


def method(name: str) -> type[Objective]:
    """The class of a method."""
    return load(METHODS[name], "objective")


def build(config: SwapConfig) -> Objective:
    """The method that a configuration names.

    Raises:
        ConfigError: for a bad setting of the method's own.
    """
    return method(config.objective)(config)


def load(path: str, what: str) -> type:
    """What `module:name` names.

    Raises:
        ConfigError: when there is no such module or name.
    """
    module, _, name = path.partition(":")
    try:
        return getattr(import_module(module), name)
    except (ImportError, AttributeError, ValueError) as error:
        raise ConfigError(f"{what} is {path!r}, which cannot be imported ({error}); use module:name") from None
