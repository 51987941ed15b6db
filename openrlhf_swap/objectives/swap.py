"""SWAP with the rows of its ablation table, and a critic of length of our own, which scores no answer.

States of the policy may predict the baseline of both; docs/method/critic.md derives the critic.
"""

from collections.abc import Sequence
from typing import Literal

import torch
from torch import Tensor
from torch.nn.functional import pad

from openrlhf_swap.algorithm.advantages import (
    group_advantages,
    outcome_rewards,
    per_token,
    process_advantages,
    step_signals,
    sum_to_come,
    target_lengths,
)
from openrlhf_swap.algorithm.batch import StepBatch, StepTrace
from openrlhf_swap.algorithm.critic import StateCritic, step_costs
from openrlhf_swap.config import SwapConfig, setting
from openrlhf_swap.errors import ConfigError
from openrlhf_swap.objectives.base import Objective
from openrlhf_swap.objectives.registry import coefficients
from openrlhf_swap.rollouts.rollout import Batch


class StateObjective(Objective):
    """May predict returns from states; the metrics say how well."""

    def __init__(self, config: SwapConfig) -> None:
        super().__init__(config)
        self.critic = StateCritic()
        self._metrics: dict[str, float] = {}
        self._warned = False

    def predict_returns(self, batch: StepBatch, returns: Tensor, mask: Tensor) -> Tensor:
        """(G, N, K+1) float64 what the states predict of their returns where `mask`, else 0.

        The critic then learns from the true ones. Raises NonFiniteError for a state that is not finite.
        """
        values = torch.zeros_like(returns)
        if not mask.any():
            return values
        chosen = mask[batch.state_mask]
        predicted, r2, solved = self.critic.predict(batch.states[chosen], returns[mask], mask.nonzero()[:, 0])
        values[mask] = predicted
        self._metrics = {"swap/critic_r2": r2, "swap/critic_unsolved": float(not solved)}
        if not solved and not self._warned:
            self._warned = True
            print(
                "[swap] warning: what is left cannot be predicted from this batch's states (too few groups, or states "
                "that do not differ): the mean of each group takes its place; swap/critic_unsolved counts such steps",
                flush=True,
            )
        return values

    def metrics(self) -> dict[str, float]:
        return self._metrics


class Swap(StateObjective):
    """A[t] = beta A_out + theta [correct] A_proc[t] (Eq. unified_adv)."""

    def __init__(self, config: SwapConfig) -> None:
        super().__init__(config)
        numbers = self.coefficients = coefficients(config)
        self.scores_steps = numbers.needs_scores
        self.reads_states = self.scores_steps and config.step_baseline == "state"
        self.needs_all_groups = self.scores_steps or numbers.penalises_outcome
        self.outcome_weight, self.process_weight = numbers.outcome_weight, numbers.process_weight

    def rewards(self, batch: Batch) -> Tensor:
        """The grader's, less c P for outcome_only."""
        return batch.rewards - (batch.correct.double() - outcome_rewards(batch.steps, self.coefficients))

    def token_advantages(self, batch: Batch) -> Tensor | None:
        if not self.scores_steps:
            return None
        steps, tokens = batch.steps, int(batch.lengths.max())
        process = process_advantages(batch.signals.normalised, steps.step_ends, steps.step_mask, tokens)
        return process - self._baseline(batch, tokens) if self.reads_states else process

    def _baseline(self, batch: Batch, tokens: int) -> Tensor:
        """(G, N, A) the step rewards to come, as the state before each token's step predicts them."""
        steps, signals = batch.steps, batch.signals
        # A group without a signal has rewards of 0, and needs no baseline.
        counted = steps.step_mask & ~signals.deviation.isnan()[:, None, None]
        returns = pad(sum_to_come(signals.normalised), (0, 1))
        predicted = self.predict_returns(steps, returns, pad(counted, (0, 1)))
        return per_token(predicted, steps.step_ends, steps.step_mask, tokens)


def swap_advantages(group: Sequence[StepTrace], config: SwapConfig) -> list[Tensor]:
    """The unified advantage of every token of the responses to one prompt.

    Returns:
        One float64 tensor of `length` values a response.

    Raises:
        ConfigError: for an objective that is not made of step rewards, and for a baseline from states.
        ValueError: for an empty group, or step ends that do not fit their response.
        NonFiniteError: for a NaN or infinite log-probability of a correct response.
    """
    if config.step_baseline == "state":
        raise ConfigError("--swap.step_baseline is state, which compares groups: train with it, or use mean or zero")
    batch, numbers, process = StepBatch.from_traces([group]), coefficients(config), None
    if numbers.needs_scores:
        normalised, tokens = step_signals(batch, numbers).normalised, int(batch.lengths.max())
        process = process_advantages(normalised, batch.step_ends, batch.step_mask, tokens)
    return group_advantages(batch, outcome_rewards(batch, numbers), process, numbers)[0]


