r"""SWAP whose penalty spares steps that only prepare others.

An objective of your own: `--swap.objective studies.comparison.to_go:ToGo`.

    WORLD=decomposition bash studies/comparison/compare.sh \
        --configurations studies/comparison/rows/decomposition_to_go.json

The paper lets the steps with the least local gain pay. A step that prepares another one gains
nothing by itself; what is still to be gained when it begins is as much as for the one that it
prepares. Whether that trains better is measured in studies/records/comparison.md.
"""

from __future__ import annotations

import torch
from torch import Tensor

from openrlhf_swap.algorithm.advantages import (
    penalty_weights,
    process_advantages,
    step_credit,
    step_tau,
)
from openrlhf_swap.config import SwapConfig
from openrlhf_swap.objectives.base import Objective
from openrlhf_swap.rollouts.rollout import Batch


def gains_to_go(answer_logprobs: Tensor, step_mask: Tensor) -> Tensor:
    """What is still to be gained when a step begins: max_{j>=k} l_j - l_{k-1}.

    Args:
        answer_logprobs: (..., K+1) l_0..l_K in nats per answer token.
        step_mask: (..., K) bool.

    Returns:
        (..., K), 0 where there is no step.
    """
    scores = torch.where(step_mask, answer_logprobs[..., 1:], -torch.inf)
    best = scores.flip(-1).cummax(dim=-1).values.flip(-1)
    return torch.where(step_mask, best - answer_logprobs[..., :-1], 0.0)


class ToGo(Objective):
    """A[t] = beta A_out + theta [correct] A_proc[t] as in SWAP, by the gain to go.

    The weights are w = softmax(-(gain to go)/tau).
    """

    scores_steps = True

    def __init__(self, config: SwapConfig) -> None:
        super().__init__(config)
        self.outcome_weight = self.coefficients.outcome_weight
        self.process_weight = self.coefficients.process_weight

    def token_advantages(self, batch: Batch) -> Tensor:
        """A_proc."""
        steps = batch.steps
        numbers = self.coefficients
        to_go = gains_to_go(steps.answer_logprobs, steps.step_mask)
        weights = penalty_weights(to_go, steps.step_mask, step_tau(to_go, steps.step_mask, numbers))
        normalised = step_credit(steps, numbers, weights).normalised
        return process_advantages(
            normalised, steps.step_ends, steps.step_mask, int(batch.lengths.max())
        )
