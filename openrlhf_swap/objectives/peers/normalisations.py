"""Plain rewards, normalised in a way of their own.

c: correct (0 or 1), p: the group's accuracy, L: tokens of the response.
"""

import torch
from torch import Tensor

from openrlhf_swap.algorithm.advantages import outcome_advantages, standardise
from openrlhf_swap.objectives.base import Batch, Objective, setting
from openrlhf_swap.objectives.group_statistics import EPS, group_mean


def trained_tokens(batch: Batch) -> Tensor:
    """(G, N) int64, the tokens of each response, less those that closed its thought at a budget."""
    return batch.lengths - batch.each(lambda rollout: len(rollout.closing)).long()


def whitened(values: Tensor, lengths: Tensor) -> Tensor:
    """(G, N) (value - mean)/deviation over the tokens of the batch; 0 without a spread.

    A response of L tokens counts L times. The deviation is unbiased.
    """
    tokens = lengths.sum()
    centred = values - (lengths * values).sum() / tokens
    squares = lengths * centred.square()
    variance = squares.sum() / (tokens - 1).clamp(min=1)
    if variance < EPS**2:
        return torch.zeros_like(values)
    return centred / (variance + 1e-8).sqrt()


class DrGRPO(Objective):
    """A = c - p (Dr. GRPO, after commit dfca49d)."""

    normaliser = "centre"
    needs_all_groups = False


class OPO(Objective):
    """A = r - sum(L r)/sum(L), r the grader's reward: the group's baseline is a mean over tokens.

    It is the baseline with the least variance of the gradient if all tokens have gradients of the
    same size. On-Policy RL with Optimal Reward Baseline (arXiv 2505.23585), after verl (commit
    26b5d6b).
    """

    normaliser = "none"
    needs_all_groups = False

    def rewards(self, batch: Batch) -> Tensor:
        rewards = super().rewards(batch)
        tokens = trained_tokens(batch)
        total = (tokens * rewards).sum(-1, keepdim=True)
        baseline = total / tokens.sum(-1, keepdim=True)
        return rewards - baseline


class DLER(Objective):
    """A = whiten(c - p) over the batch's tokens; cut off or unclosed is wrong.

    After its code (commit ea7d4f7).
    """

    normaliser = "none"
    needs_all_groups = False

    def correct(self, batch: Batch) -> Tensor:
        return batch.correct & batch.closed & ~batch.truncated

    def rewards(self, batch: Batch) -> Tensor:
        correct = self.correct(batch).double()
        return whitened(correct - group_mean(correct), trained_tokens(batch))


class GDPO(Objective):
    """A = whiten(GRPO(c) + GRPO([L <= L_T])) over the batch's tokens.

    After its verl code (commit b080e63).
    """

    penalises_long_wrong = True
    normaliser = "none"
    target_length: int = setting(4000, "L_T, in tokens", ge=1)

    def rewards(self, batch: Batch) -> Tensor:
        answer = outcome_advantages(batch.correct)
        length = outcome_advantages(batch.lengths <= self.target_length)
        return whitened(answer + length, trained_tokens(batch))


class GFPO(Objective):
    """A = (c - mean)/(sd + 1e-4) over the shortest of a group, 0 for the others.

    After TRL (commit 0a0b612).
    """

    normaliser = "none"
    share: float = setting(0.5, "share of a group that is kept: its shortest responses", gt=0, le=1)

    def rewards(self, batch: Batch) -> Tensor:
        count = max(1, round(batch.lengths.shape[-1] * self.share))
        order = batch.lengths.argsort(dim=-1, stable=True)
        kept = torch.zeros_like(batch.correct).scatter(-1, order[..., :count], True)
        return standardise(batch.correct, kept, eps=1e-4)


class O1Pruner(Objective):
    """A = z-score over the batch of clip(mean L/L - 1 + alpha (c - p), -2, 4); 0 without a spread.

    After github.com/StarDewXXX/O1-Pruner (commit 04c0863).
    """

    penalises_long_wrong = True
    normaliser = "none"
    alpha: float = setting(
        5.0, "weight of the answer; low values make short wrong answers attractive"
    )

    def rewards(self, batch: Batch) -> Tensor:
        shortness = group_mean(batch.lengths) / batch.lengths - 1
        surprise = batch.correct.double() - group_mean(batch.correct)
        weights = shortness + self.alpha * surprise
        of_batch = weights.clamp(-2, 4).flatten()
        scores = standardise(of_batch, eps=1e-9, unbiased=False)
        return scores.view_as(batch.correct)


class OnPolicySFT(Objective):
    """A = T/T_correct for correct responses, cut off or not, 0 for the others: cross entropy.

    T and T_correct are the batch's tokens. After github.com/EIT-NLP/On-Policy-SFT (commit e71d0d4).
    """

    normaliser = "none"

    def rewards(self, batch: Batch) -> Tensor:
        correct = batch.correct.double()
        tokens = trained_tokens(batch)
        imitated = (tokens * correct).sum()
        return correct * (tokens.sum() / imitated.clamp(min=1))
