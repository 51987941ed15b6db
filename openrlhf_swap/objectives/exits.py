"""JET and S-GRPO: a thought is left at several places, and the answers given there join the group."""

from __future__ import annotations

import random
import re
from dataclasses import replace
from types import SimpleNamespace

import torch
from torch import Tensor

from openrlhf_swap.config import SwapConfig, setting
from openrlhf_swap.errors import ConfigError
from openrlhf_swap.objectives.base import Continuation, Objective, SamplingRequest, numbers_pattern, parse_numbers
from openrlhf_swap.rewards.answers import last_boxed
from openrlhf_swap.rollouts.reader import ResponseReader, tokens_for, tokens_for_each
from openrlhf_swap.rollouts.rollout import Batch, Rollout

STOP = r"\n\nWait, I have enough information to get the final answer.{end}\n\nTherefore, the final answer is \boxed{"
LEAVE = r"Time is limited, stop thinking and start answering.\n{end}\n\n"
_BOX = re.compile(r"\\boxed\{.*?\}")


class _Exits(Objective):
    continues = "join"
    phrase: str

    def __init__(self, config: SwapConfig) -> None:
        super().__init__(config)
        self._phrase = self.phrase.replace("\\n", "\n").replace("{end}", config.end_of_thought)


class JET(_Exits):
    """R = .9 c + .1 [box] + c (.05 + .95 w (Lmax - L)/(Lmax - Lmin)), of the batch's correct lengths; in the group.

    One response in six of a group is sampled whole. It is also cut at five places and told to answer there, and these
    five join the group. So a thought that was stopped early and still led to a correct answer teaches to stop early.
    Every response of the group ends with the end token, also one that the token limit cut off. After its code (commit
    89cf33e; arXiv 2509.23392).
    """

    boxes_answers = True

    shares: str = setting(
        "10,30,50,70,90",
        "where a response is cut, in percent of its characters",
        "use percents such as 10,30,50,70,90",
        pattern=numbers_pattern("*", r"[1-9]\d?"),
    )
    phrase: str = setting(STOP, "what is put after a cut; {end} is the end of the thought, \\n a newline")
    answer_tokens: int = setting(50, "most tokens after it", ge=1)
    length_weight: float = setting(1.2, "w, of the length reward")

    def __init__(self, config: SwapConfig) -> None:
        super().__init__(config)
        self._shares = parse_numbers(self.shares)

    def check(self, args: SimpleNamespace) -> None:
        """A group must hold each whole response with all of its cuts."""
        size, each = args.rollout.n_samples_per_prompt, 1 + len(self._shares)
        if size % each:
            found = f"--rollout.n_samples_per_prompt is {size}, but --swap.jet.shares makes {each} of a response"
            raise ConfigError(f"{found}; use a multiple of it")

    def sampling(self, prompt: str, count: int, max_new_tokens: int) -> list[SamplingRequest]:
        """The whole responses."""
        return [SamplingRequest(prompt, count // (1 + len(self._shares)), max_new_tokens)]

    def continuations(self, rollout: Rollout, reader: ResponseReader) -> list[Continuation]:
        """One at each share of the characters."""
        ids = list(rollout.response_ids)
        characters = len(reader.text(ids))
        kept = tokens_for_each(ids, [characters * share // 100 for share in self._shares], reader)
        return [Continuation(end, self._phrase, self.answer_tokens) for end in kept]

    def edit(self, rollout: Rollout, reader: ResponseReader) -> Rollout:
        """The response with the end token at its end.

        An answer that boxes a second time (the phrase opened the first box) ends with the sentence of its last box. A
        whole response that the limit cut off gives up its last token for the end token, so that it still fits.
        """
        ids, kept = list(rollout.response_ids), int(rollout.metadata["kept"])
        if kept == len(ids):
            ids = ids[:-1] if rollout.truncated else ids
        else:
            text, start = reader.text(ids), len(reader.text(ids[:kept])) + len(self._phrase)
            boxes = list(_BOX.finditer(text, start))
            full_stop = text.find(".", boxes[-1].end()) if boxes else -1
            if full_stop >= 0:
                ids = ids[: tokens_for(ids, full_stop + 1, reader)]
        ended = ids if ids[-1:] == [reader.end_token] else [*ids, reader.end_token]
        return replace(rollout, response_ids=ended)

    def rewards(self, batch: Batch) -> Tensor:
        """Answer, box and length."""
        boxed = batch.each(lambda rollout: last_boxed(batch.reader.text(rollout.response_ids)) is not None)
        rewards = 0.9 * batch.correct + 0.1 * boxed
        correct = batch.lengths[batch.correct].double()
        if len(correct) == 0:
            return rewards
        place = (correct.max() - batch.lengths) / (correct.max() - correct.min() + 1e-8)
        return rewards + torch.where(batch.correct, 0.05 + 0.95 * self.length_weight * place, 0.0)


class SGRPO(_Exits):
    """R = 2^(1 - k) for the k-th correct answer in the order of its exits, the whole response last; 0 if wrong.

    After reviews of the paper: no code of the authors was found, and its constants are not verified.
    """

    normaliser = "centre"
    _exits = 0  # of a group

    phrase: str = setting(LEAVE, "what is put after an exit; {end} is the end of the thought, \\n a newline")
    answer_tokens: int = setting(512, "most tokens of an answer after an exit (not verified)", ge=1)

    def check(self, args: SimpleNamespace) -> None:
        """Answers must leave room for a thought."""
        if self.answer_tokens >= args.rollout.max_new_tokens:
            raise ConfigError(
                f"--swap.s_grpo.answer_tokens is {self.answer_tokens}, not less than "
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
        return [Continuation(place, self._phrase, self.answer_tokens) for place in places]

    def rewards(self, batch: Batch) -> Tensor:
        """By the order of the exits; of equal ones, by that in the group."""
        order = batch.each(lambda rollout: rollout.metadata["kept"]).argsort(dim=-1, stable=True)
        correct = batch.correct.gather(-1, order).double()
        worth = correct * 2.0 ** (1 - correct.cumsum(-1))
        return torch.zeros_like(worth).scatter(-1, order, worth)
