"""The objectives by name, none of which a command line has to import, and what the rows of the
ablation change.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace
from pkgutil import resolve_name
from typing import TYPE_CHECKING, Any

from openrlhf_swap.algorithm.coefficients import Coefficients
from openrlhf_swap.command import did_you_mean
from openrlhf_swap.config import SwapConfig, nats_or_deviations
from openrlhf_swap.errors import ConfigError
from openrlhf_swap.packages import import_named

if TYPE_CHECKING:
    from openrlhf_swap.objectives.base import Objective


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
    """The numbers of `config` as its objective uses them; raises ConfigError for one that is not of
    the table.
    """
    if config.objective not in ABLATION:
        remedy = "use one of: " + ", ".join(ABLATION)
        raise ConfigError(
            f"--swap.objective is {config.objective}, which is not made of step rewards; {remedy}"
        )
    return replace(plain_coefficients(config), **ABLATION[config.objective](config))


def penalty_temperature(config: SwapConfig) -> float | str | None:
    """The tau that decides which steps pay; None for an objective without such a penalty, or with
    an infinite tau.
    """
    numbers = coefficients(config) if config.objective in ABLATION else None
    pays = (
        numbers and numbers.needs_scores and numbers.length_coef > 0 and not math.isinf(numbers.tau)
    )
    return config.tau if pays else None


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
        step_discount=config.step_discount,
        rewards_need=config.step_reward == "need",
        eps=config.eps,
    )


GROUPS = {  # what a user has or wants -> name -> module and class
    "shorter at equal accuracy, with reference answers": {
        **dict.fromkeys(ABLATION, "swap:Swap"),
        "sas": "group_rewards:SAS",
        "attnpo": "group_rewards:AttnPO",
        "vsrm": "sampling:VSRM",
        "vsrm_scores": "sampling:VSRMScores",
        "lc_r1": "lc_r1:LCR1",
        "decs": "lc_r1:DECS",
    },
    "a budget that the prompt names": {
        "l1_exact": "sampling:L1Exact",
        "l1_max": "sampling:L1Max",
        "saber": "sampling:SABER",
        "lapo": "sampling:LAPO",
        "hbpo": "sampling:HBPO",
    },
    "verdicts only, no answer text (unit tests, a function of your own)": {
        "length_critic": "length_critic:LengthCritic",
        "arora": "group_rewards:Arora",
        "kimi": "group_rewards:Kimi",
        "shorterbetter": "group_rewards:ShorterBetter",
        "smartthinker": "group_rewards:SmartThinker",
        "gr3": "group_rewards:GR3",
        "arlcp": "group_rewards:ARLCP",
        "prime_linear": "group_rewards:PrimeLinear",
        "pass_rate_penalty": "group_rewards:PassRatePenalty",
        "cosine": "group_rewards:Cosine",
        "o1_pruner": "group_rewards:O1Pruner",
        "a_dlp": "group_rewards:ADLP",
        "hapo": "group_rewards:HAPO",
        "aalc": "group_rewards:AALC",
        "on_policy_sft": "group_rewards:OnPolicySFT",
        "gfpo": "group_rewards:GFPO",
        "gdpo": "group_rewards:GDPO",
    },
    "when to think at all": {
        "adaptthink": "sampling:AdaptThink",
        "autothink": "sampling:AutoThink",
        "thinkless": "sampling:Thinkless",
    },
    "little time: a limit, or a target, is the whole pressure": {
        "thinkprune": "sampling:ThinkPrune",
        "dler": "group_rewards:DLER",
        "dr_grpo": "group_rewards:DrGRPO",
        "laser": "group_rewards:Laser",
        "laser_d": "group_rewards:LaserD",
        "laser_de": "group_rewards:LaserDE",
        "grpo_lead": "group_rewards:GRPOLead",
        "short_rl": "group_rewards:ShortRL",
        "step_grpo": "group_rewards:StepGRPO",
        "jet": "sampling:JET",
        "s_grpo": "sampling:SGRPO",
    },
}
OBJECTIVES = {name: place for group in GROUPS.values() for name, place in group.items()}

# Continuations begin with what the engine has seen; OpenRLHF empties the cache when it brings new
# weights.
_CONTINUES = {"vllm.enable_prefix_caching": True}
FLAGS: dict[str, dict[str, Any]] = {  # name -> defaults of OpenRLHF's flags that it needs
    "adaptthink": {"actor.policy_loss_type": "gspo"},
    **dict.fromkeys(("vsrm", "jet", "s_grpo"), _CONTINUES),
}


def default_flags(name: str) -> dict[str, Any]:
    """Defaults of OpenRLHF's flags that an objective needs; one of ours is not imported for them,
    nor is torch.
    """
    if name in OBJECTIVES:
        return FLAGS.get(name, {})
    kind = objective_class(name)
    return (_CONTINUES if kind.continues != "no" else {}) | kind.flags


def objective_class(name: str) -> type[Objective]:
    """The class of an objective, by its name or as `module:Class`; raises ConfigError for what is
    none.
    """
    if name in OBJECTIVES:
        known: type[Objective] = resolve_name(f"{__package__}.{OBJECTIVES[name]}")
        return known
    if ":" not in name:
        raise ConfigError(
            f"--swap.objective is {name!r}; {did_you_mean(name, OBJECTIVES)}, or a class: module:Class"
        )
    found = import_named(name, "--swap.objective")
    from openrlhf_swap.objectives.base import Objective

    if not (isinstance(found, type) and issubclass(found, Objective)):
        raise ConfigError(
            f"--swap.objective is {name!r}, which is not a subclass of {Objective.__module__}.Objective"
        )
    return found


def build(config: SwapConfig) -> Objective:
    """The objective that a configuration names; raises ConfigError for an unknown one, or a bad
    setting of its own.
    """
    return objective_class(config.objective)(config)
