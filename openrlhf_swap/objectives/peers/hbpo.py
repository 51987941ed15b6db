"""HBPO, after its code (commit 5c8991d)."""

import math
from types import SimpleNamespace

import torch
from torch import Tensor

from openrlhf_swap.algorithm.advantages import outcome_advantages
from openrlhf_swap.errors import ConfigError
from openrlhf_swap.objectives.base import (
    Batch,
    Numbers,
    Objective,
    SamplingRequest,
    numbers,
    setting,
)
from openrlhf_swap.rewards.statements import last_boxed
from openrlhf_swap.rollouts.families import opens_thought

PROMISE = "I will answer the question with {n} tokens"


class HBPO(Objective):
    """A = GRPO(R) + 2 (mean R of the same budget - f(n)), f(x) = 4 cos(pi x/(2 L_max)).

    R = min(f(L) - |n - L|/L_max, f(n)) for a correct answer within L_max, -1 without the format,
    else 0. The format is a box after the first end of a thought and before a second one.
    """

    normaliser = "none"
    needs_marks = True
    boxes_answers = True
    reshapes_responses = True
    limits_thoughts = True
    budgets: Numbers = numbers("512,1024,2048,2560", "tokens; each has its share of a group")
    max_length: int = setting(4096, "L_max: the run's longest response, in tokens", ge=1)

    def check(self, args: SimpleNamespace) -> None:
        count = len(self.budgets)
        size = args.rollout.n_samples_per_prompt
        if size % count:
            raise ConfigError(
                f"--rollout.n_samples_per_prompt is {size}, but --swap.hbpo.budgets has {count}; "
                "use a multiple of it"
            )

    def sampling(self, prompt: str, count: int, max_new_tokens: int) -> list[SamplingRequest]:
        """Each response begins with its promise, which is trained on."""
        start = self.config.start_of_thought
        promise = PROMISE if opens_thought(prompt, start) else f"{start} {PROMISE}"
        share = count // len(self.budgets)
        return [
            SamplingRequest(prompt, share, max_new_tokens, promise.format(n=budget))
            for budget in self.budgets
        ]

    def rewards(self, batch: Batch) -> Tensor:
        budgets = batch.each(lambda rollout: self.budgets[int(rollout.metadata["part"])])
        best = self._best(budgets)
        rewards = self._shaped(batch, budgets, best)
        same_budget = (budgets.unsqueeze(-1) == budgets.unsqueeze(-2)).double()
        sums = (same_budget * rewards.unsqueeze(-2)).sum(-1)
        mean = sums / same_budget.sum(-1)
        return outcome_advantages(rewards) + 2 * (mean - best)

    def _shaped(self, batch: Batch, budgets: Tensor, best: Tensor) -> Tensor:
        distance = (budgets - batch.lengths).abs() / self.max_length
        near = (self._best(batch.lengths) - distance).minimum(best)
        earns = batch.correct & (batch.lengths <= self.max_length)
        end = batch.reader.end_of_thought

        def is_formatted(text: str) -> bool:
            answer = f"{text}{end}".split(end)[1]
            return last_boxed(answer) is not None

        formatted = batch.each_text(is_formatted).bool()
        return torch.where(formatted, torch.where(earns, near, 0.0), -1.0)

    def _best(self, lengths: Tensor) -> Tensor:
        """The largest reward f(x) of responses with so many tokens; float64, of any shape."""
        angle = math.pi * lengths.double() / (2 * self.max_length)
        return 4 * torch.cos(angle)
