"""Rewards from nothing but the verdicts and lengths of a group, a short formula each.

c: correct (0 or 1), p: the group's accuracy, L: tokens of the response.
"""

import math

import torch
from torch import Tensor

from openrlhf_swap.algorithm.advantages import standardise, target_lengths
from openrlhf_swap.objectives.base import Batch, Objective, setting
from openrlhf_swap.objectives.group_statistics import group_mean, leave_one_out, longest, shortest


class Arora(Objective):
    """A = N/(N-1) (R - mean), R = c (1 - alpha sigmoid((L - m)/s)); m and s of correct lengths.

    Without a spread of correct lengths the sigmoid is 1/2. Training Language Models to Reason
    Efficiently, by Arora and Zanette, after commit e3611e4.
    """

    normaliser = "centre"
    alpha: float = setting(0.1, "most that a correct answer can lose", ge=0, lt=1)

    def correct(self, batch: Batch) -> Tensor:
        return batch.correct & ~batch.truncated

    def rewards(self, batch: Batch) -> Tensor:
        correct = self.correct(batch)
        place = standardise(batch.lengths, correct, eps=1e-7, unbiased=False)
        kept = 1 - self.alpha * place.sigmoid()
        return leave_one_out(torch.where(correct, kept, 0.0))


class Cosine(Objective):
    """R = 3/4 + 1/4 cos(pi L/L_max) correct, -3/4 - 1/4 cos(pi L/L_max) wrong; in the group.

    That is 1 to .5, and -1 to -.5. As published, a wrong answer's reward rises with its length:
    watch for repetition. Demystifying Long CoT (commit e90cf9b), with TRL's numbers (f2cd577).
    """

    max_length: int = setting(12000, "L_max: the run's longest response, in tokens", ge=1)

    def rewards(self, batch: Batch) -> Tensor:
        share = (batch.lengths.double() / self.max_length).clamp(max=1)
        size = 0.75 + 0.25 * torch.cos(math.pi * share)
        return torch.where(batch.correct, size, -size)


class GR3(Objective):
    """R = r/(1 + alpha L/mean L), r the grader's reward; in the group.

    As others quote arXiv 2603.10535.
    """

    alpha: float = setting(0.33, "how much the length counts", ge=0)

    def rewards(self, batch: Batch) -> Tensor:
        relative_length = batch.lengths / group_mean(batch.lengths)
        return batch.rewards / (1 + self.alpha * relative_length)


class HMPO(Objective):
    """R = c min(1, cos(pi L/(2 b)) + floor) for L <= b, else 0, in the group.

    b is the median length of the group's correct responses. After github.com/weekdaymore/HMPO
    (commit 23d6dc5), with its multiplied reward.
    """

    floor: float = setting(0.8, "reward of a correct answer of the median length", ge=0, le=1)

    def rewards(self, batch: Batch) -> Tensor:
        budget = target_lengths(batch.lengths, batch.correct).unsqueeze(-1)
        decay = torch.cos(math.pi / 2 * (batch.lengths / budget))
        earned = (decay + self.floor).clamp(max=1)
        return torch.where(batch.correct & (batch.lengths <= budget), earned, 0.0)


class Kimi(Objective):
    """R = c + weight l; l = .5 - (L - shortest)/(longest - shortest), at most 0 if wrong.

    Without a spread of lengths l is 0. The length reward of Kimi k1.5, after open-r1 (commit
    1416fa0).
    """

    penalises_long_wrong = True
    weight: float = setting(1.0, "weight of the length reward beside the answer's")

    def rewards(self, batch: Batch) -> Tensor:
        lengths = batch.lengths.double()
        least = lengths.amin(-1, keepdim=True)
        most = lengths.amax(-1, keepdim=True)
        place = (lengths - least) / (most - least)
        length_reward = (0.5 - place).nan_to_num(0.0)
        length_reward = torch.where(batch.correct, length_reward, length_reward.clamp(max=0))
        return batch.correct + self.weight * length_reward


class PassRatePenalty(Objective):
    """R = c max(0, 1 - weight p L/longest correct L); in the group.

    The length penalty of NeMo-RL by pass rate (commit 1643600).
    """

    weight: float = setting(
        0.2, "most that a correct answer can lose; NeMo-RL: 0, in its test .2", ge=0
    )

    def rewards(self, batch: Batch) -> Tensor:
        limit = longest(batch.lengths, batch.correct)  # arbitrary where none is correct
        share = batch.lengths / limit.clamp(min=1)
        kept = 1 - self.weight * group_mean(batch.correct) * share
        return batch.correct * kept.clamp(min=0)


class PrimeLinear(Objective):
    """A = R - mean, R = c - p weight L/longest; wrong answers are penalised, too.

    The `linear` length penalty of prime-rl (commit 559b447).
    """

    penalises_long_wrong = True
    normaliser = "centre"
    weight: float = setting(0.25, "penalty of the longest response of a group that is all correct")

    def rewards(self, batch: Batch) -> Tensor:
        most = batch.lengths.amax(-1, keepdim=True)
        slope = self.weight * group_mean(batch.correct)
        return batch.correct.double() - slope * batch.lengths / most


class ShorterBetter(Objective):
    """R = 2 c - rate |L - L*|, in the group; L* is the shortest correct length.

    Without a correct response L* is the mean length. After github.com/JingyangYi/ShorterBetter
    (commit 6399366).
    """

    penalises_long_wrong = True
    rate: float = setting(0.001, "subtracted for each token of difference, of wrong answers too")

    def rewards(self, batch: Batch) -> Tensor:
        best = shortest(batch.lengths, batch.correct)
        best = torch.where(best.isinf(), group_mean(batch.lengths), best)
        distance = (batch.lengths - best).abs()
        return 2 * batch.correct - self.rate * distance
