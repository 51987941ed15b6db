"""LAPO, after its code (commit bd59dfd)."""

import math
import re

import torch
from torch import Tensor

from openrlhf_swap.algorithm.advantages import target_lengths
from openrlhf_swap.config import SwapConfig, setting
from openrlhf_swap.objectives.base import SamplingRequest
from openrlhf_swap.objectives.hbpo import PROMISE
from openrlhf_swap.objectives.staged import Staged
from openrlhf_swap.rollouts.families import open_thought, thought_opening
from openrlhf_swap.rollouts.rollout import Batch, prompt_key

_PROMISE = re.compile(r"I will answer the question with (\d+) tokens\.$")
RANGE = (0.3, 0.7)  # the quantiles of correct lengths between which a length is right
RANGE_WIDTH = 100  # tokens outside of it within which the reward falls to 0
RANGE_WEIGHT = 0.7
PROMISE_WIDTH = 120.0  # the deviation, in tokens, that the second stage forgives
PROMISE_WEIGHT = 0.8
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
        medians = target_lengths(batch.lengths, batch.correct)
        if self.stage == 0:
            length_reward = self._range_rewards(batch)
        else:
            length_reward = self._promise_rewards(batch, medians)
        for group, median in zip(batch.groups, medians.tolist(), strict=True):
            self._remember(self._key(group[0].prompt), median)
        return batch.correct.double() + torch.where(batch.correct, length_reward, 0.0)

    def _range_rewards(self, batch: Batch) -> Tensor:
        correct_lengths = torch.where(batch.correct, batch.lengths.double(), math.nan)
        quantiles = torch.tensor(RANGE, dtype=torch.float64)
        low, high = correct_lengths.nanquantile(quantiles, dim=-1, keepdim=True)
        outside = (low - batch.lengths).maximum(batch.lengths - high).clamp(min=0)
        near = (1 - outside / RANGE_WIDTH).clamp(min=0)
        return RANGE_WEIGHT * torch.where(low < high, near, 0.0)

    def _promise_rewards(self, batch: Batch, medians: Tensor) -> Tensor:
        keys = [self._key(group[0].prompt) for group in batch.groups]
        lengths = [self.medians.get(key, math.nan) for key in keys]
        known = torch.tensor(lengths, dtype=torch.float64)
        promised = torch.where(known.isnan(), medians, known.floor())
        distance = batch.lengths - promised.unsqueeze(-1)
        return PROMISE_WEIGHT * torch.exp(-(distance**2) / (2 * PROMISE_WIDTH**2))

    def _remember(self, key: str, median: float) -> None:
        """Take a median length, which is NaN where no response was correct."""
        is_known = not math.isnan(median)
        if self.stage == 1 and is_known:
            self.medians[key] = min(self.medians.get(key, median), median)
        elif self.stage == 0 and is_known:
            self.medians[key] = median
        elif self.stage == 0:
            self.medians.pop(key, None)

    def _key(self, prompt: str) -> str:
        """The key of a problem, whether or not its thought was opened and a length promised."""
        plain = _PROMISE.sub("", prompt)
        return prompt_key(plain.removesuffix(thought_opening(self.config.start_of_thought)))

    def metrics(self) -> dict[str, float]:
        return {
            "swap/lapo_stage": 1.0 + self.stage,
            "swap/lapo_known_problems": float(len(self.medians)),
        }
