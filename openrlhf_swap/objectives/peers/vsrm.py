"""VSRM, after its code (commit e4e928b), and a variant of ours that samples nothing."""

import re
from collections.abc import Iterator, Sequence
from itertools import pairwise

import torch
from torch import Tensor

from openrlhf_swap.objectives.base import (
    Batch,
    Continuation,
    Objective,
    ResponseReader,
    Rollout,
    setting,
)
from openrlhf_swap.objectives.group_statistics import Span, fill_spans
from openrlhf_swap.objectives.peers.formats import boxed
from openrlhf_swap.rollouts.reader import tokens_for_each
from openrlhf_swap.rollouts.rollout import Probe

DISCOUNT = 0.7  # of a change, for each cut between it and the one that shares in it
PATIENCE = 4  # how many cuts before a change share in it
# VSRM's list without "That's correct, but" and "Wait, but", which have a comma, and contain shorter
# words of the list.
CUES = (
    "wait,Wait,WAIT,but,But,BUT,alternatively,Alternatively,ALTERNATIVELY,however,However,HOWEVER,"
    "hmm,Hmm,HMM,Let me double-check,let me double-check,But wait,but wait,Hold on,hold on,"
    "Looking back,looking back,Seems solid,seems solid,Similarly,similarly,That seems right,"
    "that seems right,So"
)


def step_rewards(accuracies: Sequence[float], least_change: float) -> list[float]:
    """The reward of each cut but the last: a_(j+1) - a_j.

    Where that is no change, it earns .7^n of the first change, n <= 4 cuts further on.
    """
    changes = [after - before for before, after in pairwise(accuracies)]
    return [_first_change(changes[place:], least_change) for place in range(len(changes))]


def _first_change(changes: Sequence[float], least_change: float) -> float:
    for distance, change in enumerate(changes[: PATIENCE + 1]):
        if abs(change) >= least_change:
            return change * DISCOUNT**distance
    return 0.0


def cut_places(text: str, words: Sequence[str], first: int, apart: int) -> list[int]:
    """The beginnings of the sentences that contain one of the words, also inside of another word.

    A sentence begins after the last of `.!?` and newline before the word; a text without one is cut
    at the word. A word counts from `first` characters on, and `apart` characters after the cut
    before it.
    """
    places: list[int] = []
    longest_first = sorted(words, key=len, reverse=True)
    pattern = "|".join(map(re.escape, longest_first))
    for word in re.finditer(pattern, text):
        is_near = bool(places) and word.start() - places[-1] < apart
        if word.start() >= first and not is_near:
            marks = [text.rfind(mark, 0, word.start()) for mark in ".!?\n"]
            sentence = max(marks) + 1
            places.append(sentence or word.start())
    return sorted(set(places))


class _VSRM(Objective):
    boxes_answers = True
    least_change: float  # a smaller change of the accuracy counts as none

    def rewards(self, batch: Batch) -> Tensor:
        is_closed = batch.each_text(lambda text: batch.reader.end_of_thought in text).bool()
        rewards = batch.correct.double()
        rewards[~boxed(batch)] = -9.5
        rewards[~is_closed] = -10.0
        return rewards

    def token_advantages(self, batch: Batch) -> Tensor:
        return fill_spans(batch, 0.0, self._rewards_to_come)

    def _rewards_to_come(self, rollout: Rollout) -> Iterator[Span]:
        probes = self.probes(rollout)
        earned = step_rewards([probe.share for probe in probes], self.least_change)
        first = 0
        for place, probe in enumerate(probes[:-1]):
            yield Span(first, probe.kept, sum(earned[place:]))
            first = probe.kept

    def probes(self, rollout: Rollout) -> Sequence[Probe]:
        """Each cut's tokens before it and its accuracy, the end of the thought last."""
        return rollout.probes


class VSRM(_VSRM):
    """A = GRPO(outcome) + step rewards to come, by answers sampled where the thought is cut off.

    The outcome is 1, 0, -9.5 without a box, and -10 with an open thought.
    """

    continues = True
    needs_marks = True
    least_change = 1e-5
    words: str = setting(CUES, "a thought is cut before a sentence that contains one of these")
    first_characters: int = setting(1000, "before the first cut, at least", ge=0)
    apart_characters: int = setting(400, "between two cuts, at least", ge=1)
    answers: int = setting(5, "sampled at each cut, and at the end of the thought", ge=1)
    answer_tokens: int = setting(768, "most tokens of such an answer", ge=1)

    def continuations(self, rollout: Rollout, reader: ResponseReader) -> list[Continuation]:
        ids = list(rollout.response_ids[: reader.reasoning_length(rollout.response_ids)])
        words = self.words.split(",")
        places = cut_places(reader.text(ids), words, self.first_characters, self.apart_characters)
        if not places:
            return []
        ends = [*tokens_for_each(ids, places, reader), len(ids)]
        suffix = reader.end_of_thought
        return [Continuation(end, suffix, self.answer_tokens, self.answers) for end in ends]


class VSRMScores(_VSRM):
    """A = GRPO(outcome) + step rewards to come, by the answer's probability after each step.

    Only correct responses have such rewards.
    """

    no_numbers = "not published: ours, after `vsrm`"
    scores_steps = True
    least_change = 0.02

    def probes(self, rollout: Rollout) -> Sequence[Probe]:
        """Each step's tokens before its end, and the reference answer's probability a token."""
        logprobs = torch.tensor(rollout.answer_logprobs[1:], dtype=torch.float64)
        probabilities = logprobs.exp().tolist()
        pairs = zip(rollout.step_ends, probabilities, strict=True)
        return [Probe(end + 1, probability) for end, probability in pairs]
