r"""What does a policy pay for going on, and what for ending its thought?

With `--swap.step_discount` 0 a sentence pays its own bill alone, so that a sentence which starts a
second round is not charged for that round. It may then cost less than the sentence that ends the
thought. This prints the mean A_proc, before it is scaled, of each kind of sentence:

    openrlhf-swap eval traces outputs/smollm2_small/base --output outputs/traces.jsonl
    openrlhf-swap score --model outputs/smollm2_small/warm_up/policy \
        --input outputs/traces.jsonl --output outputs/scored.jsonl \
        --swap.step_reward need --swap.step_tokens 4 --swap.newline_patience 8 \
        --swap.end_of_thought '</think>' --swap.close_template '</think>\n\nThe answer is \boxed{'
    python -m studies.smollm2.what_going_on_costs --scored outputs/scored.jsonl

Correct responses only. The mean that is taken off each reward is that of all their steps, where a
training takes that of a group.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Sequence
from itertools import product
from pathlib import Path
from statistics import fmean

import torch
from tabulate import tabulate

from openrlhf_swap.algorithm.advantages import sum_to_come
from openrlhf_swap.command import Parser, run_command
from openrlhf_swap.files import Row, read_rows
from studies.smollm2 import thoughts

# Kind of sentence -> how it begins. What begins otherwise and has a number states an operation.
BEGINNINGS = {
    "opening": thoughts.OPENINGS,
    "check": thoughts.CHECKS,
    "doubt": thoughts.DOUBTS,
    "starts over": thoughts.RESTARTS,
    "verifies all": thoughts.VERIFICATIONS,
    "ending": [text.partition("{")[0] for text in thoughts.ENDINGS],
}
FIRST_TIME = "operation"
AGAIN = "operation again"
REST = "rest"
REWARDS = ("gain", "gain plus need")
DISCOUNTS = (0.0, 0.5, 1.0)


def kinds_of(steps: Sequence[str]) -> list[str]:
    """The kind of each step of a thought; of several sentences the first one decides."""
    kinds = []
    stated: set[tuple[str, ...]] = set()
    for step in steps:
        sentence = step.removeprefix(thoughts.OPEN).strip()
        kind = _by_beginning(sentence)
        numbers = tuple(re.findall(r"\d+", sentence)[:2])
        if kind == REST and len(numbers) == 2:
            kind = AGAIN if numbers in stated else FIRST_TIME
            stated.add(numbers)
        kinds.append(kind)
    return kinds


def _by_beginning(sentence: str) -> str:
    for kind, texts in BEGINNINGS.items():
        if sentence.startswith(tuple(texts)):
            return kind
    return REST


def charges(rows: Sequence[Row], reward: str, discount: float) -> dict[str, list[float]]:
    """What the tokens of each sentence get of this reward and discount, by its kind."""
    earned = [_earned(row, reward) for row in rows]
    mean = torch.cat(earned).mean()
    charged: dict[str, list[float]] = {}
    for row, rewards in zip(rows, earned, strict=True):
        values = sum_to_come(rewards - mean, discount).tolist()
        for kind, value in zip(kinds_of(row["steps"]), values, strict=True):
            charged.setdefault(kind, []).append(value)
    return charged


def table(rows: Sequence[Row]) -> str:
    """A row per kind: how many sentences, and the mean of what they get."""
    columns = {}
    for reward, discount in product(REWARDS, DISCOUNTS):
        columns[f"{reward}, discount {discount:g}"] = charges(rows, reward, discount)
    kinds = next(iter(columns.values()))
    lines = []
    for kind, values in kinds.items():
        means = [f"{fmean(charged[kind]):+.2f}" for charged in columns.values()]
        lines.append([kind, len(values), *means])
    return tabulate(lines, ["sentence", "number", *columns], "github", disable_numparse=True)


def _earned(row: Row, reward: str) -> torch.Tensor:
    """(K,) float64 r_k of a response in nats a token."""
    gains = torch.tensor(row["gains"], dtype=torch.float64)
    if reward == "gain":
        return gains
    return gains + torch.tensor(row["need"], dtype=torch.float64)


def main(argv: list[str]) -> None:
    """Print the table of a file's correct responses."""
    parser = Parser("what_going_on_costs", __doc__)
    parser.add_argument("--scored", type=Path, required=True, help="output of openrlhf_swap.score")
    args = parser.parse_args(argv)
    correct = [row for row in read_rows(args.scored) if row["correct"]]
    print(table(correct))


if __name__ == "__main__":
    sys.exit(run_command(main))
