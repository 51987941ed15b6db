"""Short-RL, after github.com/lblankl/Short-RL (commit 07cea8a)."""

import torch
from torch import Tensor

from openrlhf_swap.objectives.base import Batch, Objective, setting
from openrlhf_swap.objectives.group_statistics import longest, shortest
from openrlhf_swap.objectives.peers.formats import CORRECT, UNFORMATTED, base_scores


class ShortRL(Objective):
    """R = answer (2, -1.5 wrong, -2 unformatted) + format (1 or -1) + [accuracy near its best] l.

    l is the place of a correct length among the correct ones of the group, from .5 to -.5.
    """

    boxes_answers = True
    remembers_batches = True
    state = ("best",)
    best = 0.0  # accuracy
    tolerance: int = setting(
        200, "tokens by which a correct answer may exceed the shortest one and lose nothing"
    )
    accuracy_margin: float = setting(
        0.05, "the length counts while accuracy is at most this far below its best"
    )

    def rewards(self, batch: Batch) -> Tensor:
        scores = base_scores(batch)
        correct = scores == CORRECT
        rewards = torch.full_like(scores, -1.5 + 1)
        rewards[scores == UNFORMATTED] = -2.0 - 1
        rewards[correct] = 2.0 + 1

        accuracy = correct.double().mean().item()
        self.best = max(self.best, accuracy)
        if accuracy < self.best - self.accuracy_margin:
            return rewards
        least = shortest(batch.lengths, correct)
        most = longest(batch.lengths, correct)
        shortness = 0.5 - (batch.lengths - least) / (most - least + 1e-5)
        shortness[batch.lengths <= least + self.tolerance] = 0.5
        return rewards + torch.where(correct, shortness, 0.0)

    def metrics(self) -> dict[str, float]:
        return {"swap/short_rl_best_accuracy": self.best}
