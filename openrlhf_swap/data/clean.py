"""Which rows of a data set of maths problems go into a prompt set, and why the others do not."""

from __future__ import annotations

import re
from bisect import bisect_left, bisect_right
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from tqdm import tqdm

from openrlhf_swap.data.near_duplicates import BenchmarkIndex, RowSet, read_row, read_text
from openrlhf_swap.data.references import EMPTY_PROBLEM, find_faults
from openrlhf_swap.data.rows import read_column
from openrlhf_swap.files import Row
from openrlhf_swap.rewards.verifiers import MATH, Reference

if TYPE_CHECKING:
    from datasets import Dataset

SAME_AS_BENCHMARK = "a benchmark problem"
NEAR_BENCHMARK = "a near-duplicate of a benchmark problem"
DUPLICATE = "the same problem as an earlier row"

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


_BAR = "[|\uff5c]"  # DeepSeek's templates have the wide one
_TOKEN = rf"(?:<{_BAR}[^|<>]{{2,40}}{_BAR}>|</?s>|<bos>|<eos>|\[gMASK\]|<sop>|\[/?INST\]|<(?:start|end)_of_turn>)"
_SPECIAL = re.compile(_TOKEN)
_USER_TURN = re.compile(
    rf"(?:{_TOKEN}\s*user\b|<{_BAR}(?:\w{{0,6}}_)?user(?:_token)?{_BAR}>(?:user\b)?|\[INST\])\s*(?:{_TOKEN}\s*)*"
    rf"(?:<<SYS>>.*?<</SYS>>\s*)?(.*?)\s*(?={_TOKEN}|\Z)",
    re.DOTALL | re.IGNORECASE,
)


def strip_template(problem: str) -> str:
    """The user's turn of a prompt rendered with a chat template; other texts, and longer chats, as they are."""
    if not _SPECIAL.search(problem):
        return problem
    turns = _USER_TURN.findall(problem)
    return turns[0] if len(turns) == 1 and turns[0] else problem


def has_special_tokens(problem: str) -> bool:
    """Whether a problem has special tokens of chat templates, such as <|im_start|>, in its text."""
    return _SPECIAL.search(problem) is not None


def find_reasons(
    problems: Sequence[str],
    references: Sequence[Reference],
    index: BenchmarkIndex | None,
    grader: str = MATH,
    known: Sequence[str | None] = (),
    keeps_placeholders: bool = False,
) -> list[Reason | None]:
    """Find why each row is dropped, None for a row that is kept.

    A reason of the problem goes before one of the answer. Of rows with the same problem, the first usable one is kept.
    Chat templates do not count. `known` are the faults that the rows' chats had.
    """
    reading = tqdm(dict.fromkeys(problems), desc="[prepare] reading", unit="problem")
    texts = {problem: read_row(strip_template(problem)) for problem in reading}  # a set may repeat a problem 100 times
    rows = RowSet([row[0] for row in texts.values()])
    wrappers: dict[str, str] = {}
    faults: dict[str, Reason] = {}  # of problems
    comparing = tqdm(texts.items(), desc="[prepare] comparing", unit="problem", disable=index is None)
    for problem, row in comparing:
        match = index and index.find(row, rows)
        if not problem.strip():
            faults[problem] = {"reason": EMPTY_PROBLEM}
        elif match:
            reason = SAME_AS_BENCHMARK if match.exact else NEAR_BENCHMARK
            faults[problem] = {"reason": reason, "benchmark": match.benchmark, "benchmark_id": match.id}
            if any(match.wrapper):
                wrapper = re.sub(r"[\d.]+", "#", "\0".join(match.wrapper))
                if wrapper not in wrappers:
                    wrappers[wrapper] = _show_wrapper(strip_template(problem), *match.wrapper)
                faults[problem]["wrapper"] = wrappers[wrapper]
    reasons = [faults.get(problem) for problem in problems]
    for number, fault in enumerate(known):
        reasons[number] = {"reason": fault} if fault else reasons[number]
    left = [number for number, reason in enumerate(reasons) if reason is None]
    first: dict[str, int] = {}
    answers = [references[number] for number in left]
    for number, fault in zip(left, find_faults(answers, grader, "prepare", keeps_placeholders), strict=True):
        if fault:
            reasons[number] = {"reason": fault}
        elif (earlier := first.setdefault(texts[problems[number]][0].key, number)) != number:
            reasons[number] = {"reason": DUPLICATE, "duplicate_of": earlier}
    return reasons


def _show_wrapper(row: str, before: str, after: str) -> str:
    """The text around a problem, "Question: ... Answer:", from the keys of both sides."""
    start = bisect_left(range(len(row)), len(before), key=lambda end: len(read_text(row[:end]).key)) if before else 0
    end = bisect_right(range(len(row)), -len(after), key=lambda begin: -len(read_text(row[begin:]).key)) - 1
    return f"{row[:start].strip()} ... {row[end:].strip() if after else ''}".strip()
