"""AutoThink: behind an ellipsis the policy may think or not, and learns in three stages when it should.

After its code (commit be0bcb0), where each stage is a run of its own; the steps at which they change are ours.
"""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import torch
from torch import Tensor

from openrlhf_swap.config import FlagSettings, SwapConfig, setting
from openrlhf_swap.objectives.base import Objective, SamplingRequest
from openrlhf_swap.objectives.groups import EPS, mean_of, variance_of
from openrlhf_swap.objectives.repetition import is_degenerate
from openrlhf_swap.rollouts.batch import Batch
from openrlhf_swap.rollouts.families import with_open_thought
from openrlhf_swap.rollouts.reader import boxes_answer


class AutoThink(Objective):
    """R = 1 or 0 with a thought, 2 or -1 without; in the group. A response without one begins with `</think>`.

    Without a box behind a closed thought R is 0, and the answer is wrong; -2 for a wrong one without a thought that
    repeats itself. First stage: of a mode with a share q over 1/2, R <- (1 - d) R + d R', d = min(1, 2 q - 1), where
    R' is 0 or -1 with a thought, 1 or -2 without, so that neither mode dies out. Second: R. Third: R - 1 +
    exp(-.05 z) correct, R + 1 - exp(-.05 z) wrong; z is the length's z-score among the correct, or the wrong, ones of
    the group.
    """

    boxes_answers = True

    class Settings(FlagSettings):
        """Flags `--swap.autothink.*`."""

        second_stage: int = setting(200, "training step with which the second stage begins (ours)", ge=0)
        third_stage: int = setting(400, "training step with which the third one begins (ours)", ge=0)
        ellipsis: str = setting("...\\n", "put at the beginning of each thought, and not trained on; \\n is a newline")
        limits: str = setting("", "token limit of each stage, such as 8192,16384,24576; empty: the run's in all three")

    settings: Settings

    def __init__(self, config: SwapConfig) -> None:
        super().__init__(config)
        self._stage = 1
        self._limits = self.stage_limits(3)

    def check(self, args: SimpleNamespace) -> None:
        """A stage's limit must fit the response length."""
        self.check_limits(self._limits, args)

    def eval_prompt(self, prompt: str) -> str:
        """With the opened thought and the ellipsis."""
        opened = with_open_thought(prompt, self.config.start_of_thought)
        return opened + self.settings.ellipsis.replace("\\n", "\n")

    def sampling(self, prompt: str, count: int, max_new_tokens: int) -> list[SamplingRequest]:
        """As an evaluation asks; what the prompt is asked in belongs to the stage of this step."""
        self._stage = 1 + (self.step >= self.settings.second_stage) + (self.step >= self.settings.third_stage)
        limit = self._limits[self._stage - 1] if self._limits else max_new_tokens
        return [SamplingRequest(self.eval_prompt(prompt), count, limit)]

    def correct(self, batch: Batch) -> Tensor:
        """Correct is what is boxed behind a closed thought."""
        return batch.correct & batch.each(lambda r: boxes_answer(r.response_ids, batch.reader)).bool()

    def rewards(self, batch: Batch) -> Tensor:
        """By mode and answer, and what the stage makes of it."""
        end = batch.reader.end_of_thought  # it has no more tokens than letters
        skipped = batch.each(lambda r: batch.reader.text(r.response_ids[: len(end)]).startswith(end)).bool()
        correct = self.correct(batch)
        rewards = torch.where(skipped, torch.where(correct, 2.0, self._wrong(batch)), correct.double())
        if self._stage == 1:
            share = skipped.double().mean()
            excess = (2 * torch.where(skipped, share, 1 - share) - 1).clamp(0, 1)
            target = torch.where(skipped, torch.where(correct, 1.0, -2.0), torch.where(correct, 0.0, -1.0))
            return (1 - excess) * rewards + excess * target
        if self._stage == 3:
            shortness = 1 - torch.exp(-0.05 * _z_among_alike(batch, correct))
            return rewards + torch.where(correct, -shortness, shortness)
        return rewards

    def _wrong(self, batch: Batch) -> Tensor:
        """(G, N) what a wrong answer without a thought earns."""
        boxed = batch.each(lambda r: boxes_answer(r.response_ids, batch.reader)).bool()
        repeats = batch.each(lambda r: is_degenerate(batch.reader.text(r.response_ids))).bool()
        return torch.where(boxed, torch.where(repeats, -2.0, -1.0), 0.0).double()

    def metrics(self) -> dict[str, float]:
        """The stage."""
        return {"swap/autothink_stage": float(self._stage)}

    def state_dict(self) -> dict[str, Any]:
        """The stage of the last batch."""
        return {"stage": self._stage}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """As saved."""
        self._stage = state["stage"]


def _z_among_alike(batch: Batch, correct: Tensor) -> Tensor:
    """(G, N) z-score of the length among the correct, or the wrong, ones of the group; 0 for one that is alone."""
    scores = torch.zeros(batch.lengths.shape, dtype=torch.float64)
    for alike in (correct, ~correct):
        deviation = variance_of(batch.lengths, alike, unbiased=True).sqrt()
        z = (batch.lengths - mean_of(batch.lengths, alike)) / (deviation + EPS)
        scores = torch.where(alike & (deviation > EPS), z, scores)
    return scores
