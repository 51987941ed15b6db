"""GRPO-LEAD, after github.com/aeroplanepaper/GRPO-LEAD (commit 9344bef)."""

import torch
from torch import Tensor

from openrlhf_swap.algorithm.advantages import outcome_advantages, standardise
from openrlhf_swap.objectives.base import Batch, Objective, setting
from openrlhf_swap.objectives.group_statistics import group_mean
from openrlhf_swap.objectives.peers.formats import CORRECT, UNFORMATTED, base_scores, is_degenerate


class GRPOLead(Objective):
    """A = GRPO(R) w(p); R = exp(-alpha z) correct, -1 wrong, 0 without the format.

    z is the length's z-score among the group's correct responses, w(x) = .4 + 1.1/(1 + exp(10 (x -
    .75))) with x = p where GRPO(R) > 0, else 1 - p. R = -2 for what is without the format and
    repeats itself. A = 0 in a group without a correct answer, where an unclosed thought (0) would
    be preferred to a wrong answer (-1).
    """

    normaliser = "none"
    boxes_answers = True
    needs_all_groups = False
    alpha: float = setting(0.05, "how much a deviation of length counts")
    least_length: int = setting(
        4000, "the length counts where a group's three shortest responses are longer", ge=0
    )

    def rewards(self, batch: Batch) -> Tensor:
        rewards = self._shaped(batch)
        advantages = outcome_advantages(rewards)
        accuracy = group_mean(rewards > 0)
        ease = torch.where(advantages > 0, accuracy, 1 - accuracy)
        weight = 0.4 + 1.1 * torch.sigmoid(-10 * (ease - 0.75))
        return torch.where(accuracy > 0, advantages * weight, 0.0)

    def filter_scores(self, batch: Batch) -> Tensor:
        """(G, N) R, cut to 0..1: the code leaves out the groups in which all have R = 1."""
        return self._shaped(batch).clamp(0, 1)

    def _shaped(self, batch: Batch) -> Tensor:
        scores = base_scores(batch)
        correct = scores == CORRECT
        unformatted = scores == UNFORMATTED
        repeats = batch.each_text(is_degenerate).bool()
        three_shortest = batch.lengths.sort(-1).values[..., :3]
        length_counts = group_mean(three_shortest) > self.least_length
        shortness = torch.exp(-self.alpha * standardise(batch.lengths, correct))

        rewards = torch.full_like(scores, -1.0)
        rewards[unformatted] = 0.0
        rewards[unformatted & repeats] = -2.0
        rewards[correct] = 1.0
        return torch.where(correct & length_counts, shortness, rewards)
