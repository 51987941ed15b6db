"""AdaptThink, after github.com/THU-KEG/AdaptThink (2025-05-28)."""

from collections.abc import Iterable
from functools import cached_property
from pathlib import Path
from types import SimpleNamespace
from typing import Any, ClassVar

from torch import Tensor

from openrlhf_swap.errors import ConfigError, DataError
from openrlhf_swap.files import read_rows
from openrlhf_swap.objectives.base import Batch, Objective, SamplingRequest, setting
from openrlhf_swap.objectives.peers.formats import right_answers
from openrlhf_swap.rollouts.families import open_thought, thought_opening
from openrlhf_swap.rollouts.rollout import prompt_key

MAKER = "openrlhf-swap reference"
NO_THINKING = 0  # the part of a group that is sampled first


class AdaptThink(Objective):
    """A = c - reference accuracy of the problem + bonus [no thinking], on every token.

    It is not normalised. A response with a thought in the wrong place is wrong.
    """

    normaliser = "none"
    needs_marks = True
    reshapes_responses = True
    limits_thoughts = True
    flags: ClassVar[dict[str, Any]] = {"actor.policy_loss_type": "gspo"}
    reference: str = setting(
        "", f"file with the reference policy's accuracies: {MAKER}", is_path=True
    )
    bonus: float = setting(0.05, "delta: what a response without thinking may lose in accuracy")
    no_thinking_share: float = setting(
        0.5, "share of a group's responses that have no thought", gt=0, lt=1
    )
    no_thinking_tokens: int = setting(4096, "longest response without thinking")
    thinking_start: str = setting(
        "Alright", "forced first word of a thought; empty: nothing is forced"
    )

    def check(self, args: SimpleNamespace) -> None:
        loss = args.actor.policy_loss_type
        if loss != "gspo":
            raise ConfigError(
                f"--actor.policy_loss_type is {loss}; adaptthink needs gspo: leave it out"
            )
        _ = self._accuracies  # raises for a missing file

    def check_prompts(self, prompts: Iterable[str]) -> None:
        keys = [prompt_key(prompt) for prompt in prompts]
        missing = sum(key not in self._accuracies for key in keys)
        if missing:
            raise DataError(
                f"--swap.adaptthink.reference is {self.reference}, which lacks {missing} of "
                f"{len(keys)} prompts; make it from the same data set with {MAKER}"
            )

    @cached_property
    def _accuracies(self) -> dict[str, float]:
        path = Path(self.reference)
        if not path.is_file():
            raise ConfigError(
                f"--swap.adaptthink.reference is {self.reference!r}, which is not a file; "
                f"make it with {MAKER}"
            )
        accuracies = {}
        for number, row in enumerate(read_rows(path), start=1):
            if not {"key", "accuracy"} <= set(row):
                raise DataError(
                    f"--swap.adaptthink.reference is {self.reference}, whose line {number} lacks "
                    f"key or accuracy; make it with {MAKER}"
                )
            accuracies[row["key"]] = row["accuracy"]
        return accuracies

    def _accuracy(self, prompt: str) -> float:
        """The reference accuracy of a prompt, whether or not its thought was opened for it."""
        key = prompt_key(prompt)
        if key not in self._accuracies:
            key = prompt_key(prompt.removesuffix(thought_opening(self.config.start_of_thought)))
        return self._accuracies[key]

    def eval_prompt(self, prompt: str) -> str:
        return open_thought(prompt, self.config.start_of_thought)

    def sampling(self, prompt: str, count: int, max_new_tokens: int) -> list[SamplingRequest]:
        opened = self.eval_prompt(prompt)
        share = self.no_thinking_share
        without = max(1, min(count - 1, round(count * share)))
        limit = min(self.no_thinking_tokens, max_new_tokens)
        end = self.config.end_of_thought
        start = self.thinking_start
        return [
            SamplingRequest(opened, without, limit, end, share),
            SamplingRequest(opened, count - without, max_new_tokens, start, 1 - share),
        ]

    def rewards(self, batch: Batch) -> Tensor:
        reference = batch.each(lambda rollout: self._accuracy(rollout.prompt))
        skipped = batch.each(lambda rollout: rollout.metadata["part"] == NO_THINKING)
        right = right_answers(batch, self.config).double()
        return right - reference + self.bonus * skipped
