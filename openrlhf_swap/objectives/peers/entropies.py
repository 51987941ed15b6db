"""Objectives from the policy's mean token entropy in each step, H_1 .. H_K.

They take the entropy of the whole vocabulary, and the steps are SWAP's.
"""

import math

import torch
from torch import Tensor

from openrlhf_swap.algorithm.advantages import outcome_advantages, standardise
from openrlhf_swap.objectives.base import Batch, Objective, setting
from openrlhf_swap.objectives.group_statistics import EPS, of_each_token

CANDIDATES = 5  # the authors of ETR take the entropy of the five likeliest tokens, over log 5


class InfoDensity(Objective):
    """R = c q exp(-lambda z), q = clip(1 - mean_k max(H_k, H_k+1, ...)/log K, 0, 1); in the group.

    H_k is taken at the rollouts' temperature; with less than two steps q = 1. z is the length's
    z-score, by the population's deviation, among the group's responses with c q > 0; 0 where these
    do not spread. After arXiv 2603.17310 and github.com/amao0o0/InfoDensity (commit 289bd70): a
    step takes the place of the authors' chunk of C tokens, and their code gives no numbers for C, K
    and lambda.
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
        place = standardise(batch.lengths, earned > 0, unbiased=False)
        return earned * torch.exp(-self.length_coef * place)


def step_entropies(batch: Batch) -> tuple[Tensor, Tensor]:
    """(G, N, K) float64 mean token entropy of each step in nats, and bool whether it exists."""
    exists = batch.steps.has_step
    nothing = torch.zeros(exists.shape, dtype=torch.float64)
    return batch.steps.signals.get("entropy", nothing), exists


def trace_quality(entropies: Tensor, step_mask: Tensor, candidates: int) -> Tensor:
    """(...) q from (..., K) mean token entropies of steps, in nats; 1 for less than two steps."""
    counts = step_mask.sum(-1)
    known = torch.where(step_mask, entropies, -math.inf)
    most_to_come = known.flip(-1).cummax(-1).values.flip(-1)
    total = torch.where(step_mask, most_to_come, 0.0).sum(-1)
    mean = total / counts.clamp(min=1)
    undecided = math.log(candidates) + EPS
    quality = (1 - mean / undecided).clamp(0, 1)
    return torch.where(counts < 2, 1.0, quality)


class ETR(Objective):
    """R = 1 + weight T correct, -1 wrong; T = sum of m_k, m_k = gamma m_(k-1) + f(H_k - H_(k-1)).

    H_k is divided by log 5; f(d) = -.4 d for a fall, -.8 d for a rise, and m starts with 0. With
    less than two steps T = 0. The entropy trend reward of github.com/Xuan1030/ETR (commit cd88c2b),
    whose steps are sentences that end with a blank line.
    """

    reads_entropies = True
    weight: float = setting(0.005, "weight of the trend beside the answer", ge=0)
    gamma: float = setting(0.99, "how much of a step's reward goes on to the next", ge=0, le=1)

    def rewards(self, batch: Batch) -> Tensor:
        entropies, mask = step_entropies(batch)
        shares = entropies / math.log(CANDIDATES)
        earned = 1 + self.weight * self.trend(shares, mask)
        return torch.where(batch.correct, earned, -1.0)

    def trend(self, entropies: Tensor, step_mask: Tensor) -> Tensor:
        """(...) T from (..., K) entropies of steps."""
        changes = entropies.diff(dim=-1)
        worth = -torch.where(changes < 0, 0.4 * changes, 0.8 * changes)
        total = entropies.new_zeros(entropies.shape[:-1])
        momentum = total
        for step in range(changes.shape[-1]):
            momentum = self.gamma * momentum + worth[..., step]
            total = total + torch.where(step_mask[..., step + 1], momentum, 0.0)
        return total


class StepEntropy(Objective):
    """A = GRPO(c), but 0 on the steps of correct responses that say least.

    A step says as much as the sum of its tokens' entropies. Of K steps the int(share K) with the
    smallest sums say least. An objective of ours: the authors (arXiv 2508.03346) leave these steps
    out, and teach a model to write [SKIP] for them. Here they are not trained on.
    """

    reads_entropies = True
    outcome_weight = 0.0  # `token_advantages` holds all of it
    needs_all_groups = False
    share: float = setting(
        0.8, "share of a correct response's steps that are not trained on", ge=0, le=1
    )

    def token_advantages(self, batch: Batch) -> Tensor:
        entropies, mask = step_entropies(batch)
        before_first = -torch.ones_like(batch.lengths.unsqueeze(-1))
        lengths = torch.diff(batch.steps.step_ends, prepend=before_first)
        silent = least_informative(entropies * lengths, mask, self.share)
        kept = 1.0 - (silent & batch.correct.unsqueeze(-1)).double()
        advantages = outcome_advantages(batch.correct).unsqueeze(-1)
        return advantages * of_each_token(batch, kept, rest=1.0)


def least_informative(information: Tensor, step_mask: Tensor, share: float) -> Tensor:
    """(..., K) bool, the int(share K) steps with the least information; ties go to the first."""
    known = torch.where(step_mask, information, torch.inf)
    order = known.argsort(dim=-1, stable=True)
    rank = order.argsort(dim=-1, stable=True)
    steps = step_mask.sum(-1, keepdim=True)
    count = (share * steps.double()).floor()
    return step_mask & (rank < count)
