"""What objectives need to read in a response."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Sequence

from openrlhf_swap.rollouts.answers import last_boxed, text_after_thought
from openrlhf_swap.rollouts.reader import ResponseReader


def is_formatted(response_ids: Sequence[int], reader: ResponseReader) -> bool:
    """Whether a response closes its thought once and boxes an answer after it. The long thought stays unread."""
    closed = reader.thought_length(response_ids)
    once = closed is not None and reader.text(response_ids[closed:]).count(reader.end_of_thought) == 1
    return once and boxes_answer(response_ids, reader)


def tokens_for(ids: Sequence[int], characters: int, reader: ResponseReader) -> int:
    """The fewest leading tokens whose text has at least so many characters."""
    return bisect_left(range(len(ids) + 1), characters, key=lambda count: len(reader.text(ids[:count])))


def boxes_answer(response_ids: Sequence[int], reader: ResponseReader) -> bool:
    """Whether a response closes its thought and boxes an answer after it."""
    closed = reader.thought_length(response_ids)
    if closed is None:
        return False
    return last_boxed(text_after_thought(reader.text(response_ids[closed:]), reader.end_of_thought)) is not None
