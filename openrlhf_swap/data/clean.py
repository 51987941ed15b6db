"""Which rows of a data set of maths problems go into a prompt set, and why the others do not."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import repeat
from typing import TYPE_CHECKING, Any

from tqdm import tqdm

from openrlhf_swap.data.instructions import Instruction, without_instructions
from openrlhf_swap.data.near_duplicates import BenchmarkIndex, Match, read_text
from openrlhf_swap.data.references import answer_of, faults_of
from openrlhf_swap.data.rows import read_column
from openrlhf_swap.errors import DataError
from openrlhf_swap.files import Row
from openrlhf_swap.rewards.golds import (
    EMPTY_ANSWER,
    LONG_ANSWER,
    PROSE_ANSWER,
    UNPARSABLE_ANSWER,
)
from openrlhf_swap.rewards.verifiers import MATH, Reference

if TYPE_CHECKING:
    from datasets import Dataset

EMPTY_PROBLEM = "an empty problem, or one that is neither text nor a chat that ends with the user's turn"
SAME_AS_BENCHMARK = "a benchmark problem"
NEAR_BENCHMARK = "a near-duplicate of a benchmark problem"
DUPLICATE = "the same problem as an earlier row"
ANSWER_REASONS = (EMPTY_ANSWER, LONG_ANSWER, PROSE_ANSWER, UNPARSABLE_ANSWER)
REASONS = (EMPTY_PROBLEM, SAME_AS_BENCHMARK, NEAR_BENCHMARK, *ANSWER_REASONS, DUPLICATE)

Reason = dict[str, Any]
"""Why a row is dropped: `reason`, and the benchmark problem or the earlier row that it repeats."""


@dataclass(frozen=True)
class SourceRow:
    """One row of the input.

    Attributes:
        index: its position in the input.
        id: the value of its id column, if there is one.
        messages: the chat that poses the problem, the last message being the user's; empty for an unusable problem.
        answer: the normalised answer.
        given: the answer as it stands in its column.
        metadata: for other graders than math-verify, the other columns, less those whose names the output uses itself.
    """

    index: int
    id: Any
    messages: tuple[Row, ...]
    answer: str
    given: object = None
    metadata: Mapping[str, Any] = field(default_factory=dict)

    @property
    def problem(self) -> str:
        """The text of the user's messages, which is compared with other problems."""
        return "\n".join(message["content"] for message in self.messages if message["role"] == "user")

    @property
    def id_column(self) -> Row:
        """The id as a column of the output; none where the input has none."""
        return {} if self.id is None else {"id": self.id}

    def prompt(self, suffix: str, as_chat: bool) -> str | list[Row]:
        """The problem to train on, with a suffix: as text, or as a chat that training puts into the template."""
        *before, last = self.messages
        text = last["content"] + suffix
        return [*before, {"role": "user", "content": text}] if as_chat else text


def source_rows(
    table: Dataset, source: str, problem_key: str, answer_key: str, suffix: str, grader: str = MATH
) -> list[SourceRow]:
    """Read the rows of a table.

    Args:
        table: the data set.
        source: its name, for errors.
        problem_key: column of the problems.
        answer_key: column of the answers; both may be nested fields, as in `reward_model.ground_truth`.
        suffix: removed from problems that already have it, so that a prepared file can be prepared again.
        grader: the verifier's name.

    Raises:
        DataError: when it has no rows, or lacks a column.
    """
    if len(table) == 0:
        raise DataError(f"--input is {source}, which has no rows; give a data set with at least one")
    problems = read_column(table, problem_key, "--problem-key", source)
    answers = read_column(table, answer_key, "--answer-key", source)
    ids = table["id"] if "id" in table.column_names else [None] * len(table)
    used = {problem_key, answer_key, "id", "problem", "answer"}  # the last two name columns of the output
    others = (
        repeat({}, len(table))  # without reading the other columns
        if grader == MATH
        else ({name: row[name] for name in row if name not in used} for row in table)
    )
    return [
        SourceRow(index, row_id, _messages(problem, suffix), answer_of(answer, grader), answer, metadata)
        for index, (row_id, problem, answer, metadata) in enumerate(zip(ids, problems, answers, others, strict=True))
    ]


def _messages(problem: object, suffix: str) -> tuple[Row, ...]:
    """The chat of a problem, without the suffix; empty unless it is text or a chat that ends with the user's turn."""
    chat = [{"role": "user", "content": problem}] if isinstance(problem, str) else problem
    if not isinstance(chat, list) or not chat or not all(map(_is_message, chat)) or chat[-1]["role"] != "user":
        return ()
    messages = [{"role": message["role"], "content": message["content"]} for message in chat]
    messages[-1]["content"] = messages[-1]["content"].removesuffix(suffix)
    return tuple(messages)


def _is_message(value: object) -> bool:
    return isinstance(value, dict) and isinstance(value.get("role"), str) and isinstance(value.get("content"), str)


def find_reasons(
    rows: Sequence[SourceRow], index: BenchmarkIndex | None, grader: str = MATH
) -> tuple[list[Reason | None], list[Instruction]]:
    """Find why each row is dropped, None for a row that is kept, and the instructions that many problems share.

    If several reasons apply, the first in REASONS is given. Of rows with the same problem, the first usable one is
    kept. With the benchmarks a problem is compared as it stands and without the instructions.
    """
    problems = [row.problem for row in rows]
    reading = tqdm(dict.fromkeys(problems), desc="[prepare] reading", unit="problem")
    texts = {problem: read_text(problem) for problem in reading}  # each once: a set may repeat a problem 100 times
    bare, instructions = without_instructions(list(texts))
    matches: dict[str, Match] = {}
    if index:
        comparing = tqdm(texts.items(), desc="[prepare] comparing", unit="problem")
        for (problem, text), rest in zip(comparing, bare, strict=True):
            match = (index.find(read_text(rest)) if instructions else None) or index.find(text)
            if match:
                matches[problem] = match
    reasons = [_own_reason(problem, matches.get(problem)) for problem in problems]
    left = [place for place, reason in enumerate(reasons) if reason is None]
    tasks = [Reference(rows[place].answer, problems[place], rows[place].metadata) for place in left]
    for place, fault in zip(left, faults_of(tasks, grader, "prepare"), strict=True):
        if fault is not None:
            reasons[place] = {"reason": fault}
    first: dict[str, int] = {}
    for place, (row, problem) in enumerate(zip(rows, problems, strict=True)):
        if reasons[place] is not None:
            continue
        key = texts[problem].key
        if first.setdefault(key, row.index) != row.index:
            reasons[place] = {"reason": DUPLICATE, "duplicate_of": first[key]}
    return reasons, instructions


def _own_reason(problem: str, match: Match | None) -> Reason | None:
    """The reason to drop a problem, as far as it needs neither the grader nor the other rows."""
    if not problem.strip():
        return {"reason": EMPTY_PROBLEM}
    if match:
        reason = SAME_AS_BENCHMARK if match.exact else NEAR_BENCHMARK
        return {"reason": reason, "benchmark": match.benchmark, "benchmark_id": match.id}
    return None
