"""Objectives that continue responses from their beginnings: VSRM grades what follows; with JET and S-GRPO it joins."""

import random
import re
from collections.abc import Sequence
from dataclasses import replace
from itertools import pairwise
from types import SimpleNamespace
from typing import Annotated

import torch
from pydantic import BeforeValidator, Field
from torch import Tensor

from openrlhf_swap.algorithm.advantages import process_advantages
from openrlhf_swap.config import SwapConfig, setting
from openrlhf_swap.errors import ConfigError
from openrlhf_swap.objectives.base import Continuation, Objective, SamplingRequest, numbers, split_numbers
from openrlhf_swap.objectives.group_rewards import boxed
from openrlhf_swap.rollouts.reader import ResponseReader, tokens_for, tokens_for_each
from openrlhf_swap.rollouts.rollout import Batch, Rollout

DISCOUNT, PATIENCE = 0.7, 4  # VSRM's, of a change for the cuts before it, and how many of these share in it
# VSRM's list without "That's correct, but" and "Wait, but", which have a comma, and contain shorter words of the list.
WORDS = (
    "wait,Wait,WAIT,but,But,BUT,alternatively,Alternatively,ALTERNATIVELY,however,However,HOWEVER,hmm,Hmm,HMM,"
    "Let me double-check,let me double-check,But wait,but wait,Hold on,hold on,Looking back,looking back,"
    "Seems solid,seems solid,Similarly,similarly,That seems right,that seems right,So"
)
STOP = r"\n\nWait, I have enough information to get the final answer.{end}\n\nTherefore, the final answer is \boxed{"
LEAVE = r"Time is limited, stop thinking and start answering.\n{end}\n\n"
_BOX = re.compile(r"\\boxed\{.*?\}")


def step_rewards(accuracies: Sequence[float], least_change: float) -> list[float]:
    """What each cut but the last earns, a_(j+1) - a_j; where nothing changes, .7^n of the change n cuts further on."""
    changes = [after - before for before, after in pairwise(accuracies)]
    rewards = []
    for j in range(len(changes)):
        near = enumerate(changes[j : j + PATIENCE + 1])
        rewards.append(next((d * DISCOUNT**n for n, d in near if abs(d) >= least_change), 0.0))
    return rewards


def cut_places(text: str, words: Sequence[str], first: int, apart: int) -> list[int]:
    """Where the sentences begin that contain one of the words, anywhere and in any other word too.

    A sentence begins after the last of `.!?` and newline before the word; a text without one is cut at the word. A
    word counts from `first` characters on, and `apart` characters after the cut before it.
    """
    places: list[int] = []
    for word in re.finditer("|".join(map(re.escape, sorted(words, key=len, reverse=True))), text):
        if word.start() < first or (places and word.start() - places[-1] < apart):
            continue
        sentence = 1 + max(text.rfind(mark, 0, word.start()) for mark in ".!?\n")
        places.append(sentence or word.start())
    return sorted(set(places))


class _VSRM(Objective):
    """A = GRPO(outcome) + rewards of the cuts to come; outcome 1, 0, -9.5 without a box, -10 with an open thought."""

    boxes_answers = True
    least_change: float

    def rewards(self, batch: Batch) -> Tensor:
        is_open = batch.each_text(lambda text: batch.reader.end_of_thought not in text).bool()
        return torch.where(is_open, -10.0, torch.where(boxed(batch).bool(), batch.correct.double(), -9.5))

    def token_advantages(self, batch: Batch) -> Tensor:
        term = torch.zeros(*batch.lengths.shape, int(batch.lengths.max()), dtype=torch.float64)
        for g, group in enumerate(batch.groups):
            for n, rollout in enumerate(group):
                probes = self.probes(rollout)
                earned = step_rewards([accuracy for _, accuracy in probes], self.least_change)
                if earned:
                    ends = torch.tensor([kept - 1 for kept, _ in probes[:-1]])
                    values = torch.tensor(earned, dtype=torch.float64)
                    term[g, n] = process_advantages(values, ends, torch.ones_like(ends).bool(), term.shape[-1])
        return term

    def probes(self, rollout: Rollout) -> Sequence[tuple[int, float]]:
        """Each cut's tokens before it and its accuracy, the end of the thought last."""
        return rollout.probes


