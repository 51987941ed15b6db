"""The objectives by name; a command line imports the one that it names."""

from __future__ import annotations

from pkgutil import resolve_name
from typing import TYPE_CHECKING, Any

from openrlhf_swap.algorithm.coefficients import Coefficients, Tau
from openrlhf_swap.command import did_you_mean
from openrlhf_swap.config import ABLATION, SwapConfig
from openrlhf_swap.errors import ConfigError
from openrlhf_swap.packages import import_named

if TYPE_CHECKING:
    from openrlhf_swap.objectives.base import Objective

__all__ = [
    "ABLATION",
    "GROUPS",
    "OBJECTIVES",
    "build",
    "coefficients",
    "default_flags",
    "objective_class",
    "penalty_temperature",
]

GROUPS = {  # what a user has or wants -> name -> module and class
    "shorter at equal accuracy, with reference answers": {
        **dict.fromkeys(ABLATION, "swap:Swap"),
        "sas": "peers.sas:SAS",
        "attnpo": "peers.attnpo:AttnPO",
        "vsrm": "peers.vsrm:VSRM",
        "vsrm_scores": "peers.vsrm:VSRMScores",
        "lc_r1": "peers.lc_r1:LCR1",
        "decs": "peers.decs:DECS",
    },
    "a budget that the prompt names": {
        "l1_exact": "peers.l1:L1Exact",
        "l1_max": "peers.l1:L1Max",
        "saber": "peers.saber:SABER",
        "lapo": "peers.lapo:LAPO",
        "hbpo": "peers.hbpo:HBPO",
    },
    "verdicts only, no answer text (a function of your own)": {
        "acoer": "peers.acoer:ACOER",
        "arora": "peers.length_rewards:Arora",
        "kimi": "peers.length_rewards:Kimi",
        "shorterbetter": "peers.length_rewards:ShorterBetter",
        "smartthinker": "peers.smartthinker:SmartThinker",
        "gr3": "peers.length_rewards:GR3",
        "arlcp": "peers.arlcp:ARLCP",
        "hmpo": "peers.length_rewards:HMPO",
        "prime_linear": "peers.length_rewards:PrimeLinear",
        "pass_rate_penalty": "peers.length_rewards:PassRatePenalty",
        "cosine": "peers.length_rewards:Cosine",
        "o1_pruner": "peers.normalisations:O1Pruner",
        "a_dlp": "peers.a_dlp:ADLP",
        "hapo": "peers.hapo:HAPO",
        "aalc": "peers.aalc:AALC",
        "on_policy_sft": "peers.normalisations:OnPolicySFT",
        "gfpo": "peers.normalisations:GFPO",
        "gdpo": "peers.normalisations:GDPO",
        "infodensity": "peers.entropies:InfoDensity",
        "etr": "peers.entropies:ETR",
        "step_entropy": "peers.entropies:StepEntropy",
    },
    "when to think at all": {
        "adaptthink": "peers.adaptthink:AdaptThink",
        "autothink": "peers.autothink:AutoThink",
        "thinkless": "peers.thinkless:Thinkless",
    },
    "little time: a limit, or a target, is the whole pressure": {
        "thinkprune": "peers.thinkprune:ThinkPrune",
        "dler": "peers.normalisations:DLER",
        "dr_grpo": "peers.normalisations:DrGRPO",
        "laser": "peers.laser:Laser",
        "laser_d": "peers.laser:LaserD",
        "laser_de": "peers.laser:LaserDE",
        "grpo_lead": "peers.grpo_lead:GRPOLead",
        "short_rl": "peers.short_rl:ShortRL",
        "step_grpo": "peers.step_grpo:StepGRPO",
    },
}
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
    """The tau that decides which steps pay; None where tau decides nothing."""
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
