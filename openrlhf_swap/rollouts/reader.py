"""Where a response's reasoning ends and where its steps end, in token space."""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Sequence
from itertools import accumulate, pairwise
from typing import TYPE_CHECKING

from openrlhf_swap.algorithm.steps import segment_at_newlines
from openrlhf_swap.rewards.statements import answer_start, last_boxed, text_after_thought

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

CHUNK = 64  # tokens that are decoded at once to find places in a text
UNFINISHED = "\ufffd"  # what a decoder makes of the first bytes of a character


class ResponseReader:
    """Decodes responses and finds where their thought ends, in token space; a response is never re-tokenised.

    Attributes:
        end_of_thought: the text that closes a thought.
        end_tokens: how many tokens it takes on its own.
        end_token: id of the token that ends a response.
    """

    def __init__(self, tokenizer: PreTrainedTokenizerBase, end_of_thought: str) -> None:
        self._tokenizer = tokenizer
        self.end_of_thought = end_of_thought
        self._end_ids = self.ids(end_of_thought)
        self.end_tokens = len(self._end_ids)
        self.end_token: int = tokenizer.eos_token_id
        added = tokenizer.added_tokens_decoder.items()
        self._special = {tokenizer.eos_token_id, *(number for number, token in added if token.special)}

    def text(self, ids: Sequence[int]) -> str:
        """Decode tokens, special tokens included."""
        return str(self._tokenizer.decode(list(ids), skip_special_tokens=False))

    def ids(self, text: str) -> list[int]:
        """Tokenise a text on its own, without adding special tokens."""
        ids: list[int] = self._tokenizer(text, add_special_tokens=False)["input_ids"] if text else []
        return ids

    def thought_length(self, response_ids: Sequence[int]) -> int | None:
        """Tokens before the end of the thought; None if the thought is not closed."""
        ids, end = list(response_ids), self._end_ids
        places = (place for place, token in enumerate(ids) if token == end[0] and ids[place : place + len(end)] == end)
        start = next(places, None)
        if len(end) == 1:
            return start
        # Ordinary tokens merge with their neighbours, so the decoded text decides which end is the first.
        if start is not None and self.end_of_thought not in self.text(ids[: start + len(end)])[:-1]:
            return start
        position = self.text(ids).find(self.end_of_thought)
        return None if position < 0 else self._tokens_before(ids, position)

    def reasoning_length(self, response_ids: Sequence[int]) -> int:
        """Tokens before the end of the thought.

        If the thought is not closed: tokens before the final answer is stated (`answer_start`), and before the special
        tokens that end the response, after which nothing would be generated and so nothing is scored.
        """
        closed = self.thought_length(response_ids)
        if closed is not None:
            return closed
        ids = list(response_ids)
        while ids and ids[-1] in self._special:
            ids.pop()
        start = answer_start(self.text(ids))
        return len(ids) if start is None else self._tokens_before(ids, start)

    def _tokens_before(self, ids: list[int], position: int) -> int:
        return bisect_right(_TextLengths(ids, self), position) - 1


class StepReader(ResponseReader):
    """Cuts responses into steps, by M, K and the patience of `segment_steps`. Decodes the vocabulary once."""

    def __init__(
        self,
        tokenizer: PreTrainedTokenizerBase,
        end_of_thought: str,
        step_tokens: int,
        max_steps: int,
        newline_patience: float = 2.0,
    ) -> None:
        super().__init__(tokenizer, end_of_thought)
        self._limits = (step_tokens, max_steps, newline_patience)
        # The decoded text decides, not a single id: about 2,200 tokens of Qwen's vocabulary contain a newline.
        texts = tokenizer.batch_decode([[i] for i in range(len(tokenizer))], skip_special_tokens=False)
        self._newlines = {number for number, text in enumerate(texts) if "\n" in text}

    def step_ends(self, response_ids: Sequence[int], turn_starts: Sequence[int] = ()) -> list[int]:
        """e_1..e_K: the index in the response of each step's last token.

        Args:
            response_ids: L generated tokens.
            turn_starts: where turns but the first begin, ascending. No step crosses a turn: all turns share one M,
                raised until they have at most K steps together, or one each. Turns but the last are all reasoning.
        """
        if not turn_starts:
            return self._cut(response_ids[: self.reasoning_length(response_ids)], *self._limits)
        bounds = pairwise([0, *turn_starts, turn_starts[-1] + self.reasoning_length(response_ids[turn_starts[-1] :])])
        turns = [(begin, response_ids[begin:end]) for begin, end in bounds if begin < end]
        size, most, patience = self._limits
        while True:
            ends = [begin + end for begin, ids in turns for end in self._cut(ids, size, len(ids), patience)]
            if len(ends) <= max(most, len(turns)):
                return ends
            size += max(1, size // 8)

    def _cut(self, ids: Sequence[int], step_tokens: int, max_steps: int, patience: float) -> list[int]:
        newlines = [place for place, token in enumerate(ids) if token in self._newlines]
        return segment_at_newlines(newlines, len(ids), step_tokens, max_steps, patience)

    def step_texts(self, response_ids: Sequence[int], step_ends: Sequence[int]) -> list[str]:
        """The decoded text of each step."""
        bounds = pairwise([0, *(end + 1 for end in step_ends)])
        return [self.text(response_ids[start:end]) for start, end in bounds]


def is_formatted(response_ids: Sequence[int], reader: ResponseReader) -> bool:
    """Whether a response closes its thought once and boxes an answer after it."""
    closed = reader.thought_length(response_ids)  # no end begins before it, so the text from there has all of them
    once = closed is not None and reader.text(response_ids[closed:]).count(reader.end_of_thought) == 1
    return once and boxes_answer(response_ids, reader)


def boxes_answer(response_ids: Sequence[int], reader: ResponseReader) -> bool:
    """Whether a response closes its thought and boxes an answer after it."""
    closed = reader.thought_length(response_ids)
    if closed is None:
        return False
    return last_boxed(text_after_thought(reader.text(response_ids[closed:]), reader.end_of_thought)) is not None


def tokens_for(ids: Sequence[int], characters: int, reader: ResponseReader) -> int:
    """The fewest leading tokens whose text has at least so many characters."""
    return tokens_for_each(ids, [characters], reader)[0]


def tokens_for_each(ids: Sequence[int], places: Sequence[int], reader: ResponseReader) -> list[int]:
    """`tokens_for` of several numbers of characters, for little more than the cost of one."""
    lengths = _TextLengths(ids, reader)
    return [bisect_left(lengths, characters) for characters in places]


class _TextLengths:
    """The characters in the text of the first 0, 1, 2, ... tokens, to bisect in.

    The tokens are decoded once, in chunks that end with a whole character; then a length decodes a part of a chunk.
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
            # The tokenizer decodes a beginning differently (some drop its space): one chunk, from the real beginning.
            self._starts, pieces = [0], []
        self._characters = [0, *accumulate(map(len, pieces))]  # before each chunk

    def __len__(self) -> int:
        return len(self._ids) + 1

    def __getitem__(self, count: int) -> int:
        chunk = bisect_right(self._starts, count) - 1
        return self._characters[chunk] + len(self._text(self._ids[self._starts[chunk] : count]))
