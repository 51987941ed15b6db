"""Responses on their way from the engine to the update: where their reasoning and steps end, one by
one, in groups.
"""

import hashlib
from bisect import bisect_left, bisect_right
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from itertools import accumulate, chain, pairwise
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from openrlhf_swap.algorithm.advantages import StepSignals, step_signals
from openrlhf_swap.algorithm.batch import StepBatch, StepTrace
from openrlhf_swap.algorithm.coefficients import Coefficients
from openrlhf_swap.algorithm.steps import segment_at_newlines
from openrlhf_swap.rewards.statements import answer_start, last_boxed, text_after_thought

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

CHUNK = 64  # tokens that are decoded at once to find places in a text
UNFINISHED = "\ufffd"  # what a decoder makes of the first bytes of a character


class ResponseReader:
    """Decodes responses and finds where their thought ends, in token space; a response is never
    re-tokenised.
    """

    def __init__(self, tokenizer: "PreTrainedTokenizerBase", end_of_thought: str) -> None:
        self._tokenizer = tokenizer
        self.end_of_thought = end_of_thought  # the text that closes a thought
        self._end_ids = self.ids(end_of_thought)
        self.end_tokens = len(self._end_ids)  # that it takes on its own
        self.end_token: int = tokenizer.eos_token_id
        added = tokenizer.added_tokens_decoder.items()
        self._special = {
            tokenizer.eos_token_id,
            *(number for number, token in added if token.special),
        }

    def text(self, ids: Sequence[int]) -> str:
        """Decode tokens, special tokens included."""
        return str(self._tokenizer.decode(list(ids), skip_special_tokens=False))

    def ids(self, text: str) -> list[int]:
        """Tokenise a text on its own, without adding special tokens."""
        return list(self._tokenizer(text, add_special_tokens=False)["input_ids"]) if text else []

    def thought_length(self, response_ids: Sequence[int]) -> int | None:
        """Tokens before the end of the thought; None if the thought is not closed."""
        ids, end = list(response_ids), self._end_ids
        places = (
            place
            for place, token in enumerate(ids)
            if token == end[0] and ids[place : place + len(end)] == end
        )
        start = next(places, None)
        if len(end) == 1:
            return start
        # Ordinary tokens merge with their neighbours, so the decoded text decides which end is the
        # first.
        if start is not None and self.end_of_thought not in self.text(ids[: start + len(end)])[:-1]:
            return start
        position = self.text(ids).find(self.end_of_thought)
        return None if position < 0 else self._tokens_before(ids, position)

    def reasoning_length(self, response_ids: Sequence[int]) -> int:
        """Tokens before the end of the thought; of an open one, before it states its final answer
        (`answer_start`).
        """
        closed = self.thought_length(response_ids)
        if closed is not None:
            return closed
        ids = list(response_ids)
        while (
            ids and ids[-1] in self._special
        ):  # nothing would be generated after it, and so nothing is scored
            ids.pop()
        start = answer_start(self.text(ids))
        return len(ids) if start is None else self._tokens_before(ids, start)

    def _tokens_before(self, ids: list[int], position: int) -> int:
        return bisect_right(_TextLengths(ids, self), position) - 1


