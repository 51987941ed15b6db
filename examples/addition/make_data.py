"""Write addition problems for training and for the held-out test: disjoint, seeded.

python examples/addition/make_data.py --output outputs/data --train 2000 --test 500
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Iterable
from itertools import islice
from pathlib import Path

from task import Addition, problems

TEST_SEED = 1
TRAIN_SEED = 2


def write(path: Path, rows: Iterable[Addition]) -> None:
    """One JSON line a problem: `problem` and `answer`."""
    with open(path, "w", encoding="utf-8") as file:
        file.writelines(json.dumps({"problem": row.question, "answer": row.answer}) + "\n" for row in rows)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--output", type=Path, required=True, help="folder for train.jsonl and test.jsonl")
    parser.add_argument("--train", type=int, default=2000, help="training problems")
    parser.add_argument("--test", type=int, default=500, help="held-out problems")
    args = parser.parse_args()

    test = list(islice(problems(TEST_SEED), args.test))
    train = list(islice(problems(TRAIN_SEED, exclude=frozenset(test)), args.train))
    args.output.mkdir(parents=True, exist_ok=True)
    write(args.output / "test.jsonl", test)
    write(args.output / "train.jsonl", train)
    print(f"{args.output}: {len(train)} training problems, {len(test)} held-out problems")


if __name__ == "__main__":
    main()
