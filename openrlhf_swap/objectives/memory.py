"""Objectives whose rewards depend on what earlier batches showed: A-DLP, Short-RL, HAPO and AALC."""

from __future__ import annotations

import math
from typing import Literal

import torch
from torch import Tensor

from openrlhf_swap.config import SwapConfig, setting
from openrlhf_swap.objectives.base import Objective
from openrlhf_swap.objectives.formats import CORRECT, UNFORMATTED, base_scores
from openrlhf_swap.objectives.groups import relative_place, smallest_of
from openrlhf_swap.objectives.laser import Monitored
from openrlhf_swap.rollouts.rollout import Batch, prompt_key


class ADLP(Objective):
    """R = c - lambda L, wrong answers too; then lambda <- max(0, lambda + eta (accuracy - target)); in the group.

    So the price for each token rises while accuracy is above the target. After its code (commit afbc411).
    """

    remembers_batches = True
    state = ("price",)
    start: float = setting(0.001, "lambda of the first step, a token", "use at least 0", ge=0)
    rate: float = setting(0.001, "eta")
    target: float = setting(0.62, "accuracy to keep: the base policy's", "use a number in [0, 1]", ge=0, le=1)

    def __init__(self, config: SwapConfig) -> None:
        super().__init__(config)
        self.price: float = self.start

    def correct(self, batch: Batch) -> Tensor:
        return batch.correct & batch.closed

    def rewards(self, batch: Batch) -> Tensor:
        """At the price before this batch."""
        correct = self.correct(batch).double()
        rewards = correct - self.price * batch.lengths.double()
        accuracy = correct.mean().item()
        self.price = max(0.0, self.price + self.rate * (accuracy - self.target))
        return rewards

    def metrics(self) -> dict[str, float]:
        """The price of the next step."""
        return {"swap/a_dlp_price": self.price}


class ShortRL(Objective):
    """R = answer (2, -1.5 wrong, -2 unformatted) + format (1 or -1) + [accuracy is near its best] l, in the group.

    l is the place of a correct answer's length among the correct ones, in .5 to -.5. After github.com/lblankl/Short-RL
    (commit 07cea8a; arXiv 2505.12284).
    """

    boxes_answers = True
    remembers_batches = True
    state = ("best",)
    best = 0.0  # accuracy
    tolerance: int = setting(
        200, "a correct answer longer than the shortest by at most this many tokens loses nothing"
    )
    accuracy_margin: float = setting(0.05, "the length counts while accuracy is at most this far below its best")

    def rewards(self, batch: Batch) -> Tensor:
        """The best accuracy so far includes this batch."""
        scores = base_scores(batch)
        formatted, correct = scores != UNFORMATTED, scores == CORRECT
        answer = torch.where(formatted, torch.where(correct, 2.0, -1.5), -2.0)
        rewards = answer.double() + torch.where(formatted, 1.0, -1.0)
        accuracy = correct.double().mean().item()
        self.best = max(self.best, accuracy)
        if accuracy < self.best - self.accuracy_margin:
            return rewards
        shortness = 0.5 - relative_place(batch.lengths, correct, guard=1e-5)
        is_short = batch.lengths <= smallest_of(batch.lengths, correct) + self.tolerance
        return rewards + torch.where(correct, torch.where(is_short, 0.5, shortness), 0.0)

    def metrics(self) -> dict[str, float]:
        return {"swap/short_rl_best_accuracy": self.best}


class HAPO(Objective):
    """R = c + weight max(-.7, f) correct, c + weight min(0, f) wrong; f = cos(pi/2 L/h), -1 from 2 h on; in the group.

    h is the problem's shortest correct length of earlier encounters, or their mean; without one, f is 0. It acts from
    a problem's second encounter on: train for several episodes. After its code (commit c91ae3b).
    """

    remembers_batches = True
    state = ("lengths", "counts")
    weight: float = setting(1.0, "of the length reward beside the answer's")
    memory: Literal["shortest", "mean"] = setting(
        "shortest", "h: the shortest correct length so far, or the mean of all of them", "use shortest or mean"
    )

    def __init__(self, config: SwapConfig) -> None:
        super().__init__(config)
        self.lengths: dict[str, float] = {}
        self.counts: dict[str, int] = {}

    def rewards(self, batch: Batch) -> Tensor:
        """By what was known before this batch; then remembers its correct lengths."""
        known = batch.each(lambda rollout: self.lengths.get(prompt_key(rollout.prompt), math.nan))
        f = torch.cos(math.pi / 2 * (batch.lengths / known).clamp(max=2)).nan_to_num(0.0)
        length_reward = torch.where(batch.correct, f.clamp(min=-0.7), f.clamp(max=0))
        self._remember(batch)
        return batch.correct.double() + self.weight * length_reward

    def _remember(self, batch: Batch) -> None:
        """The least length, or the mean in which every correct response of every encounter counts once."""
        for group in batch.groups:
            lengths = [float(len(rollout.response_ids)) for rollout in group if rollout.correct]
            if not lengths:
                continue
            key = prompt_key(group[0].prompt)
            count = self.counts.get(key, 0)
            self.counts[key] = count + len(lengths)
            if self.memory == "shortest":
                self.lengths[key] = min(self.lengths.get(key, math.inf), *lengths)
            else:
                self.lengths[key] = (self.lengths.get(key, 0.0) * count + sum(lengths)) / self.counts[key]

    def metrics(self) -> dict[str, float]:
        return {"swap/hapo_known_problems": float(len(self.lengths))}


class AALC(Monitored):
    """R = c (1 - .1 a) + 1e-6 (1 - min(a^128, min(1, L/long))), a = min(1, accuracy/target); in the group.

    The length counts once accuracy has reached its target: the second term decides in groups that are all correct or
    all wrong, and nowhere else. Accuracy is that of a set of training prompts, sampled every so many steps. After
    `length_reward.py` of its code (commit f12452d).
    """

    normaliser = "none"
    state = ("accuracy", "monitored_at")
    accuracy = 0.0  # of the last measurement
    target: float = setting(1.0, "accuracy from which the length counts in full", "use a number in (0, 1]", gt=0, le=1)
    long: int = setting(1024, "tokens from which a response counts as long", ge=1)
    monitor_samples: int = setting(1, "responses to each", ge=1)
    monitor_every: int = setting(10, "training steps between two measurements; the first is before step 1", ge=1)

    def observe_monitor(self, batch: Batch) -> None:
        super().observe_monitor(batch)
        self.accuracy = batch.correct.double().mean().item()

    def rewards(self, batch: Batch) -> Tensor:
        """The advantage itself: the deviation may be as small as the second term."""
        reached = min(1.0, self.accuracy / self.target)
        shortness = 1 - (batch.lengths / self.long).clamp(max=min(1.0, reached**128)).double()
        rewards = (1 - 0.1 * reached) * batch.correct.double() + 1e-6 * shortness
        return (rewards - rewards.mean(-1, keepdim=True)) / (rewards.std(-1, keepdim=True) + 1e-6)

    def metrics(self) -> dict[str, float]:
        return {"swap/aalc_accuracy": self.accuracy}
