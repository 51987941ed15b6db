"""Step entropy (arXiv 2508.03346), as an objective of ours.

Its authors leave out the steps with the least entropy: they teach a model to write [SKIP] for
them. Here these steps teach nothing.
"""

from collections.abc import Iterator

import torch
from torch import Tensor

from openrlhf_swap.algorithm.advantages import outcome_advantages
from openrlhf_swap.config import setting
from openrlhf_swap.objectives.base import Objective
from openrlhf_swap.objectives.group_statistics import EPS, Span, fill_spans, step_entropies
from openrlhf_swap.rollouts.rollout import Batch, Rollout


class StepEntropy(Objective):
    """A = GRPO(c), but 0 on the steps of correct responses that say least.

    A step says as much as the sum of its tokens' entropies. Of K steps the int(share K) with the
    smallest sums say least.
    """

    reads_entropies = True
    outcome_weight = 0.0  # `token_advantages` holds all of it
    needs_all_groups = False
    share: float = setting(0.8, "of a correct response's steps that teach nothing", ge=0, le=1)

    def token_advantages(self, batch: Batch) -> Tensor:
        entropies, mask = step_entropies(batch)
        lengths = torch.diff(batch.steps.step_ends, prepend=-torch.ones_like(entropies[..., :1]))
        silent = least_informative(entropies * lengths, mask, self.share)

        def spans_of(g: int, n: int, rollout: Rollout) -> Iterator[Span]:
            first = 0
            for step, end in enumerate(rollout.step_ends):
                if rollout.correct and silent[g, n, step]:
                    yield first, end + 1, 0.0
                first = end + 1

        advantages = outcome_advantages(batch.correct.double(), EPS)
        return advantages.unsqueeze(-1) * fill_spans(batch, 1.0, spans_of)


def least_informative(information: Tensor, step_mask: Tensor, share: float) -> Tensor:
    """(..., K) bool, the int(share K) steps with the least information; ties go to the first."""
    ranked = torch.where(step_mask, information, torch.inf).argsort(dim=-1, stable=True)
    rank = ranked.argsort(dim=-1, stable=True)
    count = (share * step_mask.sum(-1, keepdim=True).double()).floor()
    return step_mask & (rank < count)
