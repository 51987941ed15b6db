"""Text and token space: the ends of a response's thought and of its steps."""

from bisect import bisect_left, bisect_right
from collections.abc import Sequence
from contextlib import suppress
from functools import partial
from itertools import accumulate, pairwise
from typing import TYPE_CHECKING

from openrlhf_swap.algorithm.steps import segment_at_newlines
from openrlhf_swap.rewards.graded_text import NO_MARK, text_after_thought
from openrlhf_swap.rewards.statements import answer_start, last_boxed

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

DECODED_TOKENS = 64  # tokens that are decoded at once to find places in a text
REPLACEMENT = "\ufffd"  # what a decoder makes of the first bytes of a character
MARK_STARTS = ("\\", "$")  # the first characters of `\]`, `\)` and `$$`


def ends_of_response(tokenizer: "PreTrainedTokenizerBase") -> set[int]:
    """The tokens at which a response ends.

    They are the tokenizer's own, and those of `generation_config.json` beside the tokenizer, at
    which vLLM stops, too.
    """
    from transformers import GenerationConfig

    ends: set[int] = {tokenizer.eos_token_id}
    with suppress(OSError):  # a model without the file, or a tokenizer that was not loaded
        named = GenerationConfig.from_pretrained(tokenizer.name_or_path).eos_token_id
        ends |= set(named if isinstance(named, list) else [named])
    return ends - {None}


class ResponseReader:
    """Decodes responses and finds where their thought ends, in token space.

    A response is never re-tokenised.
    """

    def __init__(self, tokenizer: "PreTrainedTokenizerBase", end_of_thought: str) -> None:
        self._tokenizer = tokenizer
        self.end_of_thought = end_of_thought  # the text that closes a thought, or NO_MARK
        self._end_ids = self.ids(end_of_thought)
        self.end_tokens = len(self._end_ids)  # that it takes on its own
        self._ends_of_response = ends_of_response(tokenizer)
        added = tokenizer.added_tokens_decoder.items()
        special = {number for number, token in added if token.special}
        self._special = special | self._ends_of_response

    def text(self, ids: Sequence[int]) -> str:
        """Decode tokens, special tokens included."""
        return str(self._tokenizer.decode(list(ids), skip_special_tokens=False))

    def ids(self, text: str) -> list[int]:
        """Tokenise a text on its own, without adding special tokens."""
        if not text:
            return []
        return list(self._tokenizer(text, add_special_tokens=False)["input_ids"])

    def without_end(self, response_ids: Sequence[int]) -> list[int]:
        """A response without the token that ended it."""
        ids = list(response_ids)
        if ids and ids[-1] in self._ends_of_response:
            ids.pop()
        return ids

    def is_closed(self, response_ids: Sequence[int]) -> bool:
        """Whether a response closes its thought; always so for a model without marks."""
        if self.end_of_thought == NO_MARK:
            return True
        return self.thought_length(response_ids) is not None

    def thought_length(self, response_ids: Sequence[int]) -> int | None:
        """Tokens before the mark that ends the thought; None if there is no such mark."""
        if self.end_of_thought == NO_MARK:
            return None
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
        """The first place of the tokens that the end of the thought has on its own."""
        end = self._end_ids
        for place, token in enumerate(ids):
            if token == end[0] and ids[place : place + len(end)] == end:
                return place
        return None

    def reasoning_length(self, response_ids: Sequence[int]) -> int:
        """Tokens before the end of the thought.

        Without a mark, a thought ends before it states its final answer (`answer_start`), and
        before the special tokens at its end: nothing would be generated after those, and so nothing
        is scored.
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
        self._word_starts = {number for number, text in enumerate(texts) if text[:1].isspace()}
        self._mark_starts = {
            number for number, text in enumerate(texts) if text.endswith(MARK_STARTS)
        }

    def step_ends(
        self,
        response_ids: Sequence[int],
        turn_starts: Sequence[int] = (),
        closing: Sequence[int] = (),
    ) -> list[int]:
        """e_1..e_K: the index, among L generated tokens, of each step's last one.

        No step crosses a turn. In a response of several turns M grows by an eighth until all turns
        have at most K steps together, or one each; in one of a single turn as in `segment_steps`.

        Args:
            response_ids: the L generated tokens.
            turn_starts: where the turns but the first begin, ascending.
            closing: the places of the tokens that closed a thought at its budget. They belong to
                no step.
        """
        turns = self._reasoning_by_turn(response_ids, turn_starts, closing)
        step_tokens, max_steps, patience = self._limits
        most_in_turn = len(response_ids) if turn_starts else max_steps
        while True:
            ends: list[int] = []
            for places in turns:
                ids = [response_ids[place] for place in places]
                newlines = [place for place, token in enumerate(ids) if token in self._newlines]
                cut = partial(self._last_end_of_word, ids)
                of_turn = segment_at_newlines(
                    newlines, len(ids), step_tokens, most_in_turn, patience, cut
                )
                ends += [places[end] for end in of_turn]
            if len(ends) <= max(max_steps, len(turns)):
                return ends
            step_tokens += max(1, step_tokens // 8)

    def _reasoning_by_turn(
        self, response_ids: Sequence[int], turn_starts: Sequence[int], closing: Sequence[int]
    ) -> list[list[int]]:
        """The places of the reasoning tokens of each turn that has some.

        A turn but the last is all reasoning. In the last one, what follows the tokens that closed
        its thought is the answer.
        """
        last = max(turn_starts, default=0)
        end = last + self.reasoning_length(response_ids[last:])
        end = min([end, *(place for place in closing if place >= last)])
        turns = []
        for first, behind in pairwise([0, *turn_starts, end]):
            turns.append([place for place in range(first, behind) if place not in closing])
        return list(filter(None, turns))

    def _last_end_of_word(self, ids: Sequence[int], places: range) -> int:
        r"""The last of the places that are followed by a space.

        Without one, the last of the places that do not split `\]`, `\)` or `$$`, or the last place.
        """
        for place in reversed(places):
            if ids[place + 1] in self._word_starts:
                return place
        for place in reversed(places):
            if ids[place] not in self._mark_starts:
                return place
        return places[-1]

    def step_texts(self, response_ids: Sequence[int], step_ends: Sequence[int]) -> list[str]:
        """The decoded text of each step."""
        bounds = pairwise([0, *(end + 1 for end in step_ends)])
        return [self.text(response_ids[start:end]) for start, end in bounds]


def is_formatted(response_ids: Sequence[int], reader: ResponseReader) -> bool:
    """Whether a response closes its thought once and boxes an answer after it.

    Without marks a box is the whole format.
    """
    if reader.end_of_thought == NO_MARK:
        return last_boxed(reader.text(response_ids)) is not None
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


def tokens_for_each(ids: Sequence[int], places: Sequence[int], reader: ResponseReader) -> list[int]:
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
        for end in range(DECODED_TOKENS, len(ids), DECODED_TOKENS):
            piece = self._text(ids[self._starts[-1] : end])
            if not piece.endswith(REPLACEMENT):
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
