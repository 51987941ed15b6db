"""The instructions that a data set puts around its problems, such as "Let's think step by step"."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

FEWEST_WORDS = 4  # of an instruction; problems share shorter endings, such as "the value of x?"
FEWEST_ROWS = 3
SHARE = 0.1  # of the distinct problems that must have it; a set may mix the instructions of several sources
AGREED = 0.9  # share of these that must have the next word too, or it belongs to problems


@dataclass(frozen=True)
class Instruction:
    """Words at the beginning or the end of `count` distinct problems."""

    place: Literal["begin", "end"]
    words: tuple[str, ...]
    count: int


def without_instructions(problems: Sequence[str]) -> tuple[list[str], list[Instruction]]:
    """Distinct problems without the words that at least a tenth of them begin or end with, and those words.

    A template's own words ("What is the remainder when") are taken for an instruction too. White space is not kept.
    """
    words = [problem.split() for problem in problems]
    instructions: list[Instruction] = []
    while instruction := _most_common(words, "end") or _most_common(words, "begin"):
        instructions.append(instruction)
        length, is_end = len(instruction.words), instruction.place == "end"
        for number, problem in enumerate(words):
            if tuple(problem[-length:] if is_end else problem[:length]) == instruction.words:
                words[number] = problem[:-length] if is_end else problem[length:]
    return [" ".join(problem) for problem in words], instructions


def _most_common(problems: Sequence[Sequence[str]], place: Literal["begin", "end"]) -> Instruction | None:
    """The words that most problems share in a place, as far as nearly all of these agree on the next word."""
    fewest = max(FEWEST_ROWS, SHARE * len(problems))
    group, length = problems, 0
    while True:
        position = length if place == "begin" else -length - 1
        counts = Counter(words[position] for words in group if len(words) > length)
        word, count = counts.most_common(1)[0] if counts else ("", 0)
        if count < fewest or (length >= FEWEST_WORDS and count < AGREED * len(group)):
            break
        group = [words for words in group if len(words) > length and words[position] == word]
        length += 1
    if length < FEWEST_WORDS:
        return None
    shared = group[0][:length] if place == "begin" else group[0][-length:]
    return Instruction(place, tuple(shared), len(group))
