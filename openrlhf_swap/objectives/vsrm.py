"""VSRM: a step is worth what it changes in the accuracy of answers that are given right there.

After its code (commit e4e928b), which trains by PPO with a critic. Here the outcome is normalised in the group, and
the sums of step rewards that a discount of 1 gives are added to it.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from itertools import pairwise

import torch
from torch import Tensor

from openrlhf_swap.algorithm.advantages import process_advantages
from openrlhf_swap.config import setting
from openrlhf_swap.objectives.base import Continuation, Objective
from openrlhf_swap.rewards.answers import last_boxed
from openrlhf_swap.rollouts.reader import ResponseReader, tokens_for_each
from openrlhf_swap.rollouts.rollout import Batch, Rollout

DISCOUNT, PATIENCE = 0.7, 4  # of a change for the cuts before it, and how many of these share in it
# Its list, but for "That's correct, but" and "Wait, but", which have a comma, and a shorter word of the list in them.
WORDS = (
    "wait,Wait,WAIT,but,But,BUT,alternatively,Alternatively,ALTERNATIVELY,however,However,HOWEVER,hmm,Hmm,HMM,"
    "Let me double-check,let me double-check,But wait,but wait,Hold on,hold on,Looking back,looking back,"
    "Seems solid,seems solid,Similarly,similarly,That seems right,that seems right,So"
)


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
        """The outcome."""

        def reward(rollout: Rollout) -> float:
            text, end = batch.reader.text(rollout.response_ids), batch.reader.end_of_thought
            if end not in text:
                return -10.0
            return float(rollout.correct) if last_boxed(text) is not None else -9.5

        return batch.each(reward)

    def token_advantages(self, batch: Batch) -> Tensor:
        """Of each token, the rewards of all cuts after it."""
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
    """A = GRPO(outcome) + step rewards to come, from the accuracy of answers sampled where the thought is cut off."""

    continues = "grade"

    words: str = setting(WORDS, "a thought is cut before a sentence that contains one of these")
    first_characters: int = setting(1000, "before the first cut, at least", ge=0)
    apart_characters: int = setting(400, "between two cuts, at least", ge=1)
    answers: int = setting(5, "sampled at each cut, and at the end of the thought", ge=1)
    answer_tokens: int = setting(768, "most tokens of such an answer", ge=1)
    least_change: float = setting(1e-5, "changes of the accuracy below this count as none", "use at least 0", ge=0)

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

    least_change: float = setting(0.02, "changes of the probability below this count as none", "use at least 0", ge=0)

    def probes(self, rollout: Rollout) -> Sequence[tuple[int, float]]:
        """Each step's end, and the reference answer's probability a token: exp(l_k)."""
        probabilities = torch.tensor(rollout.answer_logprobs[1:], dtype=torch.float64).exp().tolist()
        return [(end + 1, p) for end, p in zip(rollout.step_ends, probabilities, strict=True)]
