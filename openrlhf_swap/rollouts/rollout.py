"""Responses on their way from the engine to the update, one by one and in G groups of N."""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from itertools import chain, pairwise
from typing import Any

import torch
from torch import Tensor

from openrlhf_swap.algorithm.advantages import StepSignals, step_signals
from openrlhf_swap.algorithm.batch import StepBatch, StepTrace
from openrlhf_swap.algorithm.coefficients import Coefficients
from openrlhf_swap.rollouts.reader import ResponseReader


@dataclass(frozen=True)
class Rollout:
    """A response, what it earned and what its steps scored."""

    prompt: str  # as the chat template renders it
    answer: str  # the reference answer
    response_ids: Sequence[int]  # L tokens that the policy generated, the end token included; of all turns of an agent
    prompt_ids: Sequence[int]  # as the engine got them
    reward: float  # the grader's; ours are between 0 and 1
    truncated: bool = False  # by the token limit
    step_ends: Sequence[int] = ()  # e_1..e_K, indices in the response; empty where steps are neither scored nor read
    answer_logprobs: Sequence[float] = ()  # l_0..l_K in nats per answer token; empty before they are scored
    # (K+1, d) float32, the policy's hidden states at the last token of the prompt and of each step, if they are read.
    states: Tensor | None = field(default=None, compare=False)
    # (L,) of its tokens under the policy, at the rollouts' temperature; None before the policy's forward.
    logprobs: Tensor | None = field(default=None, compare=False, repr=False)
    # (kept tokens, share of correct answers) of each prefix that was continued for grading, in order.
    probes: Sequence[tuple[int, float]] = ()
    graded_correct: bool | None = None  # whether the grader called it correct; None if it gave a reward only
    metadata: Mapping[str, float] = field(default_factory=dict)  # what the objective keeps from sampling to update
    # What else OpenRLHF's engine returned, for OpenRLHF's own row of the response.
    record: Mapping[str, Any] = field(default_factory=dict, compare=False, repr=False)
    # (place, token ids) of what an environment wrote before `response_ids[place]`, in order: a new turn begins there.
    observations: Sequence[tuple[int, Sequence[int]]] = ()

    @property
    def start(self) -> int:
        """Position of the response's first token in its row."""
        return len(self.prompt_ids)

    @property
    def correct(self) -> bool:
        """c: what the grader says; for a reward function that gives a reward only, whether that is positive."""
        return self.reward > 0 if self.graded_correct is None else self.graded_correct

    @property
    def turn_starts(self) -> list[int]:
        """Where turns but the first begin in `response_ids`."""
        return [place for place, _ in self.observations]

    @property
    def turns(self) -> list[Sequence[int]]:
        bounds = [0, *self.turn_starts, len(self.response_ids)]
        return [self.response_ids[begin:end] for begin, end in pairwise(bounds)]

    @property
    def row_ids(self) -> list[int]:
        """Token ids of the whole row: the prompt, then turns and observations in turn."""
        observed = [*(ids for _, ids in self.observations), ()]
        return [*self.prompt_ids, *chain.from_iterable(chain(*zip(self.turns, observed, strict=True)))]

    @cached_property
    def positions(self) -> Tensor:
        """(L,) int64: where each generated token stands in the row."""
        shift = torch.zeros(len(self.response_ids) + 1, dtype=torch.int64)
        for place, ids in self.observations:
            shift[place] += len(ids)
        return self.start + torch.arange(len(self.response_ids)) + shift.cumsum(0)[:-1]

    @property
    def prefix_ends(self) -> tuple[int, ...]:
        """(K+1) positions in the row: the last prompt token's, then each step's last token's.

        The last step of a turn ends with the observation that follows it, which opens the next turn.
        """
        return (self.start - 1, *(int(self.positions[end]) + self._observed[end] for end in self.step_ends))

    @property
    def split_prefix_ends(self) -> tuple[int, ...]:
        """As `prefix_ends`, with two positions for a step before an observation: before it, and after it."""
        steps = [(int(self.positions[end]), self._observed[end]) for end in self.step_ends]
        ends = ((end, end + observed) if observed else (end,) for end, observed in steps)
        return (self.start - 1, *chain.from_iterable(ends))

    def without_observations(self, logprobs: Sequence[float]) -> list[float]:
        """l_0..l_K of the steps alone, from the log-probabilities at `split_prefix_ends`.

        What an observation changes is taken from all that follow it, so that no step gains or loses by it.
        """
        values, changed = iter(logprobs), 0.0
        kept = [next(values)]
        for end in self.step_ends:
            before = next(values)
            kept.append(before - changed)
            if self._observed[end]:
                changed += next(values) - before
        return kept

    @cached_property
    def _observed(self) -> Counter[int]:
        """Tokens of observations after each place in the response."""
        observed = Counter[int]()
        for place, ids in self.observations:
            observed[place - 1] += len(ids)
        return observed

    def trace(self) -> StepTrace:
        """What the step arithmetic and a critic need to know; no steps where these are neither scored nor read."""
        ends = self.step_ends if self.answer_logprobs or self.states is not None else ()
        return StepTrace(len(self.response_ids), self.correct, self.answer_logprobs, ends, self.states)


@dataclass(frozen=True)
class Batch:
    """G groups of N rollouts, complete and in order.

    Attributes:
        groups: the rollouts.
        coefficients: those of the step arithmetic.
        reader: decodes responses and finds the end of their thought.
    """

    groups: Sequence[Sequence[Rollout]]
    coefficients: Coefficients
    reader: ResponseReader

    @cached_property
    def rewards(self) -> Tensor:
        """(G, N) float64, the grader's rewards."""
        return self.each(lambda rollout: rollout.reward)

    @cached_property
    def correct(self) -> Tensor:
        """(G, N) bool."""
        return self.each(lambda rollout: rollout.correct).bool()

    @cached_property
    def truncated(self) -> Tensor:
        """(G, N) bool, cut off by the token limit."""
        return self.each(lambda rollout: rollout.truncated).bool()

    @cached_property
    def closed(self) -> Tensor:
        """(G, N) bool, whether the thought was closed."""
        return self.each(lambda rollout: self.reader.thought_length(rollout.response_ids) is not None).bool()

    @cached_property
    def lengths(self) -> Tensor:
        """(G, N) int64, response tokens, the end token included."""
        return self.each(lambda rollout: len(rollout.response_ids)).long()

    @cached_property
    def steps(self) -> StepBatch:
        """The step markers; no steps for an objective that needs no scores."""
        return StepBatch.from_traces([[rollout.trace() for rollout in group] for group in self.groups])

    @cached_property
    def signals(self) -> StepSignals:
        """The step signals computed from the markers."""
        return step_signals(self.steps, self.coefficients)

    def each_text(self, function: Callable[[str], float]) -> Tensor:
        """Apply a function to the text of every response; (G, N) float64."""
        return self.each(lambda rollout: function(self.reader.text(rollout.response_ids)))

    def each(self, function: Callable[[Rollout], float]) -> Tensor:
        """Apply a function to every rollout; (G, N) float64."""
        return torch.tensor([[function(rollout) for rollout in group] for group in self.groups], dtype=torch.float64)


def prompt_key(prompt: str) -> str:
    """The key of a rendered prompt in files and checkpoints."""
    return hashlib.sha256(prompt.encode()).hexdigest()
