r"""Choose the problems that a model solves sometimes, as the prompt set of its training.

    openrlhf-swap eval run --model MODEL --benchmarks data/all.jsonl --suffix '' --samples 4 \
        --temperature 1 --top-p 1 --max-tokens 512 --output outputs/eval/all
    openrlhf-swap eval select outputs/eval/all --output data/train.jsonl

A group of responses that are all correct or all wrong teaches nothing about correctness. The
problems are written in their order, as they were asked, as JSONL of id, problem, answer, and the
other columns that their grader reads. A share is known roughly: of the problems that are solved in
one case of ten, four samples find a third.
"""

from collections import Counter
from collections.abc import Iterator
from pathlib import Path

from openrlhf_swap.command import Parser, check_writable
from openrlhf_swap.errors import ConfigError, DataError
from openrlhf_swap.evaluation.samples import (
    asked,
    files_as_written,
    graded_benchmarks,
    no_verdicts,
    read_settings,
    was_judged,
)
from openrlhf_swap.files import Row, write_rows


def main(argv: list[str]) -> None:
    """Write the chosen problems, and print how many there are.

    Raises ConfigError for a range that is none, and DataError for a folder without graded samples
    or if no problem lies in the range.
    """
    parser = Parser("openrlhf-swap eval select", __doc__)
    parser.add_argument("folder", type=Path, help="folder of an evaluation")
    parser.add_argument("--output", type=Path, required=True, help="JSONL to write")
    parser.add_argument(
        "--solved",
        type=float,
        nargs=2,
        metavar=("LOW", "HIGH"),
        default=(0.0, 1.0),
        help="keep problems with a larger share of correct samples than LOW and a smaller one than "
        "HIGH (default: 0 1)",
    )
    args = parser.parse_args(argv)
    low, high = args.solved
    if not 0 <= low < high <= 1:
        raise ConfigError(f"--solved is {low:g} {high:g}; use two shares of samples, such as 0 1")
    if args.output.suffix != ".jsonl":
        raise ConfigError(f"--output is {args.output}; training reads it as JSONL: use .jsonl")
    check_writable("--output", args.output.parent)
    with files_as_written(args.folder):
        problems = list(sampled_problems(args.folder))
    kept = [row for row, share in problems if low < share < high]
    easy = sum(share >= high for _, share in problems)
    hard = sum(share <= low for _, share in problems)
    if not kept:
        raise DataError(
            f"--solved is {low:g} {high:g}, but of {len(problems)} problems {hard} are solved as "
            f"seldom as {low:g} and {easy} as often as {high:g}; take more samples or problems"
        )
    args.output.parent.mkdir(parents=True, exist_ok=True)
    write_rows(args.output, kept)
    print(f"{hard:6} dropped: solved by at most {low:.0%} of the samples")
    print(f"{easy:6} dropped: solved by at least {high:.0%} of the samples")
    print(f"{len(kept):6} problems written to {args.output}")


def sampled_problems(folder: Path) -> Iterator[tuple[Row, float]]:
    """The rows of the problems that have graded samples, with the share of correct samples.

    Raises DataError for an evaluation without a grader.
    """
    suffix = read_settings(folder)["suffix"]
    for files in graded_benchmarks(folder):
        drawn: Counter[str] = Counter()
        solved: Counter[str] = Counter()
        for sample, grade in files.graded():
            if not was_judged(grade):
                raise no_verdicts(folder)
            drawn[sample["id"]] += 1
            solved[sample["id"]] += grade["correct"]
        for name, problem in files.problems().items():
            if name not in drawn:
                continue
            row = {"id": name, "problem": asked(problem, suffix), "answer": problem["answer"]}
            yield {**row, **problem.get("metadata", {})}, solved[name] / drawn[name]
