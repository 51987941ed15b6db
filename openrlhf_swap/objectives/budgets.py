"""Objectives that ask for a number of tokens: L1-Exact, L1-Max, SABER and HBPO."""

from __future__ import annotations

import math
import random
import re
from types import SimpleNamespace

import torch
from torch import Tensor

from openrlhf_swap.algorithm.advantages import outcome_advantages
from openrlhf_swap.config import SwapConfig, setting
from openrlhf_swap.errors import ConfigError
from openrlhf_swap.objectives.base import Objective, SamplingRequest, numbers_pattern, parse_numbers
from openrlhf_swap.objectives.groups import EPS
from openrlhf_swap.rewards.answers import SUFFIX
from openrlhf_swap.rewards.statements import last_boxed
from openrlhf_swap.rollouts.families import open_thought, opens_thought
from openrlhf_swap.rollouts.rollout import Batch, Rollout

INSTRUCTION = r" Let's think step by step and output the final answer within \boxed{}."
EXACT, MAXIMUM = " Think for {n} tokens.", " Think for maximum {n} tokens."
_BUDGET = re.compile(r" Think for (maximum )?(\d+) tokens\.")
NO_THOUGHT, NO_LIMIT = " Answer without thinking.", 32768
PROMISE = "I will answer the question with {n} tokens"


def asked_budget(rollout: Rollout) -> tuple[int, bool]:
    """N of the last budget in a rollout's prompt, and whether it is a maximum."""
    maximum, n = _BUDGET.findall(rollout.prompt)[-1]
    return int(n), bool(maximum)


class L1Exact(Objective):
    """R = c - alpha |n - L|, normalised in the group; c only after a closed thought.

    The prompt asks for n thinking tokens. After github.com/cmu-l3/l1 (2025-05-13).
    """

    boxes_answers = True
    rewrites_evaluation = True
    shortest: int = setting(100, "smallest budget, in tokens")
    longest: int = setting(4000, "largest; drawn uniformly once a row")
    alpha: float = setting(0.0003, "taken off for each token of difference")
    instruction: str = setting(INSTRUCTION, "goes before the budget, instead of openrlhf-swap prepare's")

    def __init__(self, config: SwapConfig) -> None:
        super().__init__(config)
        if not 1 <= self.shortest <= self.longest:
            found = f"--swap.{self.name}.shortest is {self.shortest}, .longest {self.longest}"
            raise ConfigError(f"{found}; use 1 <= shortest <= longest")

    def rewrite_problem(self, problem: str, rng: random.Random) -> str:
        wording, n = self._wording(rng), rng.randint(self.shortest, self.longest)
        return problem.removesuffix(SUFFIX) + self.instruction + wording.format(n=n)

    def _wording(self, rng: random.Random) -> str:
        return EXACT

    def correct(self, batch: Batch) -> Tensor:
        return batch.correct & batch.closed

    def rewards(self, batch: Batch) -> Tensor:
        distance = (self._budgets(batch) - batch.lengths).abs()
        return self.correct(batch).double() - self.alpha * distance

    def _budgets(self, batch: Batch) -> Tensor:
        return batch.each(lambda rollout: asked_budget(rollout)[0])


class L1Max(L1Exact):
    """R = c clip(slope (n - L) + delta, 0, 1) for half of the rows, L1-Exact's for the other half.

    Meant to start from an L1-Exact policy.
    """

    slope: float = setting(0.001, "of the reward in the tokens that are left")
    delta: float = setting(0.5, "reward of a correct answer that uses its budget up")
    exact_share: float = setting(0.5, "share of the rows with an exact budget")

    def _wording(self, rng: random.Random) -> str:
        return EXACT if rng.random() < self.exact_share else MAXIMUM

    def rewards(self, batch: Batch) -> Tensor:
        """By the wording of each prompt."""
        left = self._budgets(batch) - batch.lengths
        within = self.correct(batch) * (self.slope * left + self.delta).clamp(0, 1)
        is_maximum = batch.each(lambda rollout: asked_budget(rollout)[1]).bool()
        return within.where(is_maximum, super().rewards(batch))


