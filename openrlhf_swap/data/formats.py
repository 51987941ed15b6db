"""Rows of benchmarks beyond mathematics as problems: GPQA's and MMLU-Pro's columns.

A file is recognised by its columns. The problem ends with an instruction of its own, so no suffix belongs after it.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from openrlhf_swap.rewards.multiple_choice import LETTERS, OPTIONS
from openrlhf_swap.rewards.verifiers import MATH, Reference

CHOOSE = r"Please reason step by step, and put the letter of your answer within \boxed{}."
LONGEST_SHOWN = 40  # characters of a value in a message


@dataclass(frozen=True)
class Problem:
    r"""One problem with its reference answer; a mathematical one without wrappers such as `$` and `\boxed{}`.

    Attributes:
        id: its own in its benchmark; empty where nobody has given it one.
        problem: as it is asked.
        answer: the reference answer, or what else the grader judges by.
        metadata: what it looks at besides.
        grader: the verifier's name.
        instructed: whether the problem ends with an instruction, so that no suffix belongs after it.
    """

    id: str
    problem: str
    answer: str
    metadata: Mapping[str, Any] = field(default_factory=dict)
    grader: str = MATH
    instructed: bool = False

    @property
    def reference(self) -> Reference:
        """What responses are graded against."""
        return Reference(self.answer, self.problem, self.metadata)


def gpqa(row: Mapping[str, Any]) -> Problem:
    """A question of GPQA. The order of the options is drawn by the question, so the same in every run."""
    question, correct, *wrong = (_text(row, name) for name in _GPQA)
    options = [text.strip() for text in (correct, *wrong)]
    random.Random(question).shuffle(options)
    return _choice(question, options, LETTERS[options.index(correct.strip())])


def mmlu_pro(row: Mapping[str, Any]) -> Problem:
    """A question of MMLU-Pro, which has up to ten options."""
    options = row["options"]
    if not isinstance(options, list) or not all(isinstance(option, str) for option in options):
        raise ValueError(f"options is {str(options)[:LONGEST_SHOWN]!r}, which is not a list of texts")
    return _choice(_text(row, "question"), options, _text(row, "answer"))


_GPQA = ("Question", "Correct Answer", *(f"Incorrect Answer {number}" for number in (1, 2, 3)))
FORMATS: dict[tuple[str, ...], Callable[[Mapping[str, Any]], Problem]] = {
    _GPQA: gpqa,
    ("question", "options", "answer"): mmlu_pro,
}
"""The columns by which rows are recognised -> what makes a problem of a row."""


def read_format(row: Mapping[str, Any]) -> Problem | None:
    """The problem in a row of one of these formats; None for a row of problem and answer.

    Raises:
        ValueError: for a row that has the columns of a format, but not its values.
    """
    if "problem" in row:
        return None
    for columns, read in FORMATS.items():
        if row.keys() >= set(columns):
            return read(row)
    return None


def _text(row: Mapping[str, Any], name: str) -> str:
    value = row[name]
    if not isinstance(value, str) or not value.strip():
        raise ValueError(f"{name} is {str(value)[:LONGEST_SHOWN]!r}, which is not text")
    return value


def _choice(question: str, options: Sequence[str], letter: str) -> Problem:
    listing = "\n".join(f"({letter}) {option}" for letter, option in zip(LETTERS, options, strict=False))
    asked, metadata = f"{question.strip()}\n\n{listing}\n\n{CHOOSE}", {OPTIONS: list(options)}
    return Problem("", asked, letter, metadata, "multiple_choice", instructed=True)
