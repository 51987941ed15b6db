"""SWAP and the rows of its ablation table; also GRPO, which is SWAP without a process term."""

from __future__ import annotations

from torch import Tensor

from openrlhf_swap.algorithm.advantages import outcome_rewards, process_advantages
from openrlhf_swap.algorithm.recipe import recipe
from openrlhf_swap.config import SwapConfig
from openrlhf_swap.objectives.base import Batch, Objective


class Swap(Objective):
    """A[t] = beta A_out + theta [correct] A_proc[t] (Eq. unified_adv); `algorithm/recipe.py` has the rows."""

    def __init__(self, config: SwapConfig) -> None:
        super().__init__(config)
        self.recipe = recipe(config)
        self.scores_steps = self.recipe.needs_scores
        self.outcome_weight = self.recipe.outcome_weight

    def rewards(self, batch: Batch) -> Tensor:
        """The grader's, less c P for outcome_only."""
        return batch.rewards - (batch.correct.double() - outcome_rewards(batch.steps, self.recipe))

    def token_term(self, batch: Batch) -> Tensor | None:
        """Theta A_proc."""
        if not self.scores_steps:
            return None
        tokens = int(batch.lengths.max())
        steps = batch.steps
        process = process_advantages(batch.signals.normalised, steps.step_ends, steps.step_mask, tokens)
        return self.recipe.process_weight * process
