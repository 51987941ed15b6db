"""The problems that an evaluation asks, and the grader of each benchmark."""

import argparse
import dataclasses
import json
from collections.abc import Sequence
from math import inf
from pathlib import Path

from openrlhf_swap.data.benchmarks import Problem, load_benchmark, short_name
from openrlhf_swap.data.references import TRIED, try_grader
from openrlhf_swap.errors import ConfigError
from openrlhf_swap.evaluation.samples import (
    flag_of,
    grades_path,
    problems_path,
    read_problems,
    sampled_ids,
)
from openrlhf_swap.files import read_rows, to_line, write_rows
from openrlhf_swap.rewards.verifiers import find_verifier

Problems = dict[str, list[Problem]]


def load_problems(args: argparse.Namespace) -> Problems:
    """All problems of each benchmark, whatever --limit is, keyed by the name used in its files.

    Raises:
        ConfigError: for a number out of range, an unknown benchmark, two benchmarks with the same name, or problems
            that differ from those of the folder's samples.
        DataError: for a benchmark that cannot be used.
    """
    check_numbers(args)
    if len({short_name(name) for name in args.benchmarks}) != len(args.benchmarks):
        raise ConfigError(f"--benchmarks is {' '.join(args.benchmarks)}; their files need different names")
    find_verifier(args.grader)
    problems = {short_name(name): load_benchmark(name, args.data, args.grader) for name in args.benchmarks}
    for name, rows in problems.items():
        check_unchanged(args, name, rows)
        try_grader(rows[0].grader, [row.reference for row in rows[:TRIED]])
    return problems


def check_numbers(args: argparse.Namespace) -> None:
    """Raise ConfigError for a number out of range, which vLLM would find after minutes, or nobody."""
    counts = {name: 1 for name in ("samples", "limit", "max_tokens", "engines", "tensor_parallel_size")}
    for name, least in {**counts, "temperature": 0, "top_p": 0}.items():
        value = getattr(args, name)
        if value is not None and not least <= value < inf:
            raise ConfigError(f"{flag_of(name)} is {value}; use at least {least}")
    if not 0 < args.top_p <= 1:
        raise ConfigError(f"--top-p is {args.top_p}; use more than 0 and at most 1")


def check_unchanged(args: argparse.Namespace, name: str, problems: Sequence[Problem]) -> None:
    """Raise ConfigError if a benchmark's samples answer other problems, or were graded otherwise.

    Problems without samples may change, and any number of them may come or go.
    """
    sampled = sampled_ids(args.output, name)
    if unknown := sampled - {problem.id for problem in problems}:
        source = f" in {args.data}" if args.data else ""
        raise ConfigError(
            f"--benchmarks has {name}, which{source} has no problem {min(unknown)!r}, but {args.output} holds samples "
            "of it; use another --output"
        )
    graded = set() if args.grade_again else {row["id"] for row in read_rows(grades_path(args.output, name))}
    earlier = read_problems(args.output, name)
    for problem in problems:
        if problem.id not in sampled or problem.id not in earlier:
            continue
        now, before = json.loads(to_line(dataclasses.asdict(problem))), earlier[problem.id]
        changed = {field for field, value in now.items() if before.get(field, value) != value}  # old files lack some
        about = f"--benchmarks has {name}, whose problem {problem.id!r} has another"
        if changed & {"problem", "instructed"}:
            raise ConfigError(f"{about} text than its samples in {args.output} answer; use another --output")
        if problem.id in graded and (of_grades := changed & {"answer", "grader", "metadata"}):
            raise ConfigError(
                f"{about} {min(of_grades)} than its samples in {args.output} were graded by; add --grade-again"
            )


def write_problems(folder: Path, name: str, problems: Sequence[Problem], limit: int | None) -> None:
    """Write the first `limit` problems, and those that have samples from a start with a higher limit."""
    sampled = sampled_ids(folder, name)
    kept = [*problems[:limit], *(problem for problem in problems[len(problems[:limit]) :] if problem.id in sampled)]
    write_rows(problems_path(folder, name), map(dataclasses.asdict, kept))
