"""Objectives that remember: measurements of the policy, earlier batches, or the stage that a run is in."""

import math
import random
import re
from types import SimpleNamespace
from typing import ClassVar, Literal

import torch
from torch import Tensor

from openrlhf_swap.algorithm.advantages import target_lengths
from openrlhf_swap.config import SwapConfig, setting
from openrlhf_swap.errors import ConfigError
from openrlhf_swap.objectives.base import Numbers, Objective, SamplingRequest, numbers
from openrlhf_swap.objectives.group_rewards import (
    CORRECT,
    UNFORMATTED,
    WRONG,
    base_scores,
    extremes,
    is_degenerate,
    z_scores,
)
from openrlhf_swap.rollouts.families import open_thought, thought_opening
from openrlhf_swap.rollouts.reader import boxes_answer
from openrlhf_swap.rollouts.rollout import Batch, prompt_key

EXPECTED_RIGHT = {"high": 5, "medium": 2, "low": 1}  # responses of eight that count as expected to be correct


class Laser(Objective):
    """R = s + bonus [s = 1 and L <= L_T], normalised in the group."""

    boxes_answers = True
    target_length: int = setting(8192, "L_T, in tokens")
    bonus: float = setting(0.5, "added to a correct answer within L_T")

    def rewards(self, batch: Batch) -> Tensor:
        scores = base_scores(batch)
        return scores + self.bonus * ((scores == CORRECT) & (batch.lengths <= self.target_length))


class Monitored(Objective):
    """Measures the policy on training prompts every so many steps; the objective decides what to learn from it."""

    monitored_at = -1
    """The step of the last measurement, which belongs to the state: none is made twice before the same step."""
    monitor_prompts: int = setting(500, "training prompts of the monitoring set", ge=1)
    monitor_samples: int = setting(8, "responses to each", ge=1)
    monitor_every: int = setting(20, "training steps between two measurements; the first is before step 1", ge=1)

    def monitor(self) -> tuple[int, int] | None:
        if self.step % self.monitor_every or self.monitored_at == self.step:
            return None
        return self.monitor_prompts, self.monitor_samples

    def observe_monitor(self, batch: Batch) -> None:
        self.monitored_at = self.step


class LaserD(Monitored):
    """R = s + bonus [s = 1 and L <= L_A(difficulty)], in the group; L_A is estimated on a monitoring set."""

    boxes_answers = True
    state = ("targets", "monitored_at")
    bonus: float = setting(0.5, "added to a correct answer within the target")
    shortest: int = setting(4096, "shortest target, in tokens (the released code: 1024, 2048 or 4096)", ge=1)
    longest: int = setting(16384, "longest target, in tokens", ge=1)
    grid: int = setting(1024, "targets are shortest, shortest + grid, ..., longest", ge=1)

    def __init__(self, config: SwapConfig) -> None:
        super().__init__(config)
        if self.shortest > self.longest:
            found = f"--swap.{self.name}.shortest is {self.shortest}, .longest {self.longest}"
            raise ConfigError(f"{found}; use shortest <= longest")
        # None: not known; the longest response of the current batch stands in for it.
        self.targets: dict[str, int | None] = dict.fromkeys(EXPECTED_RIGHT)

    def observe_monitor(self, batch: Batch) -> None:
        super().observe_monitor(batch)
        accuracy = batch.correct.double().mean(-1)
        low, high = accuracy <= 1 / 3, accuracy > 2 / 3
        for band, members in {"low": low, "medium": ~(low | high), "high": high}.items():
            self.targets[band] = self._choose(batch.lengths[members].flatten(), EXPECTED_RIGHT[band])

    def _choose(self, lengths: Tensor, expected_right: int) -> int | None:
        """The shortest target within which one correct answer is expected: int(share within * expected_right) >= 1."""
        for target in range(self.shortest, self.longest + self.grid, self.grid):
            target = min(target, self.longest)
            if len(lengths) and int((lengths <= target).double().mean().item() * expected_right) >= 1:
                return target
        return None

    def rewards(self, batch: Batch) -> Tensor:
        scores = base_scores(batch)
        return scores + self.bonus * self._earns(scores, batch)

    def _earns(self, scores: Tensor, batch: Batch) -> Tensor:
        """(G, N) bool, the responses that earn the bonus."""
        return (scores == CORRECT) & (batch.lengths <= self._target_lengths(scores, batch))

    def _target_lengths(self, scores: Tensor, batch: Batch) -> Tensor:
        """(G, 1) each group's target, by the share of its responses that are correct."""
        fallback = int(batch.lengths.max())
        known = {band: fallback if target is None else target for band, target in self.targets.items()}
        accuracy = (scores == CORRECT).double().mean(-1, keepdim=True)
        target = torch.where(accuracy >= 1 / 3, known["medium"], known["low"])
        return torch.where(accuracy >= 2 / 3, known["high"], target)

    def metrics(self) -> dict[str, float]:
        return {f"swap/{self.name}_target_{band}": float(t) for band, t in self.targets.items() if t is not None}


