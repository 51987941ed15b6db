"""Cutting a reasoning trace into steps."""

import math
from bisect import bisect_left
from collections.abc import Callable, Sequence

from openrlhf_swap.algorithm.plain import plain_flags, plain_int


def segment_steps(
    is_newline: Sequence[bool], step_tokens: int, max_steps: int, newline_patience: float = 2.0
) -> list[int]:
    """Cut T reasoning tokens into at most K steps of about M tokens that end at newlines.

    Args:
        is_newline: one flag per reasoning token: does its text contain a newline? A list, tensor
            or array of bools, or of 0 and 1.
        step_tokens: M, raised to ceil(T/K) where ceil(T/M) would exceed K.
        max_steps: K, the most steps.
        newline_patience: a step is cut after this many times M tokens when no newline comes.

    Returns:
        The index of each step's last token, ascending; the last one is T-1. Empty for T = 0.

    Raises:
        ValueError: for other flags, or a number of tokens or steps below 1.
    """
    flags = plain_flags("is_newline", is_newline)
    newlines = [place for place, flag in enumerate(flags) if flag]
    tokens = plain_int("step_tokens", step_tokens)
    steps = plain_int("max_steps", max_steps)
    return segment_at_newlines(newlines, len(flags), tokens, steps, newline_patience)


def segment_at_newlines(
    newlines: Sequence[int],
    length: int,
    step_tokens: int,
    max_steps: int,
    newline_patience: float = 2.0,
    cut: Callable[[range], int] = max,
) -> list[int]:
    """`segment_steps` in O(K log T).

    Takes the ascending positions of the newline tokens among `length` tokens. Where no newline
    comes, `cut` chooses a step's last token among those from M on; the step is not the last one.
    """
    if step_tokens < 1 or max_steps < 1:
        raise ValueError(
            f"step_tokens is {step_tokens} and max_steps is {max_steps}; both must be at least 1"
        )
    size = max(step_tokens, math.ceil(length / max_steps))
    patience = math.floor(newline_patience * size)
    ends: list[int] = []
    start = 0
    while start < length:
        earliest, latest = start + size - 1, start + patience - 1
        candidate = bisect_left(newlines, earliest)
        end = newlines[candidate] if candidate < len(newlines) else length
        if end > latest and latest < length - 1:
            end = cut(range(earliest, latest + 1))
        ends.append(min(end, length - 1))
        start = ends[-1] + 1
    return ends
