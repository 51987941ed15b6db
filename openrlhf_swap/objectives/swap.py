"""SWAP with the rows of its ablation table, GRPO among them."""

from collections.abc import Sequence

from torch import Tensor

from openrlhf_swap.algorithm.advantages import (
    group_advantages,
    outcome_rewards,
    process_advantages,
    step_credit,
)
from openrlhf_swap.algorithm.batch import StepBatch, StepTrace
from openrlhf_swap.algorithm.coefficients import Coefficients
from openrlhf_swap.algorithm.turns import turn_advantages
from openrlhf_swap.config import SwapConfig
from openrlhf_swap.objectives.base import Objective
from openrlhf_swap.objectives.registry import coefficients
from openrlhf_swap.rollouts.rollout import Batch


class Swap(Objective):
    """A[t] = beta A_out + theta [correct] A_proc[t]."""

    no_numbers = (
        "the paper gives formulas and no code: its worked group is in `tests/unit/algorithm`, "
        "beside slow versions of what is ours"
    )

    def __init__(self, config: SwapConfig) -> None:
        super().__init__(config)
        numbers = self.coefficients
        self.scores_steps = numbers.needs_scores
        self.reads_turn_rewards = self.scores_steps and numbers.turn_weight > 0
        self.needs_all_groups = self.scores_steps or numbers.penalises_outcome
        self.outcome_weight = numbers.outcome_weight
        self.process_weight = numbers.process_weight

    def rewards(self, batch: Batch) -> Tensor:
        """(G, N) the grader's rewards; with outcome_only c - c P, P the penalty mass."""
        lost = batch.correct.double() - outcome_rewards(batch.steps, self.coefficients)
        return batch.rewards - lost

    def token_advantages(self, batch: Batch) -> Tensor | None:
        """(G, N, A) A_proc, float64; None where no steps are scored."""
        if not self.scores_steps:
            return None
        tokens = int(batch.lengths.max())
        return _process(batch.steps, batch.credit.normalised, self.coefficients, tokens)


def _process(batch: StepBatch, normalised: Tensor, numbers: Coefficients, tokens: int) -> Tensor:
    process = process_advantages(
        normalised, batch.step_ends, batch.step_mask, tokens, numbers.step_discount
    )
    if not numbers.turn_weight:
        return process
    return process + numbers.turn_weight * turn_advantages(batch, numbers, tokens)


def swap_advantages(group: Sequence[StepTrace], config: SwapConfig) -> list[Tensor]:
    """The unified advantage of every token: A[t] = beta A_out + theta [correct] A_proc[t].

    Args:
        group: the N responses to one prompt, which GRPO compares.
        config: the objective with its weights and coefficients; theta is `process_weight`.

    Returns:
        N float64 tensors on the CPU, of `length` values each: an advantage a token, in standard
        deviations of the group's rewards. They need no further normalisation.

    Raises:
        ConfigError: for an objective that is not made of step rewards.
        ValueError: for an empty group, or step ends that do not fit their response.
        NonFiniteError: for a NaN or infinite log-probability of a correct response.
    """
    numbers = coefficients(config)
    batch = StepBatch.from_traces([group])
    process = None
    if numbers.needs_scores:
        normalised = step_credit(batch, numbers).normalised
        tokens = int(batch.lengths.max())
        process = _process(batch, normalised, numbers, tokens)
    return group_advantages(batch, outcome_rewards(batch, numbers), process, numbers)