class LaserDE(LaserD):
    """As LASER-D; a wrong, formatted response above the target earns the bonus, too. Flags `--swap.laser_de.*`."""

    def _earns(self, scores: Tensor, batch: Batch) -> Tensor:
        explores = (scores == WRONG) & (batch.lengths > self._target_lengths(scores, batch))
        return super()._earns(scores, batch) | explores


class ADLP(Objective):
    """R = c - lambda L, wrong answers too; then lambda <- max(0, lambda + eta (accuracy - target)); in the group.

    After its code (commit afbc411).
    """

    remembers_batches = True
    state = ("price",)
    start: float = setting(0.001, "lambda of the first step, a token", ge=0)
    rate: float = setting(0.001, "eta")
    target: float = setting(0.62, "accuracy to keep: the base policy's", ge=0, le=1)

    def __init__(self, config: SwapConfig) -> None:
        super().__init__(config)
        self.price: float = self.start

    def correct(self, batch: Batch) -> Tensor:
        return batch.correct & batch.closed

    def rewards(self, batch: Batch) -> Tensor:
        correct = self.correct(batch).double()
        rewards = correct - self.price * batch.lengths.double()
        accuracy = correct.mean().item()
        self.price = max(0.0, self.price + self.rate * (accuracy - self.target))
        return rewards

    def metrics(self) -> dict[str, float]:
        return {"swap/a_dlp_price": self.price}


class ShortRL(Objective):
    """R = answer (2, -1.5 wrong, -2 unformatted) + format (1 or -1) + [accuracy is near its best] l, in the group.

    l is the place of a correct length among the correct ones, in .5 to -.5. After github.com/lblankl/Short-RL (commit
    07cea8a).
    """

    boxes_answers = True
    remembers_batches = True
    state = ("best",)
    best = 0.0  # accuracy
    tolerance: int = setting(200, "tokens by which a correct answer may exceed the shortest one and lose nothing")
    accuracy_margin: float = setting(0.05, "the length counts while accuracy is at most this far below its best")

    def rewards(self, batch: Batch) -> Tensor:
        scores = base_scores(batch)
        formatted, correct = scores != UNFORMATTED, scores == CORRECT
        answer = torch.where(formatted, torch.where(correct, 2.0, -1.5), -2.0)
        rewards = answer.double() + torch.where(formatted, 1.0, -1.0)
        accuracy = correct.double().mean().item()
        self.best = max(self.best, accuracy)
        if accuracy < self.best - self.accuracy_margin:
            return rewards
        shortest, longest = extremes(batch.lengths, correct)
        shortness = 0.5 - (batch.lengths - shortest) / (longest - shortest + 1e-5)
        is_short = batch.lengths <= shortest + self.tolerance
        return rewards + torch.where(correct, torch.where(is_short, 0.5, shortness), 0.0)

    def metrics(self) -> dict[str, float]:
        return {"swap/short_rl_best_accuracy": self.best}


