"""How many cases the graders judge right, by kind, and which ones they judge wrong.

    python -m studies.graders.cases PATH ... [--keep TABLE] [--before TABLE]

A path is a JSONL file, or a folder of them. A case is a row with `answer` (or `gold`), `response`
(or `pred`), the right verdict as `expected` (or `correct`), and perhaps `kind` (or `suite`), the
model's `end_of_thought`, and `metadata`, the other columns of a prompt's row. Files with "choice"
in their names are graded by `multiple_choice`, the others by `math`. Where most responses of a file
have no end of a thought, all of them are taken for what follows one. A table of `--keep` holds the
verdicts, and `--before` compares with it.
"""

import argparse
import json
import sys
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tabulate import tabulate

from openrlhf_swap.command import run_command
from openrlhf_swap.files import read_rows, write_rows
from openrlhf_swap.rewards import Grader
from openrlhf_swap.rewards.graded_text import END_OF_THOUGHT
from openrlhf_swap.rewards.references import Reference, answer_text
from openrlhf_swap.rewards.verifiers import MATH

CHOICE = "multiple_choice"
LONGEST_SHOWN = 100  # characters of a response's end


@dataclass(frozen=True)
class Case:
    """A response, its reference, and whether a person would call it correct."""

    kind: str
    reference: Reference
    response: str
    expected: bool
    verifier: str
    end_of_thought: str

    @property
    def key(self) -> str:
        """What names the case in a kept table."""
        return json.dumps([self.verifier, self.reference.answer, self.response])


@dataclass(frozen=True)
class Judged:
    """A case and the grader's verdict."""

    case: Case
    correct: bool
    stated: str | None

    @property
    def is_right(self) -> bool:
        return self.correct == self.case.expected


def main(argv: list[str]) -> None:
    """Print a table with a row for each kind, then the cases that are judged wrong."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("paths", type=Path, nargs="+", metavar="PATH")
    parser.add_argument("--keep", type=Path, metavar="TABLE", help="write the verdicts here")
    parser.add_argument(
        "--before", type=Path, metavar="TABLE", help="kept verdicts of the same cases"
    )
    args = parser.parse_args(argv)
    cases: list[Case] = []
    for path in find_files(args.paths):
        found = list(read_cases(path))
        if not found:
            print(f"{path.name}: no gradings")
        cases += found
    judged = judge(cases)
    before = _read_table(args.before) if args.before else None
    print(tabulate(count_by_kind(judged, before), headers="keys"))
    if before is not None:
        missing = sum(one.case.key not in before for one in judged)
        print(f"{missing} of the cases are not in {args.before}")
    for one in judged:
        if not one.is_right:
            print(describe(one, before))
    if args.keep:
        write_rows(args.keep, [{"case": one.case.key, "correct": one.correct} for one in judged])


def find_files(paths: list[Path]) -> list[Path]:
    """The files among the paths, and the JSONL files of the folders among them."""
    files: list[Path] = []
    for path in paths:
        files += sorted(path.glob("*.jsonl")) if path.is_dir() else [path]
    return files


def read_cases(path: Path) -> Iterator[Case]:
    """The cases of a file; none of rows that have no response or no verdict."""
    rows = [row for row in read_rows(path) if _is_grading(row)]
    closed = [row for row in rows if END_OF_THOUGHT in _response_of(row)]
    start = END_OF_THOUGHT if len(closed) < len(rows) / 2 else ""
    verifier = CHOICE if "choice" in path.stem else MATH
    for row in rows:
        answer = answer_text(row.get("answer", row.get("gold")))
        response = _response_of(row)
        yield Case(
            kind=row.get("kind") or row.get("suite") or path.stem,
            reference=Reference(answer, metadata=row.get("metadata") or {}),
            response=response if "end_of_thought" in row else start + response,
            expected=row.get("expected", row.get("correct")),
            verifier=verifier,
            end_of_thought=row.get("end_of_thought", END_OF_THOUGHT),
        )


def judge(cases: list[Case]) -> list[Judged]:
    """The verdicts of the graders, in the order of the cases."""
    judged: list[Judged] = []
    graders = {name: Grader(verifier=name) for name in (MATH, CHOICE)}
    for case in cases:
        grade = graders[case.verifier].grade(case.response, case.reference, case.end_of_thought)
        judged.append(Judged(case, grade.correct, grade.stated))
    for grader in graders.values():
        grader.close()
    return judged


def count_by_kind(
    judged: list[Judged], before: Mapping[str, bool] | None = None
) -> list[dict[str, object]]:
    """A row for each kind and one for all: cases, how many are right, how many credited wrongly."""
    counts: dict[str, Counter[str]] = {"cases": Counter(one.case.kind for one in judged)}
    if before is not None:
        counts["right before"] = Counter(
            one.case.kind for one in judged if _was_right(one.case, before)
        )
    counts["right"] = Counter(one.case.kind for one in judged if one.is_right)
    counts["credited wrongly"] = Counter(
        one.case.kind for one in judged if one.correct and not one.is_right
    )
    rows: list[dict[str, object]] = []
    for kind in counts["cases"]:
        rows.append({"kind": kind} | {name: of[kind] for name, of in counts.items()})
    rows.append({"kind": "all"} | {name: of.total() for name, of in counts.items()})
    return rows


def describe(one: Judged, before: Mapping[str, bool] | None = None) -> str:
    """A line about a case that is judged wrong."""
    verdict = "credited" if one.correct else "refused"
    if before is not None and _was_right(one.case, before):
        verdict += ", was right before"
    end = one.case.response[-LONGEST_SHOWN:]
    return f"{verdict}: {one.case.kind}: {one.case.reference.answer!r} for {end!r}"


def _is_grading(row: Mapping[str, Any]) -> bool:
    has_verdict = isinstance(row.get("expected", row.get("correct")), bool)
    return has_verdict and ("response" in row or "pred" in row)


def _response_of(row: Mapping[str, Any]) -> str:
    return str(row.get("response", row.get("pred")))


def _was_right(case: Case, before: Mapping[str, bool]) -> bool:
    return before.get(case.key) == case.expected


def _read_table(path: Path) -> dict[str, bool]:
    return {row["case"]: row["correct"] for row in read_rows(path)}


if __name__ == "__main__":
    sys.exit(run_command(main))
