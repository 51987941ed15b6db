"""Objectives that change what is generated: the prompt, how a response begins, or what continues a
part of it.
"""

import math
import random
import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from functools import cached_property
from itertools import accumulate, pairwise
from pathlib import Path
from types import SimpleNamespace
from typing import Annotated, ClassVar

import torch
from pydantic import BeforeValidator, Field
from torch import Tensor

from openrlhf_swap.algorithm.advantages import outcome_advantages, target_lengths
from openrlhf_swap.config import SwapConfig, setting
from openrlhf_swap.errors import ConfigError, DataError
from openrlhf_swap.files import read_rows
from openrlhf_swap.objectives.base import (
    Continuation,
    Numbers,
    Objective,
    SamplingRequest,
    numbers,
    split_numbers,
)
from openrlhf_swap.objectives.group_rewards import (
    EPS,
    Span,
    boxed,
    fill_spans,
    is_degenerate,
    right_answers,
    z_scores,
)
from openrlhf_swap.rewards.answers import SUFFIX
from openrlhf_swap.rewards.statements import last_boxed
from openrlhf_swap.rollouts.families import open_thought, opens_thought, thought_opening
from openrlhf_swap.rollouts.rollout import (
    Batch,
    ResponseReader,
    Rollout,
    boxes_answer,
    prompt_key,
    tokens_for_each,
)

INSTRUCTION = r" Let's think step by step and output the final answer within \boxed{}."
EXACT, MAXIMUM = " Think for {n} tokens.", " Think for maximum {n} tokens."
_BUDGET = re.compile(r" Think for (maximum )?(\d+) tokens\.")
NO_THOUGHT, NO_LIMIT = " Answer without thinking.", 32768
PROMISE = "I will answer the question with {n} tokens"


def asked_budget(rollout: Rollout) -> tuple[int, bool]:
    """N of the last budget in a prompt, and whether it is a maximum."""
    maximum, n = _BUDGET.findall(rollout.prompt)[-1]
    return int(n), bool(maximum)


class L1Exact(Objective):
    """R = c - alpha |n - L|, in the group; c only after a closed thought. After
    github.com/cmu-l3/l1 (2025-05-13).
    """

    boxes_answers = True
    rewrites_evaluation = True
    shortest: int = setting(100, "smallest budget, in tokens", ge=1)
    longest: int = setting(4000, "largest; drawn uniformly once a row")
    alpha: float = setting(0.0003, "taken off for each token of difference")
    instruction: str = setting(
        INSTRUCTION, "goes before the budget, instead of openrlhf-swap prepare's"
    )

    def rewrite_problem(self, problem: str, rng: random.Random) -> str:
        wording, n = (
            self._wording(rng),
            rng.randint(self.shortest, max(self.shortest, self.longest)),
        )
        return problem.removesuffix(SUFFIX) + self.instruction + wording.format(n=n)

    def _wording(self, rng: random.Random) -> str:
        return EXACT

    def correct(self, batch: Batch) -> Tensor:
        return batch.correct & batch.closed

    def rewards(self, batch: Batch) -> Tensor:
        distance = (batch.each(lambda rollout: asked_budget(rollout)[0]) - batch.lengths).abs()
        return self.correct(batch).double() - self.alpha * distance


class L1Max(L1Exact):
    """R = c clip(slope (n - L) + delta, 0, 1) for half of the rows, L1-Exact's for the others."""

    slope: float = setting(0.001, "of the reward in the tokens that are left")
    delta: float = setting(0.5, "reward of a correct answer that uses its budget up")
    exact_share: float = setting(0.5, "share of the rows with an exact budget")

    def _wording(self, rng: random.Random) -> str:
        return EXACT if rng.random() < self.exact_share else MAXIMUM

    def rewards(self, batch: Batch) -> Tensor:
        left = batch.each(lambda rollout: asked_budget(rollout)[0]) - batch.lengths
        within = self.correct(batch) * (self.slope * left + self.delta).clamp(0, 1)
        is_maximum = batch.each(lambda rollout: asked_budget(rollout)[1]).bool()
        return within.where(is_maximum, super().rewards(batch))