class LengthCritic(StateObjective):
    """A[t] = beta A_out - theta [pays] a_k / mean length; a_k: generalised TD error of length of the step of t."""

    reads_states = True
    gae_lambda: float = setting(
        0.9,
        "lambda of the generalised advantage: 1 lets a step pay for all that follows it, 0 for itself alone",
        ge=0,
        le=1,
    )
    pays: Literal["correct", "all"] = setting("correct", "which responses pay for their length: correct, or all")
    target: Literal["none", "group"] = setting(
        "none", "group: a response that is no longer than the median of its group's correct ones pays nothing"
    )
    unit: Literal["length", "deviation"] = setting(
        "length",
        "what costs are divided by: the payers' mean length (--swap.process_weight 4 is then about what 1 is "
        "with deviation), or their deviation, which falls with what is left to save, so that a token gets ever "
        "dearer",
    )

    def __init__(self, config: SwapConfig) -> None:
        super().__init__(config)
        self.outcome_weight, self.process_weight = config.outcome_weight, config.process_weight
        self._unit = 0.0  # tokens that cost 1; 0 if nothing is to be paid

    def token_advantages(self, batch: Batch) -> Tensor:
        return self.state_advantages(batch.steps)

    def state_advantages(self, batch: StepBatch) -> Tensor:
        """(G, N, A) float64, the negative costs of the steps of those who pay, and 0 for the others."""
        predicted = self.predict_returns(batch, batch.tokens_left, batch.state_mask).clamp(min=0)
        rows = zip(predicted.flatten(0, 1), batch.state_mask.flatten(0, 1), strict=True)
        self.predicted_tokens_left = [row[mask].tolist() for row, mask in rows]
        costs = step_costs(batch.tokens_left, predicted, self.gae_lambda)
        pays = batch.correct if self.pays == "correct" else torch.ones_like(batch.correct)
        if self.target == "group":  # a group without a correct response has a target of NaN, which no length exceeds
            pays = pays & (batch.lengths > target_lengths(batch.lengths, batch.correct).unsqueeze(-1))
        paid, eps = batch.state_mask & pays.unsqueeze(-1), self.coefficients.eps
        if self.unit == "length":
            self._unit = float(batch.lengths[pays].double().mean()) if pays.any() else 0.0
        else:
            deviation = float(costs[paid].std()) if paid.sum() > 1 else 0.0
            self._unit = deviation + eps if deviation > eps else 0.0
        scaled = torch.where(paid, costs / self._unit, 0.0) if self._unit else torch.zeros_like(costs)
        # The state after a response's last step stands for its rest: the padding after that is the same.
        return -per_token(scaled, batch.step_ends, batch.state_mask[..., 1:], int(batch.lengths.max()))

    def metrics(self) -> dict[str, float]:
        return {**super().metrics(), "swap/critic_unit": self._unit}


def length_critic_advantages(
    groups: Sequence[Sequence[StepTrace]], config: SwapConfig, critic: StateCritic
) -> list[list[Tensor]]:
    """The advantage of every token of a batch, for a trainer of your own.

    Args:
        groups: the responses to each prompt, in groups of equal size.
        config: `objective` is length_critic; its settings are texts in `options`.
        critic: keeps what earlier batches taught; its `state_dict` belongs into your checkpoints.

    Returns:
        For each group one float64 tensor of `length` values a response.

    Raises:
        ConfigError: for another objective, or a setting out of range.
        ValueError: for unequal groups, or step ends or states that do not fit their response.
        NonFiniteError: for a state that is not finite.
    """
    if config.objective != "length_critic":
        raise ConfigError(f"--swap.objective is {config.objective}; length_critic_advantages needs length_critic")
    objective = LengthCritic(config)
    objective.critic = critic
    batch = StepBatch.from_traces(groups)
    if not len(batch.states):
        raise ValueError("the responses have no states; give those that `Scorer.state_trace` reads")
    process = objective.state_advantages(batch)
    return group_advantages(batch, batch.correct.double(), process, objective.coefficients)