class StepReader(ResponseReader):
    """Cuts responses into steps, by M, K and the patience of `segment_steps`. Decodes the
    vocabulary once.
    """

    def __init__(
        self,
        tokenizer: "PreTrainedTokenizerBase",
        end_of_thought: str,
        step_tokens: int,
        max_steps: int,
        newline_patience: float = 2.0,
    ) -> None:
        super().__init__(tokenizer, end_of_thought)
        self._limits = (step_tokens, max_steps, newline_patience)
        # The decoded text decides, not a single id: about 2,200 tokens of Qwen's vocabulary contain
        # a newline.
        texts = tokenizer.batch_decode(
            [[i] for i in range(len(tokenizer))], skip_special_tokens=False
        )
        self._newlines = {number for number, text in enumerate(texts) if "\n" in text}

    def step_ends(self, response_ids: Sequence[int], turn_starts: Sequence[int] = ()) -> list[int]:
        """e_1..e_K: the index, among L generated tokens, of each step's last one.

        No step crosses a turn (turns but the first begin at `turn_starts`, ascending): all turns
        share one M, raised until they have at most K steps together, or one each. Turns but the
        last are all reasoning.
        """
        if not turn_starts:
            return self._cut(response_ids[: self.reasoning_length(response_ids)], *self._limits)
        bounds = pairwise(
            [
                0,
                *turn_starts,
                turn_starts[-1] + self.reasoning_length(response_ids[turn_starts[-1] :]),
            ]
        )
        turns = [(begin, response_ids[begin:end]) for begin, end in bounds if begin < end]
        size, most, patience = self._limits
        while True:
            ends = [
                begin + end
                for begin, ids in turns
                for end in self._cut(ids, size, len(ids), patience)
            ]
            if len(ends) <= max(most, len(turns)):
                return ends
            size += max(1, size // 8)

    def _cut(
        self, ids: Sequence[int], step_tokens: int, max_steps: int, patience: float
    ) -> list[int]:
        newlines = [place for place, token in enumerate(ids) if token in self._newlines]
        return segment_at_newlines(newlines, len(ids), step_tokens, max_steps, patience)

    def step_texts(self, response_ids: Sequence[int], step_ends: Sequence[int]) -> list[str]:
        bounds = pairwise([0, *(end + 1 for end in step_ends)])
        return [self.text(response_ids[start:end]) for start, end in bounds]


def is_formatted(response_ids: Sequence[int], reader: ResponseReader) -> bool:
    """Whether a response closes its thought once and boxes an answer after it."""
    closed = reader.thought_length(
        response_ids
    )  # no end begins before it, so the text from there has all of them
    once = (
        closed is not None and reader.text(response_ids[closed:]).count(reader.end_of_thought) == 1
    )
    return once and boxes_answer(response_ids, reader)


def boxes_answer(response_ids: Sequence[int], reader: ResponseReader) -> bool:
    """Whether a response closes its thought and boxes an answer after it."""
    closed = reader.thought_length(response_ids)
    text = (
        ""
        if closed is None
        else text_after_thought(reader.text(response_ids[closed:]), reader.end_of_thought)
    )
    return last_boxed(text) is not None


def tokens_for_each(ids: Sequence[int], places: Sequence[int], reader: ResponseReader) -> list[int]:
    """For each place in the text, the fewest leading tokens whose text has at least so many
    characters.
    """
    lengths = _TextLengths(ids, reader)
    return [bisect_left(lengths, characters) for characters in places]


class _TextLengths:
    """The characters in the text of the first 0, 1, 2, ... tokens, to bisect in: each decodes a
    part of a chunk.
    """

    def __init__(self, ids: Sequence[int], reader: ResponseReader) -> None:
        self._ids, self._text = ids, reader.text
        self._starts, pieces = [0], []
        for end in range(CHUNK, len(ids), CHUNK):
            piece = self._text(ids[self._starts[-1] : end])
            if not piece.endswith(UNFINISHED):
                self._starts.append(end)
                pieces.append(piece)
        pieces.append(self._text(ids[self._starts[-1] :]))
        if len(pieces) > 1 and "".join(pieces) != self._text(ids):
            # The tokenizer decodes a beginning differently (some drop its space): one chunk, from
            # the real beginning.
            self._starts, pieces = [0], []
        self._characters = [0, *accumulate(map(len, pieces))]  # before each chunk

    def __len__(self) -> int:
        return len(self._ids) + 1

    def __getitem__(self, count: int) -> int:
        chunk = bisect_right(self._starts, count) - 1
        return self._characters[chunk] + len(self._text(self._ids[self._starts[chunk] : count]))


@dataclass(frozen=True)
class Rollout:
    """A response, what it earned and what its steps scored."""

    prompt: str  # as the chat template renders it
    answer: str  # the reference answer
    response_ids: Sequence[
        int
    ]  # L tokens that the policy generated, the end token included; of all turns of an agent
    prompt_ids: Sequence[int]  # as the engine got them
    reward: float  # the grader's; ours are between 0 and 1
    truncated: bool = False  # by the token limit
    step_ends: Sequence[
        int
    ] = ()  # e_1..e_K, indices in the response; empty where steps are neither scored nor read
    answer_logprobs: Sequence[
        float
    ] = ()  # l_0..l_K in nats per answer token; empty before they are scored
    # (K+1, d) float32, the policy's hidden states at the last token of the prompt and of each step,
    # if they are read.
    states: Tensor | None = field(default=None, compare=False)
    # (L,) of its tokens under the policy, at the rollouts' temperature; None before the policy's
    # forward.
    logprobs: Tensor | None = field(default=None, compare=False, repr=False)
    # (kept tokens, share of correct answers) of each prefix that was continued for grading, in
    # order.
    probes: Sequence[tuple[int, float]] = ()
    graded_correct: bool | None = (
        None  # whether the grader called it correct; None if it gave a reward only
    )
    metadata: Mapping[str, float] = field(
        default_factory=dict
    )  # what the objective keeps from sampling to update
    # What else OpenRLHF's engine returned, for OpenRLHF's own row of the response.
    record: Mapping[str, Any] = field(default_factory=dict, compare=False, repr=False)
    # (place, token ids) of what an environment wrote before `response_ids[place]`, in order: a new
    # turn begins there.
    observations: Sequence[tuple[int, Sequence[int]]] = ()

    @property
    def start(self) -> int:
        """Position of the response's first token in its row."""
        return len(self.prompt_ids)

    @property
    def correct(self) -> bool:
        """c: what the grader says; for a reward function that gives a reward only, whether that is
        positive.
        """
        return self.reward > 0 if self.graded_correct is None else self.graded_correct

    @property
    def turn_starts(self) -> list[int]:
        """Where turns but the first begin in `response_ids`."""
        return [place for place, _ in self.observations]

    @property
    def turns(self) -> list[Sequence[int]]:
        bounds = pairwise([0, *self.turn_starts, len(self.response_ids)])
        return [self.response_ids[begin:end] for begin, end in bounds]

    @property
    def row_ids(self) -> list[int]:
        """Token ids of the whole row: the prompt, then turns and observations in turn."""
        observed = [*(ids for _, ids in self.observations), ()]
        return [
            *self.prompt_ids,
            *chain.from_iterable(chain(*zip(self.turns, observed, strict=True))),
        ]

    @cached_property
    def positions(self) -> Tensor:
        """(L,) int64: where each generated token stands in the row."""
        shift = torch.zeros(len(self.response_ids) + 1, dtype=torch.int64)
        for place, ids in self.observations:
            shift[place] += len(ids)
        return self.start + torch.arange(len(self.response_ids)) + shift.cumsum(0)[:-1]

    @property
    def prefix_ends(self) -> tuple[int, ...]:
        """(K+1) positions in the row: the last prompt token's, then each step's last, or that of
        what it observed.
        """
        return (
            self.start - 1,
            *(int(self.positions[end]) + self._observed[end] for end in self.step_ends),
        )

    @property
    def split_prefix_ends(self) -> tuple[int, ...]:
        """As `prefix_ends`, with two positions for a step before an observation: before it, and
        after it.
        """
        steps = [(int(self.positions[end]), self._observed[end]) for end in self.step_ends]
        ends = ((end, end + observed) if observed else (end,) for end, observed in steps)
        return (self.start - 1, *chain.from_iterable(ends))

    def without_observations(self, logprobs: Sequence[float]) -> list[float]:
        """l_0..l_K of the steps alone: what an observation changes is taken from all `logprobs`
        that follow it.
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
        observed = Counter[int]()
        for place, ids in self.observations:
            observed[place - 1] += len(ids)
        return observed

    def trace(self) -> StepTrace:
        """What the step arithmetic and a critic need to know; no steps where these are neither
        scored nor read.
        """
        ends = self.step_ends if self.answer_logprobs or self.states is not None else ()
        return StepTrace(
            len(self.response_ids), self.correct, self.answer_logprobs, ends, self.states
        )


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
        return self.each(
            lambda rollout: self.reader.thought_length(rollout.response_ids) is not None
        ).bool()

    @cached_property
    def lengths(self) -> Tensor:
        """(G, N) int64, response tokens, the end token included."""
        return self.each(lambda rollout: len(rollout.response_ids)).long()

    @cached_property
    def steps(self) -> StepBatch:
        """The step markers; no steps for an objective that needs no scores."""
        return StepBatch.from_traces(
            [[rollout.trace() for rollout in group] for group in self.groups]
        )

    @cached_property
    def signals(self) -> StepSignals:
        """The step signals computed from the markers."""
        return step_signals(self.steps, self.coefficients)

    def each_text(self, function: Callable[[str], float]) -> Tensor:
        """Apply a function to the text of every response; (G, N) float64."""
        return self.each(lambda rollout: function(self.reader.text(rollout.response_ids)))

    def each(self, function: Callable[[Rollout], float]) -> Tensor:
        """Apply a function to every rollout; (G, N) float64."""
        return torch.tensor(
            [[function(rollout) for rollout in group] for group in self.groups], dtype=torch.float64
        )


def prompt_key(prompt: str) -> str:
    """The key of a rendered prompt in files and checkpoints."""
    return hashlib.sha256(prompt.encode()).hexdigest()
