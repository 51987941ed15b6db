"""ETR, entropy trend reward, after github.com/Xuan1030/ETR (commit cd88c2b)."""

import math

import torch
from torch import Tensor

from openrlhf_swap.config import setting
from openrlhf_swap.objectives.base import Objective
from openrlhf_swap.objectives.group_statistics import step_entropies
from openrlhf_swap.rollouts.rollout import Batch

CANDIDATES = 5  # the authors take the entropy of the five likeliest tokens, divided by log 5


class ETR(Objective):
    """R = 1 + weight T correct, -1 wrong; T = sum of m_k, m_k = gamma m_(k-1) + f(H_k - H_(k-1)).

    H_k is the mean token entropy of step k, divided by log 5; f(d) = -fall d for a fall, -rise d
    for a rise, and m starts with 0. With less than two steps T = 0.

    The authors take the five likeliest tokens and sentences that end with a blank line; here the
    entropy is of the whole vocabulary, and the steps are SWAP's.
    """

    reads_entropies = True
    weight: float = setting(0.005, "of the trend beside the answer", ge=0)
    gamma: float = setting(0.99, "how much of a step's reward goes on to the next", ge=0, le=1)
    fall: float = setting(0.4, "reward of a fall of the entropy", ge=0)
    rise: float = setting(0.8, "price of a rise", ge=0)

    def rewards(self, batch: Batch) -> Tensor:
        entropies, mask = step_entropies(batch)
        earned = 1 + self.weight * self.trend(entropies / math.log(CANDIDATES), mask)
        return torch.where(batch.correct, earned, -1.0)

    def trend(self, entropies: Tensor, step_mask: Tensor) -> Tensor:
        """(...) T from (..., K) entropies of steps."""
        changes = entropies.diff(dim=-1)
        worth = self.fall * (-changes).clamp(min=0) - self.rise * changes.clamp(min=0)
        total = torch.zeros(entropies.shape[:-1], dtype=entropies.dtype)
        momentum = torch.zeros_like(total)
        for step in range(changes.shape[-1]):
            momentum = self.gamma * momentum + worth[..., step]
            total += torch.where(step_mask[..., step + 1], momentum, 0.0)
        return total
