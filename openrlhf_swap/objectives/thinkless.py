"""Thinkless: the first token chooses between a short answer and a thought, and has a weight of its own in the loss.

After its code (commit aa225d2), which starts from a policy that was taught both marks as new tokens, and takes its
means over each micro-batch; here they are taken over the batch.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from openrlhf_swap.config import FlagSettings, setting
from openrlhf_swap.errors import DataError
from openrlhf_swap.objectives.base import Objective
from openrlhf_swap.rollouts.batch import Batch
from openrlhf_swap.rollouts.families import opens_thought


class Thinkless(Objective):
    """R = 1 short and correct, .5 correct after a thought, -1 wrong, unclosed or without a mark; A = R - mean.

    The loss is .001 times the mean over first tokens plus the mean over the others.
    """

    normaliser = "centre"
    outcome_weight = 0.0
    needs_closed_thought = True

    class Settings(FlagSettings):
        """Flags `--swap.thinkless.*`."""

        short: str = setting("<short>", "first token of a short answer")
        think: str = setting("<think>", "first token of a thought")
        think_reward: float = setting(0.5, "of a correct answer after a thought; raise it if it thinks too little")
        choice_weight: float = setting(0.001, "of the first token in the loss", ge=0)

    settings: Settings

    def check_prompts(self, prompts: Sequence[str]) -> None:
        """A prompt must leave the choice to the policy."""
        if any(opens_thought(prompt, self.settings.think) for prompt in prompts):
            raise DataError(
                f"--swap.thinkless.think is {self.settings.think!r}, with which the chat template ends a prompt, so "
                "that nothing is left to choose: use a policy that was taught both marks, and its template"
            )

    def rewards(self, batch: Batch) -> Tensor:
        """By mark and answer."""
        short, think = self._starts_with(batch, self.settings.short), self._starts_with(batch, self.settings.think)
        earned = torch.where(short, 1.0, torch.where(think, self.settings.think_reward, -1.0)).double()
        return torch.where(self.correct(batch), earned, -1.0)

    def correct(self, batch: Batch) -> Tensor:
        """A short answer has no thought to close."""
        return super().correct(batch) | (batch.correct & self._starts_with(batch, self.settings.short))

    def _starts_with(self, batch: Batch, mark: str) -> Tensor:
        return batch.each(lambda rollout: batch.reader.text(rollout.response_ids[:1]) == mark).bool()

    def token_advantages(self, batch: Batch) -> Tensor:
        """The whole advantage, so scaled that a mean over all tokens is the sum of both means."""
        rewards = self.rewards(batch)
        responses, tokens = rewards.numel(), int(batch.lengths.sum())
        scale = torch.full((int(batch.lengths.max()),), tokens / max(1, tokens - responses), dtype=torch.float64)
        scale[0] = self.settings.choice_weight * tokens / responses
        return (rewards - rewards.mean(-1, keepdim=True)).unsqueeze(-1) * scale
