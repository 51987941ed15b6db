"""GRPO-LEAD: short correct answers earn more, and hard problems weigh more.

After github.com/aeroplanepaper/GRPO-LEAD (commit 9344bef), which drops groups without a correct answer once their
advantages are there, and so does this: in such a group an unclosed thought (0) would be preferred to a wrong answer
(-1).
"""

from __future__ import annotations

import torch
from torch import Tensor

from openrlhf_swap.algorithm.advantages import outcome_advantages
from openrlhf_swap.config import FlagSettings, setting
from openrlhf_swap.objectives.base import Objective
from openrlhf_swap.objectives.groups import EPS, mean_of, variance_of
from openrlhf_swap.objectives.laser import CORRECT, UNFORMATTED, base_scores
from openrlhf_swap.objectives.repetition import is_degenerate
from openrlhf_swap.rollouts.batch import Batch


class GRPOLead(Objective):
    """A = GRPO(R) w(p); R = exp(-alpha z) correct, -1 wrong, 0 unformatted; z of the group's correct lengths.

    R = -2 for what is unformatted and repeats itself; A = 0 in a group without a correct answer.
    """

    normaliser = "none"
    boxes_answers = True
    needs_all_groups = False

    class Settings(FlagSettings):
        """Flags `--swap.grpo_lead.*`."""

        alpha: float = setting(0.05, "how much a deviation of length counts")
        least_length: int = setting(
            4000, "the length counts where a group's three shortest responses have more tokens on average", ge=0
        )

    settings: Settings

    def rewards(self, batch: Batch) -> Tensor:
        """The advantage itself: normalised in the group, then weighted by the problem's difficulty."""
        rewards = self._shaped(batch)
        advantages = outcome_advantages(rewards, EPS)
        correct = rewards > 0
        accuracy = correct.double().mean(-1, keepdim=True)
        weighted = advantages * _weight(torch.where(advantages > 0, accuracy, 1 - accuracy))
        return torch.where(correct.any(-1, keepdim=True), weighted, 0.0)

    def filter_scores(self, batch: Batch) -> Tensor:
        """R, at most 1 and at least 0: what passes is what the code keeps, groups of R = 1 alone excluded."""
        return self._shaped(batch).clamp(0, 1)

    def _shaped(self, batch: Batch) -> Tensor:
        """(G, N) R."""
        scores, lengths = base_scores(batch), batch.lengths.double()
        correct = scores == CORRECT
        z = (lengths - mean_of(lengths, correct)) / (variance_of(lengths, correct, unbiased=True).sqrt() + 1e-6)
        counts = lengths.sort(-1).values[..., :3].mean(-1, keepdim=True) > self.settings.least_length
        earned = torch.where(counts, torch.exp(-self.settings.alpha * z), 1.0)
        repeats = batch.each(lambda rollout: is_degenerate(batch.reader.text(rollout.response_ids))).bool()
        unformatted = torch.where(repeats, -2.0, 0.0)
        return torch.where(correct, earned, torch.where(scores == UNFORMATTED, unformatted, -1.0).double())


def _weight(ease: Tensor) -> Tensor:
    """W(x) = .4 + 1.1/(1 + exp(10 (x - .75)))."""
    return 0.4 + 1.1 * torch.sigmoid(-10 * (ease - 0.75))
