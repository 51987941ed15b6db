"""Responses on their way from the engine to the update: where their thoughts and steps end."""

import hashlib
from bisect import bisect_left, bisect_right
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from itertools import accumulate, pairwise, zip_longest
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from openrlhf_swap.algorithm.advantages import StepSignals, step_signals
from openrlhf_swap.algorithm.batch import StepBatch, StepTrace
from openrlhf_swap.algorithm.coefficients import Coefficients
from openrlhf_swap.algorithm.steps import segment_at_newlines
from openrlhf_swap.errors import DataError
from openrlhf_swap.rewards.statements import answer_start, last_boxed, text_after_thought

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

CHUNK = 64  # tokens that are decoded at once to find places in a text
UNFINISHED = "\ufffd"  # what a decoder makes of the first bytes of a character


class ResponseReader:
    """Decodes responses and finds where their thought ends, in token space.

    A response is never re-tokenised.
    """

    def __init__(self, tokenizer: "PreTrainedTokenizerBase", end_of_thought: str) -> None:
        self._tokenizer = tokenizer
        self.end_of_thought = end_of_thought  # the text that closes a thought
        self._end_ids = self.ids(end_of_thought)
        self.end_tokens = len(self._end_ids)  # that it takes on its own
        self.end_token: int = tokenizer.eos_token_id
        added = tokenizer.added_tokens_decoder.items()
        self._special = {number for number, token in added if token.special} | {self.end_token}

    def text(self, ids: Sequence[int]) -> str:
        """Decode tokens, special tokens included."""
        return str(self._tokenizer.decode(list(ids), skip_special_tokens=False))

    def ids(self, text: str) -> list[int]:
        """Tokenise a text on its own, without adding special tokens."""
        if not text:
            return []
        return list(self._tokenizer(text, add_special_tokens=False)["input_ids"])

    def thought_length(self, response_ids: Sequence[int]) -> int | None:
        """Tokens before the end of the thought; None if the thought is not closed."""
        ids = list(response_ids)
        start = self._first_end(ids)
        if self.end_tokens == 1:
            return start
        # Ordinary tokens merge with their neighbours, so the decoded text decides which end is the
        # first.
        if start is not None:
            before = self.text(ids[: start + self.end_tokens])[:-1]
            if self.end_of_thought not in before:
                return start
        position = self.text(ids).find(self.end_of_thought)
        if position < 0:
            return None
        return self._tokens_before(ids, position)

    def _first_end(self, ids: list[int]) -> int | None:
        """Where the tokens that the end of the thought has on its own appear first."""
        end = self._end_ids
        for place, token in enumerate(ids):
            if token == end[0] and ids[place : place + len(end)] == end:
                return place
        return None

    def reasoning_length(self, response_ids: Sequence[int]) -> int:
        """Tokens before the end of the thought.

        An open thought ends before it states its final answer (`answer_start`), and before the
        special tokens at its end: nothing would be generated after those, and so nothing is scored.
        """
        closed = self.thought_length(response_ids)
        if closed is not None:
            return closed
        ids = list(response_ids)
        while ids and ids[-1] in self._special:
            ids.pop()
        start = answer_start(self.text(ids))
        if start is None:
            return len(ids)
        return self._tokens_before(ids, start)

    def _tokens_before(self, ids: list[int], position: int) -> int:
        return bisect_right(_TextLengths(ids, self), position) - 1


