"""AutoThink: behind an ellipsis the policy may think or not, and learns in three stages when it should.

After its code (commit be0bcb0), where each stage is a run of its own; when they change is not taken from it.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from openrlhf_swap.config import FlagSettings, SwapConfig, setting
from openrlhf_swap.objectives.base import Objective, SamplingRequest
from openrlhf_swap.objectives.groups import EPS, mean_of, variance_of
from openrlhf_swap.rollouts.batch import Batch
from openrlhf_swap.rollouts.families import opens_thought


class AutoThink(Objective):
    """R = 1 or 0 with a thought, 2 or -1 without; in the group. A response without one begins with `</think>`.

    First stage: of a mode with a share q over 1/2, R <- (1 - d) R + d (R - 1), d = min(1, 2 q - 1), so that neither
    mode dies out. Second: R. Third: R - 1 + exp(-.05 z) right, R + 1 - exp(-.05 z) wrong; z is the length's z-score
    among those of the group that are alike right or wrong.
    """

    class Settings(FlagSettings):
        """Flags `--swap.autothink.*`."""

        second_stage: int = setting(200, "training step with which the second stage begins (ours)", ge=0)
        third_stage: int = setting(400, "training step with which the third one begins (ours)", ge=0)
        ellipsis: str = setting("...\\n", "put at the beginning of each thought, and not trained on; \\n is a newline")

    settings: Settings

    def __init__(self, config: SwapConfig) -> None:
        super().__init__(config)
        self._stage = 1

    def eval_prompt(self, prompt: str) -> str:
        """With the opened thought and the ellipsis."""
        start = self.config.start_of_thought
        opened = prompt if opens_thought(prompt, start) else f"{prompt}{start}\n"
        return opened + self.settings.ellipsis.replace("\\n", "\n")

    def sampling(self, prompt: str, count: int, max_new_tokens: int) -> list[SamplingRequest]:
        """As an evaluation asks; what the prompt is asked in belongs to the stage of this step."""
        self._stage = 1 + (self.step >= self.settings.second_stage) + (self.step >= self.settings.third_stage)
        return [SamplingRequest(self.eval_prompt(prompt), count, max_new_tokens)]

    def rewards(self, batch: Batch) -> Tensor:
        """By mode and answer, and what the stage makes of it."""
        end = batch.reader.end_of_thought  # it has no more tokens than letters
        skipped = batch.each(lambda r: batch.reader.text(r.response_ids[: len(end)]).startswith(end)).bool()
        rewards = torch.where(skipped, torch.where(batch.correct, 2.0, -1.0), batch.correct.double())
        if self._stage == 1:
            share = skipped.double().mean()
            return rewards - (2 * torch.where(skipped, share, 1 - share) - 1).clamp(0, 1)
        if self._stage == 3:
            shortness = 1 - torch.exp(-0.05 * _z_among_alike(batch))
            return rewards + torch.where(batch.correct, -shortness, shortness)
        return rewards

    def metrics(self) -> dict[str, float]:
        """The stage."""
        return {"swap/autothink_stage": float(self._stage)}

    def state_dict(self) -> dict[str, Any]:
        """The stage of the last batch."""
        return {"stage": self._stage}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """As saved."""
        self._stage = state["stage"]


def _z_among_alike(batch: Batch) -> Tensor:
    """(G, N) z-score of the length among the right, or the wrong, ones of the group; 0 for one that is alone."""
    scores = torch.zeros(batch.lengths.shape, dtype=torch.float64)
    for alike in (batch.correct, ~batch.correct):
        deviation = variance_of(batch.lengths, alike, unbiased=True).sqrt()
        z = (batch.lengths - mean_of(batch.lengths, alike)) / (deviation + EPS)
        scores = torch.where(alike & (deviation > EPS), z, scores)
    return scores
