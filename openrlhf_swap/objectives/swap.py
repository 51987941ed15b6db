"""SWAP and the rows of its ablation table; also GRPO, which is SWAP without a process term."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from openrlhf_swap.algorithm.advantages import (
    outcome_advantages,
    outcome_rewards,
    per_token,
    process_advantages,
    step_signals,
    unified_advantages,
)
from openrlhf_swap.algorithm.batch import StepBatch, StepTrace
from openrlhf_swap.config import SwapConfig
from openrlhf_swap.errors import ConfigError
from openrlhf_swap.objectives.ablation import coefficients
from openrlhf_swap.objectives.state_values import StateObjective
from openrlhf_swap.rollouts.rollout import Batch


class Swap(StateObjective):
    """A[t] = beta A_out + theta [correct] A_proc[t] (Eq. unified_adv).

    `ablation.py` has the rows of the paper's table.
    """

    def __init__(self, config: SwapConfig) -> None:
        super().__init__(config)
        self.coefficients = coefficients(config)
        self.scores_steps = self.coefficients.needs_scores
        self.reads_states = self.scores_steps and config.step_baseline == "state"
        self.needs_all_groups = self.scores_steps or self.coefficients.penalises_outcome
        self.outcome_weight = self.coefficients.outcome_weight
        self.process_weight = self.coefficients.process_weight

    def rewards(self, batch: Batch) -> Tensor:
        """The grader's, less c P for outcome_only."""
        return batch.rewards - (batch.correct.double() - outcome_rewards(batch.steps, self.coefficients))

    def token_advantages(self, batch: Batch) -> Tensor | None:
        """A_proc."""
        if not self.scores_steps:
            return None
        steps, tokens = batch.steps, int(batch.lengths.max())
        process = process_advantages(batch.signals.normalised, steps.step_ends, steps.step_mask, tokens)
        return process - self._baseline(batch, tokens) if self.reads_states else process

    def _baseline(self, batch: Batch, tokens: int) -> Tensor:
        """(G, N, A) the step rewards to come, as the state before each token's step predicts them."""
        states, signals = batch.states, batch.signals
        to_come = torch.zeros_like(states.tokens_left)
        counted = torch.zeros_like(states.state_mask)
        steps = batch.steps.step_mask.shape[-1]
        to_come[..., :steps] = signals.normalised.flip(-1).cumsum(-1).flip(-1)
        # A group without a signal has rewards of 0, and needs no baseline.
        counted[..., :steps] = batch.steps.step_mask & ~signals.deviation.isnan()[:, None, None]
        predicted = self.predict_returns(states, to_come, counted)
        return per_token(predicted, states.step_ends, states.step_mask, tokens)


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
        raise ConfigError(
            "--swap.step_baseline is state, which compares groups: train with it, or use mean or zero in "
            "swap_advantages"
        )
    batch, numbers = StepBatch.from_traces([group]), coefficients(config)
    tokens = int(batch.lengths.max())
    outcome = outcome_advantages(outcome_rewards(batch, numbers), numbers.eps).unsqueeze(-1).expand(-1, -1, tokens)
    process = None
    if numbers.needs_scores:
        process = process_advantages(step_signals(batch, numbers).normalised, batch.step_ends, batch.step_mask, tokens)
    advantages = unified_advantages(outcome, process, numbers.outcome_weight, numbers.process_weight)
    return [row[: trace.length].clone() for row, trace in zip(advantages[0], group, strict=True)]
