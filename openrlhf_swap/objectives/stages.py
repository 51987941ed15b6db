"""Objectives that change in stages: ThinkPrune, LAPO and AutoThink.

Their authors train each stage as a run of its own; here one run goes through all of them.
"""

from __future__ import annotations

import math
import random
import re
from types import SimpleNamespace
from typing import Any, ClassVar

import torch
from torch import Tensor

from openrlhf_swap.algorithm.advantages import target_lengths
from openrlhf_swap.config import SwapConfig, setting
from openrlhf_swap.errors import ConfigError
from openrlhf_swap.objectives.base import Objective, SamplingRequest, numbers_pattern, parse_numbers
from openrlhf_swap.objectives.formats import is_degenerate
from openrlhf_swap.objectives.groups import z_scores
from openrlhf_swap.rollouts.families import open_thought, thought_opening
from openrlhf_swap.rollouts.reader import boxes_answer
from openrlhf_swap.rollouts.rollout import Batch, prompt_key

ANNOUNCEMENT = " The output of the assistant should be within {limit} tokens."
PROMISE = "I will answer the question with {n} tokens."
_PROMISE = re.compile(r"I will answer the question with (\d+) tokens\.$")


def stage_limits(example: str) -> Any:
    """The setting `limits` of an objective with as many stages as the example has numbers."""
    stages = example.count(",") + 1
    return setting(
        "",
        f"token limit of each stage, such as {example}; empty: the run's in all",
        f"use {stages} token limits such as {example}",
        pattern="^$|" + numbers_pattern(f"{{{stages - 1}}}"),
    )


class _Staged(Objective):
    """`sampling` sets the stage, from 0 on, so that rewards are those of the stage in which a batch was sampled."""

    state: ClassVar[tuple[str, ...]] = ("stage",)
    limits: str

    def __init__(self, config: SwapConfig) -> None:
        super().__init__(config)
        self.stage = 0
        self._limits = parse_numbers(self.limits)

    def check(self, args: SimpleNamespace) -> None:
        longest, limit = max(self._limits, default=0), args.rollout.max_new_tokens
        if longest > limit:
            raise ConfigError(
                f"--swap.{self.name}.limits has {longest}, but --rollout.max_new_tokens is {limit}; raise that, or "
                "lower the limit"
            )

    @property
    def limit(self) -> int | None:
        """Tokens that a response may have in this stage; None where the run's limit holds."""
        return self._limits[self.stage] if self._limits else None


