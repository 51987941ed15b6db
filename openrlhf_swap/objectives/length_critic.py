"""A price on length whose baseline is what the policy's own states predict to be left.

Ours, not the paper's: docs/method/critic.md derives it. It scores no answer, so it also serves tasks without one.
"""

from collections.abc import Sequence
from typing import Literal

import torch
from torch import Tensor

from openrlhf_swap.algorithm.advantages import group_advantages
from openrlhf_swap.algorithm.batch import StepBatch, StepTrace
from openrlhf_swap.algorithm.critic import StateCritic, length_advantages, paying, spread, step_costs
from openrlhf_swap.config import SwapConfig, setting
from openrlhf_swap.errors import ConfigError
from openrlhf_swap.objectives.base import Objective
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
        """How well the states predicted the last batch; nothing before they did."""
        return self._metrics


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
        self._unit = 0.0

    def token_advantages(self, batch: Batch) -> Tensor:
        """The negative costs of the steps of those who pay."""
        return self.state_advantages(batch.steps)

    def state_advantages(self, states: StepBatch) -> Tensor:
        """(G, N, A) the same, for responses given by their states."""
        predicted = self.predict_returns(states, states.tokens_left, states.state_mask).clamp(min=0)
        rows = zip(predicted.flatten(0, 1), states.state_mask.flatten(0, 1), strict=True)
        self.predicted_tokens_left = [row[mask].tolist() for row, mask in rows]
        costs = step_costs(states.tokens_left, predicted, self.gae_lambda)
        pays = paying(states, self.pays == "correct", self.target == "group")
        if self.unit == "length":
            self._unit = float(states.lengths[pays].double().mean()) if pays.any() else 0.0
        else:
            self._unit = spread(states, costs, pays, self.coefficients.eps)
        return length_advantages(states, costs, pays, self._unit)

    def metrics(self) -> dict[str, float]:
        """How well the states predict, and the tokens that cost 1."""
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
