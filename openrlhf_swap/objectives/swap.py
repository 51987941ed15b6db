"""SWAP with the rows of its ablation table, GRPO among them."""

from collections.abc import Sequence

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
)
from openrlhf_swap.algorithm.batch import StepBatch, StepTrace
from openrlhf_swap.algorithm.coefficients import Coefficients
from openrlhf_swap.algorithm.critic import StateCritic
from openrlhf_swap.algorithm.turns import turn_advantages
from openrlhf_swap.config import SwapConfig
from openrlhf_swap.errors import ConfigError
from openrlhf_swap.objectives.base import Objective
from openrlhf_swap.objectives.registry import coefficients
from openrlhf_swap.rollouts.rollout import Batch


class StateObjective(Objective):
    """May predict returns from the policy's states; the metrics say how well."""

    def __init__(self, config: SwapConfig) -> None:
        super().__init__(config)
        self.critic = StateCritic()
        self._metrics: dict[str, float] = {}
        self._warned = False

    def predict_returns(
        self,
        batch: StepBatch,
        returns: Tensor,
        mask: Tensor,
    ) -> Tensor:
        """(G, N, K+1) float64, the returns that the states predict where `mask`, else 0.

        The critic then learns from the true ones. Raises NonFiniteError for a state that is not
        finite.
        """
        values = torch.zeros_like(returns)
        if not mask.any():
            return values
        states = batch.states[mask[batch.state_mask]]
        groups = mask.nonzero()[:, 0]
        prediction = self.critic.predict(states, returns[mask], groups)
        values[mask] = prediction.values
        self._metrics = {
            "swap/critic_r2": prediction.r2,
            "swap/critic_unsolved": float(not prediction.solved),
        }
        if not prediction.solved and not self._warned:
            self._warned = True
            print(
                "[swap] warning: what is left cannot be predicted from this batch's states (too "
                "few groups, or states that do not differ): the mean of each group takes its "
                "place; swap/critic_unsolved counts such steps",
                flush=True,
            )
        return values

    def metrics(self) -> dict[str, float]:
        return self._metrics


class Swap(StateObjective):
    """A[t] = beta A_out + theta [correct] A_proc[t] (Eq. unified_adv)."""

    no_numbers = (
        "the paper gives formulas and no code: its worked group is in `tests/unit/algorithm`, "
        "beside slow versions of what is ours"
    )

    def __init__(self, config: SwapConfig) -> None:
        super().__init__(config)
        numbers = self.coefficients
        self.scores_steps = numbers.needs_scores
        self.reads_states = self.scores_steps and config.step_baseline == "state"
        self.reads_turn_rewards = self.scores_steps and numbers.turn_weight > 0
        self.needs_all_groups = self.scores_steps or numbers.penalises_outcome
        self.outcome_weight = numbers.outcome_weight
        self.process_weight = numbers.process_weight

    def rewards(self, batch: Batch) -> Tensor:
        """The grader's, less c P for outcome_only."""
        lost = batch.correct.double() - outcome_rewards(batch.steps, self.coefficients)
        return batch.rewards - lost

    def token_advantages(self, batch: Batch) -> Tensor | None:
        if not self.scores_steps:
            return None
        tokens = int(batch.lengths.max())
        process = _process(batch.steps, batch.signals.normalised, self.coefficients, tokens)
        if not self.reads_states:
            return process
        return process - self._baseline(batch, tokens)

    def _baseline(self, batch: Batch, tokens: int) -> Tensor:
        """(G, N, A) the step rewards to come, as the state before a token's step predicts them."""
        steps = batch.steps
        # A group without a signal has rewards of 0, and needs no baseline.
        has_signal = ~batch.signals.deviation.isnan()
        counted = steps.step_mask & has_signal[:, None, None]
        to_come = sum_to_come(batch.signals.normalised, self.coefficients.step_discount)
        returns = pad(to_come, (0, 1))
        predicted = self.predict_returns(steps, returns, pad(counted, (0, 1)))
        return per_token(predicted, steps.step_ends, steps.step_mask, tokens)


def _process(
    batch: StepBatch,
    normalised: Tensor,
    numbers: Coefficients,
    tokens: int,
) -> Tensor:
    ends, mask = batch.step_ends, batch.step_mask
    process = process_advantages(normalised, ends, mask, tokens, numbers.step_discount)
    if not numbers.turn_weight:
        return process
    return process + numbers.turn_weight * turn_advantages(batch, numbers, tokens)


def swap_advantages(group: Sequence[StepTrace], config: SwapConfig) -> list[Tensor]:
    """The unified advantage of every token of the responses to one prompt.

    Returns:
        One float64 tensor of `length` values a response.

    Raises:
        ConfigError: for an objective that is not made of step rewards, or a baseline from states.
        ValueError: for an empty group, or step ends that do not fit their response.
        NonFiniteError: for a NaN or infinite log-probability of a correct response.
    """
    if config.step_baseline == "state":
        raise ConfigError(
            "--swap.step_baseline is state, which compares groups: train with it, or use mean "
            "or zero"
        )
    numbers = coefficients(config)
    batch = StepBatch.from_traces([group])
    process = None
    if numbers.needs_scores:
        normalised = step_signals(batch, numbers).normalised
        tokens = int(batch.lengths.max())
        process = _process(batch, normalised, numbers, tokens)
    return group_advantages(batch, outcome_rewards(batch, numbers), process, numbers)[0]
