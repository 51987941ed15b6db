"""Which rows of a data set of maths problems go into a prompt set, and why the others do not."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from tqdm import tqdm

from openrlhf_swap.data.golds import (
    EMPTY_ANSWER,
    LONG_ANSWER,
    PROSE_ANSWER,
    UNPARSABLE_ANSWER,
    fault_of,
    gradable,
    normal_answer,
)
from openrlhf_swap.data.near_duplicates import BenchmarkIndex, Text, read_text
from openrlhf_swap.errors import DataError

if TYPE_CHECKING:
    from datasets import Dataset

EMPTY_PROBLEM = "an empty problem, or one that is not text"
SAME_AS_BENCHMARK = "a problem of a benchmark"
NEAR_BENCHMARK = "nearly a problem of a benchmark"
DUPLICATE = "a problem that an earlier row has"
ANSWER_REASONS = (EMPTY_ANSWER, LONG_ANSWER, PROSE_ANSWER, UNPARSABLE_ANSWER)
REASONS = (EMPTY_PROBLEM, SAME_AS_BENCHMARK, NEAR_BENCHMARK, *ANSWER_REASONS, DUPLICATE)

Reason = dict[str, Any]
"""Why a row is dropped: `reason`, and the benchmark's problem or the earlier row that it repeats."""


@dataclass(frozen=True)
class SourceRow:
    """One row of the input; `index` is its place there, `id` its id column's value if there is one.

    `answer` is the normal form of what was `given`.
    """

    index: int
    id: Any
    problem: str
    answer: str
    given: object = None

    @property
    def id_column(self) -> dict[str, Any]:
        """The id as a column of the output; none where the input has none."""
        return {} if self.id is None else {"id": self.id}


def source_rows(table: Dataset, source: str, problem_key: str, answer_key: str, suffix: str) -> list[SourceRow]:
    """The rows of a table.

    Args:
        table: the data set that was read.
        source: its name, for errors.
        problem_key: column of the problems.
        answer_key: column of the answers.
        suffix: taken off problems that have it already, so that a prepared file can be prepared again.

    Raises:
        DataError: when it has no rows, or lacks a column.
    """
    for flag, key in (("--problem-key", problem_key), ("--answer-key", answer_key)):
        if key not in table.column_names:
            raise DataError(
                f"{flag} is {key}, but {source} has no such column; its columns are: {', '.join(table.column_names)}"
            )
    if len(table) == 0:
        raise DataError(f"--input is {source}, which has no rows; give a data set with at least one")
    ids = table["id"] if "id" in table.column_names else [None] * len(table)
    return [
        SourceRow(
            index,
            row_id,
            problem.removesuffix(suffix) if isinstance(problem, str) else "",
            normal_answer(answer),
            answer,
        )
        for index, (row_id, problem, answer) in enumerate(zip(ids, table[problem_key], table[answer_key], strict=True))
    ]


def find_reasons(rows: Sequence[SourceRow], index: BenchmarkIndex | None) -> list[Reason | None]:
    """Why each row is dropped; None for a row that is kept.

    Of several reasons the first in REASONS is given. Of rows with the same problem the first that is usable is kept.
    """
    texts = [read_text(row.problem) for row in tqdm(rows, desc="[prepare] reading", unit="row")]
    comparing = tqdm(rows, desc="[prepare] comparing", unit="row")
    found = [_reason_of_its_own(row, text, index) for row, text in zip(comparing, texts, strict=True)]
    usable = gradable((row.answer for row, reason in zip(rows, found, strict=True) if reason is None), "prepare")
    first: dict[str, int] = {}
    for place, (row, text) in enumerate(zip(rows, texts, strict=True)):
        if found[place] is not None:
            continue
        if row.answer not in usable:
            found[place] = {"reason": UNPARSABLE_ANSWER}
        elif first.setdefault(text.key, row.index) != row.index:
            found[place] = {"reason": DUPLICATE, "duplicate_of": first[text.key]}
    return found


def _reason_of_its_own(row: SourceRow, text: Text, index: BenchmarkIndex | None) -> Reason | None:
    """What can be said of a row without the grader and the other rows."""
    if not row.problem.strip():
        return {"reason": EMPTY_PROBLEM}
    if index and (match := index.find(text)):
        reason = SAME_AS_BENCHMARK if match.exact else NEAR_BENCHMARK
        return {"reason": reason, "benchmark": match.benchmark, "benchmark_id": match.id}
    fault = fault_of(row.answer)
    return {"reason": fault} if fault else None
