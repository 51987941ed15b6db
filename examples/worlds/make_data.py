"""Write a world's training and held-out problems: disjoint, seeded.

python examples/worlds/make_data.py --world decomposition --output outputs/data --train 2000 --test
500
"""

from __future__ import annotations

import argparse
from collections.abc import Iterable
from itertools import islice
from pathlib import Path

from world import NAMES, Problem, load

from openrlhf_swap.files import write_rows

TEST_SEED = 1
TRAIN_SEED = 2


def write(path: Path, problems: Iterable[Problem]) -> None:
    """One JSON line per problem: `problem` and `answer`."""
    write_rows(
        path, ({"problem": problem.question, "answer": problem.answer} for problem in problems)
    )


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--world", choices=NAMES, default=NAMES[0])
    parser.add_argument(
        "--output", type=Path, required=True, help="folder for train.jsonl and test.jsonl"
    )
    parser.add_argument("--train", type=int, default=2000, help="training problems")
    parser.add_argument("--test", type=int, default=500, help="held-out problems")
    args = parser.parse_args()

    world = load(args.world)
    test = list(islice(world.problems(TEST_SEED), args.test))
    train = list(islice(world.problems(TRAIN_SEED, exclude=frozenset(test)), args.train))
    args.output.mkdir(parents=True, exist_ok=True)
    write(args.output / "test.jsonl", test)
    write(args.output / "train.jsonl", train)
    print(f"{args.output}: {len(train)} training problems, {len(test)} held-out problems")


if __name__ == "__main__":
    main()
