r"""Turn a data set of maths problems into the prompt set that `python -m openrlhf_swap.train` trains on.

    python -m openrlhf_swap.prepare --output prompts.jsonl
    python -m openrlhf_swap.train --data.prompt_dataset prompts.jsonl --data.input_key problem --data.label_key answer

Rows with an empty problem, an empty answer or an answer that the grader cannot parse are dropped, and so are problems
that occur twice and problems of the five benchmarks, word for word or nearly. The rest is written in the order of the
input as JSONL of problem, answer and, if there is one, id; the suffix is appended to each problem, so that training
asks as scripts/eval_benchmarks.sh does. OUTPUT.removed.jsonl lists every dropped row with the reason and, where there
is one, the benchmark problem that it repeats.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

from evaluation.benchmarks import Problem, load_benchmark, title_of
from openrlhf_swap.answers import SUFFIX, as_text, strip_answer
from openrlhf_swap.duplicates import BenchmarkIndex, read_text
from openrlhf_swap.errors import ConfigError, DataError, SwapError
from openrlhf_swap.rewards import Grader

DATASET = "agentica-org/DeepScaleR-Preview-Dataset"
BENCHMARKS = ("math500", "amc23", "aime24", "aime25", "olympiadbench")
LOADERS = {".json": "json", ".jsonl": "json", ".parquet": "parquet"}

EMPTY_PROBLEM = "an empty problem, or one that is not text"
SAME_AS_BENCHMARK = "a problem of a benchmark"
NEAR_BENCHMARK = "nearly a problem of a benchmark"
EMPTY_ANSWER = "an empty answer, or one that is neither text nor a number"
UNPARSABLE_ANSWER = "an answer that cannot be parsed"
DUPLICATE = "a problem that an earlier row has"
REASONS = (EMPTY_PROBLEM, SAME_AS_BENCHMARK, NEAR_BENCHMARK, EMPTY_ANSWER, UNPARSABLE_ANSWER, DUPLICATE)

GRADED_AT_ONCE = 256


@dataclass(frozen=True)
class Row:
    """One row of the input; `index` is its place there, `id` its id column's value if there is one."""

    index: int
    id: Any
    problem: str
    answer: str


def load_rows(
    source: str, split: str, revision: str | None, problem_key: str, answer_key: str, suffix: str
) -> list[Row]:
    """Read a data set of the hub or a local file.

    The suffix is taken off problems that have it already, so that a prepared file can be prepared again.

    Raises:
        DataError: when it cannot be read, has no rows, or lacks a column.
    """
    table = _load_table(source, split, revision)
    for flag, key in (("--problem-key", problem_key), ("--answer-key", answer_key)):
        if key not in table.column_names:
            raise DataError(
                f"{flag} is {key}, but {source} has no such column; its columns are: {', '.join(table.column_names)}"
            )
    if len(table) == 0:
        raise DataError(f"--input is {source}, which has no rows; give a data set with at least one")
    ids = table["id"] if "id" in table.column_names else [None] * len(table)
    return [
        Row(index, row_id, problem.removesuffix(suffix) if isinstance(problem, str) else "", as_text(answer))
        for index, (row_id, problem, answer) in enumerate(zip(ids, table[problem_key], table[answer_key], strict=True))
    ]


def _load_table(source: str, split: str, revision: str | None) -> Any:
    from datasets import load_dataset, logging
    from datasets.exceptions import DatasetGenerationError

    path = Path(source)
    loader = LOADERS.get(path.suffix.lower())
    # Names of the hub may hold a dot too, before a version: a suffix of letters is a file's.
    is_file = loader is not None or path.exists() or path.suffix[1:].isalpha()
    if is_file and loader is None:
        raise DataError(f"--input is {source}, whose kind is unknown; give a file that ends in {', '.join(LOADERS)}")
    if is_file and not (path.is_file() and path.stat().st_size):
        raise DataError(f"--input is {source}, which is no file, or an empty one; give another, or a hub data set")
    try:
        if loader is not None:
            logging.set_verbosity(logging.CRITICAL)  # what it logs of an unreadable file is in the error below
            return load_dataset(loader, data_files=str(path), split="train")
        return load_dataset(source, split=split, revision=revision)
    except Exception as error:
        remedy = "check the file" if is_file else "check the name, --split and the connection, or give a local file"
        cause = error.__cause__ if isinstance(error, DatasetGenerationError) else error
        reason = (str(cause).strip().splitlines() or [type(cause).__name__])[0]
        raise DataError(f"--input is {source}, which cannot be loaded ({reason}); {remedy}") from error


