"""The objectives by name: one line each. Data only, so that reading a command line imports none of them.

An objective of your own needs no line here: it is named `module:Class`, and imported to be checked.
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

OBJECTIVES = {  # name -> module and class
    **dict.fromkeys(ABLATION, "openrlhf_swap.objectives.swap:Swap"),
    "length_critic": "openrlhf_swap.objectives.length_critic:LengthCritic",
    "thinkprune": "openrlhf_swap.objectives.stages:ThinkPrune",
    "laser": "openrlhf_swap.objectives.laser:Laser",
    "laser_d": "openrlhf_swap.objectives.laser:LaserD",
    "laser_de": "openrlhf_swap.objectives.laser:LaserDE",
    "l1_exact": "openrlhf_swap.objectives.budgets:L1Exact",
    "l1_max": "openrlhf_swap.objectives.budgets:L1Max",
    "adaptthink": "openrlhf_swap.objectives.modes:AdaptThink",
    "lc_r1": "openrlhf_swap.objectives.lc_r1:LCR1",
    "dr_grpo": "openrlhf_swap.objectives.normalisations:DrGRPO",
    "dler": "openrlhf_swap.objectives.normalisations:DLER",
    "gdpo": "openrlhf_swap.objectives.normalisations:GDPO",
    "gfpo": "openrlhf_swap.objectives.normalisations:GFPO",
    "grpo_lead": "openrlhf_swap.objectives.normalisations:GRPOLead",
    "arora": "openrlhf_swap.objectives.group_rewards:Arora",
    "shorterbetter": "openrlhf_swap.objectives.group_rewards:ShorterBetter",
    "smartthinker": "openrlhf_swap.objectives.group_rewards:SmartThinker",
    "kimi": "openrlhf_swap.objectives.group_rewards:Kimi",
    "gr3": "openrlhf_swap.objectives.group_rewards:GR3",
    "arlcp": "openrlhf_swap.objectives.group_rewards:ARLCP",
    "on_policy_sft": "openrlhf_swap.objectives.normalisations:OnPolicySFT",
    "prime_linear": "openrlhf_swap.objectives.group_rewards:PrimeLinear",
    "cosine": "openrlhf_swap.objectives.group_rewards:Cosine",
    "o1_pruner": "openrlhf_swap.objectives.group_rewards:O1Pruner",
    "short_rl": "openrlhf_swap.objectives.memory:ShortRL",
    "hapo": "openrlhf_swap.objectives.memory:HAPO",
    "hbpo": "openrlhf_swap.objectives.budgets:HBPO",
    "a_dlp": "openrlhf_swap.objectives.memory:ADLP",
    "vsrm": "openrlhf_swap.objectives.vsrm:VSRM",
    "vsrm_scores": "openrlhf_swap.objectives.vsrm:VSRMScores",
    "jet": "openrlhf_swap.objectives.exits:JET",
    "s_grpo": "openrlhf_swap.objectives.exits:SGRPO",
    "decs": "openrlhf_swap.objectives.lc_r1:DECS",
    "aalc": "openrlhf_swap.objectives.memory:AALC",
    "thinkless": "openrlhf_swap.objectives.modes:Thinkless",
    "autothink": "openrlhf_swap.objectives.stages:AutoThink",
    "lapo": "openrlhf_swap.objectives.stages:LAPO",
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
