"""HBPO: each group explores several budgets, and a response is rewarded for staying near its own.

After its code (commit 5c8991d), whose released branch does not pass the budget and cannot run as it is. It adds the
second term of the advantage twice, which `budget_weight` keeps.
"""

from __future__ import annotations

import math
from types import SimpleNamespace

import torch
from torch import Tensor

from openrlhf_swap.algorithm.advantages import outcome_advantages
from openrlhf_swap.config import FlagSettings, SwapConfig, setting
from openrlhf_swap.errors import ConfigError
from openrlhf_swap.objectives.base import Objective, SamplingRequest
from openrlhf_swap.objectives.groups import EPS
from openrlhf_swap.objectives.laser import UNFORMATTED, base_scores
from openrlhf_swap.rollouts.batch import Batch
from openrlhf_swap.rollouts.families import opens_thought

PROMISE = "I will answer the question with {n} tokens"


class HBPO(Objective):
    """A = GRPO(R) + weight (mean R of the same budget - f(n)), f(x) = 4 cos(pi x/(2 L_max)).

    R = min(f(L) - |n - L|/L_max, f(n)) for a correct answer within L_max, -1 without the format, else 0; n is the
    budget.
    """

    normaliser = "none"
    boxes_answers = True
    reshapes_responses = True

    class Settings(FlagSettings):
        """Flags `--swap.hbpo.*`."""

        budgets: str = setting("512,1024,2048,2560", "tokens; each has its share of a group")
        max_length: int = setting(4096, "L_max: the run's longest response, in tokens", "use a number of tokens", ge=1)
        budget_weight: float = setting(2.0, "of the difference between a budget's mean reward and its best")

    settings: Settings

    def __init__(self, config: SwapConfig) -> None:
        super().__init__(config)
        self._budgets = self.numbers("budgets", "tokens such as 512,1024,2048,2560")

    def check(self, args: SimpleNamespace) -> None:
        """A group must hold each budget as often."""
        size, budgets = args.rollout.n_samples_per_prompt, len(self._budgets)
        if size % budgets:
            found = f"--rollout.n_samples_per_prompt is {size}, but --swap.hbpo.budgets has {budgets}"
            raise ConfigError(f"{found}; use a multiple of it")

    def sampling(self, prompt: str, count: int, max_new_tokens: int) -> list[SamplingRequest]:
        """One part a budget; each response begins with its promise, which is trained on."""
        start = self.config.start_of_thought
        promise = PROMISE if opens_thought(prompt, start) else f"{start} {PROMISE}"
        share = count // len(self._budgets)
        return [SamplingRequest(prompt, share, max_new_tokens, promise.format(n=n)) for n in self._budgets]

    def rewards(self, batch: Batch) -> Tensor:
        """The advantage itself."""
        budgets = batch.each(lambda rollout: self._budgets[int(rollout.metadata["part"])])
        lengths, longest, best = batch.lengths.double(), self.settings.max_length, self._best(budgets)
        near = (self._best(lengths) - (budgets - lengths).abs() / longest).minimum(best)
        rewards = torch.where(batch.correct & (lengths <= longest), near, 0.0)
        rewards = torch.where(base_scores(batch) == UNFORMATTED, -1.0, rewards)
        same = budgets.unsqueeze(-1) == budgets.unsqueeze(-2)
        means = (same * rewards.unsqueeze(-2)).sum(-1) / same.sum(-1)
        return outcome_advantages(rewards, EPS) + self.settings.budget_weight * (means - best)

    def _best(self, lengths: Tensor) -> Tensor:
        """F, the most that a response of this many tokens can earn."""
        return 4 * torch.cos(math.pi * lengths / (2 * self.settings.max_length))
