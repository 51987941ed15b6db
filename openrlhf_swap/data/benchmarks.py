"""The benchmarks of benchmarks.yaml: where they come from, how many problems they have, a checksum of their texts."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import yaml

from openrlhf_swap.data.formats import Problem, read_format
from openrlhf_swap.data.references import read_reference
from openrlhf_swap.data.rows import read_entries
from openrlhf_swap.errors import ConfigError, DataError, reader_errors
from openrlhf_swap.files import to_line
from openrlhf_swap.rewards.answers import strip_answer
from openrlhf_swap.rewards.verifiers import MATH, find_verifier


@dataclass(frozen=True)
class Benchmark:
    """A benchmark.

    Attributes:
        title: its name in tables.
        hub: data set id on the hub.
        revision: of that data set.
        sizes: the numbers of problems that a complete copy may have.
        checksum: of the local copy's problem texts, see `checksum`; empty if it is not known.
        subset: the data set's configuration.
        split: its split.
        columns: its problem and answer columns; None for rows of one of `data.formats`.
        file: file name of a local copy, if it is not the benchmark's.
    """

    title: str
    hub: str
    revision: str
    sizes: Sequence[int]
    checksum: str = ""
    subset: str | None = None
    split: str = "test"
    columns: Sequence[str] | None = ("problem", "answer")
    file: str = ""


PAPER_BENCHMARKS = ("math500", "amc23", "aime24", "aime25", "olympiadbench")
_TABLE = yaml.safe_load(Path(__file__).with_suffix(".yaml").read_text(encoding="utf-8"))
BENCHMARKS = {name: Benchmark(**about) for name, about in _TABLE.items()}


def load_benchmark(name: str, folder: Path | None = None, grader: str = MATH) -> list[Problem]:
    """Load the problems of a benchmark, in order.

    Args:
        name: a key of BENCHMARKS, or a JSONL file of `problem`, `answer` and perhaps `id`, or of a `data.formats`.
        folder: holds local copies; None loads from the hub.
        grader: for a file of problems and answers, the verifier's name; its other columns are the metadata.

    Raises:
        ConfigError: for an unknown name.
        DataError: when it cannot be read, is incomplete, or has other problems than expected.
    """
    if name.endswith(".jsonl"):
        return _read_file(Path(name), grader)
    if name not in BENCHMARKS:
        raise ConfigError(f"--benchmarks has {name!r}; use a JSONL file, or any of: {', '.join(BENCHMARKS)}")
    benchmark = BENCHMARKS[name]
    if folder is None:
        problems = _read_hub(name, benchmark)
    else:
        path = folder / (benchmark.file or f"{name}.jsonl")
        problems = _read_file(path)
        digest = checksum(problem.problem for problem in problems)
        if benchmark.checksum and digest != benchmark.checksum:
            raise DataError(
                f"{path} does not hold the problems of {benchmark.title} (checksum {digest[:12]}, expected "
                f"{benchmark.checksum[:12]}); to use it anyway, give --benchmarks its path"
            )
    if len(problems) not in benchmark.sizes:
        sizes = " or ".join(map(str, benchmark.sizes))
        raise DataError(f"{benchmark.title} has {len(problems)} problems; it should have {sizes}")
    return problems


def checksum(problems: Iterable[str]) -> str:
    """SHA-256 of the problem texts, independent of their order and white space."""
    digest = hashlib.sha256()
    for text in sorted("".join(problem.split()) for problem in problems):
        digest.update(text.encode() + b"\n")
    return digest.hexdigest()


def title_of(name: str) -> str:
    """The name of a benchmark in tables."""
    return BENCHMARKS[name].title if name in BENCHMARKS else name


def short_name(name: str) -> str:
    """The name of a benchmark in file names: a file's stem, or the benchmark's own name."""
    return Path(name).stem if name.endswith(".jsonl") else name


def _read_file(path: Path, grader: str = MATH) -> list[Problem]:
    problems = []
    first_rows: dict[str, int] = {}
    for place, entry in enumerate(read_entries(path, needs_all=True)):
        row = entry.row or {}
        problems.append(_problem(f"{path}, row {entry.number}", row.get("id", place), row, grader))
        first_rows.setdefault(problems[-1].grader, entry.number)
    if len(first_rows) > 1:
        listing = " and ".join(f"{name} (row {number})" for name, number in first_rows.items())
        raise DataError(f"{path} has problems for the graders {listing}; put them into one file each")
    repeated = len(problems) - len({problem.id for problem in problems})
    if repeated:
        raise DataError(f"{path} has {repeated} duplicate ids; every problem needs its own")
    return problems


def _read_hub(name: str, benchmark: Benchmark) -> list[Problem]:
    from datasets import load_dataset

    with reader_errors(
        f"{benchmark.hub} cannot be loaded ({{reason}}); give a folder with a local copy: --data. If "
        f"https://huggingface.co/datasets/{benchmark.hub} has conditions, accept them and log in (hf auth login, or "
        "HF_TOKEN)"
    ):
        rows = load_dataset(benchmark.hub, benchmark.subset, split=benchmark.split, revision=benchmark.revision)
    if benchmark.columns:
        question, answer = benchmark.columns
        rows = ({"problem": row[question], "answer": row[answer]} for row in rows)
    return [_problem(f"{benchmark.hub}, row {i + 1}", f"{name}-{i}", row, MATH) for i, row in enumerate(rows)]


def _problem(where: str, own_id: object, row: Mapping[str, Any], grader: str) -> Problem:
    """A row of one of the formats, or of problem and answer.

    Raises:
        DataError: without a text or an answer that the grader can use, as every evaluation would count it as wrong.
    """
    with reader_errors(f"{where} cannot be read ({{reason}}); correct the row, or give problem and answer"):
        asked = read_format(row)
    if asked:
        problem = replace(asked, id=str(own_id))
    else:
        text, answer = row.get("problem"), row.get("answer")
        if not isinstance(text, str) or not text.strip():
            raise DataError(f"{where}: problem is {_shown(text)}; give every row a problem and an answer")
        with reader_errors(f"{where}: {{reason}}; give every row a problem and an answer"):
            reference = read_reference(row, "problem", "answer", grader)
        bare = strip_answer(reference.answer) if grader == MATH else reference.answer
        if answer is None or (grader == MATH and not bare):
            raise DataError(f"{where}: answer is {_shown(row.get('answer'))}; give every row a problem and an answer")
        problem = Problem(str(own_id), text, bare, reference.metadata, grader)
    if problem.grader != MATH:
        fault = find_verifier(problem.grader).find_fault(problem.answer, problem.metadata)
        if fault:
            raise DataError(f"{where} has {fault}: {_shown(problem.answer)}; correct the row")
    return problem


def _shown(value: object) -> str:
    """A value as JSON has it, shortened."""
    return to_line(value).strip()[:40]
