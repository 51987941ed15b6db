"""SWAP and the rows of its ablation table; also GRPO, which is SWAP without a process term."""

from __future__ import annotations

from collections.abc import Sequence

from torch import Tensor

from openrlhf_swap.algorithm.advantages import (
    outcome_advantages,
    outcome_rewards,
    process_advantages,
    step_signals,
    unified_advantages,
)
from openrlhf_swap.algorithm.batch import StepBatch, StepTrace
from openrlhf_swap.config import SwapConfig
from openrlhf_swap.objectives.ablation import coefficients
from openrlhf_swap.objectives.base import Objective
from openrlhf_swap.rollouts.batch import Batch


class Swap(Objective):
    """A[t] = beta A_out + theta [correct] A_proc[t] (Eq. unified_adv).

    `ablation.py` has the rows of the paper's table.
    """

    def __init__(self, config: SwapConfig) -> None:
        super().__init__(config)
        self.coefficients = coefficients(config)
        self.scores_steps = self.coefficients.needs_scores
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
        return process_advantages(batch.signals.normalised, steps.step_ends, steps.step_mask, tokens)


def swap_advantages(group: Sequence[StepTrace], config: SwapConfig) -> list[Tensor]:
    """The unified advantage of every token of the responses to one prompt.

    Returns:
        One float64 tensor of `length` values a response.

    Raises:
        ConfigError: for an objective that is not made of step rewards.
        ValueError: for an empty group, or step ends that do not fit their response.
        NonFiniteError: for a NaN or infinite log-probability of a correct response.
    """
    batch, numbers = StepBatch.from_traces([group]), coefficients(config)
    tokens = int(batch.lengths.max())
    outcome = outcome_advantages(outcome_rewards(batch, numbers), numbers.eps).unsqueeze(-1).expand(-1, -1, tokens)
    process = None
    if numbers.needs_scores:
        process = process_advantages(step_signals(batch, numbers).normalised, batch.step_ends, batch.step_mask, tokens)
    advantages = unified_advantages(outcome, process, numbers.outcome_weight, numbers.process_weight)
    return [row[: trace.length].clone() for row, trace in zip(advantages[0], group, strict=True)]
