"""LAPO, after its code (commit bd59dfd)."""

import math
import re

import torch
from torch import Tensor

from openrlhf_swap.algorithm.advantages import target_lengths
from openrlhf_swap.config import SwapConfig, setting
from openrlhf_swap.objectives.base import Batch, SamplingRequest
from openrlhf_swap.objectives.group_statistics import known_lengths
from openrlhf_swap.objectives.peers.hbpo import PROMISE
from openrlhf_swap.objectives.peers.staged import Staged
from openrlhf_swap.rollouts.families import open_thought, thought_opening
from openrlhf_swap.rollouts.rollout import prompt_key

_PROMISE = re.compile(PROMISE.format(n=r"\d+") + r"\.$")
UNKNOWN = 4096  # what is promised for a problem without a known length


class LAPO(Staged):
    """R = c + .7 g c, then c + .8 c exp(-(L - m)^2/(2 120^2)), m a problem's median correct length.

    Both stages are normalised in the group. First: g = 1 between the 30th and the 70th percentile
    of the group's correct lengths, and falls to 0 within 100 tokens outside; 0 where both are
    equal. A problem without a correct answer at its last visit has no m. Second: the thought
    promises m, which only falls. Where m is not known the group's median takes its place.
    """

    remembers_batches = True
    state = ("stage", "medians")
    first_stage_steps: int = setting(240, "training steps of the first stage", ge=0)

    def __init__(self, config: SwapConfig) -> None:
        super().__init__(config)
        self.medians: dict[str, float] = {}

    def sampling(self, prompt: str, count: int, max_new_tokens: int) -> list[SamplingRequest]:
        """In the second stage the thought begins with the promise, which is not trained on."""
        self.stage = int(self.step >= self.first_stage_steps)
        if self.stage == 1:
            length = int(self.medians.get(self._key(prompt), UNKNOWN))
            opened = open_thought(prompt, self.config.start_of_thought)
            prompt = f"{opened}{PROMISE.format(n=length)}."
        return [SamplingRequest(prompt, count, self.limit or max_new_tokens)]

    def rewards(self, batch: Batch) -> Tensor:
        """Uses the lengths known before this batch, then learns from its correct responses."""
        keys = [self._key(group[0].prompt) for group in batch.groups]
        medians = target_lengths(batch.lengths, batch.correct)
        if self.stage == 0:
            length_reward = 0.7 * self._nearness_to_range(batch)
        else:
            known = known_lengths(self.medians, keys)
            of_group = medians.unsqueeze(-1)
            promised = torch.where(known.isnan(), of_group, known.floor())
            distance = batch.lengths - promised
            length_reward = 0.8 * torch.exp(-(distance**2) / (2 * 120**2))
        for key, median in zip(keys, medians.tolist(), strict=True):
            self._remember(key, median)
        return batch.correct + torch.where(batch.correct, length_reward, 0.0)

    def _nearness_to_range(self, batch: Batch) -> Tensor:
        """(G, N) g."""
        correct_lengths = torch.where(batch.correct, batch.lengths.double(), math.nan)
        quantiles = torch.tensor([0.3, 0.7], dtype=torch.float64)
        low, high = correct_lengths.nanquantile(quantiles, dim=-1, keepdim=True)
        below = low - batch.lengths
        above = batch.lengths - high
        outside = below.maximum(above).clamp(min=0)
        near = (1 - outside / 100).clamp(min=0)
        return torch.where(low < high, near, 0.0)

    def _remember(self, key: str, median: float) -> None:
        """Take a median length, which is NaN where no response was correct."""
        if self.stage == 0:
            self.medians.pop(key, None)
        if not math.isnan(median):
            self.medians[key] = min(self.medians.get(key, median), median)

    def _key(self, prompt: str) -> str:
        """The key of a problem, whether or not its thought was opened and a length promised."""
        plain = _PROMISE.sub("", prompt)
        return prompt_key(plain.removesuffix(thought_opening(self.config.start_of_thought)))

    def metrics(self) -> dict[str, float]:
        known = len(self.medians)
        return {"swap/lapo_stage": 1.0 + self.stage, "swap/lapo_known_problems": float(known)}
