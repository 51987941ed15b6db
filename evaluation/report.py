r"""Tables of evaluations.

    openrlhf-swap eval report outputs/eval/base outputs/eval/swap --format markdown --paper 1.5B

Accuracy is pass@1: the share of correct samples per problem, averaged over problems, with a 95% bootstrap interval
over problems. With several evaluations, also prints the differences from the first with paired-bootstrap intervals.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path

from openrlhf_swap.command import Parser, run_command
from openrlhf_swap.errors import ConfigError
from openrlhf_swap.evaluation.measures import measure_evaluations
from openrlhf_swap.evaluation.samples import (
    SETTINGS,
    graded_benchmarks,
    grades_path,
    read_settings,
    settings_path,
    shown_setting,
)
from openrlhf_swap.evaluation.tables import difference_table, evaluation_table, paper_table, without_difference
from openrlhf_swap.files import read_rows


def main(argv: list[str]) -> None:
    """Print the tables, or the disagreements.

    Raises:
        ConfigError: for the paper's numbers in CSV.
        DataError: for a folder without graded samples.
    """
    parser = Parser("openrlhf-swap eval report", __doc__)
    parser.add_argument("folders", type=Path, nargs="+", help="folders of evaluations; the first is the baseline")
    parser.add_argument("--format", choices=["terminal", "markdown", "latex", "csv"], default="terminal")
    parser.add_argument("--paper", choices=["1.5B", "7B"], help="also print the paper's numbers, marked as such")
    parser.add_argument(
        "--disagreements",
        action="store_true",
        help="list the samples whose answer after the thought differs from the last boxed one anywhere, and exit",
    )
    args = parser.parse_args(argv)
    if args.disagreements:
        for folder in args.folders:
            print("\n".join([f"{folder}:", *disagreements(folder)]))
        return
    if args.paper and args.format == "csv":
        raise ConfigError(
            f"--paper is {args.paper}, which has no CSV form; use --format markdown, or leave --paper out"
        )
    runs = measure_evaluations(args.folders)
    for warning in settings_that_differ(args.folders):
        print(f"warning: {warning}", file=sys.stderr)
    tables = [evaluation_table(runs, args.format)]
    if args.format in ("terminal", "markdown"):
        tables += [difference_table(runs, args.format), *without_difference(runs)]
    if args.paper:
        tables.append(paper_table(args.paper, args.format))
    print("\n\n".join(filter(None, tables)))


def disagreements(folder: Path) -> list[str]:
    """Samples whose answer after the thought differs from the last boxed one anywhere, one line each."""
    return [
        f"{name} {row['id']} sample {row['sample']}: {row['answer']!r} after the thought, "
        f"{row['answer_anywhere']!r} anywhere ({'correct' if row['correct'] else 'wrong'})"
        for name in graded_benchmarks(folder)
        for row in read_rows(grades_path(folder, name))
        if row["answer"] != row["answer_anywhere"]
    ]


def settings_that_differ(folders: Sequence[Path]) -> list[str]:
    """Settings that differ between evaluations, apart from those of the model and the seed: one line each."""
    runs = {folder: read_settings(folder) for folder in folders if settings_path(folder).exists()}
    warnings = []
    for name in SETTINGS:
        values = {folder: run[name] for folder, run in runs.items()}
        if name not in ("model", "seed", "end_of_thought") and len(set(values.values())) > 1:
            listed = ", ".join(f"{shown_setting(value)} in {folder}" for folder, value in values.items())
            warnings.append(f"--{name.replace('_', '-')} is {listed}: do not compare them")
    return warnings


if __name__ == "__main__":
    sys.exit(run_command(main))
