"""The problems that an evaluation asks, and the grader of each benchmark."""

from __future__ import annotations

import argparse
import dataclasses

from evaluation.samples import grades_path, read_problems, task_of
from openrlhf_swap.command import flags_called
from openrlhf_swap.data.benchmarks import Problem, load_benchmark, short_name
from openrlhf_swap.data.references import TRIED, try_grader
from openrlhf_swap.errors import ConfigError
from openrlhf_swap.rewards.verifiers import FLAG, MATH, find_verifier

Problems = dict[str, list[Problem]]


def load_problems(args: argparse.Namespace) -> Problems:
    """The problems of each benchmark, keyed by the name used in its files.

    Raises:
        ConfigError: for a number below 1, an unknown benchmark, or two benchmarks with the same name.
        DataError: for a benchmark that cannot be used.
    """
    for name in ("samples", "max_tokens", "engines", "tensor_parallel_size"):
        if getattr(args, name) < 1:
            raise ConfigError(f"--{name.replace('_', '-')} is {getattr(args, name)}; use at least 1")
    if len({short_name(name) for name in args.benchmarks}) != len(args.benchmarks):
        raise ConfigError(f"--benchmarks is {' '.join(args.benchmarks)}; their files need different names")
    if args.grader != MATH:
        with flags_called({FLAG: "--grader"}):
            find_verifier(args.grader)
    problems = {
        short_name(name): load_benchmark(name, args.data, args.grader)[: args.limit] for name in args.benchmarks
    }
    for name, rows in problems.items():
        before = {row.get("grader", MATH) for row in read_problems(args.output, name).values()}
        if grades_path(args.output, name).exists() and not args.grade_again and before - {rows[0].grader}:
            raise ConfigError(
                f"--grader is {rows[0].grader}, but the samples of {name} in {args.output} were graded by "
                f"{before.pop()}; add --grade-again"
            )
        try_grader(rows[0].grader, [task_of(dataclasses.asdict(row), "") for row in rows[:TRIED]], "--grader")
    return problems
