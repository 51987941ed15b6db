"""Objectives that teach when to think, by two parts of a group or by the first token: AdaptThink and Thinkless."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property
from pathlib import Path
from types import SimpleNamespace

import torch
from torch import Tensor

from openrlhf_swap.config import setting
from openrlhf_swap.errors import ConfigError, DataError
from openrlhf_swap.files import read_rows
from openrlhf_swap.objectives.base import Objective, SamplingRequest
from openrlhf_swap.objectives.formats import is_right
from openrlhf_swap.rollouts.families import open_thought, opens_thought, thought_opening
from openrlhf_swap.rollouts.rollout import Batch, Rollout, prompt_key

MAKER = "openrlhf-swap reference"
NO_THINKING = 0  # the part of a group that is sampled first


class AdaptThink(Objective):
    """A = c - reference accuracy of the problem + bonus [no thinking], the same on every token, not normalised.

    Half of the responses skip the thought, and the policy learns when it may. After github.com/THU-KEG/AdaptThink
    (2025-05-28).
    """

    normaliser = "none"
    reshapes_responses = True
    reference: str = setting("", f"file with the reference policy's accuracies: {MAKER}", is_path=True)
    bonus: float = setting(0.05, "delta: what a response without thinking may lose in accuracy")
    no_thinking_share: float = setting(0.5, "of a group's responses", "use a number between 0 and 1", gt=0, lt=1)
    no_thinking_tokens: int = setting(4096, "longest response without thinking")
    thinking_start: str = setting("Alright", "forced first word of a thought; empty: nothing is forced")

    def check(self, args: SimpleNamespace) -> None:
        kind = args.actor.policy_loss_type
        if kind != "gspo":
            raise ConfigError(f"--actor.policy_loss_type is {kind}; adaptthink needs gspo: leave it out")
        _ = self._accuracies

    def check_prompts(self, prompts: Sequence[str]) -> None:
        """Every prompt needs a reference accuracy."""
        if missing := sum(prompt_key(prompt) not in self._accuracies for prompt in prompts):
            raise DataError(
                f"--swap.adaptthink.reference is {self.reference}, which lacks {missing} of {len(prompts)} "
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
        """One part closes the thought at once, the other goes on with it."""
        prompt, share = self.eval_prompt(prompt), self.no_thinking_share
        without = max(1, min(count - 1, round(count * share)))
        shorter = min(self.no_thinking_tokens, max_new_tokens)
        return [
            SamplingRequest(prompt, without, shorter, self.config.end_of_thought, share),
            SamplingRequest(prompt, count - without, max_new_tokens, self.thinking_start, 1 - share),
        ]

    def rewards(self, batch: Batch) -> Tensor:
        """C - c_ref(x) + bonus; a response with a thought in the wrong place counts as wrong."""

        def reward(rollout: Rollout) -> float:
            correct = is_right(rollout.correct, rollout.prompt, batch.reader.text(rollout.response_ids), self.config)
            skipped = rollout.metadata["part"] == NO_THINKING
            return correct - self._accuracy(rollout.prompt) + self.bonus * skipped

        return batch.each(reward)


class Thinkless(Objective):
    """R = 1 short and correct, .5 correct after a thought, -1 wrong, unclosed or without a mark; A = R - mean.

    The first token chooses between a short answer and a thought, and has a weight of its own: the loss is .001 times
    the mean over first tokens plus the mean over the others. After its code (commit aa225d2).
    """

    normaliser = "centre"
    outcome_weight = 0.0
    short: str = setting("<short>", "first token of a short answer")
    think: str = setting("<think>", "first token of a thought")
    think_reward: float = setting(0.5, "of a correct answer after a thought; raise it if it thinks too little")
    choice_weight: float = setting(0.001, "of the first token in the loss", ge=0)

    def check_prompts(self, prompts: Sequence[str]) -> None:
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
