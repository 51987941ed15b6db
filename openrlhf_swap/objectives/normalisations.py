"""Objectives that differ from GRPO in how rewards become advantages, more than in the rewards."""

from __future__ import annotations

from typing import Literal

import torch
from torch import Tensor

from openrlhf_swap.algorithm.advantages import outcome_advantages
from openrlhf_swap.config import setting
from openrlhf_swap.objectives.base import Objective
from openrlhf_swap.objectives.formats import CORRECT, UNFORMATTED, base_scores, is_degenerate
from openrlhf_swap.objectives.groups import EPS, whitened, z_scores
from openrlhf_swap.rollouts.rollout import Batch


class DrGRPO(Objective):
    """A = c - p, p the group's accuracy.

    Dr. GRPO, after its code (commit dfca49d): the group's mean is taken off, and nothing divides.
    """

    normaliser = "centre"
    needs_all_groups = False


class DLER(Objective):
    """A = whiten(c - p), p the group's accuracy, whitened over the batch's tokens; cut off or unclosed is wrong.

    After its verl code (commit ea7d4f7).
    """

    normaliser = "none"
    needs_all_groups = False

    def correct(self, batch: Batch) -> Tensor:
        return batch.correct & batch.closed & ~batch.truncated

    def rewards(self, batch: Batch) -> Tensor:
        correct = self.correct(batch).double()
        return whitened(correct - correct.mean(-1, keepdim=True), batch.lengths)


class GDPO(Objective):
    """A = whiten(GRPO(c) + weight GRPO([L <= L_T])), whitened over the tokens of the batch.

    Each reward is normalised by itself before they are added. After its verl code (commit b080e63).
    """

    normaliser = "none"
    target_length: int = setting(4000, "L_T, in tokens", "use a number of tokens", ge=1)
    length_weight: float = setting(1.0, "of the length's advantage beside the answer's")

    def rewards(self, batch: Batch) -> Tensor:
        answer = outcome_advantages(batch.correct.double(), EPS)
        length = outcome_advantages((batch.lengths <= self.target_length).double(), EPS)
        return whitened(answer + self.length_weight * length, batch.lengths)


class GFPO(Objective):
    """A = (c - mean)/(sd + 1e-4) over the kept responses of a group, 0 for the others.

    Only the best of each group, by length, are trained on. After TRL's trainer (commit 0a0b612; arXiv 2508.09726).
    """

    normaliser = "none"
    share: float = setting(0.5, "of a group that is kept", "use a number in (0, 1]", gt=0, le=1)
    score: Literal["length", "efficiency"] = setting(
        "length",
        "length keeps the shortest, efficiency those with the most reward per token",
        "use length or efficiency",
    )

    def rewards(self, batch: Batch) -> Tensor:
        """Of equals, the first are kept."""
        rewards, size = batch.correct.double(), batch.lengths.shape[-1]
        worst_last = batch.lengths.double() if self.score == "length" else -rewards / batch.lengths.double()
        best = worst_last.argsort(dim=-1, stable=True)[..., : max(1, round(size * self.share))]
        kept = torch.zeros_like(batch.correct).scatter(-1, best, True)
        return torch.where(kept, z_scores(rewards, kept, guard=1e-4), 0.0)


class OnPolicySFT(Objective):
    """A = T/T_correct for correct responses, 0 for the others: the loss is the cross entropy of the correct ones.

    Every correct response is imitated, cut off or not, and nothing else is done: no baseline, no deviation, no KL
    term. After github.com/EIT-NLP/On-Policy-SFT (commit e71d0d4; arXiv 2602.13407).
    """

    normaliser = "none"

    def rewards(self, batch: Batch) -> Tensor:
        """T_correct are the batch's tokens of correct responses."""
        correct = batch.correct.double()
        imitated = (batch.lengths * correct).sum()
        return correct * (batch.lengths.sum() / imitated.clamp(min=1))


class GRPOLead(Objective):
    """A = GRPO(R) w(p); R = exp(-alpha z) correct, -1 wrong, 0 unformatted; z of the group's correct lengths.

    R = -2 for what is unformatted and repeats itself. A = 0 in a group without a correct answer, where an unclosed
    thought (0) would be preferred to a wrong answer (-1). So short correct answers earn more, and hard problems weigh
    more. After github.com/aeroplanepaper/GRPO-LEAD (commit 9344bef).
    """

    normaliser = "none"
    boxes_answers = True
    needs_all_groups = False
    alpha: float = setting(0.05, "how much a deviation of length counts")
    least_length: int = setting(
        4000, "the length counts where a group's three shortest responses have more tokens on average", ge=0
    )

    def rewards(self, batch: Batch) -> Tensor:
        """Normalised in the group, then weighted by the problem's difficulty."""
        rewards = self._shaped(batch)
        advantages = outcome_advantages(rewards, EPS)
        correct = rewards > 0
        accuracy = correct.double().mean(-1, keepdim=True)
        ease = torch.where(advantages > 0, accuracy, 1 - accuracy)
        weight = 0.4 + 1.1 * torch.sigmoid(-10 * (ease - 0.75))  # w(x) = .4 + 1.1/(1 + exp(10 (x - .75)))
        return torch.where(correct.any(-1, keepdim=True), advantages * weight, 0.0)

    def filter_scores(self, batch: Batch) -> Tensor:
        """R, at most 1 and at least 0: what passes is what the code keeps, groups of R = 1 alone excluded."""
        return self._shaped(batch).clamp(0, 1)

    def _shaped(self, batch: Batch) -> Tensor:
        """(G, N) R."""
        scores, lengths = base_scores(batch), batch.lengths.double()
        correct = scores == CORRECT
        counts = lengths.sort(-1).values[..., :3].mean(-1, keepdim=True) > self.least_length
        earned = torch.where(counts, torch.exp(-self.alpha * z_scores(lengths, correct)), 1.0)
        repeats = batch.each(lambda rollout: is_degenerate(batch.reader.text(rollout.response_ids))).bool()
        unformatted = torch.where(repeats, -2.0, 0.0)
        return torch.where(correct, earned, torch.where(scores == UNFORMATTED, unformatted, -1.0).double())
