"""LAPO: learn how long correct answers are, then promise that length in the thought.

After its code (commit bd59dfd), where each stage is a run of its own, the first stage's function returns two rewards a
response, and the lines that put the length into the prompt are commented out.
"""

from __future__ import annotations

import math
import re
from types import SimpleNamespace
from typing import Any

import torch
from torch import Tensor

from openrlhf_swap.config import FlagSettings, SwapConfig, setting
from openrlhf_swap.objectives.base import Objective, SamplingRequest
from openrlhf_swap.rollouts.batch import Batch
from openrlhf_swap.rollouts.families import opening, with_open_thought
from openrlhf_swap.rollouts.rollout import prompt_key

PROMISE = "I will answer the question with {n} tokens."
_PROMISE = re.compile(r"I will answer the question with (\d+) tokens\.$")


class LAPO(Objective):
    """Two stages, both normalised in the group; the problem's median correct length m is remembered.

    First: R = c + .7 g of correct answers; g = 1 between the 30th and the 70th percentile of the group's correct
    lengths, and falls to 0 within 100 tokens outside. A problem without a correct answer at its last visit has no m.
    Second: the prompt ends with m, and R = c + .8 exp(-(L - m)^2/(2 120^2)); m only falls.
    """

    remembers_batches = True

    class Settings(FlagSettings):
        """Flags `--swap.lapo.*`."""

        first_stage_steps: int = setting(240, "training steps of the first stage", ge=0)
        range_weight: float = setting(0.7, "of the length reward in the first stage")
        promise_weight: float = setting(0.8, "of the length reward in the second")
        promise_width: float = setting(
            120.0, "deviation, in tokens, that the second stage forgives", "use a positive number", gt=0
        )
        unknown: int = setting(4096, "what is promised for a problem without a known length", ge=1)
        limits: str = setting("", "token limit of each stage, such as 4096,2048; empty: the run's in both")

    settings: Settings

    def __init__(self, config: SwapConfig) -> None:
        super().__init__(config)
        self._medians: dict[str, float] = {}
        self._second = False
        self._limits = self.stage_limits(2)

    def check(self, args: SimpleNamespace) -> None:
        """A stage's limit must fit the response length."""
        self.check_limits(self._limits, args)

    def sampling(self, prompt: str, count: int, max_new_tokens: int) -> list[SamplingRequest]:
        """In the second stage the thought begins with the promise, which is not trained on."""
        self._second = self.step >= self.settings.first_stage_steps
        if self._second:
            length = int(self._medians.get(self._key(prompt), self.settings.unknown))
            prompt = with_open_thought(prompt, self.config.start_of_thought) + PROMISE.format(n=length)
        limit = self._limits[self._second] if self._limits else max_new_tokens
        return [SamplingRequest(prompt, count, limit)]

    def rewards(self, batch: Batch) -> Tensor:
        """By what was known before this batch; then remembers its correct lengths."""
        medians = [_median(lengths[correct]) for lengths, correct in zip(batch.lengths, batch.correct, strict=True)]
        if self._second:
            shortness = self.settings.promise_weight * self._kept_promises(batch, medians)
        else:
            shortness = self.settings.range_weight * _within_range(batch.lengths, batch.correct)
        for group, median in zip(batch.groups, medians, strict=True):
            key = self._key(group[0].prompt)
            if math.isnan(median):
                if not self._second:
                    self._medians.pop(key, None)
                continue
            known = self._medians.get(key, math.inf) if self._second else math.inf
            self._medians[key] = min(known, median)
        return batch.correct.double() + torch.where(batch.correct, shortness, 0.0)

    def _kept_promises(self, batch: Batch, medians: list[float]) -> Tensor:
        """(G, N) how well each length met the promise; an unknown one is the group's own median."""
        promised = batch.each(lambda rollout: self._medians.get(self._key(rollout.prompt), math.nan)).floor()
        own = torch.tensor(medians, dtype=torch.float64).unsqueeze(-1)
        promised = torch.where(promised.isnan(), own, promised)
        return torch.exp(-((batch.lengths - promised) ** 2) / (2 * self.settings.promise_width**2))

    def _key(self, prompt: str) -> str:
        """Of the problem, whether its prompt has a promise or not, and whoever opens its thought."""
        return prompt_key(_PROMISE.sub("", prompt).removesuffix(opening(self.config.start_of_thought)))

    def metrics(self) -> dict[str, float]:
        """The stage, and how many problems have a length."""
        return {"swap/lapo_stage": 1.0 + self._second, "swap/lapo_known_problems": float(len(self._medians))}

    def state_dict(self) -> dict[str, Any]:
        """The medians, by the problem's key."""
        return {"medians": dict(self._medians)}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """As saved."""
        self._medians = dict(state["medians"])


def _median(lengths: Tensor) -> float:
    """Mean of the middle two of an even count; NaN of none."""
    return lengths.double().quantile(0.5).item() if len(lengths) else math.nan


def _within_range(lengths: Tensor, correct: Tensor) -> Tensor:
    """(G, N) 1 between the 30th and the 70th percentile of a group's correct lengths, falling to 0 in 100 tokens."""
    inside = torch.zeros(lengths.shape, dtype=torch.float64)
    for row, (values, mask) in enumerate(zip(lengths.double(), correct, strict=True)):
        if mask.any():
            low, high = values[mask].quantile(torch.tensor([0.3, 0.7], dtype=torch.float64)).tolist()
            distance = (low - values).maximum(values - high).clamp(min=0)
            inside[row] = (1 - distance / 100).clamp(min=0) * (low < high)
    return inside
