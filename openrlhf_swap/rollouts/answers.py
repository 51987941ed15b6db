"""Answers as text: taking wrappers off, finding them in a response. Standard library only."""

from __future__ import annotations

import re

END_OF_THOUGHT = "</think>"
# How R1-style models are asked, in training and in evaluation.
SUFFIX = r" Please reason step by step, and put your final answer within \boxed{}."

_WRAPPERS = (
    re.compile(r"\$\$(.+)\$\$", re.DOTALL),
    re.compile(r"\$([^$]+)\$"),
    re.compile(r"\\boxed\s*\{(.+)\}", re.DOTALL),
)
_PROSE = re.compile(r"(?<!\\)\b[A-Za-z]{2,}\s+[A-Za-z]{2,}\b")  # two words in a row
LONGEST_BARE_ANSWER = 200  # characters of a response that may be nothing but an answer
_BRACES = re.compile(r"\\boxed\s*\{|\{|\}")


def strip_answer(answer: str) -> str:
    r"""The bare answer: white space and surrounding `$`, `$$` and `\boxed{}` taken off."""
    stripped = answer.strip()
    for wrapper in _WRAPPERS:
        match = wrapper.fullmatch(stripped)
        if match and _balanced(match[1]):
            return strip_answer(match[1])
    return stripped


def as_text(answer: object) -> str:
    """An answer as text: a number becomes text, what is neither becomes empty."""
    return "" if isinstance(answer, bool) or not isinstance(answer, str | int | float) else str(answer)


def text_after_thought(response: str) -> str:
    """What follows the first `</think>`; the whole response if there is none."""
    _, closed, rest = response.partition(END_OF_THOUGHT)
    return rest if closed else response


def last_boxed(text: str) -> str | None:
    r"""The contents of the last complete `\boxed{...}`, braces matched; None if there is none.

    Linear in the length of the text: a model that repeats an unfinished `\boxed{` must not stall the grading.
    """
    open_braces: list[tuple[bool, int]] = []
    last: tuple[int, int] | None = None
    for brace in _BRACES.finditer(text):
        if brace[0] != "}":
            open_braces.append((len(brace[0]) > 1, brace.end()))
        elif open_braces:
            is_box, start = open_braces.pop()
            if is_box and (last is None or start > last[0]):
                last = (start, brace.start())
    return text[slice(*last)] if last else None


def stated_answer(text: str) -> str | None:
    r"""The answer that a response states: in its last `\boxed{}`, or alone on its only line."""
    boxed = last_boxed(text)
    if boxed is not None:
        return boxed
    alone = text.strip()
    is_answer = "\n" not in alone and len(alone) <= LONGEST_BARE_ANSWER and _PROSE.search(alone) is None
    return alone if alone and is_answer else None


def _balanced(text: str) -> bool:
    """Whether every brace is closed by a later one: `a}{b` inside a wrapper is two expressions, not one."""
    depth = 0
    for character in text:
        depth += (character == "{") - (character == "}")
        if depth < 0:
            return False
    return depth == 0