class SABER(Objective):
    """R = c - .2 [bad format] - .4 [thought > n]; in the group. A wrong format earns no c, and pays for no length.

    Each row asks for one of the budgets n: 0 tokens, for which the prompt closes the thought, a number, or as many as
    it takes. The format is one thought, closed once. After github.com/bilibili/saber_rl (commit fc93067), which does
    not hold the making of its data: the wording and the even shares of the budgets are ours.
    """

    boxes_answers = True
    rewrites_evaluation = True
    budgets: str = setting(
        "0,128,4096,32768",
        "thinking tokens, one of them for each row; 0: no thought; 32768: no limit",
        "use tokens such as 0,128,4096,32768",
        pattern=numbers_pattern("*", r"\d+"),
    )

    def rewrite_problem(self, problem: str, rng: random.Random) -> str:
        n = rng.choice(parse_numbers(self.budgets))
        return problem + {0: NO_THOUGHT, NO_LIMIT: ""}.get(n, MAXIMUM.format(n=n))

    def sampling(self, prompt: str, count: int, max_new_tokens: int) -> list[SamplingRequest]:
        return [SamplingRequest(self.eval_prompt(prompt), count, max_new_tokens)]

    def eval_prompt(self, prompt: str) -> str:
        if NO_THOUGHT not in prompt:
            return prompt
        return f"{open_thought(prompt, self.config.start_of_thought)}\n{self.config.end_of_thought}\n\n"

    def rewards(self, batch: Batch) -> Tensor:
        reader = batch.reader

        def reward(rollout: Rollout) -> float:
            text, closed = reader.text(rollout.response_ids), NO_THOUGHT in rollout.prompt
            if text.count(reader.end_of_thought) != 1 - closed or self.config.start_of_thought.strip() in text:
                return -0.2
            thought = 0 if closed else reader.reasoning_length(rollout.response_ids)
            if thought and reader.text(rollout.response_ids[thought - 1 : thought]) == "\n":
                thought -= 1
            limit = math.inf if closed or not _BUDGET.search(rollout.prompt) else asked_budget(rollout)[0]
            return rollout.correct - 0.4 * (thought > limit)

        return batch.each(reward)


class HBPO(Objective):
    """A = GRPO(R) + weight (mean R of the same budget - f(n)), f(x) = 4 cos(pi x/(2 L_max)).

    R = min(f(L) - |n - L|/L_max, f(n)) for a correct answer within L_max, -1 without the format, else 0; n is the
    budget. Each group explores several budgets, and a response is rewarded for staying near its own. After its code
    (commit 5c8991d).
    """

    normaliser = "none"
    boxes_answers = True
    reshapes_responses = True
    budgets: str = setting(
        "512,1024,2048,2560",
        "tokens; each has its share of a group",
        "use tokens such as 512,1024,2048,2560",
        pattern=numbers_pattern("*"),
    )
    max_length: int = setting(4096, "L_max: the run's longest response, in tokens", "use a number of tokens", ge=1)
    budget_weight: float = setting(2.0, "of the difference between a budget's mean reward and its best")

    def __init__(self, config: SwapConfig) -> None:
        super().__init__(config)
        self._budgets = parse_numbers(self.budgets)

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
        budgets = batch.each(lambda rollout: self._budgets[int(rollout.metadata["part"])])
        lengths, longest, best = batch.lengths.double(), self.max_length, self._best(budgets)
        near = (self._best(lengths) - (budgets - lengths).abs() / longest).minimum(best)
        rewards = torch.where(batch.correct & (lengths <= longest), near, 0.0)
        end = batch.reader.end_of_thought

        def is_formatted(rollout: Rollout) -> bool:
            """A box after the first end of a thought, and before a second one."""
            pieces = batch.reader.text(rollout.response_ids).split(end)
            return len(pieces) > 1 and last_boxed(pieces[1]) is not None

        rewards = torch.where(batch.each(is_formatted).bool(), rewards, -1.0)
        same = budgets.unsqueeze(-1) == budgets.unsqueeze(-2)
        means = (same * rewards.unsqueeze(-2)).sum(-1) / same.sum(-1)
        return outcome_advantages(rewards, EPS) + self.budget_weight * (means - best)

    def _best(self, lengths: Tensor) -> Tensor:
        """F, the most that a response of this many tokens can earn."""
        return 4 * torch.cos(math.pi * lengths / (2 * self.max_length))
