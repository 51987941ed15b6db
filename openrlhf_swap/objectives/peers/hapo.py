"""HAPO, after its code (commit c91ae3b)."""

import math

import torch
from torch import Tensor

from openrlhf_swap.config import SwapConfig
from openrlhf_swap.objectives.base import Batch, Objective, setting
from openrlhf_swap.objectives.group_statistics import known_lengths, shortest
from openrlhf_swap.rollouts.rollout import prompt_key


class HAPO(Objective):
    """R = c + weight max(-.7, f) correct, c + weight min(0, f) wrong; f = cos(pi/2 L/h).

    h is the problem's shortest correct length so far: without one f is 0, and from 2 h on -1.
    """

    penalises_long_wrong = True
    remembers_batches = True
    state = ("lengths",)
    weight: float = setting(1.0, "weight of the length reward beside the answer's")

    def __init__(self, config: SwapConfig) -> None:
        super().__init__(config)
        self.lengths: dict[str, float] = {}

    def rewards(self, batch: Batch) -> Tensor:
        """Uses the lengths known before this batch, then learns from its correct responses."""
        keys = [prompt_key(group[0].prompt) for group in batch.groups]
        relative_length = batch.lengths / known_lengths(self.lengths, keys)
        f = torch.cos(math.pi / 2 * relative_length.clamp(max=2)).nan_to_num(0.0)
        if_correct = f.clamp(min=-0.7)
        if_wrong = f.clamp(max=0)
        length_reward = torch.where(batch.correct, if_correct, if_wrong)
        best = shortest(batch.lengths, batch.correct)
        for key, length in zip(keys, best.flatten().tolist(), strict=True):
            if length < self.lengths.get(key, math.inf):
                self.lengths[key] = length
        return batch.correct + self.weight * length_reward

    def metrics(self) -> dict[str, float]:
        return {"swap/hapo_known_problems": float(len(self.lengths))}