class HAPO(Objective):
    """R = c + weight max(-.7, f) correct, c + weight min(0, f) wrong; f = cos(pi/2 L/h), -1 from 2 h on; in the group.

    h is the problem's shortest correct length so far, or the mean of them; without one, f is 0. After its code (commit
    c91ae3b).
    """

    remembers_batches = True
    state = ("lengths", "counts")
    weight: float = setting(1.0, "of the length reward beside the answer's")
    memory: Literal["shortest", "mean"] = setting("shortest", "h: the shortest correct length so far, or their mean")

    def __init__(self, config: SwapConfig) -> None:
        super().__init__(config)
        self.lengths: dict[str, float] = {}
        self.counts: dict[str, int] = {}

    def rewards(self, batch: Batch) -> Tensor:
        """By what was known before this batch; then remembers its correct lengths."""
        known = batch.each(lambda rollout: self.lengths.get(prompt_key(rollout.prompt), math.nan))
        f = torch.cos(math.pi / 2 * (batch.lengths / known).clamp(max=2)).nan_to_num(0.0)
        length_reward = torch.where(batch.correct, f.clamp(min=-0.7), f.clamp(max=0))
        for group in batch.groups:
            key = prompt_key(group[0].prompt)
            lengths = [float(len(rollout.response_ids)) for rollout in group if rollout.correct]
            count = self.counts.get(key, 0)
            if lengths:
                self.counts[key] = count + len(lengths)
                sums = self.lengths.get(key, 0.0) * count + sum(lengths)
                least = min(self.lengths.get(key, math.inf), *lengths)
                self.lengths[key] = least if self.memory == "shortest" else sums / self.counts[key]
        return batch.correct.double() + self.weight * length_reward

    def metrics(self) -> dict[str, float]:
        return {"swap/hapo_known_problems": float(len(self.lengths))}


class AALC(Monitored):
    """R = c (1 - .1 a) + 1e-6 (1 - min(a^128, min(1, L/long))), a = min(1, accuracy/target); in the group.

    The second term decides in groups that are all correct or all wrong alone. After its code (commit f12452d).
    """

    normaliser = "none"
    state = ("accuracy", "monitored_at")
    accuracy = 0.0  # of the last measurement
    target: float = setting(1.0, "accuracy from which the length counts in full", gt=0, le=1)
    long: int = setting(1024, "tokens from which a response counts as long", ge=1)
    monitor_samples: int = setting(1, "responses to each", ge=1)
    monitor_every: int = setting(10, "training steps between two measurements; the first is before step 1", ge=1)

    def observe_monitor(self, batch: Batch) -> None:
        super().observe_monitor(batch)
        self.accuracy = batch.correct.double().mean().item()

    def rewards(self, batch: Batch) -> Tensor:
        reached = min(1.0, self.accuracy / self.target)
        shortness = 1 - (batch.lengths / self.long).clamp(max=min(1.0, reached**128)).double()
        rewards = (1 - 0.1 * reached) * batch.correct.double() + 1e-6 * shortness
        return (rewards - rewards.mean(-1, keepdim=True)) / (rewards.std(-1, keepdim=True) + 1e-6)

    def metrics(self) -> dict[str, float]:
        return {"swap/aalc_accuracy": self.accuracy}


ANNOUNCEMENT = " The output of the assistant should be within {limit} tokens."
PROMISE = "I will answer the question with {n} tokens."
_PROMISE = re.compile(r"I will answer the question with (\d+) tokens\.$")


class _Staged(Objective):
    """`sampling` sets the stage, from 0 on, so that rewards are those of the stage in which a batch was sampled."""

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
        """Tokens that a response may have in this stage, in the last ones of too few; None: the run's limit holds."""
        return self.limits[: self.stage + 1][-1] if self.limits else None


