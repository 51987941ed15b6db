"""Objectives that ask for a number of tokens, or teach when to think: by the prompt, or by forced beginnings."""

import math
import random
import re
from collections.abc import Iterable
from functools import cached_property
from pathlib import Path
from types import SimpleNamespace

import torch
from torch import Tensor

from openrlhf_swap.algorithm.advantages import outcome_advantages
from openrlhf_swap.config import setting
from openrlhf_swap.errors import ConfigError, DataError
from openrlhf_swap.files import read_rows
from openrlhf_swap.objectives.base import Numbers, Objective, SamplingRequest, numbers
from openrlhf_swap.objectives.group_rewards import EPS, right_answers
from openrlhf_swap.rewards.answers import SUFFIX
from openrlhf_swap.rewards.statements import last_boxed
from openrlhf_swap.rollouts.families import open_thought, opens_thought, thought_opening
from openrlhf_swap.rollouts.rollout import Batch, Rollout, prompt_key

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
    """R = c - alpha |n - L|, in the group; c only after a closed thought. After github.com/cmu-l3/l1 (2025-05-13)."""

    boxes_answers = True
    rewrites_evaluation = True
    shortest: int = setting(100, "smallest budget, in tokens", ge=1)
    longest: int = setting(4000, "largest; drawn uniformly once a row")
    alpha: float = setting(0.0003, "taken off for each token of difference")
    instruction: str = setting(INSTRUCTION, "goes before the budget, instead of openrlhf-swap prepare's")

    def rewrite_problem(self, problem: str, rng: random.Random) -> str:
        wording, n = self._wording(rng), rng.randint(self.shortest, max(self.shortest, self.longest))
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
    """R = c clip(slope (n - L) + delta, 0, 1) for half of the rows, L1-Exact's for the others."""

    slope: float = setting(0.001, "of the reward in the tokens that are left")
    delta: float = setting(0.5, "reward of a correct answer that uses its budget up")
    exact_share: float = setting(0.5, "share of the rows with an exact budget")

    def _wording(self, rng: random.Random) -> str:
        return EXACT if rng.random() < self.exact_share else MAXIMUM

    def rewards(self, batch: Batch) -> Tensor:
        left = self._budgets(batch) - batch.lengths
        within = self.correct(batch) * (self.slope * left + self.delta).clamp(0, 1)
        is_maximum = batch.each(lambda rollout: asked_budget(rollout)[1]).bool()
        return within.where(is_maximum, super().rewards(batch))