class StepReader(ResponseReader):
    """Cuts responses into steps, by M, K and the patience of `segment_steps`.

    It decodes the vocabulary once.
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
        every_id = [[number] for number in range(len(tokenizer))]
        texts = tokenizer.batch_decode(every_id, skip_special_tokens=False)
        self._newlines = {number for number, text in enumerate(texts) if "\n" in text}

    def step_ends(self, response_ids: Sequence[int], turn_starts: Sequence[int] = ()) -> list[int]:
        """e_1..e_K: the index, among L generated tokens, of each step's last one.

        No step crosses a turn (turns but the first begin at `turn_starts`, ascending): all turns
        share one M, raised until they have at most K steps together, or one each. Turns but the
        last are all reasoning.
        """
        if not turn_starts:
            return self._cut(response_ids[: self.reasoning_length(response_ids)], *self._limits)
        last = turn_starts[-1]
        reasoning = last + self.reasoning_length(response_ids[last:])
        bounds = pairwise([0, *turn_starts, reasoning])
        turns = [(begin, response_ids[begin:end]) for begin, end in bounds if begin < end]
        step_tokens, most, patience = self._limits
        while True:
            ends: list[int] = []
            for begin, ids in turns:
                own = self._cut(
                    ids,
                    step_tokens,
                    max_steps=len(ids),
                    patience=patience,
                )
                ends += [begin + end for end in own]
            if len(ends) <= max(most, len(turns)):
                return ends
            step_tokens += max(1, step_tokens // 8)

    def _cut(
        self,
        ids: Sequence[int],
        step_tokens: int,
        max_steps: int,
        patience: float,
    ) -> list[int]:
        newlines = [place for place, token in enumerate(ids) if token in self._newlines]
        return segment_at_newlines(
            newlines,
            len(ids),
            step_tokens,
            max_steps,
            patience,
        )

    def step_texts(self, response_ids: Sequence[int], step_ends: Sequence[int]) -> list[str]:
        """The decoded text of each step."""
        bounds = pairwise([0, *(end + 1 for end in step_ends)])
        return [self.text(response_ids[start:end]) for start, end in bounds]


def is_formatted(response_ids: Sequence[int], reader: ResponseReader) -> bool:
    """Whether a response closes its thought once and boxes an answer after it."""
    closed = reader.thought_length(response_ids)
    if closed is None:
        return False
    # No end begins before `closed`, so the text from there on has all of them.
    ends = reader.text(response_ids[closed:]).count(reader.end_of_thought)
    return ends == 1 and boxes_answer(response_ids, reader)


def boxes_answer(response_ids: Sequence[int], reader: ResponseReader) -> bool:
    """Whether a response closes its thought and boxes an answer after it."""
    closed = reader.thought_length(response_ids)
    if closed is None:
        return False
    text = text_after_thought(reader.text(response_ids[closed:]), reader.end_of_thought)
    return last_boxed(text) is not None


def tokens_for_each(
    ids: Sequence[int],
    places: Sequence[int],
    reader: ResponseReader,
) -> list[int]:
    """For each number of characters, the fewest leading tokens whose text has as many."""
    lengths = _TextLengths(ids, reader)
    return [bisect_left(lengths, characters) for characters in places]


class _TextLengths:
    """The number of characters in the text of the first 0, 1, 2, ... tokens, to bisect in.

    Each look-up decodes a part of a chunk.
    """

    def __init__(self, ids: Sequence[int], reader: ResponseReader) -> None:
        self._ids = ids
        self._text = reader.text
        self._starts = [0]
        pieces: list[str] = []
        for end in range(CHUNK, len(ids), CHUNK):
            piece = self._text(ids[self._starts[-1] : end])
            if not piece.endswith(UNFINISHED):
                self._starts.append(end)
                pieces.append(piece)
        pieces.append(self._text(ids[self._starts[-1] :]))
        if len(pieces) > 1 and "".join(pieces) != self._text(ids):
            # The tokenizer decodes a beginning differently (some drop its space): one chunk, from
            # the real beginning.
            self._starts = [0]
            pieces = []
        self._characters = [0, *accumulate(map(len, pieces))]  # before each chunk

    def __len__(self) -> int:
        return len(self._ids) + 1

    def __getitem__(self, count: int) -> int:
        chunk = bisect_right(self._starts, count) - 1
        ids = self._ids[self._starts[chunk] : count]
        return self._characters[chunk] + len(self._text(ids))


@dataclass(frozen=True)
class Rollout:
    """A response, what it earned, and what the policy says about its steps.

    Attributes:
        prompt: the prompt as the chat template renders it.
        answer: the reference answer.
        response_ids: L tokens that the policy generated, the end token included; those of all turns
            of an agent.
        prompt_ids: the prompt's tokens, as the engine got them.
        reward: the grader's; ours are between 0 and 1.
        truncated: whether the token limit cut the response off.
        step_ends: e_1..e_K, indices in the response; empty where no signal is wanted.
        signals: what the policy gives for the steps by name (`algorithm.signals`): float tensors
            whose first dimension is K or K+1. Empty before they are read.
        logprobs: (L,) log-probabilities of the tokens under the policy, at the rollouts'
            temperature; None before the policy's forward.
        probes: (kept tokens, share of correct answers) of each prefix that was continued for
            grading, in order.
        graded_correct: whether the grader called it correct; None if it gave a reward only.
        metadata: what the objective keeps from sampling to update.
        record: what else OpenRLHF's engine returned, for OpenRLHF's own row of the response.
        observations: (place, token ids) of what an environment wrote before `response_ids[place]`,
            in order. A new turn begins there.
        turn_rewards: what an environment paid for each turn; empty where it is not known.
    """

    prompt: str
    answer: str
    response_ids: Sequence[int]
    prompt_ids: Sequence[int]
    reward: float
    truncated: bool = False
    step_ends: Sequence[int] = ()
    signals: Mapping[str, Tensor] = field(default_factory=dict, compare=False, repr=False)
    logprobs: Tensor | None = field(default=None, compare=False, repr=False)
    probes: Sequence[tuple[int, float]] = ()
    graded_correct: bool | None = None
    metadata: Mapping[str, float] = field(default_factory=dict)
    record: Mapping[str, Any] = field(default_factory=dict, compare=False, repr=False)
    observations: Sequence[tuple[int, Sequence[int]]] = ()
    turn_rewards: Sequence[float] = ()

    @property
    def start(self) -> int:
        """Position of the response's first token in its row."""
        return len(self.prompt_ids)

    @property
    def correct(self) -> bool:
        """c: what the grader says. Of a grader that gives a reward only, whether it is positive."""
        if self.graded_correct is None:
            return self.reward > 0
        return self.graded_correct

    @property
    def answer_logprobs(self) -> list[float]:
        """l_0..l_K in nats per answer token; empty before they are scored."""
        signal = self.signals.get("answer_logprobs", ())
        scores: list[float] = torch.as_tensor(signal).tolist()
        return scores

    def with_signals(self, **signals: Any) -> "Rollout":
        """A copy with further signals: tensors or lists whose first dimension is K or K+1."""
        added = dict(self.signals)
        for name, values in signals.items():
            known = isinstance(values, Tensor)
            added[name] = values if known else torch.tensor(values, dtype=torch.float64)
        return replace(self, signals=added)

    @property
    def turn_starts(self) -> list[int]:
        """Where turns but the first begin in `response_ids`."""
        return [place for place, _ in self.observations]

    @property
    def turns(self) -> list[Sequence[int]]:
        """The generated tokens of each turn."""
        bounds = pairwise([0, *self.turn_starts, len(self.response_ids)])
        return [self.response_ids[begin:end] for begin, end in bounds]

    def rewards_by_step(self) -> Tensor:
        """(K,) float64: the last step of a turn has the turn's reward, the others have 0.

        A turn without a step leaves its reward to the step before it. Raises DataError where the
        rewards of the turns are not known.
        """
        turn_ends = [*self.turn_starts, len(self.response_ids)]
        if len(self.turn_rewards) != len(turn_ends):
            raise DataError(
                "the agent of --train.agent_func_path gives no reward for each turn, which "
                "--swap.turn_weight wants: make its AgentExecutor a MultiTurnAgentExecutor whose "
                "`execute` returns what that of OpenRLHF does"
            )
        rewards = torch.zeros(len(self.step_ends), dtype=torch.float64)
        for end, reward in zip(turn_ends, self.turn_rewards, strict=True):
            steps = bisect_left(self.step_ends, end)
            if steps:
                rewards[steps - 1] += reward
        return rewards

    @property
    def row_ids(self) -> list[int]:
        """Token ids of the whole row: the prompt, then turns and observations in turn."""
        ids = list(self.prompt_ids)
        observed = [observation for _, observation in self.observations]
        for turn, observation in zip_longest(self.turns, observed, fillvalue=()):
            ids += [*turn, *observation]
        return ids

    @cached_property
    def positions(self) -> Tensor:
        """(L,) int64: where each generated token stands in the row."""
        shift = torch.zeros(len(self.response_ids) + 1, dtype=torch.int64)
        for place, ids in self.observations:
            shift[place] += len(ids)
        tokens = torch.arange(len(self.response_ids))
        observed = shift.cumsum(0)[:-1]
        return self.start + tokens + observed

    @property
    def generated_ends(self) -> tuple[int, ...]:
        """(K) positions in the row of each step's last generated token."""
        return tuple(self.positions[list(self.step_ends)].tolist())

    @property
    def prefix_ends(self) -> tuple[int, ...]:
        """(K+1) positions in the row: the prompt's last token, then the last token of each step.

        Where a step ends with an observation, that is the observation's last token.
        """
        observed = Counter[int]()
        for place, ids in self.observations:
            observed[place - 1] += len(ids)
        ends = zip(self.generated_ends, self.step_ends, strict=True)
        return (self.start - 1, *(position + observed[end] for position, end in ends))

    def trace(self) -> StepTrace:
        """What the step arithmetic needs to know; no steps before signals are read."""
        others = dict(self.signals)
        others.pop("answer_logprobs", None)
        ends = self.step_ends if self.signals else ()
        return StepTrace(
            len(self.response_ids),
            self.correct,
            self.answer_logprobs,
            ends,
            others,
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
        length = self.reader.thought_length
        return self.each(lambda rollout: length(rollout.response_ids) is not None).bool()

    @cached_property
    def lengths(self) -> Tensor:
        """(G, N) int64, response tokens, the end token included."""
        return self.each(lambda rollout: len(rollout.response_ids)).long()

    @cached_property
    def steps(self) -> StepBatch:
        """The step markers; no steps for an objective that wants no signals."""
        traces = [[rollout.trace() for rollout in group] for group in self.groups]
        return StepBatch.from_traces(traces)

    @cached_property
    def signals(self) -> StepSignals:
        """The step signals computed from the markers."""
        return step_signals(self.steps, self.coefficients)

    def each_text(self, function: Callable[[str], float]) -> Tensor:
        """Apply a function to the text of every response; (G, N) float64."""
        return self.each(lambda rollout: function(self.reader.text(rollout.response_ids)))

    def each(self, function: Callable[[Rollout], float]) -> Tensor:
        """Apply a function to every rollout; (G, N) float64."""
        values = [[function(rollout) for rollout in group] for group in self.groups]
        return torch.tensor(values, dtype=torch.float64)


def prompt_key(prompt: str) -> str:
    """The key of a rendered prompt in files and checkpoints."""
    return hashlib.sha256(prompt.encode()).hexdigest()