def load_benchmarks(folder: Path | None) -> dict[str, list[Problem]]:
    """The five benchmarks, from a folder with local copies or from the hub.

    Raises:
        DataError: when one of them cannot be read or is not complete.
    """
    try:
        return {name: load_benchmark(name, folder) for name in BENCHMARKS}
    except DataError as error:
        what = str(error).partition(";")[0]
        raise DataError(
            f"{what}; give --benchmarks a folder with local copies, or --no-benchmarks to compare with none"
        ) from error


def find_reasons(rows: Sequence[Row], index: BenchmarkIndex | None) -> list[dict[str, Any] | None]:
    """Why each row is dropped: None for a row that is kept, otherwise `reason` and what it was found in.

    Of several reasons the first in REASONS is given. Of rows with the same problem the first that is usable is kept.
    """
    from tqdm import tqdm

    texts = [read_text(row.problem) for row in tqdm(rows, desc="[prepare] reading", unit="row")]
    found: list[dict[str, Any] | None] = []
    for row, text in zip(tqdm(rows, desc="[prepare] comparing", unit="row"), texts, strict=True):
        match = index.find(text) if index else None
        if not row.problem.strip():
            found.append({"reason": EMPTY_PROBLEM})
        elif match:
            reason = SAME_AS_BENCHMARK if match.exact else NEAR_BENCHMARK
            found.append({"reason": reason, "benchmark": match.benchmark, "benchmark_id": match.id})
        elif not strip_answer(row.answer):
            found.append({"reason": EMPTY_ANSWER})
        else:
            found.append(None)

    gradable = _gradable_answers(row.answer for row, reason in zip(rows, found, strict=True) if reason is None)
    first: dict[str, int] = {}
    for place, (row, text) in enumerate(zip(rows, texts, strict=True)):
        if found[place] is not None:
            continue
        if row.answer not in gradable:
            found[place] = {"reason": UNPARSABLE_ANSWER}
        elif first.setdefault(text.key, row.index) != row.index:
            found[place] = {"reason": DUPLICATE, "duplicate_of": first[text.key]}
    return found


@cache
def _grader() -> Grader:
    return Grader(processes=len(os.sched_getaffinity(0)))


def _gradable_answers(answers: Iterable[str]) -> set[str]:
    from tqdm import tqdm

    distinct = list(dict.fromkeys(answers))
    gradable: set[str] = set()
    with tqdm(total=len(distinct), desc="[prepare] parsing answers", unit="answer") as bar:
        for start in range(0, len(distinct), GRADED_AT_ONCE):
            part = distinct[start : start + GRADED_AT_ONCE]
            gradable.update(answer for answer, good in zip(part, _grader().is_gradable(part), strict=True) if good)
            bar.update(len(part))
    return gradable


def removed_path(output: Path) -> Path:
    """Where the dropped rows are listed."""
    return output.with_name(output.name + ".removed.jsonl")


def check_output(output: Path, source: str) -> None:
    """Find out before the work whether the output can be written; its folder is made.

    Raises:
        ConfigError: when it cannot.
    """
    if output.suffix != ".jsonl":
        raise ConfigError(f"--output is {output}; training tells files by their ending: use .jsonl")
    if output.exists() and Path(source).exists() and output.samefile(source):
        raise ConfigError(f"--output is {output}, which is the input; use another file")
    if output.is_dir():
        raise ConfigError(f"--output is {output}, which is a folder; name a file in it")
    try:
        output.parent.mkdir(parents=True, exist_ok=True)
        _temporary(output).write_bytes(b"")
        _temporary(output).unlink()
    except OSError as error:
        raise _not_writable(output, error) from error


