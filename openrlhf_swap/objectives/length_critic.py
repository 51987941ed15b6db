"""A critic of length of ours: the price's baseline is what the policy's states predict to be left.

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
    """A[t] = beta A_out - theta [pays] a_k / mean length; a_k: generalised TD error of length.

    k is the step of t. Where nobody pays, or the payers' costs do not spread (unit deviation), the
    second term is 0.
    """

    no_numbers = "not published: ours"
    reads_states = True
    gae_lambda: float = setting(
        0.9,
        "lambda of the generalised advantage: 1 lets a step pay for all that follows it, 0 for "
        "itself alone",
        ge=0,
        le=1,
    )
    pays: Literal["correct", "all"] = setting(
        "correct", "which responses pay for their length: correct, or all"
    )
    target: Literal["none", "group"] = setting(
        "none",
        "group: a response that is no longer than the median of its group's correct ones pays "
        "nothing",
    )
    unit: Literal["length", "deviation"] = setting(
        "length",
        "what costs are divided by: the payers' mean length (--swap.process_weight 4 is then "
        "about what 1 is with deviation), or their deviation, which falls with what is left to "
        "save, so that a token gets ever dearer",
    )

    def __init__(self, config: SwapConfig) -> None:
        super().__init__(config)
        self.outcome_weight = config.outcome_weight
        self.process_weight = config.process_weight
        self._unit = 0.0  # tokens that cost 1; 0 if nothing is to be paid

    def token_advantages(self, batch: Batch) -> Tensor:
        return self.state_advantages(batch.steps)

    def state_advantages(self, batch: StepBatch) -> Tensor:
        """(G, N, A) float64, the negative costs of the payers' steps, and 0 for the others."""
        predicted = self.predict_returns(batch, batch.tokens_left, batch.state_mask).clamp(min=0)
        counts = batch.state_mask.sum(-1).flatten().tolist()
        rows = torch.split(predicted[batch.state_mask], counts)
        self.predicted_tokens_left = [row.tolist() for row in rows]
        costs = step_costs(batch.tokens_left, predicted, self.gae_lambda)
        pays = self._payers(batch)
        self._unit = self._tokens_of_one(batch, costs, pays)
        scaled = torch.zeros_like(costs)
        if self._unit:
            paid = batch.state_mask & pays.unsqueeze(-1)
            scaled[paid] = costs[paid] / self._unit
        # The state after a response's last step stands for its rest: the padding after that is the
        # same.
        has_step = batch.state_mask[..., 1:]
        return -per_token(scaled, batch.step_ends, has_step, int(batch.lengths.max()))

    def _payers(self, batch: StepBatch) -> Tensor:
        """(G, N) bool, who pays for its length."""
        pays = torch.ones_like(batch.correct) if self.pays == "all" else batch.correct
        if self.target == "none":
            return pays
        # A group without a correct response has a target of NaN, which no length exceeds.
        targets = target_lengths(batch.lengths, batch.correct)
        return pays & (batch.lengths > targets.unsqueeze(-1))

    def _tokens_of_one(
        self,
        batch: StepBatch,
        costs: Tensor,
        pays: Tensor,
    ) -> float:
        if not pays.any():
            return 0.0
        if self.unit == "length":
            return float(batch.lengths[pays].double().mean())
        paid = costs[batch.state_mask & pays.unsqueeze(-1)]
        eps = self.coefficients.eps
        deviation = float(paid.std()) if len(paid) > 1 else 0.0
        return deviation + eps if deviation > eps else 0.0

    def metrics(self) -> dict[str, float]:
        return {**super().metrics(), "swap/critic_unit": self._unit}


def length_critic_advantages(
    groups: Sequence[Sequence[StepTrace]],
    config: SwapConfig,
    critic: StateCritic,
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