class SABER(Objective):
    """R = c - .2 [bad format] - .4 [thought > n]; in the group. A wrong format earns no c, and pays
    for no length.

    The format is one thought, closed once; the prompt closes it where n is 0. After
    github.com/bilibili/saber_rl (commit fc93067).
    """

    boxes_answers = True
    rewrites_evaluation = True
    budgets: Numbers = numbers(
        "0,128,4096,32768", "thinking tokens, one for each row; 0: no thought; 32768: no limit"
    )

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
            if (
                text.count(reader.end_of_thought) != 1 - closed
                or self.config.start_of_thought.strip() in text
            ):
                return -0.2
            thought = 0 if closed else reader.reasoning_length(rollout.response_ids)
            if thought and reader.text(rollout.response_ids[thought - 1 : thought]) == "\n":
                thought -= 1
            limit = (
                math.inf
                if closed or not _BUDGET.search(rollout.prompt)
                else asked_budget(rollout)[0]
            )
            return rollout.correct - 0.4 * (thought > limit)

        return batch.each(reward)


class HBPO(Objective):
    """A = GRPO(R) + weight (mean R of the same budget - f(n)), f(x) = 4 cos(pi x/(2 L_max)).

    R = min(f(L) - |n - L|/L_max, f(n)) for a correct answer within L_max, -1 without the format,
    else 0. After its code (commit 5c8991d).
    """

    normaliser = "none"
    boxes_answers = True
    reshapes_responses = True
    budgets: Numbers = numbers("512,1024,2048,2560", "tokens; each has its share of a group")
    max_length: int = setting(4096, "L_max: the run's longest response, in tokens", ge=1)
    budget_weight: float = setting(
        2.0, "of the difference between a budget's mean reward and its best"
    )

    def check(self, args: SimpleNamespace) -> None:
        size, budgets = args.rollout.n_samples_per_prompt, len(self.budgets)
        if size % budgets:
            found = (
                f"--rollout.n_samples_per_prompt is {size}, but --swap.hbpo.budgets has {budgets}"
            )
            raise ConfigError(f"{found}; use a multiple of it")

    def sampling(self, prompt: str, count: int, max_new_tokens: int) -> list[SamplingRequest]:
        """Each response begins with its promise, which is trained on."""
        start = self.config.start_of_thought
        promise = PROMISE if opens_thought(prompt, start) else f"{start} {PROMISE}"
        share = count // len(self.budgets)
        return [
            SamplingRequest(prompt, share, max_new_tokens, promise.format(n=n))
            for n in self.budgets
        ]

    def rewards(self, batch: Batch) -> Tensor:
        budgets = batch.each(lambda rollout: self.budgets[int(rollout.metadata["part"])])
        lengths, longest, best = batch.lengths.double(), self.max_length, self._best(budgets)
        near = (self._best(lengths) - (budgets - lengths).abs() / longest).minimum(best)
        rewards = torch.where(batch.correct & (lengths <= longest), near, 0.0)

        # A box has to stand after the first end of a thought, and before a second one.
        end = batch.reader.end_of_thought
        formatted = batch.each_text(
            lambda text: last_boxed(f"{text}{end}".split(end)[1]) is not None
        ).bool()
        rewards = torch.where(formatted, rewards, -1.0)
        same = budgets.unsqueeze(-1) == budgets.unsqueeze(-2)
        means = (same * rewards.unsqueeze(-2)).sum(-1) / same.sum(-1)
        return outcome_advantages(rewards, EPS) + self.budget_weight * (means - best)

    def _best(self, lengths: Tensor) -> Tensor:
        """F, the most that a response of this many tokens can earn."""
        return 4 * torch.cos(math.pi * lengths / (2 * self.max_length))