class SABER(Objective):
    """R = c - .2 [bad format] - .4 [thought > n]; in the group. A wrong format earns no c, and pays for no length.

    The format is one thought, closed once; the prompt closes it where n is 0. After github.com/bilibili/saber_rl
    (commit fc93067).
    """

    boxes_answers = True
    rewrites_evaluation = True
    budgets: Numbers = numbers("0,128,4096,32768", "thinking tokens, one for each row; 0: no thought; 32768: no limit")

    def rewrite_problem(self, problem: str, rng: random.Random) -> str:
        n = rng.choice(self.budgets)
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

    R = min(f(L) - |n - L|/L_max, f(n)) for a correct answer within L_max, -1 without the format, else 0. After its
    code (commit 5c8991d).
    """

    normaliser = "none"
    boxes_answers = True
    reshapes_responses = True
    budgets: Numbers = numbers("512,1024,2048,2560", "tokens; each has its share of a group")
    max_length: int = setting(4096, "L_max: the run's longest response, in tokens", ge=1)
    budget_weight: float = setting(2.0, "of the difference between a budget's mean reward and its best")

    def check(self, args: SimpleNamespace) -> None:
        size, budgets = args.rollout.n_samples_per_prompt, len(self.budgets)
        if size % budgets:
            found = f"--rollout.n_samples_per_prompt is {size}, but --swap.hbpo.budgets has {budgets}"
            raise ConfigError(f"{found}; use a multiple of it")

    def sampling(self, prompt: str, count: int, max_new_tokens: int) -> list[SamplingRequest]:
        """One part a budget; each response begins with its promise, which is trained on."""
        start = self.config.start_of_thought
        promise = PROMISE if opens_thought(prompt, start) else f"{start} {PROMISE}"
        share = count // len(self.budgets)
        return [SamplingRequest(prompt, share, max_new_tokens, promise.format(n=n)) for n in self.budgets]

    def rewards(self, batch: Batch) -> Tensor:
        budgets = batch.each(lambda rollout: self.budgets[int(rollout.metadata["part"])])
        lengths, longest, best = batch.lengths.double(), self.max_length, self._best(budgets)
        near = (self._best(lengths) - (budgets - lengths).abs() / longest).minimum(best)
        rewards = torch.where(batch.correct & (lengths <= longest), near, 0.0)

        def is_formatted(text: str) -> bool:
            """A box after the first end of a thought, and before a second one."""
            pieces = text.split(batch.reader.end_of_thought)
            return len(pieces) > 1 and last_boxed(pieces[1]) is not None

        rewards = torch.where(batch.each_text(is_formatted).bool(), rewards, -1.0)
        same = budgets.unsqueeze(-1) == budgets.unsqueeze(-2)
        means = (same * rewards.unsqueeze(-2)).sum(-1) / same.sum(-1)
        return outcome_advantages(rewards, EPS) + self.budget_weight * (means - best)

    def _best(self, lengths: Tensor) -> Tensor:
        """F, the most that a response of this many tokens can earn."""
        return 4 * torch.cos(math.pi * lengths / (2 * self.max_length))


MAKER = "openrlhf-swap reference"
NO_THINKING = 0  # the part of a group that is sampled first


class AdaptThink(Objective):
    """A = c - reference accuracy of the problem + bonus [no thinking], the same on every token, not normalised.

    After github.com/THU-KEG/AdaptThink (2025-05-28).
    """

    normaliser = "none"
    reshapes_responses = True
    reference: str = setting("", f"file with the reference policy's accuracies: {MAKER}", is_path=True)
    bonus: float = setting(0.05, "delta: what a response without thinking may lose in accuracy")
    no_thinking_share: float = setting(0.5, "of a group's responses", gt=0, lt=1)
    no_thinking_tokens: int = setting(4096, "longest response without thinking")
    thinking_start: str = setting("Alright", "forced first word of a thought; empty: nothing is forced")

    def check(self, args: SimpleNamespace) -> None:
        kind = args.actor.policy_loss_type
        if kind != "gspo":
            raise ConfigError(f"--actor.policy_loss_type is {kind}; adaptthink needs gspo: leave it out")
        _ = self._accuracies

    def check_prompts(self, prompts: Iterable[str]) -> None:
        keys = list(map(prompt_key, prompts))
        if missing := sum(key not in self._accuracies for key in keys):
            raise DataError(
                f"--swap.adaptthink.reference is {self.reference}, which lacks {missing} of {len(keys)} "
                f"prompts; make it from the same data set with {MAKER}"
            )

    @cached_property
    def _accuracies(self) -> dict[str, float]:
        path = self.reference
        if not Path(path).is_file():
            raise ConfigError(f"--swap.adaptthink.reference is {path!r}, which is not a file; make it with {MAKER}")
        return {row["key"]: row["accuracy"] for row in read_rows(Path(path))}

    def _accuracy(self, prompt: str) -> float:
        """The reference accuracy of a prompt, or of the prompt before its thought was opened for it."""
        key = prompt_key(prompt)
        if key not in self._accuracies:
            key = prompt_key(prompt.removesuffix(thought_opening(self.config.start_of_thought)))
        return self._accuracies[key]

    def eval_prompt(self, prompt: str) -> str:
        return open_thought(prompt, self.config.start_of_thought)

    def sampling(self, prompt: str, count: int, max_new_tokens: int) -> list[SamplingRequest]:
        prompt, share = self.eval_prompt(prompt), self.no_thinking_share
        without = max(1, min(count - 1, round(count * share)))
        shorter = min(self.no_thinking_tokens, max_new_tokens)
        return [
            SamplingRequest(prompt, without, shorter, self.config.end_of_thought, share),
            SamplingRequest(prompt, count - without, max_new_tokens, self.thinking_start, 1 - share),
        ]

    def rewards(self, batch: Batch) -> Tensor:
        """C - c_ref(x) + bonus; a response with a thought in the wrong place counts as wrong."""
        reference = batch.each(lambda rollout: self._accuracy(rollout.prompt))
        skipped = batch.each(lambda rollout: rollout.metadata["part"] == NO_THINKING)
        return right_answers(batch, self.config).double() - reference + self.bonus * skipped


class Thinkless(Objective):
    """R = 1 short and correct, .5 correct after a thought, -1 wrong, unclosed or without a mark; A = R - mean.

    The loss is .001 times the mean over first tokens, which choose, plus the mean over the others. After its code
    (commit aa225d2).
    """

    normaliser = "centre"
    outcome_weight = 0.0
    short: str = setting("<short>", "first token of a short answer")
    think: str = setting("<think>", "first token of a thought")
    think_reward: float = setting(0.5, "of a correct answer after a thought; raise it if it thinks too little")
    choice_weight: float = setting(0.001, "of the first token in the loss", ge=0)

    def check_prompts(self, prompts: Iterable[str]) -> None:
        """A prompt must leave the choice to the policy."""
        if any(opens_thought(prompt, self.think) for prompt in prompts):
            raise DataError(
                f"--swap.thinkless.think is {self.think!r}, with which the chat template ends a prompt, so "
                "that nothing is left to choose: use a policy that was taught both marks, and its template"
            )

    def correct(self, batch: Batch) -> Tensor:
        """A short answer has no thought to close."""
        return batch.correct & (batch.closed | self._starts_with(batch, self.short))

    def rewards(self, batch: Batch) -> Tensor:
        short, think = self._starts_with(batch, self.short), self._starts_with(batch, self.think)
        earned = torch.where(short, 1.0, torch.where(think, self.think_reward, -1.0)).double()
        return torch.where(self.correct(batch), earned, -1.0)

    def _starts_with(self, batch: Batch, mark: str) -> Tensor:
        return batch.each(lambda rollout: batch.reader.text(rollout.response_ids[:1]) == mark).bool()

    def token_advantages(self, batch: Batch) -> Tensor:
        """The whole advantage, so scaled that a mean over all tokens is the sum of both means."""
        rewards = self.rewards(batch)
        responses, tokens = rewards.numel(), int(batch.lengths.sum())
        scale = torch.full((int(batch.lengths.max()),), tokens / max(1, tokens - responses), dtype=torch.float64)
        scale[0] = self.choice_weight * tokens / responses
        return (rewards - rewards.mean(-1, keepdim=True)).unsqueeze(-1) * scale
