"""The arms of `plain_loop.py` and `treatment.py`: which steps pay, and for what.

An arm is `grpo`, `grpo_limit80` (responses end after 80 tokens in training), `pass_rate_penalty` as
--swap.objective, or PRICE.WEIGHTS. PRICE: `steps` and `weights` as --swap.step_price. WEIGHTS, of
the penalty and of a price by weights: `tau1`, `0.25sd` and the like as --swap.tau, `mono0.25sd`
with --swap.weights_from monotone, `uniform`; by the program's labels `oracle` (redundant lines pay
all) and `anti` (essential ones do); `shuffled` (those of 0.25sd, each response's in random order).
`PRICE.no_penalty` has lambda 0. `+floor` at the end adds --swap.step_noise 0.02. `reward.need` has
--swap.step_reward need, which has no weights, and reads all later steps; `reward.need.W.M` has
--swap.need_window W and --swap.need_every M. `steps.need` has the reward of the paper, and weights
from gains and need (no setting of SWAP).
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from openrlhf_swap.algorithm.advantages import (
    StepCredit,
    moments,
    monotone_gains,
    needs,
    penalty_weights,
    step_credit,
)
from openrlhf_swap.algorithm.batch import StepBatch
from openrlhf_swap.config import SwapConfig
from openrlhf_swap.objectives.peers.length_rewards import PassRatePenalty
from openrlhf_swap.objectives.registry import coefficients

PRICES = {"steps": {}, "weights": {"step_price": "weights"}}
BY_LABEL = ("oracle", "anti", "shuffled")
# `steps.need`: tau in deviations, and the least need whose logarithm is taken, in nats per token.
NEED_TAU = 0.25
LEAST_NEED = 0.01
REWARD = "reward.need"
PASS_RATE = "pass_rate_penalty"
OBJECTIVES = {"uniform": "uniform_penalty", "no_penalty": "no_penalty"}


def share_on_redundant(signals: StepCredit, redundant: Tensor) -> float:
    """The share of the price that redundant steps pay, in the groups that it charges.

    It is NaN where there is none.
    """
    charged = signals.step_baselines.clamp(min=0)
    return float(charged[redundant].sum() / charged.sum())


def arm_settings(arm: str) -> dict[str, Any]:
    """The settings of SwapConfig that an arm changes.

    Raises KeyError or ConfigError for an arm that there is not.
    """
    if arm.startswith("grpo") or arm == PASS_RATE:
        return {"objective": "grpo"}  # but for what `arm_rewards` and `arm_limit` say
    if arm == REWARD:
        return {"step_reward": "need", "need_window": 0}
    if arm.startswith(REWARD):
        window, every = map(int, arm.removeprefix(f"{REWARD}.").split("."))
        return {"step_reward": "need", "need_window": window, "need_every": every}
    if arm.endswith("+floor"):
        return {**arm_settings(arm.removesuffix("+floor")), "step_noise": 0.02}
    price, _, weights = arm.partition(".")
    if weights in OBJECTIVES:
        return {**PRICES[price], "objective": OBJECTIVES[weights]}
    if weights in (*BY_LABEL, "need"):
        return {**PRICES[price], "tau": "0.25sd", "need_window": 0}
    tau = weights.removeprefix("mono").removeprefix("tau")
    source = "monotone" if weights.startswith("mono") else "local"
    return {**PRICES[price], "tau": tau, "weights_from": source}


def reads_need(arm: str) -> bool:
    """Whether an arm needs what the rest needs of each step."""
    return arm.startswith(REWARD) or arm.endswith(".need")


def need_weights(batch: StepBatch) -> Tensor:
    """(G, N, K) weights softmax(-v/tau), v = z(gain) + z(ln need); z over a group's steps."""
    mask = batch.step_mask
    gains = monotone_gains(batch.answer_logprobs, mask)
    logs = needs(batch).clamp(min=LEAST_NEED).log()
    values = standardised(gains, mask) + standardised(logs, mask)
    return penalty_weights(values, mask, NEED_TAU * deviations(values, mask))


def deviations(values: Tensor, mask: Tensor) -> Tensor:
    """(G, 1, 1) deviations over the steps of each group."""
    found = moments(values.flatten(1), mask.flatten(1), 1e-6)
    return found.deviation.clamp(min=1e-6).unsqueeze(-1)


def standardised(values: Tensor, mask: Tensor) -> Tensor:
    """(G, N, K) values, centred and scaled over the steps of each group."""
    mean = moments(values.flatten(1), mask.flatten(1), 1e-6).mean.unsqueeze(-1)
    return (values - mean) / deviations(values, mask)


def arm_limit(arm: str) -> int:
    """The most tokens of a response in training.

    320, as in the worlds' other trainings, if the arm names none.
    """
    return int(arm.partition("_limit")[2] or 320)


def arm_rewards(arm: str, batch: StepBatch) -> Tensor:
    """(G, N) float64 rewards: 1 for a correct response, less a penalty that the arm may have."""
    if arm == PASS_RATE:
        # It reads nothing but what is correct, and lengths.
        return PassRatePenalty(SwapConfig(objective=PASS_RATE)).rewards(batch)
    return batch.correct.double()


def arm_signals(arm: str, config: SwapConfig, batch: StepBatch, redundant: Tensor) -> StepCredit:
    """The step signals of an arm.

    `redundant` is (G, N, K) bool, the steps of which every line is redundant.
    """
    numbers = coefficients(config)
    kind = arm.removesuffix("+floor").partition(".")[2]
    mask = batch.step_mask
    if kind == "shuffled":
        own = step_credit(batch, numbers).weights
        keys = torch.where(mask, torch.rand(mask.shape), 2.0)  # padding stays last
        return step_credit(batch, numbers, own.gather(-1, keys.argsort(-1)))
    if kind == "need" and not numbers.rewards_need:
        return step_credit(batch, numbers, need_weights(batch))
    if kind in BY_LABEL:
        pays = mask & (redundant if kind == "oracle" else ~redundant)
        # Where no step is of the kind that pays, all do.
        pays = torch.where(pays.any(-1, keepdim=True), pays, mask).double()
        return step_credit(batch, numbers, pays / pays.sum(-1, keepdim=True).clamp(min=1))
    return step_credit(batch, numbers)