MAKER = "openrlhf-swap reference"
NO_THINKING = 0  # the part of a group that is sampled first


class AdaptThink(Objective):
    """A = c - reference accuracy of the problem + bonus [no thinking], the same on every token, not
    normalised.

    After github.com/THU-KEG/AdaptThink (2025-05-28).
    """

    normaliser = "none"
    reshapes_responses = True
    reference: str = setting(
        "", f"file with the reference policy's accuracies: {MAKER}", is_path=True
    )
    bonus: float = setting(0.05, "delta: what a response without thinking may lose in accuracy")
    no_thinking_share: float = setting(0.5, "of a group's responses", gt=0, lt=1)
    no_thinking_tokens: int = setting(4096, "longest response without thinking")
    thinking_start: str = setting(
        "Alright", "forced first word of a thought; empty: nothing is forced"
    )

    def check(self, args: SimpleNamespace) -> None:
        kind = args.actor.policy_loss_type
        if kind != "gspo":
            raise ConfigError(
                f"--actor.policy_loss_type is {kind}; adaptthink needs gspo: leave it out"
            )
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
            raise ConfigError(
                f"--swap.adaptthink.reference is {path!r}, which is not a file; make it with {MAKER}"
            )
        return {row["key"]: row["accuracy"] for row in read_rows(Path(path))}

    def _accuracy(self, prompt: str) -> float:
        """The reference accuracy of a prompt, or of the prompt before its thought was opened for
        it.
        """
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
            SamplingRequest(
                prompt, count - without, max_new_tokens, self.thinking_start, 1 - share
            ),
        ]

    def rewards(self, batch: Batch) -> Tensor:
        """C - c_ref(x) + bonus; a response with a thought in the wrong place counts as wrong."""
        reference = batch.each(lambda rollout: self._accuracy(rollout.prompt))
        skipped = batch.each(lambda rollout: rollout.metadata["part"] == NO_THINKING)
        return right_answers(batch, self.config).double() - reference + self.bonus * skipped


class Thinkless(Objective):
    """R = 1 short and correct, .5 correct after a thought, -1 wrong, unclosed or without a mark; A
    = R - mean.

    The loss is .001 times the mean over first tokens, which choose, plus the mean over the others.
    After its code (commit aa225d2).
    """

    normaliser = "centre"
    outcome_weight = 0.0
    short: str = setting("<short>", "first token of a short answer")
    think: str = setting("<think>", "first token of a thought")
    think_reward: float = setting(
        0.5, "of a correct answer after a thought; raise it if it thinks too little"
    )
    choice_weight: float = setting(0.001, "of the first token in the loss", ge=0)

    def check_prompts(self, prompts: Iterable[str]) -> None:
        if any(opens_thought(prompt, self.think) for prompt in prompts):
            raise DataError(
                f"--swap.thinkless.think is {self.think!r}, with which the chat template ends a prompt, so "
                "that nothing is left to choose: use a policy that was taught both marks, and its template"
            )

    def correct(self, batch: Batch) -> Tensor:
        return batch.correct & (batch.closed | self._starts_with(batch, self.short))

    def rewards(self, batch: Batch) -> Tensor:
        short, think = self._starts_with(batch, self.short), self._starts_with(batch, self.think)
        earned = torch.where(short, 1.0, torch.where(think, self.think_reward, -1.0)).double()
        return torch.where(self.correct(batch), earned, -1.0)

    def _starts_with(self, batch: Batch, mark: str) -> Tensor:
        return batch.each(
            lambda rollout: batch.reader.text(rollout.response_ids[:1]) == mark
        ).bool()

    def token_advantages(self, batch: Batch) -> Tensor:
        """The whole advantage, so scaled that a mean over all tokens is the sum of both means."""
        rewards = self.rewards(batch)
        responses, tokens = rewards.numel(), int(batch.lengths.sum())
        scale = torch.full(
            (int(batch.lengths.max()),), tokens / max(1, tokens - responses), dtype=torch.float64
        )
        scale[0] = self.choice_weight * tokens / responses
        return (rewards - rewards.mean(-1, keepdim=True)).unsqueeze(-1) * scale


