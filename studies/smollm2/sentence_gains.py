r"""Which step gain tells needed sentences from others?

Like studies/comparison/gain_study.py, in words.

    openrlhf-swap eval traces outputs/smollm2/base --output outputs/traces.jsonl
    openrlhf-swap score --model outputs/smollm2/warm_up/policy --input outputs/traces.jsonl \
        --swap.step_tokens 4 --swap.newline_patience 8 \
        --swap.end_of_thought '</think>' --swap.close_template '</think>\n\nThe answer is \boxed{' \
        --output outputs/scored.jsonl
    python -m studies.smollm2.sentence_gains \
        --scored outputs/scored.jsonl --problems outputs/smollm2/problems/held_out/*.jsonl
"""

from __future__ import annotations

import sys
from itertools import chain
from pathlib import Path

from openrlhf_swap.command import Parser, run_command
from openrlhf_swap.errors import DataError
from openrlhf_swap.files import Row, read_rows
from studies.comparison.gain_study import study
from studies.smollm2 import operations, thoughts


def main(argv: list[str]) -> None:
    """Print the table."""
    parser = Parser("sentence_gains", __doc__)
    parser.add_argument("--scored", type=Path, required=True, help="output of openrlhf_swap.score")
    parser.add_argument(
        "--problems",
        type=Path,
        nargs="+",
        required=True,
        help="the problems, with their operations",
    )
    args = parser.parse_args(argv)
    asked = {}
    for row in chain.from_iterable(map(read_rows, args.problems)):
        asked[row["problem"]] = operations.from_row(row).operations

    def labelled(row: Row) -> list[tuple[str, str]]:
        if row["problem"] not in asked:
            raise DataError(
                f"--scored {args.scored} has a problem that no file of --problems has: "
                f"{row['problem']}"
            )
        sentences = thoughts.classify(row["response"], asked[row["problem"]])
        return [(sentence.text, sentence.label) for sentence in sentences]

    print(study(args.scored, labelled))


if __name__ == "__main__":
    sys.exit(run_command(main))
