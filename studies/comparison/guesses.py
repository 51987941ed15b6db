r"""How often policies guessed the sums of `decomposition`, and how often they were correct.

    python -m studies.comparison.guesses \
        --runs outputs/compare_decomposition

Of sums of more than two numbers, over all seeds: the share that was only guessed, or not done at
all, and by how many numbers there are, how often the first guess and the end of the first long way
were correct.
"""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Iterable
from itertools import chain, product
from pathlib import Path

from tabulate import tabulate

from openrlhf_swap.command import Parser, run_command
from openrlhf_swap.errors import DataError
from openrlhf_swap.files import Row, read_rows
from studies.comparison.differences import finished_runs
from studies.toy_tasks.decomposition import TERMS, results_of

HARD = tuple(terms for terms in TERMS if terms > 2)


def count(rows: Iterable[Row]) -> Counter[tuple[str, int]]:
    """Counts by what and by the numbers of the sum.

    They are all sums, those guessed or done the long way, and the correct ones of either.
    """
    found: Counter[tuple[str, int]] = Counter()
    for row in rows:
        for terms, guesses, ends in results_of(row["problem"], row["text"]):
            numbers = len(terms)
            found["sums", numbers] += 1
            for way, results in (("guess", guesses), ("long", ends)):
                found[way, numbers] += bool(results)
                found[f"{way} correct", numbers] += bool(results) and results[0] == sum(terms)
    return found


def table(runs: dict[str, list[Path]]) -> str:
    """A row a method."""
    rows = []
    for method, files in runs.items():
        found = count(chain.from_iterable(map(read_rows, files)))
        sums = sum(found["sums", numbers] for numbers in HARD)
        long = sum(found["long", numbers] for numbers in HARD)
        cells = [method, len(files), _share(sums - long, sums)]
        for way, numbers in product(("guess", "long"), HARD):
            cells.append(_share(found[f"{way} correct", numbers], found[way, numbers]))
        rows.append(cells)
    header = ["", "seeds", "only guessed"]
    for way, numbers in product(("guess", "long way"), HARD):
        header.append(f"{way} of {numbers} correct")
    return tabulate(rows, header, "github", disable_numparse=True)


def _share(part: int, whole: int) -> str:
    return f"{part / whole:.0%}" if whole else "-"


def main(argv: list[str]) -> None:
    """Print the table."""
    parser = Parser("guesses", __doc__)
    parser.add_argument(
        "--runs", type=Path, required=True, help="output folder of WORLD=decomposition compare.sh"
    )
    args = parser.parse_args(argv)
    if not args.runs.is_dir():
        raise DataError(
            f"--runs is {args.runs}, which is not a folder; give the output folder of compare.sh"
        )
    print(table(finished_runs(args.runs)))


if __name__ == "__main__":
    sys.exit(run_command(main))
