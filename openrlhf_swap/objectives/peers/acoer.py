"""ACOER, after github.com/js-lee-AI/ACOER (commit d13bb6b)."""

import math

import torch
from torch import Tensor

from openrlhf_swap.algorithm.advantages import standardise
from openrlhf_swap.config import SwapConfig
from openrlhf_swap.objectives.base import Batch, Objective, setting
from openrlhf_swap.objectives.peers.formats import boxed

LEAST_ALPHA = 0.01
MOST_ALPHA = 0.5
RAISED = 1.02  # alpha's factor after a batch at which the accuracy holds
LOWERED = 0.95  # and after one at which it has fallen
FALLEN = 0.02  # how far the accuracy falls within the window before alpha is lowered
DECAY = 2 / 51  # of the moving averages, whose span is 50 batches
SHARE = 0.85  # the budget's share of the average length of correct thoughts
LEAST_BUDGET = 512  # tokens
STEEPNESS = 5  # of the bonus


class ACOER(Objective):
    """R = c (1 + a f) + [format], f = log(1 + 5 (1 - min(L/B, 1)))/log 6.

    In the group, with TRL's constant: (R - mean)/(sd + 1e-4). L: tokens of the thought, 0 if it
    never closes. The format is a closed thought and a box. After each batch beyond `warmup_steps`
    a rises by 2%, or falls by 5% if the average accuracy is more than .02 lower than `window`
    batches before; B becomes .85 of the average L of correct responses. A batch without a correct
    response counts with L = 0.
    """

    normaliser = "none"
    needs_marks = True
    boxes_answers = True
    remembers_batches = True
    state = ("alpha", "tokens", "average_length", "accuracies")
    budget: int = setting(4096, "B of the first batches, in tokens", ge=1)
    warmup_steps: int = setting(200, "training steps before a and B change", ge=0)
    window: int = setting(100, "training steps over which the accuracy may not fall", ge=1)

    def __init__(self, config: SwapConfig) -> None:
        super().__init__(config)
        self.alpha = 0.02
        self.tokens = float(self.budget)  # B
        self.average_length = 0.0  # of correct thoughts, in tokens
        self.accuracies: list[float] = []  # the average accuracy after each batch

    def rewards(self, batch: Batch) -> Tensor:
        """Uses a and B of the batches before, then learns from this one."""
        thoughts = batch.each(lambda each: batch.reader.thought_length(each.response_ids) or 0)
        used = (thoughts / self.tokens).clamp(max=1)
        bonus = torch.log1p(STEEPNESS * (1 - used)) / math.log1p(STEEPNESS)
        formatted = batch.closed & boxed(batch)
        rewards = batch.correct * (1 + self.alpha * bonus) + formatted
        correct_thoughts = thoughts[batch.correct]
        length = correct_thoughts.mean().item() if len(correct_thoughts) else 0.0
        self._average(batch.correct.double().mean().item(), length)
        batches = len(self.accuracies)
        if batches > self.warmup_steps and batches >= self.window:
            self._adapt()
        return standardise(rewards, eps=1e-4)

    def _average(self, accuracy: float, length: float) -> None:
        """Take a batch into the moving averages, which begin with the first batch."""
        if self.accuracies:
            last = self.accuracies[-1]
            accuracy = last + DECAY * (accuracy - last)
            length = self.average_length + DECAY * (length - self.average_length)
        self.accuracies.append(accuracy)
        self.average_length = length

    def _adapt(self) -> None:
        fall = self.accuracies[-self.window] - self.accuracies[-1]
        if fall > FALLEN:
            self.alpha = max(LEAST_ALPHA, LOWERED * self.alpha)
        else:
            self.alpha = min(MOST_ALPHA, RAISED * self.alpha)
        if self.average_length > 0:
            self.tokens = max(LEAST_BUDGET, SHARE * self.average_length)

    def metrics(self) -> dict[str, float]:
        return {"swap/acoer_alpha": self.alpha, "swap/acoer_budget": self.tokens}
