r"""Write the training file and the held-out problems of a size.

    python -m studies.real_model.data --size gpu --output outputs/real_model        # from the hub
    python -m studies.real_model.data --size gpu --output outputs/real_model \
        --train gsm8k_train.jsonl --benchmarks FOLDER                               # from files

OUTPUT/data/train.jsonl is made by `openrlhf-swap prepare` from GSM8K's training set, without near
copies of the five benchmarks. OUTPUT/data/held_out/NAME.jsonl are drawn from the test sets: all
problems are shuffled with the seed that settings.yaml states, and the first are taken.
"""

from __future__ import annotations

import random
import sys
from argparse import Namespace
from pathlib import Path

from openrlhf_swap import prepare
from openrlhf_swap.command import Parser, run_command
from openrlhf_swap.data.benchmarks import BENCHMARKS, Problem, load_benchmark
from openrlhf_swap.errors import ConfigError
from openrlhf_swap.files import write_rows
from openrlhf_swap.quickstart.make_data import write_problems
from openrlhf_swap.quickstart.world import ADDITION, load_world
from studies.real_model.settings import ADDITIONS, GSM8K, SETTINGS, Size, read_size

COMMAND = "python -m studies.real_model.data"


def main(argv: list[str]) -> None:
    parser = Parser(COMMAND, __doc__)
    parser.add_argument("--size", required=True, help="a size of the settings, such as gpu")
    parser.add_argument("--settings", type=Path, default=SETTINGS, help="the file of sizes")
    parser.add_argument("--output", type=Path, required=True, help="folder of the whole study")
    text = "file of GSM8K's training problems (problem, answer); the hub's by default"
    parser.add_argument("--train", help=text)
    text = "folder with local copies of the benchmarks; the hub's by default"
    parser.add_argument("--benchmarks", type=Path, help=text)
    args = parser.parse_args(argv)
    size = read_size(args.size, args.settings)
    if size.task == ADDITIONS:
        write_additions(size, args.output / "data")
    else:
        write_mathematics(size, args)


def write_mathematics(size: Size, args: Namespace) -> None:
    """Write GSM8K's training problems, and held-out problems of each benchmark."""
    folder = args.output / "data"
    if args.train:
        source = ["--input", args.train]
    else:
        gsm8k = BENCHMARKS[GSM8K]
        question, answer = gsm8k.columns
        source = ["--input", gsm8k.hub, "--config", str(gsm8k.subset)]
        source += ["--revision", gsm8k.revision]
        source += ["--problem-key", question, "--answer-key", answer]
    if args.benchmarks:
        source += ["--benchmarks", str(args.benchmarks)]
    prepare.main([*source, "--suffix", size.suffix, "--output", str(folder / "train.jsonl")])
    for name, count in size.held_out.items():
        write_held_out(folder, name, load_benchmark(name, args.benchmarks), count, size)


def write_additions(size: Size, folder: Path) -> None:
    """Write sums for the embedded policy, which knows nothing else."""
    made = folder / "made"
    write_problems(load_world(ADDITION), made, size.prompts, sum(size.held_out.values()))
    words = ["--input", str(made / "train.jsonl"), "--no-benchmarks", "--suffix", size.suffix]
    prepare.main([*words, "--output", str(folder / "train.jsonl")])
    problems = load_benchmark(str(made / "test.jsonl"))
    for name, count in size.held_out.items():
        write_held_out(folder, name, problems, count, size)


def write_held_out(
    folder: Path, name: str, problems: list[Problem], count: int, size: Size
) -> None:
    """Write `count` problems that the held-out seed chooses; ConfigError if there are fewer."""
    if count > len(problems):
        raise ConfigError(f"held_out has {name}: {count}; use at most {len(problems)}")
    shuffled = list(problems)
    random.Random(size.held_out_seed).shuffle(shuffled)
    rows = [
        {"id": problem.id, "problem": problem.problem, "answer": problem.answer}
        for problem in shuffled[:count]
    ]
    path = held_out_file(folder, name)
    path.parent.mkdir(parents=True, exist_ok=True)
    write_rows(path, rows)
    print(f"{count} of {len(problems)} problems written to {path}")


def held_out_file(folder: Path, name: str) -> Path:
    """The file of a set of held-out problems in the folder of the data."""
    return folder / "held_out" / f"{name}.jsonl"


if __name__ == "__main__":
    sys.exit(run_command(main))