class VSRM(_VSRM):
    """A = GRPO(outcome) + step rewards to come, from the accuracy of answers sampled where the thought is cut off.

    After its code (commit e4e928b).
    """

    continues = "grade"
    words: str = setting(WORDS, "a thought is cut before a sentence that contains one of these")
    first_characters: int = setting(1000, "before the first cut, at least", ge=0)
    apart_characters: int = setting(400, "between two cuts, at least", ge=1)
    answers: int = setting(5, "sampled at each cut, and at the end of the thought", ge=1)
    answer_tokens: int = setting(768, "most tokens of such an answer", ge=1)
    least_change: float = setting(1e-5, "changes of the accuracy below this count as none", ge=0)

    def continuations(self, rollout: Rollout, reader: ResponseReader) -> list[Continuation]:
        """Answers at each cut and at the end; none where nothing is cut."""
        ids = list(rollout.response_ids[: reader.reasoning_length(rollout.response_ids)])
        places = cut_places(reader.text(ids), self.words.split(","), self.first_characters, self.apart_characters)
        kept = tokens_for_each(ids, places, reader)
        ends = [*kept, len(ids)] if kept else []
        return [Continuation(end, reader.end_of_thought, self.answer_tokens, self.answers) for end in ends]


class VSRMScores(_VSRM):
    """A = GRPO(outcome) + step rewards to come, from the answer's probability after each step of correct responses."""

    scores_steps = True
    least_change: float = setting(0.02, "changes of the probability below this count as none", ge=0)

    def probes(self, rollout: Rollout) -> Sequence[tuple[int, float]]:
        """Each step's end, and the reference answer's probability a token: exp(l_k)."""
        probabilities = torch.tensor(rollout.answer_logprobs[1:], dtype=torch.float64).exp().tolist()
        return [(end + 1, p) for end, p in zip(rollout.step_ends, probabilities, strict=True)]


class _Exits(Objective):
    continues = "join"
    phrase: str

    def __init__(self, config: SwapConfig) -> None:
        super().__init__(config)
        self._phrase = self.phrase.replace("\\n", "\n").replace("{end}", config.end_of_thought)


class JET(_Exits):
    """R = .9 c + .1 [box] + c (.05 + .95 w (Lmax - L)/(Lmax - Lmin)), of the batch's correct lengths; in the group.

    One response in six of a group is sampled whole, cut at five places and told to answer there; these five join the
    group. Every response ends with the end token, also one that the limit cut off. After its code (commit 89cf33e).
    """

    boxes_answers = True
    shares: Annotated[tuple[Annotated[int, Field(gt=0, lt=100)], ...], BeforeValidator(split_numbers)] = numbers(
        "10,30,50,70,90", "where a response is cut, in percent of its characters"
    )
    phrase: str = setting(STOP, "what is put after a cut; {end} is the end of the thought, \\n a newline")
    answer_tokens: int = setting(50, "most tokens after it", ge=1)
    length_weight: float = setting(1.2, "w, of the length reward")

    def check(self, args: SimpleNamespace) -> None:
        size, each = args.rollout.n_samples_per_prompt, 1 + len(self.shares)
        if size % each:
            found = f"--rollout.n_samples_per_prompt is {size}, but --swap.jet.shares makes {each} of a response"
            raise ConfigError(f"{found}; use a multiple of it")

    def sampling(self, prompt: str, count: int, max_new_tokens: int) -> list[SamplingRequest]:
        return [SamplingRequest(prompt, count // (1 + len(self.shares)), max_new_tokens)]

    def continuations(self, rollout: Rollout, reader: ResponseReader) -> list[Continuation]:
        ids = list(rollout.response_ids)
        characters = len(reader.text(ids))
        kept = tokens_for_each(ids, [characters * share // 100 for share in self.shares], reader)
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
        rewards = 0.9 * batch.correct + 0.1 * boxed(batch)
        correct = batch.lengths[batch.correct].double()
        if len(correct) == 0:
            return rewards
        place = (correct.max() - batch.lengths) / (correct.max() - correct.min() + 1e-8)
        return rewards + torch.where(batch.correct, 0.05 + 0.95 * self.length_weight * place, 0.0)


class SGRPO(_Exits):
    """R = 2^(1 - k) for the k-th correct answer in the order of its exits, the whole response last; 0 if wrong.

    After reviews of the paper: no code of the authors was found.
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
