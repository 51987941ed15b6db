"""The objectives by name. Data only, so that reading a command line imports none of them.

An objective of your own needs no entry here: it is named `module:Class`, and imported to be checked.
"""

from __future__ import annotations

from pkgutil import resolve_name
from typing import TYPE_CHECKING

from openrlhf_swap.command import did_you_mean
from openrlhf_swap.errors import ConfigError
from openrlhf_swap.objectives.ablation import ABLATION
from openrlhf_swap.packages.named import import_named

if TYPE_CHECKING:
    from openrlhf_swap.config import SwapConfig
    from openrlhf_swap.objectives.base import Objective

_CLASSES = {  # by module and name
    "swap": dict.fromkeys(ABLATION, "Swap"),
    "length_critic": {"length_critic": "LengthCritic"},
    "stages": {"thinkprune": "ThinkPrune", "lapo": "LAPO", "autothink": "AutoThink"},
    "laser": {"laser": "Laser", "laser_d": "LaserD", "laser_de": "LaserDE"},
    "budgets": {"l1_exact": "L1Exact", "l1_max": "L1Max", "hbpo": "HBPO"},
    "modes": {"adaptthink": "AdaptThink", "thinkless": "Thinkless"},
    "lc_r1": {"lc_r1": "LCR1", "decs": "DECS"},
    "normalisations": {
        "dr_grpo": "DrGRPO",
        "dler": "DLER",
        "gfpo": "GFPO",
        "gdpo": "GDPO",
        "grpo_lead": "GRPOLead",
        "on_policy_sft": "OnPolicySFT",
    },
    "group_rewards": {
        "arora": "Arora",
        "shorterbetter": "ShorterBetter",
        "kimi": "Kimi",
        "smartthinker": "SmartThinker",
        "gr3": "GR3",
        "arlcp": "ARLCP",
        "prime_linear": "PrimeLinear",
        "cosine": "Cosine",
        "o1_pruner": "O1Pruner",
    },
    "memory": {"short_rl": "ShortRL", "hapo": "HAPO", "a_dlp": "ADLP", "aalc": "AALC"},
    "vsrm": {"vsrm": "VSRM", "vsrm_scores": "VSRMScores"},
    "exits": {"jet": "JET", "s_grpo": "SGRPO"},
}
OBJECTIVES = {
    name: f"openrlhf_swap.objectives.{module}:{kind}"
    for module, kinds in _CLASSES.items()
    for name, kind in kinds.items()
}


def check_name(name: str) -> None:
    """Raise ConfigError for a name that no objective has, or for a class that is none."""
    if name not in OBJECTIVES:
        objective_class(name)


def objective_class(name: str) -> type[Objective]:
    """The class of an objective, by its name or as `module:Class`.

    Raises:
        ConfigError: for an unknown name, and for a class that cannot be imported or is no Objective.
    """
    if name in OBJECTIVES:
        known: type[Objective] = resolve_name(OBJECTIVES[name])
        return known
    if ":" not in name:
        raise ConfigError(f"--swap.objective is {name!r}; {did_you_mean(name, OBJECTIVES)}, or a class: module:Class")
    found = import_named(name, "--swap.objective")
    from openrlhf_swap.objectives.base import Objective

    if not (isinstance(found, type) and issubclass(found, Objective)):
        raise ConfigError(f"--swap.objective is {name!r}, which is not a subclass of {Objective.__module__}.Objective")
    return found


def build(config: SwapConfig) -> Objective:
    """The objective that a configuration names; raises ConfigError for an unknown one, or a bad setting of its own."""
    return objective_class(config.objective)(config)
