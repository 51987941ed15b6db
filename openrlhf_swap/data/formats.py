"""Rows of benchmarks beyond mathematics as problems: GPQA's, MMLU-Pro's and LiveCodeBench's columns.

A file is recognised by its columns. The problem ends with an instruction of its own, so no suffix belongs after it.
"""

from __future__ import annotations

import base64
import io
import json
import pickle
import random
import zlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from openrlhf_swap.rewards.multiple_choice import LETTERS, OPTIONS
from openrlhf_swap.rewards.unit_tests import FUNCTION
from openrlhf_swap.rewards.verifiers import MATH, UNIT_TESTS, Reference

CHOOSE = r"Please reason step by step, and put the letter of your answer within \boxed{}."
PROGRAM = (
    "Write a Python program that reads its input from standard input and prints its output to standard output. "
    "Put the whole program into one fenced code block."
)
COMPLETE = "Complete this Python code. Put the whole of it into one fenced code block."
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


def livecodebench(row: Mapping[str, Any]) -> Problem:
    """A task of LiveCodeBench: a program, or a class to complete where the row names a function."""
    tests = [*_tests(row["public_test_cases"]), *_tests(row.get("private_test_cases") or "[]")]
    kept = json.dumps([{"input": test["input"], "output": test["output"]} for test in tests])
    name = json.loads(row.get("metadata") or "{}").get("func_name")
    instruction = f"{COMPLETE}\n\n```python\n{row['starter_code']}\n```" if name else PROGRAM
    metadata = {FUNCTION: name} if name else {}
    return Problem("", f"{row['question_content']}\n\n{instruction}", kept, metadata, UNIT_TESTS, instructed=True)


_GPQA = ("Question", "Correct Answer", *(f"Incorrect Answer {number}" for number in (1, 2, 3)))
FORMATS: dict[tuple[str, ...], Callable[[Mapping[str, Any]], Problem]] = {
    _GPQA: gpqa,
    ("question", "options", "answer"): mmlu_pro,
    ("question_content", "public_test_cases"): livecodebench,
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
            try:
                return read(row)
            except (LookupError, AttributeError, TypeError, EOFError, zlib.error, pickle.UnpicklingError) as error:
                raise ValueError(f"{type(error).__name__}: {error}") from error
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


def _tests(text: str) -> list[dict[str, str]]:
    """Test cases as JSON; the hidden ones may be compressed and pickled, of which a plain text is read and no more."""
    if not text.lstrip().startswith("["):
        text = _PickledText(io.BytesIO(zlib.decompress(base64.b64decode(text)))).load()
    tests: list[dict[str, str]] = json.loads(text)
    return tests


class _PickledText(pickle.Unpickler):
    """Reads built-in values alone: a class or function in a pickle could run anything."""

    def find_class(self, module: str, name: str) -> Any:
        raise pickle.UnpicklingError(f"{module}.{name} in a test case, which should be a text")
