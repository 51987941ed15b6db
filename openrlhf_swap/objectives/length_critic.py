"""A critic of length of our own: a price whose baseline is what the policy's states predict to be
left.

docs/method/critic.md derives it. It scores no answer, so it also serves tasks without one.
"""

from collections.abc import Sequence
from typing import Literal

import torch
from torch import Tensor

from openrlhf_swap.algorithm.advantages import group_advantages, per_token, target_lengths
from openrlhf_swap.algorithm.batch import StepBatch, StepTrace
from openrlhf_swap.algorithm.critic import StateCritic, step_costs
from openrlhf_swap.config import SwapConfig, setting
from openrlhf_swap.errors import ConfigError
from openrlhf_swap.objectives.swap import StateObjective
from openrlhf_swap.rollouts.rollout import Batch


class LengthCritic(StateObjective):
    """A[t] = beta A_out - theta [pays] a_k / mean length; a_k: generalised TD error of length of
    the step of t.
    """

    reads_states = True
    gae_lambda: float = setting(
        0.9,
        "lambda of the generalised advantage: 1 lets a step pay for all that follows it, 0 for itself alone",
        ge=0,
        le=1,
    )
    pays: Literal["correct", "all"] = setting(
        "correct", "which responses pay for their length: correct, or all"
    )
    target: Literal["none", "group"] = setting(
        "none",
        "group: a response that is no longer than the median of its group's correct ones pays nothing",
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
        """(G, N, A) float64, the negative costs of the steps of those who pay, and 0 for the
        others.
        """
        predicted = self.predict_returns(batch, batch.tokens_left, batch.state_mask).clamp(min=0)
        rows = zip(predicted.flatten(0, 1), batch.state_mask.flatten(0, 1), strict=True)
        self.predicted_tokens_left = [row[mask].tolist() for row, mask in rows]
        costs = step_costs(batch.tokens_left, predicted, self.gae_lambda)
        pays = batch.correct if self.pays == "correct" else torch.ones_like(batch.correct)
        if (
            self.target == "group"
        ):  # a group without a correct response has a target of NaN, which no length exceeds
            pays = pays & (
                batch.lengths > target_lengths(batch.lengths, batch.correct).unsqueeze(-1)
            )
        paid, eps = batch.state_mask & pays.unsqueeze(-1), self.coefficients.eps
        if self.unit == "length":
            self._unit = float(batch.lengths[pays].double().mean()) if pays.any() else 0.0
        else:
            deviation = float(costs[paid].std()) if paid.sum() > 1 else 0.0
            self._unit = deviation + eps if deviation > eps else 0.0
        scaled = (
            torch.where(paid, costs / self._unit, 0.0) if self._unit else torch.zeros_like(costs)
        )
        # The state after a response's last step stands for its rest: the padding after that is the
        # same.
        return -per_token(
            scaled, batch.step_ends, batch.state_mask[..., 1:], int(batch.lengths.max())
        )

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
        raise ConfigError(
            f"--swap.objective is {config.objective}; length_critic_advantages needs length_critic"
        )
    objective = LengthCritic(config)
    objective.critic = critic
    batch = StepBatch.from_traces(groups)
    if not len(batch.states):
        raise ValueError("the responses have no states; give those that `Scorer.state_trace` reads")
    process = objective.state_advantages(batch)
    return group_advantages(batch, batch.correct.double(), process, objective.coefficients)
