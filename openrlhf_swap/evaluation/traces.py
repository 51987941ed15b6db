r"""Write an evaluation's responses as traces, the input of `openrlhf-swap score`.

    openrlhf-swap eval traces outputs/eval/base --samples 1 openrlhf-swap score --model MODEL
    --input outputs/eval/base/traces.jsonl --output outputs/eval/base/scored.jsonl

One line per response: benchmark, id, sample, problem, answer, response, correct, tokens. `eval
page` and `eval figures` read the scores in the folder.
"""

from collections.abc import Iterator
from pathlib import Path

from openrlhf_swap.command import Parser, check_writable, counted
from openrlhf_swap.errors import DataError
from openrlhf_swap.evaluation.samples import (
    asked,
    graded_benchmarks,
    graded_samples,
    read_problems,
    read_settings,
)
from openrlhf_swap.files import Row, read_rows, write_rows

SCORED = {
    "answer",
    "step_ends",
    "answer_logprobs",
    "gains",
    "local_gains",
    "steps",
}  # of a row by `openrlhf-swap score`


def main(argv: list[str]) -> None:
    """Write the traces; DataError, leaving an existing file untouched, for a folder without graded
    samples.
    """
    parser = Parser("openrlhf-swap eval traces", __doc__)
    parser.add_argument("folder", type=Path, help="folder of an evaluation")
    parser.add_argument(
        "--output", type=Path, help="JSONL to write (default: traces.jsonl in the folder)"
    )
    parser.add_argument("--samples", type=int, help="maximum responses per problem; all by default")
    args = parser.parse_args(argv)
    output = args.output or args.folder / "traces.jsonl"
    check_writable("--output", output.parent)
    rows = list(traces(args.folder, args.samples))
    output.parent.mkdir(parents=True, exist_ok=True)
    write_rows(output, rows)
    print(f"{counted(len(rows), 'trace')} in {output}")


def traces(folder: Path, samples: int | None = None) -> Iterator[Row]:
    """The graded responses of an evaluation, with the problems as asked; at most `samples` per
    problem.
    """
    for name in graded_benchmarks(folder):
        suffix = read_settings(folder)["suffix"]
        problems = read_problems(folder, name)
        for sample, grade in graded_samples(folder, name):
            if samples is None or sample["sample"] < samples:
                problem = problems[sample["id"]]
                question = {"problem": asked(problem, suffix), "answer": problem["answer"]}
                sampled = {
                    "response": sample["text"],
                    "correct": grade["correct"],
                    "tokens": sample["tokens"],
                }
                yield {
                    "benchmark": name,
                    "id": sample["id"],
                    "sample": sample["sample"],
                    **question,
                    **sampled,
                }


def read_scored(place: Path) -> list[Row]:
    """Scored traces that have at least one step, from a file or an evaluation's folder; DataError
    if there is none.
    """
    file = place / "scored.jsonl" if place.is_dir() else place
    rows = [row for row in read_rows(file) if row.keys() >= SCORED and row["gains"]]
    if not rows:
        raise DataError(f"{file} holds no scored traces; make them with openrlhf-swap score")
    return rows


def label_of(place: Path) -> str:
    """The name of scored traces in figures and columns."""
    return place.name if place.is_dir() else place.name.partition(".")[0]


def read_steps(metrics: Path) -> list[Row]:
    """A run's training steps from its metrics.jsonl, in order; raises DataError if there is none."""
    # A resumed run repeats steps: the last one counts. A step with non-finite scores measured
    # nothing.
    rows = {row["step"]: row for row in read_rows(metrics) if "swap/accuracy" in row}
    if not rows:
        raise DataError(f"{metrics} holds no training steps; it should be a run's metrics.jsonl")
    return [rows[step] for step in sorted(rows)]
