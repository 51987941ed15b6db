"""Which rows of a data set of maths problems go into a prompt set, and why the others do not."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from tqdm import tqdm

from openrlhf_swap.data.near_duplicates import BenchmarkIndex, Instruction, read_text, without_instructions
from openrlhf_swap.data.references import find_faults, problem_text, read_references
from openrlhf_swap.data.rows import read_column
from openrlhf_swap.files import Row
from openrlhf_swap.rewards.golds import EMPTY_ANSWER, LONG_ANSWER, PROSE_ANSWER, UNPARSABLE_ANSWER
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
        id: the value of its id column as a column of the output; empty if there is none.
        messages: the chat that poses the problem, the last message being the user's; empty for an unusable problem.
        reference: its answer; for other graders than math-verify with the columns that the output does not use itself.
        given: the answer as it stands in its column.
    """

    index: int
    id: Row
    messages: list[Row]
    reference: Reference
    given: object = None

    @property
    def problem(self) -> str:
        """The text of the user's messages, which is compared with other problems."""
        return problem_text(self.messages)

    def prompt(self, suffix: str, as_chat: bool) -> str | list[Row]:
        """The problem to train on, with a suffix: as text, or as a chat that training puts into the template."""
        *before, last = self.messages
        text = last["content"] + suffix
        return [*before, {"role": "user", "content": text}] if as_chat else text


def source_rows(
    table: Dataset, source: str, problem_key: str, answer_key: str, suffix: str, grader: str = MATH
) -> list[SourceRow]:
    """Read the rows of a table, which is called `source` in errors.

    The keys name columns, or fields in them. The suffix is removed from problems that already have it, so that a
    prepared file can be prepared again.

    Raises:
        DataError: when it lacks a column.
    """
    problems = read_column(table, problem_key, "--problem-key", source)
    answers = read_column(table, answer_key, "--answer-key", source)
    ids = table["id"] if "id" in table.column_names else [None] * len(table)
    rows: list[Row] = [
        {"problem": problem, "answer": answer} for problem, answer in zip(problems, answers, strict=True)
    ]
    if grader != MATH:
        used = {problem_key, answer_key, "id", "problem", "answer"}  # the last two name columns of the output
        for row, others in zip(rows, table, strict=True):
            row.update({name: value for name, value in others.items() if name not in used})
    references = read_references(rows, "problem", "answer", grader, f"--input is {source}")
    return [
        SourceRow(
            index, {} if own is None else {"id": own}, _messages(row["problem"], suffix), reference, row["answer"]
        )
        for index, (own, row, reference) in enumerate(zip(ids, rows, references, strict=True))
    ]


def _messages(problem: object, suffix: str) -> list[Row]:
    """The chat of a problem, without the suffix; empty unless it is text or a chat that ends with the user's turn."""
    chat: Any = [{"role": "user", "content": problem}] if isinstance(problem, str) else problem
    if not isinstance(chat, list) or not chat or not all(map(_is_message, chat)) or chat[-1]["role"] != "user":
        return []
    messages = [{"role": message["role"], "content": message["content"]} for message in chat]
    messages[-1]["content"] = messages[-1]["content"].removesuffix(suffix)
    return messages


def _is_message(value: object) -> bool:
    return isinstance(value, dict) and isinstance(value.get("role"), str) and isinstance(value.get("content"), str)


def find_reasons(
    rows: Sequence[SourceRow], index: BenchmarkIndex | None, grader: str = MATH
) -> tuple[list[Reason | None], list[Instruction]]:
    """Find why each row is dropped, None for a row that is kept, and the instructions that many problems share.

    If several reasons apply, the first in REASONS is given. Of rows with the same problem, the first usable one is
    kept. With the benchmarks a problem is compared as it stands and without the instructions.
    """
    reading = tqdm(dict.fromkeys(row.problem for row in rows), desc="[prepare] reading", unit="problem")
    texts = {problem: read_text(problem) for problem in reading}  # each once: a set may repeat a problem 100 times
    bare, instructions = without_instructions(list(texts))
    faults: dict[str, Reason] = {}  # of problems
    comparing = tqdm(texts.items(), desc="[prepare] comparing", unit="problem", disable=index is None)
    for (problem, text), rest in zip(comparing, bare, strict=True):
        match = index and ((index.find(read_text(rest)) if instructions else None) or index.find(text))
        if not problem.strip():
            faults[problem] = {"reason": EMPTY_PROBLEM}
        elif match:
            reason = SAME_AS_BENCHMARK if match.exact else NEAR_BENCHMARK
            faults[problem] = {"reason": reason, "benchmark": match.benchmark, "benchmark_id": match.id}
    left = [row for row in rows if row.problem not in faults]
    wrong = find_faults([row.reference for row in left], grader, "prepare")
    wrong_answers = {row.index: fault for row, fault in zip(left, wrong, strict=True) if fault}
    first: dict[str, int] = {}

    def find_reason(row: SourceRow) -> Reason | None:
        if reason := faults.get(row.problem):
            return reason
        if fault := wrong_answers.get(row.index):
            return {"reason": fault}
        earlier = first.setdefault(texts[row.problem].key, row.index)
        return None if earlier == row.index else {"reason": DUPLICATE, "duplicate_of": earlier}

    return [find_reason(row) for row in rows], instructions
