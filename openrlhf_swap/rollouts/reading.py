"""What methods need to read in a response."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Sequence

from openrlhf_swap.rollouts.answers import last_boxed, text_after_thought
from openrlhf_swap.rollouts.reader import ResponseReader


def is_formatted(text: str, end_of_thought: str) -> bool:
    r"""Whether a response closes its thought once and boxes an answer after it."""
    return text.count(end_of_thought) == 1 and last_boxed(text_after_thought(text, end_of_thought)) is not None


def tokens_for(ids: Sequence[int], characters: int, reader: ResponseReader) -> int:
    """The fewest leading tokens whose text has at least so many characters."""
    return bisect_left(range(len(ids) + 1), characters, key=lambda count: len(reader.text(ids[:count])))
