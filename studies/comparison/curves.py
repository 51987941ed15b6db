"""Print how long and how accurate the rollouts of a comparison were, mean over its seeds.

python -m studies.comparison.curves --runs outputs/compare_addition --steps 5 10 15 20
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path
from statistics import fmean

from tabulate import tabulate

from openrlhf_swap.files import read_rows

LENGTH = "length/mean"
ACCURACY = "swap/accuracy"


def steps_of_run(file: Path) -> dict[int, dict[str, float]]:
    """Metrics of each step of one run."""
    return {row["step"]: row for row in read_rows(file)}


def table(runs: Path, steps: list[int]) -> str:
    """One Markdown row a configuration: tokens and accuracy of the rollouts at each step."""
    rows = []
    for folder in sorted(path for path in runs.iterdir() if path.is_dir()):
        # A run without a result was stopped on the way.
        finished = [
            steps_of_run(result.with_name("metrics.jsonl"))
            for result in sorted(folder.glob("seed_*/result.json"))
        ]
        if not finished:
            continue
        cells = []
        for step in steps:
            at = [run[step] for run in finished]
            cells.append(
                f"{fmean(m[LENGTH] for m in at):.1f}, {fmean(m[ACCURACY] for m in at):.1%}"
            )
        rows.append([folder.name, len(finished), *cells])
    return tabulate(rows, ["", "seeds", *(f"step {step}" for step in steps)], "github")


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--runs", type=Path, required=True, help="output folder of compare.sh")
    parser.add_argument("--steps", type=int, nargs="+", default=[5, 10, 15, 20])
    args = parser.parse_args()
    if not args.runs.is_dir():
        sys.exit(
            f"error: --runs is {args.runs}, which is not a folder; give the output folder of "
            "compare.sh"
        )
    print(table(args.runs, args.steps))


if __name__ == "__main__":
    main()
