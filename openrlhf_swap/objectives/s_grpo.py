"""S-GRPO, after reviews of the paper: no code of the authors was found."""

import random
from types import SimpleNamespace

import torch
from torch import Tensor

from openrlhf_swap.errors import ConfigError
from openrlhf_swap.objectives.base import (
    Batch,
    Continuation,
    Objective,
    ResponseReader,
    Rollout,
    SamplingRequest,
    setting,
)
from openrlhf_swap.objectives.jet import exit_phrase

LEAVE = r"Time is limited, stop thinking and start answering.\n{end}\n\n"


class SGRPO(Objective):
    """A = R - mean, R = 2^(1 - k) for the k-th correct answer in the order of its exits, 0 wrong.

    All responses of a group but one are beginnings of that one with an answer; the whole response
    is the last exit.
    """

    normaliser = "centre"
    continues = "join"
    phrase: str = setting(
        LEAVE, "what is put after an exit; {end} is the end of the thought, \\n a newline"
    )
    answer_tokens: int = setting(512, "most tokens of an answer after an exit (not verified)", ge=1)
    _exits = 0  # of a group

    def check(self, args: SimpleNamespace) -> None:
        limit = args.rollout.max_new_tokens
        if self.answer_tokens >= limit:
            raise ConfigError(
                f"--swap.s_grpo.answer_tokens is {self.answer_tokens}, not less than "
                f"--rollout.max_new_tokens {limit}; use less"
            )

    def sampling(self, prompt: str, count: int, max_new_tokens: int) -> list[SamplingRequest]:
        self._exits = count - 1
        return [SamplingRequest(prompt, 1, max_new_tokens)]

    def continuations(self, rollout: Rollout, reader: ResponseReader) -> list[Continuation]:
        """The places depend on the response alone."""
        thought = reader.reasoning_length(rollout.response_ids)
        rng = random.Random(f"{rollout.prompt}{list(rollout.response_ids)}")
        places = sorted(rng.randrange(max(1, thought)) for _ in range(self._exits))
        phrase = exit_phrase(self.phrase, self.config.end_of_thought)
        return [Continuation(place, phrase, self.answer_tokens) for place in places]

    def rewards(self, batch: Batch) -> Tensor:
        exits = batch.each(lambda rollout: rollout.metadata["kept"])
        order = exits.argsort(dim=-1, stable=True)
        correct = batch.correct.gather(-1, order).double()
        worth = correct * 2.0 ** (1 - correct.cumsum(-1))
        return torch.zeros_like(worth).scatter(-1, order, worth)
