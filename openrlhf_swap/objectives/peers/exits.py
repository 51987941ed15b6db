"""Objectives that leave a thought early: answers from beginnings of a response join its group."""

import random
import re
from dataclasses import replace
from types import SimpleNamespace
from typing import Annotated

import torch
from pydantic import BeforeValidator, Field
from torch import Tensor

from openrlhf_swap.errors import ConfigError
from openrlhf_swap.objectives.base import (
    Batch,
    Continuation,
    Objective,
    ResponseReader,
    Rollout,
    SamplingRequest,
    check_group_size,
    numbers,
    setting,
    split_numbers,
)
from openrlhf_swap.objectives.group_statistics import longest, shortest
from openrlhf_swap.objectives.peers.formats import boxed
from openrlhf_swap.rollouts.reader import tokens_for_each

STOP = (
    r"\n\nWait, I have enough information to get the final answer.{end}"
    r"\n\nTherefore, the final answer is \boxed{"
)
LEAVE = r"Time is limited, stop thinking and start answering.\n{end}\n\n"
_BOX = re.compile(r"\\boxed\{.*?\}")
Percent = Annotated[int, Field(gt=0, lt=100)]


def exit_phrase(phrase: str, end_of_thought: str) -> str:
    r"""The text of a setting in which {end} is the end of the thought, and \n a newline."""
    return phrase.replace("\\n", "\n").replace("{end}", end_of_thought)


class JET(Objective):
    """R = .9 c + .1 [box] + c (.05 + 1.14 (Lmax - L)/(Lmax - Lmin)), L of the batch's correct.

    In the group. One response in six of a group is sampled whole, cut at five places and told to
    answer there; these five join the group. Every response ends with the end token, also one that
    the limit cut off. After its code (commit 89cf33e).
    """

    boxes_answers = True
    continues = "join"
    shares: Annotated[tuple[Percent, ...], BeforeValidator(split_numbers)] = numbers(
        "10,30,50,70,90", "where a response is cut, in percent of its characters"
    )
    phrase: str = setting(
        STOP, "what is put after a cut; {end} is the end of the thought, \\n a newline"
    )
    answer_tokens: int = setting(50, "most tokens after it", ge=1)

    def check(self, args: SimpleNamespace) -> None:
        each = 1 + len(self.shares)
        check_group_size(args, each, f"--swap.jet.shares makes {each} of a response")

    def sampling(
        self,
        prompt: str,
        count: int,
        max_new_tokens: int,
    ) -> list[SamplingRequest]:
        return [SamplingRequest(prompt, count // (1 + len(self.shares)), max_new_tokens)]

    def continuations(self, rollout: Rollout, reader: ResponseReader) -> list[Continuation]:
        characters = len(reader.text(rollout.response_ids))
        places = [characters * share // 100 for share in self.shares]
        kept = tokens_for_each(rollout.response_ids, places, reader)
        phrase = exit_phrase(self.phrase, self.config.end_of_thought)
        return [Continuation(end, phrase, self.answer_tokens) for end in kept]

    def edit(self, rollout: Rollout, reader: ResponseReader) -> Rollout:
        """A response that ends with the end token.

        A whole response that the limit cut off gives up its last token for it, so that it still
        fits.
        """
        ids = list(rollout.response_ids)
        kept = int(rollout.metadata["kept"])
        if kept < len(ids):
            ids = self._cut_after_box(ids, kept, reader)
        elif rollout.truncated:
            ids.pop()
        if ids[-1:] != [reader.end_token]:
            ids.append(reader.end_token)
        return replace(rollout, response_ids=ids)

    def _cut_after_box(
        self,
        ids: list[int],
        kept: int,
        reader: ResponseReader,
    ) -> list[int]:
        """An answer that boxes again ends with the sentence of its last box.

        The phrase opened the first box.
        """
        text = reader.text(ids)
        phrase = exit_phrase(self.phrase, self.config.end_of_thought)
        start = len(reader.text(ids[:kept])) + len(phrase)
        boxes = list(_BOX.finditer(text, start))
        full_stop = text.find(".", boxes[-1].end()) if boxes else -1
        if full_stop < 0:
            return ids
        return ids[: tokens_for_each(ids, [full_stop + 1], reader)[0]]

    def rewards(self, batch: Batch) -> Tensor:
        rewards = 0.9 * batch.correct.double() + 0.1 * boxed(batch).double()
        among_correct = (batch.lengths.flatten(), batch.correct.flatten())
        most = longest(*among_correct)
        place = (most - batch.lengths) / (most - shortest(*among_correct) + 1e-8)
        return rewards + torch.where(batch.correct, 0.05 + 0.95 * 1.2 * place, 0.0)


class SGRPO(Objective):
    """A = R - mean, R = 2^(1 - k) for the k-th correct answer in the order of its exits, 0 wrong.

    All responses of a group but one are beginnings of that one with an answer; the whole response
    is the last exit. After reviews of the paper: no code of the authors was found.
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

    def sampling(
        self,
        prompt: str,
        count: int,
        max_new_tokens: int,
    ) -> list[SamplingRequest]:
        self._exits = count - 1
        return [SamplingRequest(prompt, 1, max_new_tokens)]

    def continuations(self, rollout: Rollout, reader: ResponseReader) -> list[Continuation]:
        """The places depend on the response alone."""
        thought = reader.reasoning_length(rollout.response_ids)
        rng = random.Random(f"{rollout.prompt}{list(rollout.response_ids)}")
        tokens = max(1, thought)
        places = sorted(rng.randrange(tokens) for _ in range(self._exits))
        phrase = exit_phrase(self.phrase, self.config.end_of_thought)
        return [Continuation(place, phrase, self.answer_tokens) for place in places]

    def rewards(self, batch: Batch) -> Tensor:
        exits = batch.each(lambda rollout: rollout.metadata["kept"])
        order = exits.argsort(dim=-1, stable=True)
        correct = batch.correct.gather(-1, order).double()
        worth = correct * 2.0 ** (1 - correct.cumsum(-1))
        return torch.zeros_like(worth).scatter(-1, order, worth)
