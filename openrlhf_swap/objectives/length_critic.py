"""A price on length whose baseline is what the policy's own states predict to be left.

Ours, not the paper's: docs/method/critic.md derives it. It scores no answer, so it also serves tasks without one.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

from torch import Tensor

from openrlhf_swap.algorithm.advantages import outcome_advantages, unified_advantages
from openrlhf_swap.algorithm.length_critic import (
    StateBatch,
    StateTrace,
    length_advantages,
    mean_length,
    paying,
    spread,
    step_costs,
)
from openrlhf_swap.algorithm.state_critic import StateCritic
from openrlhf_swap.config import SwapConfig, setting
from openrlhf_swap.errors import ConfigError
from openrlhf_swap.objectives.state_values import StateObjective
from openrlhf_swap.rollouts.rollout import Batch


class LengthCritic(StateObjective):
    """A[t] = beta A_out - theta [pays] a_k / mean length; a_k: generalised TD error of length of the step of t."""

    reads_states = True

    gae_lambda: float = setting(
        0.9,
        "lambda of the generalised advantage: 1 lets a step pay for all that follows it, 0 for itself alone",
        "use a number between 0 and 1",
        ge=0,
        le=1,
    )
    pays: Literal["correct", "all"] = setting(
        "correct", "which responses pay for their length: correct, or all", "use correct or all"
    )
    target: Literal["none", "group"] = setting(
        "none",
        "group: a response that is no longer than the median of its group's correct ones pays nothing",
        "use none or group",
    )
    unit: Literal["length", "deviation"] = setting(
        "length",
        "what costs are divided by: the payers' mean length (--swap.process_weight 4 is then about what 1 is "
        "with deviation), or their deviation, which falls with what is left to save, so that a token gets ever "
        "dearer",
        "use length or deviation",
    )

    def __init__(self, config: SwapConfig) -> None:
        super().__init__(config)
        self.outcome_weight = self.coefficients.outcome_weight
        self.process_weight = self.coefficients.process_weight
        self._unit = 0.0

    def token_advantages(self, batch: Batch) -> Tensor:
        """The negative costs of the steps of those who pay."""
        return self.state_advantages(batch.states)

    def state_advantages(self, states: StateBatch) -> Tensor:
        """(G, N, A) the same, for responses given by their states."""
        predicted = self.predict_returns(states, states.tokens_left, states.state_mask).clamp(min=0)
        rows = zip(predicted.flatten(0, 1), states.state_mask.flatten(0, 1), strict=True)
        self.predicted_tokens_left = [row[mask].tolist() for row, mask in rows]
        costs = step_costs(states.tokens_left, predicted, self.gae_lambda)
        pays = paying(states, self.pays == "correct", self.target == "group")
        by_length = self.unit == "length"
        self._unit = mean_length(states, pays) if by_length else spread(states, costs, pays, self.coefficients.eps)
        return length_advantages(states, costs, pays, self._unit)

    def metrics(self) -> dict[str, float]:
        """How well the states predict, and the tokens that cost 1."""
        return {**super().metrics(), "swap/critic_unit": self._unit}


def length_critic_advantages(
    groups: Sequence[Sequence[StateTrace]], config: SwapConfig, critic: StateCritic
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
    batch = StateBatch.from_traces(groups)
    process = objective.state_advantages(batch)
    outcome = outcome_advantages(batch.correct.double(), objective.coefficients.eps)
    advantages = unified_advantages(
        outcome.unsqueeze(-1).expand_as(process), process, objective.outcome_weight, objective.process_weight
    )
    return [
        [row[: trace.length].clone() for row, trace in zip(rows, group, strict=True)]
        for rows, group in zip(advantages, groups, strict=True)
    ]