class ThinkPrune(_Staged):
    """Limits of 4,000, 3,000 and 2,000 tokens by default, 180 steps each.

    The reward is plain correctness. After github.com/UCSB-NLP-Chang/ThinkPrune (2025-04-16).
    """

    limits: str = setting(
        "4000,3000,2000",
        "token limit of each stage",
        "use token limits such as 4000,3000,2000",
        pattern=numbers_pattern("*"),
    )
    stage_steps: int = setting(180, "training steps of a stage; the last one goes on to the end", ge=1)
    announce: int = setting(1, "1: the prompt names the limit, as in the released code; 0: it does not")

    def rewrite_problem(self, problem: str, rng: random.Random) -> str:
        """Announce the first limit; `sampling` brings it up to date."""
        return problem + ANNOUNCEMENT.format(limit=self._limits[0]) if self.announce else problem

    def sampling(self, prompt: str, count: int, max_new_tokens: int) -> list[SamplingRequest]:
        """The stage's limit, in the prompt and for the engine."""
        self.stage = min(self.step // self.stage_steps, len(self._limits) - 1)
        limit = self._limits[self.stage]
        before, after = (ANNOUNCEMENT.format(limit=n) for n in (self._limits[0], limit))
        head, found, tail = prompt.rpartition(before)
        return [SamplingRequest(head + after + tail if found else prompt, count, limit)]

    def metrics(self) -> dict[str, float]:
        return {"swap/thinkprune_limit": float(self._limits[self.stage])}


class LAPO(_Staged):
    """Two stages, both normalised in the group; the problem's median correct length m is remembered.

    First: R = c + .7 g of correct answers; g = 1 between the 30th and the 70th percentile of the group's correct
    lengths, and falls to 0 within 100 tokens outside. A problem without a correct answer at its last visit has no m.
    Second: the prompt ends with m, and R = c + .8 exp(-(L - m)^2/(2 120^2)); m only falls. So the policy learns how
    long correct answers are, then promises that length in the thought. After its code (commit bd59dfd).
    """

    remembers_batches = True
    state = ("stage", "medians")
    first_stage_steps: int = setting(240, "training steps of the first stage", ge=0)
    range_weight: float = setting(0.7, "of the length reward in the first stage")
    promise_weight: float = setting(0.8, "of the length reward in the second")
    promise_width: float = setting(
        120.0, "deviation, in tokens, that the second stage forgives", "use a positive number", gt=0
    )
    unknown: int = setting(4096, "what is promised for a problem without a known length", ge=1)
    limits: str = stage_limits("4096,2048")

    def __init__(self, config: SwapConfig) -> None:
        super().__init__(config)
        self.medians: dict[str, float] = {}

    def sampling(self, prompt: str, count: int, max_new_tokens: int) -> list[SamplingRequest]:
        """In the second stage the thought begins with the promise, which is not trained on."""
        self.stage = int(self.step >= self.first_stage_steps)
        if self.stage == 1:
            length = int(self.medians.get(self._key(prompt), self.unknown))
            prompt = open_thought(prompt, self.config.start_of_thought) + PROMISE.format(n=length)
        return [SamplingRequest(prompt, count, self.limit or max_new_tokens)]

    def rewards(self, batch: Batch) -> Tensor:
        """By what was known before this batch; then remembers its correct lengths."""
        medians = target_lengths(batch.lengths, batch.correct)
        if self.stage == 1:
            shortness = self.promise_weight * self._kept_promises(batch, medians)
        else:
            shortness = self.range_weight * _within_range(batch.lengths, batch.correct)
        for group, median in zip(batch.groups, medians.tolist(), strict=True):
            key = self._key(group[0].prompt)
            if not math.isnan(median):
                self.medians[key] = min(self.medians.get(key, math.inf), median) if self.stage == 1 else median
            elif self.stage == 0:
                self.medians.pop(key, None)
        return batch.correct.double() + torch.where(batch.correct, shortness, 0.0)

    def _kept_promises(self, batch: Batch, medians: Tensor) -> Tensor:
        """(G, N) how well each length met the promise; an unknown one is the group's own median."""
        promised = batch.each(lambda rollout: self.medians.get(self._key(rollout.prompt), math.nan)).floor()
        promised = torch.where(promised.isnan(), medians.unsqueeze(-1), promised)
        return torch.exp(-((batch.lengths - promised) ** 2) / (2 * self.promise_width**2))

    def _key(self, prompt: str) -> str:
        """Of the problem, whether its prompt has a promise or not, and whoever opens its thought."""
        return prompt_key(_PROMISE.sub("", prompt).removesuffix(thought_opening(self.config.start_of_thought)))

    def metrics(self) -> dict[str, float]:
        return {"swap/lapo_stage": 1.0 + self.stage, "swap/lapo_known_problems": float(len(self.medians))}


def _within_range(lengths: Tensor, correct: Tensor) -> Tensor:
    """(G, N) 1 between the 30th and the 70th percentile of a group's correct lengths, falling to 0 in 100 tokens."""
    shares = torch.tensor([0.3, 0.7], dtype=torch.float64)
    low, high = torch.where(correct, lengths.double(), torch.nan).nanquantile(shares, dim=-1, keepdim=True)
    distance = (low - lengths).maximum(lengths - high).clamp(min=0)
    inside: Tensor = (1 - distance / 100).clamp(min=0) * (low < high)
    return inside.nan_to_num(0.0)  # NaN: none is correct


class AutoThink(_Staged):
    """R = 1 or 0 with a thought, 2 or -1 without; in the group. A response without one begins with `</think>`.

    Without a box after a closed thought R is 0, and the answer is wrong; -2 for a wrong one without a thought that
    repeats itself. First stage: of a mode with a share q over 1/2, R <- (1 - d) R + d R', d = min(1, 2 q - 1), where
    R' is 0 or -1 with a thought, 1 or -2 without, so that neither mode dies out. Second: R. Third: R - 1 +
    exp(-.05 z) correct, R + 1 - exp(-.05 z) wrong; z is the length's z-score among the correct, or the wrong, ones of
    the group. Every thought begins with an ellipsis, after which the policy may think or not. After its code (commit
    be0bcb0).
    """

    boxes_answers = True
    second_stage: int = setting(200, "training step with which the second stage begins (ours)", ge=0)
    third_stage: int = setting(400, "training step with which the third one begins (ours)", ge=0)
    ellipsis: str = setting("...\\n", "put at the beginning of each thought, and not trained on; \\n is a newline")
    limits: str = stage_limits("8192,16384,24576")

    def eval_prompt(self, prompt: str) -> str:
        opened = open_thought(prompt, self.config.start_of_thought)
        return opened + self.ellipsis.replace("\\n", "\n")

    def sampling(self, prompt: str, count: int, max_new_tokens: int) -> list[SamplingRequest]:
        self.stage = (self.step >= self.second_stage) + (self.step >= self.third_stage)
        return [SamplingRequest(self.eval_prompt(prompt), count, self.limit or max_new_tokens)]

    def correct(self, batch: Batch) -> Tensor:
        """Correct is what is boxed after a closed thought."""
        return batch.correct & batch.each(lambda r: boxes_answer(r.response_ids, batch.reader)).bool()

    def rewards(self, batch: Batch) -> Tensor:
        end = batch.reader.end_of_thought  # it has no more tokens than letters
        skipped = batch.each(lambda r: batch.reader.text(r.response_ids[: len(end)]).startswith(end)).bool()
        correct = self.correct(batch)
        boxed = batch.each(lambda r: boxes_answer(r.response_ids, batch.reader)).bool()
        repeats = batch.each(lambda r: is_degenerate(batch.reader.text(r.response_ids))).bool()
        wrong = torch.where(boxed, torch.where(repeats, -2.0, -1.0), 0.0).double()  # without a thought
        rewards = torch.where(skipped, torch.where(correct, 2.0, wrong), correct.double())
        if self.stage == 0:
            share = skipped.double().mean()
            excess = (2 * torch.where(skipped, share, 1 - share) - 1).clamp(0, 1)
            target = torch.where(skipped, torch.where(correct, 1.0, -2.0), torch.where(correct, 0.0, -1.0))
            return (1 - excess) * rewards + excess * target
        if self.stage == 2:
            z = torch.where(correct, z_scores(batch.lengths, correct), z_scores(batch.lengths, ~correct))
            shortness = 1 - torch.exp(-0.05 * z)
            return rewards + torch.where(correct, -shortness, shortness)
        return rewards

    def metrics(self) -> dict[str, float]:
        return {"swap/autothink_stage": 1.0 + self.stage}
