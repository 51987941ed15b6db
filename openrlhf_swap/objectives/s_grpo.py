"""S-GRPO: one thought, left at several places; the earlier a correct answer comes, the more it is worth.

After reviews of the paper: no code of the authors was found, and its constants are not verified. A port decays by the
exit's number, correct or wrong.
"""

from __future__ import annotations

import random
from types import SimpleNamespace

import torch
from torch import Tensor

from openrlhf_swap.config import FlagSettings, setting
from openrlhf_swap.errors import ConfigError
from openrlhf_swap.objectives.base import Continuation, Objective, SamplingRequest
from openrlhf_swap.rollouts.batch import Batch
from openrlhf_swap.rollouts.reader import ResponseReader
from openrlhf_swap.rollouts.rollout import Rollout

LEAVE = r"Time is limited, stop thinking and start answering.\n{end}\n\n"


class SGRPO(Objective):
    """R = 2^(1 - k) for the k-th correct answer in the order of its exits, the whole response last; 0 if wrong."""

    normaliser = "centre"
    continues = "join"
    _exits = 0  # of a group

    class Settings(FlagSettings):
        """Flags `--swap.s_grpo.*`."""

        phrase: str = setting(LEAVE, "what is put behind an exit; {end} is the end of the thought, \\n a newline")
        answer_tokens: int = setting(512, "most tokens of an answer behind an exit (not verified)", ge=1)

    settings: Settings

    def check(self, args: SimpleNamespace) -> None:
        """Answers must leave room for a thought."""
        if self.settings.answer_tokens >= args.rollout.max_new_tokens:
            raise ConfigError(
                f"--swap.s_grpo.answer_tokens is {self.settings.answer_tokens}, not less than "
                f"--rollout.max_new_tokens {args.rollout.max_new_tokens}; use less"
            )

    def sampling(self, prompt: str, count: int, max_new_tokens: int) -> list[SamplingRequest]:
        """The whole response."""
        self._exits = count - 1
        return [SamplingRequest(prompt, 1, max_new_tokens)]

    def continuations(self, rollout: Rollout, reader: ResponseReader) -> list[Continuation]:
        """One at each exit, in order; the places depend on the response alone."""
        thought = reader.reasoning_length(rollout.response_ids)
        rng = random.Random(f"{rollout.prompt}{list(rollout.response_ids)}")
        places = sorted(rng.randrange(max(1, thought)) for _ in range(self._exits))
        phrase = self.settings.phrase.replace("\\n", "\n").replace("{end}", reader.end_of_thought)
        return [Continuation(place, phrase, self.settings.answer_tokens) for place in places]

    def rewards(self, batch: Batch) -> Tensor:
        """By the order of the exits; of equal ones, by that in the group."""
        order = batch.each(lambda rollout: rollout.metadata["kept"]).argsort(dim=-1, stable=True)
        correct = batch.correct.gather(-1, order).double()
        worth = correct * 2.0 ** (1 - correct.cumsum(-1))
        return torch.zeros_like(worth).scatter(-1, order, worth)
