"""AdaptThink: half of the responses skip the thought, and the policy learns when it may.

After github.com/THU-KEG/AdaptThink (2025-05-28). The ratio is the code's, a geometric mean over the response (GSPO in
OpenRLHF), not the paper's ratio of whole sequences.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import cached_property
from pathlib import Path
from types import SimpleNamespace

from torch import Tensor

from openrlhf_swap.config import FlagSettings, SwapConfig, setting
from openrlhf_swap.errors import ConfigError, DataError
from openrlhf_swap.files import read_rows
from openrlhf_swap.objectives.base import Objective, SamplingRequest
from openrlhf_swap.rollouts.batch import Batch
from openrlhf_swap.rollouts.families import opening, opens_thought, with_open_thought
from openrlhf_swap.rollouts.rollout import Rollout, prompt_key

MAKER = "openrlhf-swap reference"
NO_THINKING, THINKING = 0, 1  # parts of a group, in the order in which they are sampled


def is_right(correct: bool, prompt: str, text: str, config: SwapConfig) -> bool:
    """Whether a response counts as correct: graded so, with a thought that is closed once and not opened again.

    Behind a prompt that does not open the thought, the response may begin with its mark.
    """
    start = config.start_of_thought
    if not opens_thought(prompt, start):
        text = text.lstrip().removeprefix(start.rstrip())
    return correct and start not in text and text.count(config.end_of_thought) == 1


class AdaptThink(Objective):
    """A = c - reference accuracy of the problem + bonus [no thinking], the same on every token, not normalised."""

    normaliser = "none"
    flags = {"--actor.policy_loss_type": "gspo"}  # noqa: RUF012
    reshapes_responses = True

    class Settings(FlagSettings):
        """Flags `--swap.adaptthink.*`."""

        reference: str = setting("", f"file with the reference policy's accuracies: {MAKER}", is_path=True)
        bonus: float = setting(0.05, "delta: what a response without thinking may lose in accuracy")
        no_thinking_share: float = setting(0.5, "of a group's responses", "use a number between 0 and 1", gt=0, lt=1)
        no_thinking_tokens: int = setting(4096, "longest response without thinking")
        thinking_start: str = setting("Alright", "forced first word of a thought; empty: nothing is forced")

    settings: Settings

    def check(self, args: SimpleNamespace) -> None:
        """The reference accuracies must be there."""
        kind = args.actor.policy_loss_type
        if kind != "gspo":
            raise ConfigError(f"--actor.policy_loss_type is {kind}; adaptthink needs gspo: leave it out")
        _ = self._accuracies

    def check_prompts(self, prompts: Sequence[str]) -> None:
        """Every prompt needs a reference accuracy."""
        if missing := sum(prompt_key(prompt) not in self._accuracies for prompt in prompts):
            raise DataError(
                f"--swap.adaptthink.reference is {self.settings.reference}, which lacks {missing} of {len(prompts)} "
                f"prompts; make it from the same data set with {MAKER}"
            )

    @cached_property
    def _accuracies(self) -> dict[str, float]:
        """By the prompt's key."""
        path = self.settings.reference
        if not Path(path).is_file():
            raise ConfigError(f"--swap.adaptthink.reference is {path!r}, which is not a file; make it with {MAKER}")
        return {row["key"]: row["accuracy"] for row in read_rows(Path(path))}

    def _accuracy(self, prompt: str) -> float:
        """The reference accuracy of a prompt, or of the one that was given an open thought."""
        key = prompt_key(prompt)
        if key not in self._accuracies:
            key = prompt_key(prompt.removesuffix(opening(self.config.start_of_thought)))
        return self._accuracies[key]

    def eval_prompt(self, prompt: str) -> str:
        """With the opened thought, as in training."""
        return with_open_thought(prompt, self.config.start_of_thought)

    def sampling(self, prompt: str, count: int, max_new_tokens: int) -> list[SamplingRequest]:
        """One part closes the thought at once, the other goes on with it."""
        prompt = self.eval_prompt(prompt)
        without = max(1, min(count - 1, round(count * self.settings.no_thinking_share)))
        shorter = min(self.settings.no_thinking_tokens, max_new_tokens)
        return [
            SamplingRequest(prompt, without, shorter, self.config.end_of_thought),
            SamplingRequest(prompt, count - without, max_new_tokens, self.settings.thinking_start),
        ]

    def rewards(self, batch: Batch) -> Tensor:
        """C - c_ref(x) + bonus; a response with a thought in the wrong place counts as wrong."""

        def reward(rollout: Rollout) -> float:
            correct = is_right(rollout.correct, rollout.prompt, batch.reader.text(rollout.response_ids), self.config)
            skipped = rollout.metadata["part"] == NO_THINKING
            return correct - self._accuracy(rollout.prompt) + self.settings.bonus * skipped

        return batch.each(reward)

    def first_logprob(self, rollout: Rollout, logprob: float) -> float:
        """The first token was forced with its part's share; a thought that was not forced had to be drawn as well."""
        share = self.settings.no_thinking_share
        if rollout.metadata["part"] == NO_THINKING:
            return math.log(share)
        return math.log(1 - share) + (0.0 if self.settings.thinking_start else logprob)
