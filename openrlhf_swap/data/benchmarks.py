"""The benchmarks of benchmarks.yaml, and files of problems: rows of a problem and an answer."""

import hashlib
import sys
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import compress
from pathlib import Path
from typing import Any

import yaml

from openrlhf_swap.command import counted
from openrlhf_swap.data.files import SHOWN, read_entries
from openrlhf_swap.data.references import LONGEST_SHOWN, find_faults, read_reference
from openrlhf_swap.errors import ConfigError, DataError, reader_errors
from openrlhf_swap.files import Row, to_line
from openrlhf_swap.rewards.answers import strip_answer
from openrlhf_swap.rewards.references import Reference
from openrlhf_swap.rewards.verifiers import MATH, NO_GRADER, find_verifier

REMEDY = "give every row a problem and an answer"


@dataclass(frozen=True)
class Benchmark:
    """A benchmark of the table: where it is on the hub, and what a complete copy has."""

    title: str
    hub: str
    revision: str
    sizes: Sequence[int]  # the numbers of problems that a complete copy may have
    checksum: str = ""  # of the local copy's problem texts, see `checksum`; empty if unknown
    subset: str | None = None
    split: str = "test"
    columns: Sequence[str] = ("problem", "answer")  # their names on the hub
    file: str = ""  # name of a local copy, if it is not the benchmark's


PAPER_BENCHMARKS = ("math500", "amc23", "aime24", "aime25", "olympiadbench")
_FILE = Path(__file__).with_suffix(".yaml")
_TABLE = yaml.safe_load(_FILE.read_text(encoding="utf-8"))
BENCHMARKS = {name: Benchmark(**about) for name, about in _TABLE.items()}


@dataclass(frozen=True)
class Problem:
    r"""One problem with its reference answer; a mathematical one without `$` and `\boxed{}`."""

    id: str
    problem: str  # as it is asked
    answer: str  # the reference answer, or what else the grader judges by
    metadata: Mapping[str, Any] = field(default_factory=dict)  # what the grader looks at besides
    grader: str = MATH  # the verifier's name

    @property
    def reference(self) -> Reference:
        """What the grader compares a response with."""
        return Reference(self.answer, self.problem, self.metadata)


def load_benchmark(
    name: str,
    folder: Path | None = None,
    grader: str = MATH,
    needs_answers: bool = True,
) -> list[Problem]:
    """The problems of a benchmark, or of a JSONL file of `problem`, `answer` and perhaps `id`.

    With the grader "none" the rows of a file need no answers.

    Args:
        name: a benchmark, or the path of a file.
        folder: where a benchmark's local copy is; it is read from the hub by default.
        grader: the verifier of a file's problems, which gets their other columns.
        needs_answers: whether answers that math-verify cannot grade against are an error in a file,
            and a warning on stderr for a benchmark.

    Raises ConfigError for an unknown name, and DataError for a benchmark or a file that is
    incomplete or has other problems than it should.
    """
    is_file = name.endswith(".jsonl")
    if is_file:
        problems = _read_file(Path(name), grader)
    elif name in BENCHMARKS:
        problems = _read_benchmark(name, folder)
    else:
        raise ConfigError(
            f"--benchmarks has {name!r}; use a JSONL file, or any of: {', '.join(BENCHMARKS)}"
        )
    if not needs_answers:
        return problems
    faults = _describe_faults(problems)
    if faults and is_file:
        raise DataError(f"{name} {faults}; correct these rows")
    if faults:
        print(f"warning: {title_of(name)} {faults}; they count as wrong", file=sys.stderr)
    return problems


def _read_benchmark(name: str, folder: Path | None) -> list[Problem]:
    benchmark = BENCHMARKS[name]
    if folder is None:
        problems = _read_hub(name, benchmark)
    else:
        problems = _read_copy(folder / (benchmark.file or f"{name}.jsonl"), benchmark)
    if len(problems) not in benchmark.sizes:
        sizes = " or ".join(map(str, benchmark.sizes))
        raise DataError(f"{benchmark.title} has {len(problems)} problems; it should have {sizes}")
    return problems