class ThinkPrune(_Staged):
    """R = c under limits that fall in stages. After github.com/UCSB-NLP-Chang/ThinkPrune (2025-04-16)."""

    limits: Numbers = numbers("4000,3000,2000", "token limit of each stage")
    stage_steps: int = setting(180, "training steps of a stage; the last one goes on to the end", ge=1)
    announce: int = setting(1, "1: the prompt names the limit, as in the released code; 0: it does not")

    def rewrite_problem(self, problem: str, rng: random.Random) -> str:
        return problem + ANNOUNCEMENT.format(limit=self.limits[0]) if self.announce else problem

    def sampling(self, prompt: str, count: int, max_new_tokens: int) -> list[SamplingRequest]:
        self.stage = min(self.step // self.stage_steps, len(self.limits) - 1)
        before, after = (ANNOUNCEMENT.format(limit=n) for n in (self.limits[0], self.limit))
        head, found, tail = prompt.rpartition(before)
        return [SamplingRequest(head + after + tail if found else prompt, count, self.limit or max_new_tokens)]

    def metrics(self) -> dict[str, float]:
        return {"swap/thinkprune_limit": float(self.limit or 0)}


class LAPO(_Staged):
    """Two stages, both normalised in the group; the problem's median correct length m is remembered.

    First: R = c + .7 g of correct answers; g = 1 between the 30th and the 70th percentile of the group's correct
    lengths, and falls to 0 within 100 tokens outside. A problem without a correct answer at its last visit has no
    m. Second: the thought promises m, and R = c + .8 exp(-(L - m)^2/(2 120^2)); m only falls. Where it is not known
    the group's median takes its place. After its code (commit bd59dfd).
    """

    remembers_batches = True
    state = ("stage", "medians")
    first_stage_steps: int = setting(240, "training steps of the first stage", ge=0)
    range_weight: float = setting(0.7, "of the length reward in the first stage")
    promise_weight: float = setting(0.8, "of the length reward in the second")
    promise_width: float = setting(120.0, "deviation, in tokens, that the second stage forgives", gt=0)
    unknown: int = setting(4096, "what is promised for a problem without a known length", ge=1)

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
        if self.stage == 0:
            shortness = self.range_weight * _within_range(batch.lengths, batch.correct)
        else:
            promised = batch.each(lambda rollout: self.medians.get(self._key(rollout.prompt), math.nan)).floor()
            promised = torch.where(promised.isnan(), medians.unsqueeze(-1), promised)
            shortness = torch.exp(-((batch.lengths - promised) ** 2) / (2 * self.promise_width**2))
            shortness = self.promise_weight * shortness
        for group, median in zip(batch.groups, medians.tolist(), strict=True):
            key = self._key(group[0].prompt)
            if not math.isnan(median):
                self.medians[key] = min(self.medians.get(key, math.inf), median) if self.stage == 1 else median
            elif self.stage == 0:
                self.medians.pop(key, None)
        return batch.correct.double() + torch.where(batch.correct, shortness, 0.0)

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
    repeats itself. First stage: of a mode with a share q over 1/2, R <- (1 - d) R + d R', d = min(1, 2 q - 1),
    where R' is 0 or -1 with a thought, 1 or -2 without. Second: R. Third: R - 1 + exp(-.05 z) correct, R + 1 -
    exp(-.05 z) wrong; z is the length's z-score among the correct, or the wrong, ones of the group. After its code
    (commit be0bcb0).
    """

    boxes_answers = True
    second_stage: int = setting(200, "training step with which the second stage begins (ours)", ge=0)
    third_stage: int = setting(400, "training step with which the third one begins (ours)", ge=0)
    ellipsis: str = setting("...\\n", "put at the beginning of each thought, and not trained on; \\n is a newline")

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
        skipped = batch.each(lambda r: batch.reader.text(r.response_ids[: len(end)]).startswith(end)).bool()
        boxed, repeats = self._boxed(batch), batch.each_text(is_degenerate).bool()
        correct = batch.correct & boxed
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
