"""InfoDensity (arXiv 2603.17310), after github.com/amao0o0/InfoDensity (commit 289bd70)."""

import math

import torch
from torch import Tensor

from openrlhf_swap.algorithm.advantages import standardise
from openrlhf_swap.config import setting
from openrlhf_swap.objectives.base import Objective
from openrlhf_swap.objectives.group_statistics import EPS, step_entropies
from openrlhf_swap.rollouts.rollout import Batch


class InfoDensity(Objective):
    """R = c q exp(-lambda z), q = clip(1 - mean_k max(H_k, H_k+1, ...)/log K, 0, 1); in the group.

    H_k is the mean token entropy of step k at the rollouts' temperature; with less than two steps
    q = 1. z is the length's z-score, by the population's deviation, among the group's responses
    with c q > 0; 0 where these do not spread.

    A step of SWAP's takes the place of the authors' chunk of C tokens, and their code gives no
    numbers for C, K and lambda.
    """

    reads_entropies = True
    length_coef: float = setting(0.1, "lambda: how much the length counts (ours)", ge=0)
    candidates: int = setting(
        5, "K: log K is the entropy from which a step counts as undecided (ours)", ge=2
    )

    def rewards(self, batch: Batch) -> Tensor:
        entropies, mask = step_entropies(batch)
        quality = trace_quality(entropies, mask, self.candidates)
        earned = torch.where(batch.correct, quality, 0.0)
        place = standardise(batch.lengths, earned > 0, EPS, unbiased=False)
        return earned * torch.exp(-self.length_coef * place)


def trace_quality(entropies: Tensor, step_mask: Tensor, candidates: int) -> Tensor:
    """(...) q from (..., K) mean token entropies of steps, in nats; 1 for less than two steps."""
    counts = step_mask.sum(-1)
    known = torch.where(step_mask, entropies, -math.inf)
    most_to_come = known.flip(-1).cummax(-1).values.flip(-1)
    mean = torch.where(step_mask, most_to_come, 0.0).sum(-1) / counts.clamp(min=1)
    quality = (1 - mean / (math.log(candidates) + EPS)).clamp(0, 1)
    return torch.where(counts < 2, 1.0, quality)
