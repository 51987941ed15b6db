r"""Write an evaluation's responses as traces, the input of `openrlhf-swap score`.

    openrlhf-swap eval traces outputs/eval/base --samples 1
    openrlhf-swap score --model MODEL --input outputs/eval/base/traces.jsonl \
        --output outputs/eval/base/scored.jsonl

One line per response: benchmark, id, sample, problem, answer, response, correct (null if it was not
judged), tokens. `eval page` and `eval figures` read the scores in the folder.
"""

from collections.abc import Iterable, Iterator
from pathlib import Path

from openrlhf_swap.command import Parser, check_writable, counted
from openrlhf_swap.errors import DataError, reader_errors
from openrlhf_swap.evaluation.samples import (
    asked,
    files_as_written,
    graded_benchmarks,
    read_settings,
    was_judged,
)
from openrlhf_swap.files import Row, checked_row, read_rows, write_rows

# The fields that `openrlhf-swap score` gives a row.
SCORED = {"answer", "step_ends", "answer_logprobs", "gains", "local_gains", "steps"}


def main(argv: list[str]) -> None:
    """Write the traces.

    Raises DataError, and leaves an existing file untouched, for a folder without graded samples.
    """
    parser = Parser("openrlhf-swap eval traces", __doc__)
    parser.add_argument("folder", type=Path, help="folder of an evaluation")
    parser.add_argument(
        "--output",
        type=Path,
        help="JSONL to write (default: traces.jsonl in the folder)",
    )
    parser.add_argument("--samples", type=int, help="maximum responses per problem; all by default")
    args = parser.parse_args(argv)
    output = args.output or args.folder / "traces.jsonl"
    check_writable("--output", output.parent)
    with files_as_written(args.folder):
        rows = list(traces(args.folder, args.samples))
    output.parent.mkdir(parents=True, exist_ok=True)
    write_rows(output, rows)
    print(f"{counted(len(rows), 'trace')} in {output}")


def traces(folder: Path, samples: int | None = None) -> Iterator[Row]:
    """The graded responses of an evaluation, with the problems as they were asked.

    There are at most `samples` per problem.
    """
    for files in graded_benchmarks(folder):
        suffix = read_settings(folder)["suffix"]
        problems = files.problems()
        for sample, grade in files.graded():
            if samples is not None and sample["sample"] >= samples:
                continue
            problem = problems[sample["id"]]
            yield {
                "benchmark": files.benchmark,
                "id": sample["id"],
                "sample": sample["sample"],
                "problem": asked(problem, suffix),
                "answer": problem["answer"],
                "response": sample["text"],
                "correct": grade["correct"] if was_judged(grade) else None,
                "tokens": sample["tokens"],
            }


def read_scored(place: Path) -> list[Row]:
    """Scored traces that have at least one step, from a file or an evaluation's folder.

    Raises DataError if there is none, and for a row that no page can hold.
    """
    file = place / "scored.jsonl" if place.is_dir() else place
    rows = []
    for number, row in enumerate(read_rows(file), 1):
        with reader_errors(f"{file}, row {number}: {{reason}}; remove that line"):
            checked_row(row)
        if row.keys() >= SCORED and row["gains"]:
            rows.append(row)
    if not rows:
        raise DataError(f"{file} holds no scored traces; make them with openrlhf-swap score")
    return rows


def label_of(place: Path) -> str:
    """The name of an evaluation on a page: its folder's, or its file's up to the first dot."""
    return place.name if place.is_dir() else place.name.partition(".")[0]


def read_steps(metrics: Path, names: Iterable[str]) -> list[Row]:
    """A run's training steps from its metrics.jsonl, in order; DataError if there is none.

    Each has `step` and the metrics of these names, None for one that the step does not have. A
    resumed run repeats steps, and the last row of a step counts. A step whose scores were not
    finite has measured nothing and is left out.
    """
    wanted = ["step", *names]
    rows = {}
    for row in read_rows(metrics):
        if isinstance(row, dict) and "swap/accuracy" in row:
            rows[row["step"]] = {name: row.get(name) for name in wanted}
    if not rows:
        raise DataError(f"{metrics} holds no training steps; it should be a run's metrics.jsonl")
    return [rows[step] for step in sorted(rows)]
