"""Which rows of a data set of maths problems go into a prompt set, and why the others do not."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from tqdm import tqdm

from openrlhf_swap.data.near_duplicates import BenchmarkIndex, Instruction, read_text, without_instructions
from openrlhf_swap.data.references import find_faults
from openrlhf_swap.data.rows import read_column
from openrlhf_swap.files import Row
from openrlhf_swap.rewards.golds import EMPTY_ANSWER, LONG_ANSWER, PLACEHOLDER_ANSWER, PROSE_ANSWER, UNPARSABLE_ANSWER
from openrlhf_swap.rewards.verifiers import MATH, Reference

if TYPE_CHECKING:
    from datasets import Dataset

EMPTY_PROBLEM = "an empty problem, or one that is neither text nor a chat that ends with the user's turn"
SAME_AS_BENCHMARK = "a benchmark problem"
NEAR_BENCHMARK = "a near-duplicate of a benchmark problem"
DUPLICATE = "the same problem as an earlier row"
ANSWER_REASONS = (EMPTY_ANSWER, LONG_ANSWER, PROSE_ANSWER, PLACEHOLDER_ANSWER, UNPARSABLE_ANSWER)
REASONS = (EMPTY_PROBLEM, SAME_AS_BENCHMARK, NEAR_BENCHMARK, *ANSWER_REASONS, DUPLICATE)

Reason = dict[str, Any]
"""Why a row is dropped: `reason`, and the benchmark problem or the earlier row that it repeats."""


def source_rows(table: Dataset, source: str, problem_key: str, answer_key: str, grader: str = MATH) -> list[Row]:
    """The rows of a table as `problem`, `answer` and, if there is one, `id`.

    For other graders than math-verify also the other columns, except a `problem` or `answer` that no key chose.

    Raises:
        DataError: for a key that names neither a column nor a field in one; the message has `source`.
    """
    columns = {
        "problem": read_column(table, problem_key, "--problem-key", source),
        "answer": read_column(table, answer_key, "--answer-key", source),
    }
    kept = {"id"} if grader == MATH else {*table.column_names} - {problem_key, answer_key, *columns}
    columns |= {name: list(table[name]) for name in table.column_names if name in kept}
    return [dict(zip(columns, values, strict=True)) for values in zip(*columns.values(), strict=True)]


def read_chat(problem: object, suffix: str) -> list[Row]:
    """The chat that poses a problem; empty unless it is text or a chat that ends with the user's turn.

    Without the suffix at its end, so that a prepared file can be prepared again.
    """
    chat: Any = [{"role": "user", "content": problem}] if isinstance(problem, str) else problem
    if not isinstance(chat, list) or not chat or not all(map(_is_message, chat)) or chat[-1]["role"] != "user":
        return []
    messages = [{"role": message["role"], "content": message["content"]} for message in chat]
    messages[-1]["content"] = messages[-1]["content"].removesuffix(suffix)
    return messages


def _is_message(value: object) -> bool:
    return isinstance(value, dict) and isinstance(value.get("role"), str) and isinstance(value.get("content"), str)


def find_reasons(
    problems: Sequence[str], references: Sequence[Reference], index: BenchmarkIndex | None, grader: str = MATH
) -> tuple[list[Reason | None], list[Instruction]]:
    """Find why each row is dropped, None for a row that is kept, and the instructions that many problems share.

    If several reasons apply, the first in REASONS is given. Of rows with the same problem, the first usable one is
    kept. With the benchmarks a problem is compared as it stands and without the instructions.
    """
    reading = tqdm(dict.fromkeys(problems), desc="[prepare] reading", unit="problem")
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
    reasons = [faults.get(problem) for problem in problems]
    left = [number for number, reason in enumerate(reasons) if reason is None]
    first: dict[str, int] = {}
    answers = [references[number] for number in left]
    for number, fault in zip(left, find_faults(answers, grader, "prepare"), strict=True):
        if fault:
            reasons[number] = {"reason": fault}
        elif (earlier := first.setdefault(texts[problems[number]].key, number)) != number:
            reasons[number] = {"reason": DUPLICATE, "duplicate_of": earlier}
    return reasons, instructions
