r"""Which step gain tells needed sentences from others? Like examples/studies/gain_study.py, in words.

    python -m evaluation.traces outputs/smollm2/base --output outputs/traces.jsonl
    python -m openrlhf_swap.score --model outputs/smollm2/warm_up/policy --input outputs/traces.jsonl \
        --step-tokens 4 --newline-patience 8 --close-template '</think>\n\nThe answer is \boxed{' \
        --output outputs/scored.jsonl
    PYTHONPATH=examples/worlds:examples/studies python examples/smollm2/sentence_gains.py --scored outputs/scored.jsonl
"""

from __future__ import annotations

import sys
from pathlib import Path

import thoughts
from gain_study import study

from openrlhf_swap.command import Parser, run_command
from openrlhf_swap.files import Row


def labelled(row: Row) -> list[tuple[str, str]]:
    """The sentences of a scored row with their labels."""
    return [(sentence.text, sentence.label) for sentence in thoughts.classify(row["response"])]


def main(argv: list[str]) -> None:
    """Print the table."""
    parser = Parser("sentence_gains", __doc__)
    parser.add_argument("--scored", type=Path, required=True, help="output of openrlhf_swap.score")
    print(study(parser.parse_args(argv).scored, labelled))


if __name__ == "__main__":
    sys.exit(run_command(main))
