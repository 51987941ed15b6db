"""Write a toy task's training and held-out problems: disjoint, seeded.

    python -m openrlhf_swap.quickstart.make_data --output outputs/data --train 2000 --test 500

`--world` names another module than that of additions.
"""

import sys
from collections.abc import Iterable
from itertools import islice
from pathlib import Path

from openrlhf_swap.command import Parser, run_command
from openrlhf_swap.files import write_rows
from openrlhf_swap.quickstart.world import ADDITION, Problem, World, load_world

TEST_SEED = 1
TRAIN_SEED = 2
COMMAND = "python -m openrlhf_swap.quickstart.make_data"


def write(path: Path, problems: Iterable[Problem]) -> None:
    """One JSON line per problem: `problem` and `answer`."""
    write_rows(path, [{"problem": each.question, "answer": each.answer} for each in problems])


def write_problems(world: World, folder: Path, train: int, test: int) -> None:
    """Write so many problems into train.jsonl and test.jsonl of a folder."""
    held_out = list(islice(world.problems(TEST_SEED), test))
    trained = list(islice(world.problems(TRAIN_SEED, exclude=frozenset(held_out)), train))
    folder.mkdir(parents=True, exist_ok=True)
    write(folder / "test.jsonl", held_out)
    write(folder / "train.jsonl", trained)
    print(f"{folder}: {train} training problems, {test} held-out problems")


def main(argv: list[str]) -> None:
    parser = Parser(COMMAND, __doc__)
    parser.add_argument("--world", default=ADDITION, help="module of the toy task")
    parser.add_argument(
        "--output", type=Path, required=True, help="folder for train.jsonl and test.jsonl"
    )
    parser.add_argument("--train", type=int, default=2000, help="training problems")
    parser.add_argument("--test", type=int, default=500, help="held-out problems")
    args = parser.parse_args(argv)
    write_problems(load_world(args.world), args.output, args.train, args.test)


if __name__ == "__main__":
    sys.exit(run_command(main))