def _write_rows(path: Path, rows: Iterable[dict[str, Any]]) -> None:
    """Write JSONL whole or not at all."""
    temporary = _temporary(path)
    try:
        with open(temporary, "w", encoding="utf-8") as file:
            file.writelines(json.dumps(row, ensure_ascii=False, default=str) + "\n" for row in rows)
        os.replace(temporary, path)
    except OSError as error:
        raise _not_writable(path, error) from error
    finally:
        temporary.unlink(missing_ok=True)


def _temporary(path: Path) -> Path:
    return path.with_name(path.name + ".tmp")


def _not_writable(path: Path, error: OSError) -> ConfigError:
    return ConfigError(f"--output needs {path}, which cannot be written ({error.strerror}); use another folder")


def prepare(args: argparse.Namespace) -> str:
    """Read, clean and write; returns the summary.

    Raises:
        ConfigError: when the output cannot be written.
        DataError: when the input or a benchmark cannot be read, or no row is left.
    """
    if args.limit is not None and args.limit < 1:
        raise ConfigError(f"--limit is {args.limit}; use at least 1, or leave it out for all rows")
    check_output(args.output, args.input)
    rows = load_rows(args.input, args.split, args.revision, args.problem_key, args.answer_key, args.suffix)
    index = None if args.no_benchmarks else BenchmarkIndex(load_benchmarks(args.benchmarks))
    found = find_reasons(rows, index)
    kept = [row for row, reason in zip(rows, found, strict=True) if reason is None]
    dropped = [(row, reason) for row, reason in zip(rows, found, strict=True) if reason is not None]
    counts = Counter(reason["reason"] for _, reason in dropped)
    if not kept:
        summary = ", ".join(f"{counts[reason]} with {reason}" for reason in REASONS if counts[reason])
        raise DataError(f"--input is {args.input}, of which no row can be used: {summary}")
    chosen = kept[: args.limit]
    _write_rows(
        removed_path(args.output),
        ({"row": row.index, **_id_of(row), **reason, "problem": row.problem} for row, reason in dropped),
    )
    _write_rows(
        args.output, ({**_id_of(row), "problem": row.problem + args.suffix, "answer": row.answer} for row in chosen)
    )

    lines = [f"{len(rows):6} rows read from {args.input}"]
    lines += [f"{counts[reason]:6} dropped: {reason}" for reason in REASONS]
    repeated = Counter(reason["benchmark"] for _, reason in dropped if "benchmark" in reason)
    if index:
        lines += [f"{repeated[name]:12} of {title_of(name)}" for name in BENCHMARKS]
    else:
        lines += ["       not compared with the benchmarks (--no-benchmarks)"]
    if len(chosen) < len(kept):
        lines += [f"{len(kept) - len(chosen):6} usable, but left out (--limit)"]
    lines += [f"{len(chosen):6} rows written to {args.output}; dropped rows: {removed_path(args.output)}"]
    return "\n".join(lines)


def _id_of(row: Row) -> dict[str, Any]:
    return {} if row.id is None else {"id": row.id}


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command; returns the exit status: 0, or 2 after a one-line error."""
    parser = argparse.ArgumentParser(
        prog="python -m openrlhf_swap.prepare",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument(
        "--input",
        default=DATASET,
        help=f"data set of the hub, or a file that ends in {', '.join(LOADERS)} (default: %(default)s)",
    )
    parser.add_argument("--output", type=Path, required=True, help="JSONL to write")
    parser.add_argument("--split", default="train", help="of a data set of the hub (default: %(default)s)")
    parser.add_argument("--revision", help="of a data set of the hub; the newest by default")
    parser.add_argument("--problem-key", default="problem", help="column of the problems (default: %(default)s)")
    parser.add_argument("--answer-key", default="answer", help="column of the answers (default: %(default)s)")
    compared = parser.add_mutually_exclusive_group()
    compared.add_argument("--benchmarks", type=Path, help="folder with local copies of the five; the hub by default")
    compared.add_argument("--no-benchmarks", action="store_true", help="keep problems of the benchmarks")
    parser.add_argument(
        "--suffix", default=SUFFIX, help="put after each problem, '' for nothing (default: %(default)r)"
    )
    parser.add_argument("--limit", type=int, help="write the first LIMIT usable rows only")
    args = parser.parse_args(argv)
    try:
        print(prepare(args))
    except SwapError as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    return 0


if __name__ == "__main__":
    sys.exit(main())
