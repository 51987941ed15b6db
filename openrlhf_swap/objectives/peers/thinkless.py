"""Thinkless, after its code (commit aa225d2)."""

from collections.abc import Iterable

import torch
from torch import Tensor

from openrlhf_swap.errors import DataError
from openrlhf_swap.objectives.base import Batch, Objective, Rollout, setting
from openrlhf_swap.objectives.group_statistics import group_mean
from openrlhf_swap.rollouts.families import opens_thought

CHOICE_WEIGHT = 0.001  # of the first token in the loss


class Thinkless(Objective):
    """A = R - mean; R = 1 short and correct, .5 correct after a thought, -1 otherwise.

    An unclosed thought and a response without a mark are wrong. The loss is .001 times the mean
    over first tokens, which choose, plus the mean over the others.
    """

    normaliser = "centre"
    needs_marks = True
    limits_thoughts = True
    outcome_weight = 0.0
    short: str = setting("<short>", "first token of a short answer")
    think: str = setting("<think>", "first token of a thought")

    def check_prompts(self, prompts: Iterable[str]) -> None:
        if any(opens_thought(prompt, self.think) for prompt in prompts):
            raise DataError(
                f"--swap.thinkless.think is {self.think!r}, with which the chat template ends a "
                "prompt, so that nothing is left to choose: use a policy that was taught both "
                "marks, and its template"
            )

    def correct(self, batch: Batch) -> Tensor:
        return batch.correct & (batch.closed | self._starts_with(batch, self.short))

    def rewards(self, batch: Batch) -> Tensor:
        correct = self.correct(batch)
        rewards = torch.full(correct.shape, -1.0, dtype=torch.float64)
        rewards[correct & self._starts_with(batch, self.think)] = 0.5
        rewards[correct & self._starts_with(batch, self.short)] = 1.0
        return rewards

    def _starts_with(self, batch: Batch, mark: str) -> Tensor:
        def starts(rollout: Rollout) -> bool:
            first = rollout.response_ids[:1]
            return batch.reader.text(first) == mark

        return batch.each(starts).bool()

    def token_advantages(self, batch: Batch) -> Tensor:
        """The whole advantage, so scaled that a mean over all tokens is the sum of both means."""
        rewards = self.rewards(batch)
        advantages = (rewards - group_mean(rewards)).unsqueeze(-1)
        responses = rewards.numel()
        tokens = int(batch.lengths.sum())
        longest = int(batch.lengths.max())
        of_others = tokens / max(1, tokens - responses)
        scale = torch.full((longest,), of_others, dtype=torch.float64)
        scale[0] = CHOICE_WEIGHT * tokens / responses
        return advantages * scale
