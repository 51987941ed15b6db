"""O1-Pruner, after github.com/StarDewXXX/O1-Pruner (commit 04c0863)."""

import torch
from torch import Tensor

from openrlhf_swap.algorithm.advantages import standardise
from openrlhf_swap.config import setting
from openrlhf_swap.objectives.base import Objective
from openrlhf_swap.objectives.group_statistics import group_mean
from openrlhf_swap.rollouts.rollout import Batch


class O1Pruner(Objective):
    """A = z-score over the batch of clip(mean L/L - 1 + alpha (c - p), -2, 4).

    Without a spread it is 0.
    """

    normaliser = "none"
    alpha: float = setting(
        5.0, "weight of the answer; low values make short wrong answers attractive"
    )

    def rewards(self, batch: Batch) -> Tensor:
        shortness = group_mean(batch.lengths) / batch.lengths - 1
        surprise = batch.correct.double() - group_mean(batch.correct)
        weights = (shortness + self.alpha * surprise).clamp(-2, 4)
        flat = weights.flatten()
        scores = standardise(flat, torch.ones_like(flat).bool(), eps=1e-9, unbiased=False)
        return scores.view_as(weights)