def _describe_faults(problems: Sequence[Problem]) -> str:
    """What is wrong with the answers: "has 2 answers that no response can be graded against: ...".

    Empty if nothing is, and for other graders than math-verify.
    """
    if any(problem.grader != MATH for problem in problems):
        return ""
    faults = find_faults([problem.reference for problem in problems], MATH, "benchmarks")
    faulty = [
        f"{_shown(problem.answer)} (id {problem.id})" for problem in compress(problems, faults)
    ]
    if not faulty:
        return ""
    answers = counted(len(faulty), "answer")
    return f"has {answers} that no response can be graded against: {', '.join(faulty[:SHOWN])}"


def checksum(problems: Iterable[str]) -> str:
    """SHA-256 of the problem texts, independent of their order and white space."""
    digest = hashlib.sha256()
    for text in sorted("".join(problem.split()) for problem in problems):
        digest.update(f"{text}\n".encode())
    return digest.hexdigest()


def title_of(name: str) -> str:
    """The title of a benchmark; a file's own name for any other."""
    return BENCHMARKS[name].title if name in BENCHMARKS else name


def _read_copy(path: Path, benchmark: Benchmark) -> list[Problem]:
    problems = _read_file(path)
    digest = checksum(problem.problem for problem in problems)
    if benchmark.checksum not in ("", digest):
        raise DataError(
            f"{path} does not hold the problems of {benchmark.title} (checksum {digest[:12]}, "
            f"expected {benchmark.checksum[:12]}); to use it anyway, give --benchmarks its path"
        )
    return problems


def _read_file(path: Path, grader: str = MATH) -> list[Problem]:
    problems = []
    for place, entry in enumerate(read_entries(path, needs_all=True)):
        row = entry.row or {}
        where = f"{path}, row {entry.number}"
        problems.append(_problem(where, row.get("id", place), row, grader))
    repeated = len(problems) - len({problem.id for problem in problems})
    if repeated:
        raise DataError(f"{path} has {repeated} duplicate ids; every problem needs its own")
    return problems


def _read_hub(name: str, benchmark: Benchmark) -> list[Problem]:
    from datasets import load_dataset

    with reader_errors(
        f"{benchmark.hub} cannot be loaded ({{reason}}); give a folder with a local copy: --data. "
        f"If https://huggingface.co/datasets/{benchmark.hub} has conditions, accept them and log "
        "in (hf auth login, or HF_TOKEN)"
    ):
        how = {"split": benchmark.split, "revision": benchmark.revision}
        rows = load_dataset(benchmark.hub, benchmark.subset, **how)
    question, answer = benchmark.columns
    problems = []
    for number, row in enumerate(rows):
        content = {"problem": row[question], "answer": row[answer]}
        where = f"{benchmark.hub}, row {number + 1}"
        problems.append(_problem(where, f"{name}-{number}", content, MATH))
    return problems


def _problem(where: str, own_id: object, row: Row, grader: str) -> Problem:
    """A row as a problem.

    Raises DataError for an answer that the grader cannot use, against which every response would
    count as wrong.
    """
    if grader == NO_GRADER:
        row = {**row, "answer": row.get("answer") or ""}
    text = row.get("problem")
    answer = row.get("answer")
    if not isinstance(text, str) or not text.strip():
        raise DataError(f"{where}: problem is {_shown(text)}; {REMEDY}")
    with reader_errors(f"{where}: {{reason}}; {REMEDY}"):
        reference = read_reference(row, "problem", "answer", grader)
    bare = strip_answer(reference.answer) if grader == MATH else reference.answer
    if answer is None or (grader == MATH and not bare):
        raise DataError(f"{where}: answer is {_shown(answer)}; {REMEDY}")
    if grader != MATH:
        fault = find_verifier(grader).find_fault(bare, reference.metadata)
        if fault:
            raise DataError(f"{where} has {fault}: {_shown(bare)}; correct the row")
    return Problem(str(own_id), text, bare, reference.metadata, grader)


def _shown(value: object) -> str:
    return to_line(value).strip()[:LONGEST_SHOWN]