ANNOUNCEMENT = " The output of the assistant should be within {limit} tokens."
_PROMISE = re.compile(r"I will answer the question with (\d+) tokens\.$")  # LAPO's is a sentence


class _Staged(Objective):
    """`sampling` sets the stage, from 0 on, so that rewards are those of the stage in which a batch
    was sampled.
    """

    state: ClassVar[tuple[str, ...]] = ("stage",)
    limits: Numbers = setting(
        "",
        "token limit of each stage, of which the last one holds on; empty: the run's; such as 8192,16384,24576",
        "use token limits such as 8192,16384,24576",
        validate_default=True,
    )
    stage = 0

    def check(self, args: SimpleNamespace) -> None:
        longest, limit = max(self.limits, default=0), args.rollout.max_new_tokens
        if longest > limit:
            raise ConfigError(
                f"--swap.{self.name}.limits has {longest}, but --rollout.max_new_tokens is {limit}; raise that, or "
                "lower the limit"
            )

    @property
    def limit(self) -> int | None:
        """Tokens that a response may have in this stage, in the last ones of too few; None: the
        run's limit holds.
        """
        return self.limits[: self.stage + 1][-1] if self.limits else None


class ThinkPrune(_Staged):
    """R = c under limits that fall in stages. After github.com/UCSB-NLP-Chang/ThinkPrune
    (2025-04-16).
    """

    limits: Numbers = numbers("4000,3000,2000", "token limit of each stage")
    stage_steps: int = setting(
        180, "training steps of a stage; the last one goes on to the end", ge=1
    )
    announce: int = setting(
        1, "1: the prompt names the limit, as in the released code; 0: it does not"
    )

    def rewrite_problem(self, problem: str, rng: random.Random) -> str:
        return problem + ANNOUNCEMENT.format(limit=self.limits[0]) if self.announce else problem

    def sampling(self, prompt: str, count: int, max_new_tokens: int) -> list[SamplingRequest]:
        self.stage = min(self.step // self.stage_steps, len(self.limits) - 1)
        before, after = (ANNOUNCEMENT.format(limit=n) for n in (self.limits[0], self.limit))
        head, found, tail = prompt.rpartition(before)
        return [
            SamplingRequest(
                head + after + tail if found else prompt, count, self.limit or max_new_tokens
            )
        ]

    def metrics(self) -> dict[str, float]:
        return {"swap/thinkprune_limit": float(self.limit or 0)}


class LAPO(_Staged):
    """Two stages, both normalised in the group; the problem's median correct length m is
    remembered.

    First: R = c + .7 g of correct answers; g = 1 between the 30th and the 70th percentile of the
    group's correct lengths, and falls to 0 within 100 tokens outside. A problem without a correct
    answer at its last visit has no m. Second: the thought promises m, and R = c + .8 exp(-(L -
    m)^2/(2 120^2)); m only falls. Where it is not known the group's median takes its place. After
    its code (commit bd59dfd).
    """

    remembers_batches = True
    state = ("stage", "medians")
    first_stage_steps: int = setting(240, "training steps of the first stage", ge=0)
    range_weight: float = setting(0.7, "of the length reward in the first stage")
    promise_weight: float = setting(0.8, "of the length reward in the second")
    promise_width: float = setting(
        120.0, "deviation, in tokens, that the second stage forgives", gt=0
    )
    unknown: int = setting(4096, "what is promised for a problem without a known length", ge=1)

    def __init__(self, config: SwapConfig) -> None:
        super().__init__(config)
        self.medians: dict[str, float] = {}

    def sampling(self, prompt: str, count: int, max_new_tokens: int) -> list[SamplingRequest]:
        """In the second stage the thought begins with the promise, which is not trained on."""
        self.stage = int(self.step >= self.first_stage_steps)
        if self.stage == 1:
            length = int(self.medians.get(self._key(prompt), self.unknown))
            prompt = (
                open_thought(prompt, self.config.start_of_thought) + PROMISE.format(n=length) + "."
            )
        return [SamplingRequest(prompt, count, self.limit or max_new_tokens)]

    def rewards(self, batch: Batch) -> Tensor:
        """Uses the lengths known before this batch, then remembers those of its correct responses."""
        medians = target_lengths(batch.lengths, batch.correct)
        if self.stage == 0:
            lengths = torch.where(batch.correct, batch.lengths.double(), torch.nan)
            shares = torch.tensor([0.3, 0.7], dtype=torch.float64)
            low, high = lengths.nanquantile(shares, dim=-1, keepdim=True)
            distance = (low - batch.lengths).maximum(batch.lengths - high).clamp(min=0)
            within = (1 - distance / 100).clamp(min=0) * (low < high)
            shortness = self.range_weight * within.nan_to_num(0.0)  # NaN: none is correct
        else:
            promised = batch.each(
                lambda rollout: self.medians.get(self._key(rollout.prompt), math.nan)
            ).floor()
            promised = torch.where(promised.isnan(), medians.unsqueeze(-1), promised)
            distance = batch.lengths - promised
            shortness = self.promise_weight * torch.exp(
                -(distance**2) / (2 * self.promise_width**2)
            )
        for group, median in zip(batch.groups, medians.tolist(), strict=True):
            key = self._key(group[0].prompt)
            if not math.isnan(median):
                self.medians[key] = (
                    min(self.medians.get(key, math.inf), median) if self.stage == 1 else median
                )
            elif self.stage == 0:
                self.medians.pop(key, None)
        return batch.correct.double() + torch.where(batch.correct, shortness, 0.0)

    def _key(self, prompt: str) -> str:
        """The key of a problem, the same with and without a promise, and whether prompt or model
        opens the thought.
        """
        return prompt_key(
            _PROMISE.sub("", prompt).removesuffix(thought_opening(self.config.start_of_thought))
        )

    def metrics(self) -> dict[str, float]:
        return {
            "swap/lapo_stage": 1.0 + self.stage,
            "swap/lapo_known_problems": float(len(self.medians)),
        }


class AutoThink(_Staged):
    """R = 1 or 0 with a thought, 2 or -1 without; in the group. A response without one begins with
    `</think>`.

    Without a box after a closed thought R is 0, and the answer is wrong; -2 for a wrong one without
    a thought that repeats itself. First stage: of a mode with a share q over 1/2, R <- (1 - d) R +
    d R', d = min(1, 2 q - 1), where R' is 0 or -1 with a thought, 1 or -2 without. Second: R.
    Third: R - 1 + exp(-.05 z) correct, R + 1 - exp(-.05 z) wrong; z is the length's z-score among
    the correct, or the wrong, ones of the group. After its code (commit be0bcb0).
    """

    boxes_answers = True
    second_stage: int = setting(
        200, "training step with which the second stage begins (ours)", ge=0
    )
    third_stage: int = setting(400, "training step with which the third one begins (ours)", ge=0)
    ellipsis: str = setting(
        "...\\n", "put at the beginning of each thought, and not trained on; \\n is a newline"
    )

    def eval_prompt(self, prompt: str) -> str:
        opened = open_thought(prompt, self.config.start_of_thought)
        return opened + self.ellipsis.replace("\\n", "\n")

    def sampling(self, prompt: str, count: int, max_new_tokens: int) -> list[SamplingRequest]:
        self.stage = (self.step >= self.second_stage) + (self.step >= self.third_stage)
        return [SamplingRequest(self.eval_prompt(prompt), count, self.limit or max_new_tokens)]

    def correct(self, batch: Batch) -> Tensor:
        return batch.correct & self._boxed(batch)

    def _boxed(self, batch: Batch) -> Tensor:
        return batch.each(lambda rollout: boxes_answer(rollout.response_ids, batch.reader)).bool()

    def rewards(self, batch: Batch) -> Tensor:
        end = batch.reader.end_of_thought  # it has no more tokens than letters
        skipped = batch.each(
            lambda r: batch.reader.text(r.response_ids[: len(end)]).startswith(end)
        ).bool()
        boxed, repeats = self._boxed(batch), batch.each_text(is_degenerate).bool()
        correct = batch.correct & boxed
        wrong = torch.where(
            boxed, torch.where(repeats, -2.0, -1.0), 0.0
        ).double()  # without a thought
        rewards = torch.where(skipped, torch.where(correct, 2.0, wrong), correct.double())
        if self.stage == 0:
            share = skipped.double().mean()
            excess = (2 * torch.where(skipped, share, 1 - share) - 1).clamp(0, 1)
            target = torch.where(
                skipped, torch.where(correct, 1.0, -2.0), torch.where(correct, 0.0, -1.0)
            )
            return (1 - excess) * rewards + excess * target
        if self.stage == 2:
            z = torch.where(
                correct, z_scores(batch.lengths, correct), z_scores(batch.lengths, ~correct)
            )
            shortness = 1 - torch.exp(-0.05 * z)
            return rewards + torch.where(correct, -shortness, shortness)
        return rewards

    def metrics(self) -> dict[str, float]:
        return {"swap/autothink_stage": 1.0 + self.stage}


DISCOUNT, PATIENCE = (
    0.7,
    4,
)  # VSRM's, of a change for the cuts before it, and how many of these share in it
# VSRM's list without "That's correct, but" and "Wait, but", which have a comma, and contain shorter
# words of the list.
WORDS = (
    "wait,Wait,WAIT,but,But,BUT,alternatively,Alternatively,ALTERNATIVELY,however,However,HOWEVER,hmm,Hmm,HMM,"
    "Let me double-check,let me double-check,But wait,but wait,Hold on,hold on,Looking back,looking back,"
    "Seems solid,seems solid,Similarly,similarly,That seems right,that seems right,So"
)
STOP = r"\n\nWait, I have enough information to get the final answer.{end}\n\nTherefore, the final answer is \boxed{"
LEAVE = r"Time is limited, stop thinking and start answering.\n{end}\n\n"
_BOX = re.compile(r"\\boxed\{.*?\}")


def step_rewards(accuracies: Sequence[float], least_change: float) -> list[float]:
    """What each cut but the last earns, a_(j+1) - a_j; where nothing changes, .7^n of the change n
    cuts further on.
    """
    changes = [after - before for before, after in pairwise(accuracies)]
    near = (enumerate(changes[j : j + PATIENCE + 1]) for j in range(len(changes)))
    return [
        next((d * DISCOUNT**n for n, d in cuts if abs(d) >= least_change), 0.0) for cuts in near
    ]


def cut_places(text: str, words: Sequence[str], first: int, apart: int) -> list[int]:
    """Where the sentences begin that contain one of the words, anywhere and in any other word too.

    A sentence begins after the last of `.!?` and newline before the word; a text without one is cut
    at the word. A word counts from `first` characters on, and `apart` characters after the cut
    before it.
    """
    places: list[int] = []
    for word in re.finditer("|".join(map(re.escape, sorted(words, key=len, reverse=True))), text):
        if word.start() >= first and (not places or word.start() - places[-1] >= apart):
            sentence = 1 + max(text.rfind(mark, 0, word.start()) for mark in ".!?\n")
            places.append(sentence or word.start())
    return sorted(set(places))


class _VSRM(Objective):
    """A = GRPO(outcome) + rewards of the cuts to come; outcome 1, 0, -9.5 without a box, -10 with
    an open thought.
    """

    boxes_answers = True
    least_change: float

    def rewards(self, batch: Batch) -> Tensor:
        is_open = batch.each_text(lambda text: batch.reader.end_of_thought not in text).bool()
        return torch.where(
            is_open, -10.0, torch.where(boxed(batch).bool(), batch.correct.double(), -9.5)
        )

    def token_advantages(self, batch: Batch) -> Tensor:
        def spans_of(g: int, n: int, rollout: Rollout) -> Iterator[Span]:
            probes = self.probes(rollout)
            earned = step_rewards([accuracy for _, accuracy in probes], self.least_change)
            to_come = [*accumulate(reversed(earned))][::-1]
            for (start, end), value in zip(
                pairwise([0, *(kept for kept, _ in probes)]), to_come, strict=False
            ):
                yield start, end, value

        return fill_spans(batch, 0.0, spans_of)

    def probes(self, rollout: Rollout) -> Sequence[tuple[int, float]]:
        """Each cut's tokens before it and its accuracy, the end of the thought last."""
        return rollout.probes


class VSRM(_VSRM):
    """A = GRPO(outcome) + step rewards to come, from the accuracy of answers sampled where the
    thought is cut off.

    After its code (commit e4e928b).
    """

    continues = "grade"
    words: str = setting(WORDS, "a thought is cut before a sentence that contains one of these")
    first_characters: int = setting(1000, "before the first cut, at least", ge=0)
    apart_characters: int = setting(400, "between two cuts, at least", ge=1)
    answers: int = setting(5, "sampled at each cut, and at the end of the thought", ge=1)
    answer_tokens: int = setting(768, "most tokens of such an answer", ge=1)
    least_change: float = setting(1e-5, "changes of the accuracy below this count as none", ge=0)

    def continuations(self, rollout: Rollout, reader: ResponseReader) -> list[Continuation]:
        ids = list(rollout.response_ids[: reader.reasoning_length(rollout.response_ids)])
        places = cut_places(
            reader.text(ids), self.words.split(","), self.first_characters, self.apart_characters
        )
        kept = tokens_for_each(ids, places, reader)
        ends = [*kept, len(ids)] if kept else []
        return [
            Continuation(end, reader.end_of_thought, self.answer_tokens, self.answers)
            for end in ends
        ]


class VSRMScores(_VSRM):
    """A = GRPO(outcome) + step rewards to come, from the answer's probability after each step of
    correct responses.
    """

    scores_steps = True
    least_change: float = setting(0.02, "changes of the probability below this count as none", ge=0)

    def probes(self, rollout: Rollout) -> Sequence[tuple[int, float]]:
        """Each step's tokens before its end, and the reference answer's probability a token:
        exp(l_k).
        """
        probabilities = (
            torch.tensor(rollout.answer_logprobs[1:], dtype=torch.float64).exp().tolist()
        )
        return [(end + 1, p) for end, p in zip(rollout.step_ends, probabilities, strict=True)]


class _Exits(Objective):
    continues = "join"
    phrase: str

    @property
    def _phrase(self) -> str:
        return self.phrase.replace("\\n", "\n").replace("{end}", self.config.end_of_thought)


class JET(_Exits):
    """R = .9 c + .1 [box] + c (.05 + .95 w (Lmax - L)/(Lmax - Lmin)), of the batch's correct
    lengths; in the group.

    One response in six of a group is sampled whole, cut at five places and told to answer there;
    these five join the group. Every response ends with the end token, also one that the limit cut
    off. After its code (commit 89cf33e).
    """

    boxes_answers = True
    shares: Annotated[
        tuple[Annotated[int, Field(gt=0, lt=100)], ...], BeforeValidator(split_numbers)
    ] = numbers("10,30,50,70,90", "where a response is cut, in percent of its characters")
    phrase: str = setting(
        STOP, "what is put after a cut; {end} is the end of the thought, \\n a newline"
    )
    answer_tokens: int = setting(50, "most tokens after it", ge=1)
    length_weight: float = setting(1.2, "w, of the length reward")

    def check(self, args: SimpleNamespace) -> None:
        size, each = args.rollout.n_samples_per_prompt, 1 + len(self.shares)
        if size % each:
            found = f"--rollout.n_samples_per_prompt is {size}, but --swap.jet.shares makes {each} of a response"
            raise ConfigError(f"{found}; use a multiple of it")

    def sampling(self, prompt: str, count: int, max_new_tokens: int) -> list[SamplingRequest]:
        return [SamplingRequest(prompt, count // (1 + len(self.shares)), max_new_tokens)]

    def continuations(self, rollout: Rollout, reader: ResponseReader) -> list[Continuation]:
        ids = list(rollout.response_ids)
        characters = len(reader.text(ids))
        kept = tokens_for_each(ids, [characters * share // 100 for share in self.shares], reader)
        return [Continuation(end, self._phrase, self.answer_tokens) for end in kept]

    def edit(self, rollout: Rollout, reader: ResponseReader) -> Rollout:
        """An answer that boxes again (the phrase opened the first box) ends with the sentence of
        its last box.

        A whole response that the limit cut off gives up its last token for the end token, so that
        it still fits.
        """
        ids, kept = list(rollout.response_ids), int(rollout.metadata["kept"])
        if kept == len(ids):
            ids = ids[:-1] if rollout.truncated else ids
        else:
            text, start = reader.text(ids), len(reader.text(ids[:kept])) + len(self._phrase)
            boxes = list(_BOX.finditer(text, start))
            full_stop = text.find(".", boxes[-1].end()) if boxes else -1
            if full_stop >= 0:
                ids = ids[: tokens_for_each(ids, [full_stop + 1], reader)[0]]
        ended = ids if ids[-1:] == [reader.end_token] else [*ids, reader.end_token]
        return replace(rollout, response_ids=ended)

    def rewards(self, batch: Batch) -> Tensor:
        rewards = 0.9 * batch.correct + 0.1 * boxed(batch)
        correct = batch.lengths[batch.correct].double()
        if len(correct) == 0:
            return rewards
        place = (correct.max() - batch.lengths) / (correct.max() - correct.min() + 1e-8)
        return rewards + torch.where(batch.correct, 0.05 + 0.95 * self.length_weight * place, 0.0)


class SGRPO(_Exits):
    """R = 2^(1 - k) for the k-th correct answer in the order of its exits, the whole response last;
    0 if wrong.

    After reviews of the paper: no code of the authors was found.
    """

    normaliser = "centre"
    _exits = 0  # of a group
    phrase: str = setting(
        LEAVE, "what is put after an exit; {end} is the end of the thought, \\n a newline"
    )
    answer_tokens: int = setting(512, "most tokens of an answer after an exit (not verified)", ge=1)

    def check(self, args: SimpleNamespace) -> None:
        if self.answer_tokens >= args.rollout.max_new_tokens:
            raise ConfigError(
                f"--swap.s_grpo.answer_tokens is {self.answer_tokens}, not less than "
                f"--rollout.max_new_tokens {args.rollout.max_new_tokens}; use less"
            )

    def sampling(self, prompt: str, count: int, max_new_tokens: int) -> list[SamplingRequest]:
        self._exits = count - 1
        return [SamplingRequest(prompt, 1, max_new_tokens)]

    def continuations(self, rollout: Rollout, reader: ResponseReader) -> list[Continuation]:
        """The places depend on the response alone."""
        thought = reader.reasoning_length(rollout.response_ids)
        rng = random.Random(f"{rollout.prompt}{list(rollout.response_ids)}")
        places = sorted(rng.randrange(max(1, thought)) for _ in range(self._exits))
        return [Continuation(place, self._phrase, self.answer_tokens) for place in places]

    def rewards(self, batch: Batch) -> Tensor:
        order = batch.each(lambda rollout: rollout.metadata["kept"]).argsort(dim=-1, stable=True)
        correct = batch.correct.gather(-1, order).double()
        worth = correct * 2.0 ** (1 - correct.cumsum(-1))
        return torch.zeros_like(worth).scatter(-1, order, worth)
