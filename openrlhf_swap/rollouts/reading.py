"""What objectives read from a response."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Sequence

from openrlhf_swap.rollouts.answers import last_boxed, text_after_thought
from openrlhf_swap.rollouts.reader import ResponseReader


def is_formatted(response_ids: Sequence[int], reader: ResponseReader) -> bool:
    """Whether a response closes its thought once and boxes an answer after it. The thought itself is not decoded."""
    closed = reader.thought_length(response_ids)
    if closed is None:
        return False
    text, end = reader.text(response_ids[closed:]), reader.end_of_thought
    return text.count(end) == 1 and last_boxed(text_after_thought(text, end)) is not None


def tokens_for(ids: Sequence[int], characters: int, reader: ResponseReader) -> int:
    """The smallest number of leading tokens whose text has at least `characters` characters."""
    return bisect_left(range(len(ids) + 1), characters, key=lambda count: len(reader.text(ids[:count])))
