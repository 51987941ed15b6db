"""GFPO, after TRL (commit 0a0b612)."""

import torch
from torch import Tensor

from openrlhf_swap.algorithm.advantages import standardise
from openrlhf_swap.config import setting
from openrlhf_swap.objectives.base import Objective
from openrlhf_swap.rollouts.rollout import Batch


class GFPO(Objective):
    """A = (c - mean)/(sd + 1e-4) over the shortest of a group, 0 for the others."""

    normaliser = "none"
    share: float = setting(0.5, "of a group that is kept", gt=0, le=1)

    def rewards(self, batch: Batch) -> Tensor:
        count = max(1, round(batch.lengths.shape[-1] * self.share))
        shortest = batch.lengths.argsort(dim=-1, stable=True)[..., :count]
        kept = torch.zeros_like(batch.correct).scatter(-1, shortest, True)
        return standardise(batch.correct.double(), kept, eps=1e-4)
