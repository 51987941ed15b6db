"""AdaptThink: half of the responses skip the thought, and the policy learns when it may.

After github.com/THU-KEG/AdaptThink (2025-05-28). The ratio is the code's, a geometric mean over the response (GSPO in
OpenRLHF), not the paper's ratio of whole sequences.
"""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace

from torch import Tensor

from openrlhf_swap.answers import END_OF_THOUGHT
from openrlhf_swap.config import SwapConfig
from openrlhf_swap.errors import ConfigError, DataError
from openrlhf_swap.objectives.base import Batch, Objective, Sampling, setting
from openrlhf_swap.rollout import Rollout

NO_THINKING, THINKING = 0, 1  # parts of a group, in the order in which they are sampled


def prompt_key(prompt: str) -> str:
    """The key of a prompt, as the chat template renders it, in the file of reference accuracies."""
    return hashlib.sha256(prompt.encode()).hexdigest()


def is_right(correct: bool, text: str) -> bool:
    """Whether a response counts as right: graded so, and with its thought closed once and not opened again."""
    return correct and "<think>" not in text and text.count(END_OF_THOUGHT) == 1


class AdaptThink(Objective):
    """A = c - reference accuracy of the problem + bonus [no thinking], the same on every token, not normalised."""

    normaliser = "none"
    flags = {"--actor.policy_loss_type": "gspo"}  # noqa: RUF012
    reshapes_responses = True

    @dataclass(frozen=True)
    class Settings:
        """Flags `--swap.adaptthink.*`."""

        reference: str = setting(
            "", "file with the reference policy's accuracies: python -m openrlhf_swap.reference", is_path=True
        )
        bonus: float = setting(0.05, "delta: what a response without thinking may lose in accuracy")
        no_thinking_share: float = setting(0.5, "of a group's responses")
        no_thinking_tokens: int = setting(4096, "longest response without thinking")
        thinking_start: str = setting("Alright", "forced first word of a thought; empty: nothing is forced")

    def __init__(self, config: SwapConfig) -> None:
        super().__init__(config)
        share = self.settings.no_thinking_share
        if not 0 < share < 1:
            raise ConfigError(f"--swap.adaptthink.no_thinking_share is {share}; use a number between 0 and 1")
        self._reference: dict[str, float] | None = None

    def check(self, args: SimpleNamespace) -> None:
        """The reference accuracies must be there."""
        if args.actor.policy_loss_type != "gspo":
            raise ConfigError(
                f"--actor.policy_loss_type is {args.actor.policy_loss_type}; adaptthink needs gspo: leave it out"
            )
        self._accuracies()

    def check_prompts(self, prompts: Sequence[str]) -> None:
        """Every prompt needs a reference accuracy."""
        missing = sum(prompt_key(prompt) not in self._accuracies() for prompt in prompts)
        if missing:
            raise DataError(
                f"--swap.adaptthink.reference is {self.settings.reference}, which lacks {missing} of {len(prompts)} "
                "prompts; make it from the same data set with python -m openrlhf_swap.reference"
            )

    def _accuracies(self) -> dict[str, float]:
        if self._reference is None:
            path = self.settings.reference
            if not path or not Path(path).is_file():
                raise ConfigError(
                    f"--swap.adaptthink.reference is {path!r}, which is not a file; make it with "
                    "python -m openrlhf_swap.reference"
                )
            rows = [json.loads(line) for line in Path(path).read_text(encoding="utf-8").splitlines()]
            self._reference = {row["key"]: row["accuracy"] for row in rows}
        return self._reference

    def sampling(self, prompt: str, count: int, max_new_tokens: int) -> list[Sampling]:
        """One part closes the thought at once, the other opens it."""
        without = max(1, min(count - 1, round(count * self.settings.no_thinking_share)))
        shorter = min(self.settings.no_thinking_tokens, max_new_tokens)
        return [
            Sampling(prompt, without, shorter, END_OF_THOUGHT),
            Sampling(prompt, count - without, max_new_tokens, self.settings.thinking_start),
        ]

    def rewards(self, batch: Batch) -> Tensor:
        """C - c_ref(x) + bonus; a response with a thought in the wrong place is not right."""

        def reward(rollout: Rollout) -> float:
            right = is_right(rollout.correct, batch.reader.text(rollout.response_ids))
            skipped = rollout.notes["part"] == NO_THINKING
            return right - self._accuracies()[prompt_key(rollout.prompt)] + self.settings.bonus * skipped

        return batch.each(reward)

    def first_logprob(self, rollout: Rollout, logprob: float) -> float:
        """The first token was forced with its part's share; a thought that was not forced had to be drawn as well."""
        share = self.settings.no_thinking_share
        if rollout.notes["part"] == NO_THINKING:
            return math.log(share)
        return math.log(1 - share) + (0.0 if self.settings.thinking_start else logprob)
