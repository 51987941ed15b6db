"""The benchmarks of benchmarks.yaml, and files of problems: with answers, or with the columns of
GPQA and MMLU-Pro.
"""

import hashlib
import random
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import yaml

from openrlhf_swap.data.rows import read_entries, read_reference
from openrlhf_swap.errors import ConfigError, DataError, reader_errors
from openrlhf_swap.files import to_line
from openrlhf_swap.rewards.answers import strip_answer
from openrlhf_swap.rewards.statements import LETTERS, OPTIONS
from openrlhf_swap.rewards.verifiers import MATH, Reference, find_verifier

CHOOSE = r"Please reason step by step, and put the letter of your answer within \boxed{}."
LONGEST_SHOWN = 40  # characters of a value in a message


@dataclass(frozen=True)
class Benchmark:
    title: str
    hub: str
    revision: str
    sizes: Sequence[int]  # the numbers of problems that a complete copy may have
    checksum: str = (
        ""  # of the local copy's problem texts, see `checksum`; empty if it is not known
    )
    subset: str | None = None
    split: str = "test"
    columns: Sequence[str] | None = (
        "problem",
        "answer",
    )  # their names on the hub; None for rows of one of `FORMATS`
    file: str = ""  # name of a local copy, if it is not the benchmark's


PAPER_BENCHMARKS = ("math500", "amc23", "aime24", "aime25", "olympiadbench")
_TABLE = yaml.safe_load(Path(__file__).with_suffix(".yaml").read_text(encoding="utf-8"))
BENCHMARKS = {name: Benchmark(**about) for name, about in _TABLE.items()}


@dataclass(frozen=True)
class Problem:
    r"""One problem with its reference answer; a mathematical one without wrappers such as `$` and
    `\boxed{}`.
    """

    id: str
    problem: str  # as it is asked
    answer: str  # the reference answer, or what else the grader judges by
    metadata: Mapping[str, Any] = field(default_factory=dict)  # what it looks at besides
    grader: str = MATH  # the verifier's name
    instructed: bool = (
        False  # whether the problem ends with an instruction, so that no suffix belongs after it
    )

    @property
    def reference(self) -> Reference:
        return Reference(self.answer, self.problem, self.metadata)


def load_benchmark(name: str, folder: Path | None = None, grader: str = MATH) -> list[Problem]:
    """The problems of a benchmark by its name, from the hub or a folder of local copies; or those
    of a JSONL file.

    A file has `problem`, `answer` and perhaps `id`, or the columns of one of `FORMATS`; the
    verifier `grader` gets its other columns. An unknown name is a ConfigError; what is incomplete,
    or not what was expected, a DataError.
    """
    if name.endswith(".jsonl"):
        return _read_file(Path(name), grader)
    if name not in BENCHMARKS:
        raise ConfigError(
            f"--benchmarks has {name!r}; use a JSONL file, or any of: {', '.join(BENCHMARKS)}"
        )
    benchmark = BENCHMARKS[name]
    if folder is None:
        problems = _read_hub(name, benchmark)
    else:
        path = folder / (benchmark.file or f"{name}.jsonl")
        problems = _read_file(path)
        digest = checksum(problem.problem for problem in problems)
        if benchmark.checksum not in ("", digest):
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
    texts = sorted("".join(problem.split()) for problem in problems)
    return hashlib.sha256("".join(f"{text}\n" for text in texts).encode()).hexdigest()


def title_of(name: str) -> str:
    return BENCHMARKS[name].title if name in BENCHMARKS else name


def _read_file(path: Path, grader: str = MATH) -> list[Problem]:
    problems = []
    first_rows: dict[str, int] = {}
    for place, entry in enumerate(read_entries(path, needs_all=True)):
        row = entry.row or {}
        problems.append(_problem(f"{path}, row {entry.number}", row.get("id", place), row, grader))
        first_rows.setdefault(problems[-1].grader, entry.number)
    if len(first_rows) > 1:
        listing = " and ".join(f"{name} (row {number})" for name, number in first_rows.items())
        raise DataError(
            f"{path} has problems for the graders {listing}; put them into one file each"
        )
    if repeated := len(problems) - len({problem.id for problem in problems}):
        raise DataError(f"{path} has {repeated} duplicate ids; every problem needs its own")
    return problems


def _read_hub(name: str, benchmark: Benchmark) -> list[Problem]:
    from datasets import load_dataset

    with reader_errors(
        f"{benchmark.hub} cannot be loaded ({{reason}}); give a folder with a local copy: --data. If "
        f"https://huggingface.co/datasets/{benchmark.hub} has conditions, accept them and log in (hf auth login, or "
        "HF_TOKEN)"
    ):
        rows = load_dataset(
            benchmark.hub, benchmark.subset, split=benchmark.split, revision=benchmark.revision
        )
    if benchmark.columns:
        question, answer = benchmark.columns
        rows = ({"problem": row[question], "answer": row[answer]} for row in rows)
    return [
        _problem(f"{benchmark.hub}, row {i + 1}", f"{name}-{i}", row, MATH)
        for i, row in enumerate(rows)
    ]


def _problem(where: str, own_id: object, row: Mapping[str, Any], grader: str) -> Problem:
    """A row; a DataError if the grader cannot use its answer, as every evaluation would count it as
    wrong.
    """
    read = next(
        (
            read
            for columns, read in FORMATS.items()
            if "problem" not in row and row.keys() >= {*columns}
        ),
        None,
    )
    if read:
        with reader_errors(
            f"{where} cannot be read ({{reason}}); correct the row, or give problem and answer"
        ):
            problem = read(str(own_id), row)
    else:
        text, answer = row.get("problem"), row.get("answer")
        if not isinstance(text, str) or not text.strip():
            raise DataError(
                f"{where}: problem is {_shown(text)}; give every row a problem and an answer"
            )
        with reader_errors(f"{where}: {{reason}}; give every row a problem and an answer"):
            reference = read_reference(row, "problem", "answer", grader)
        bare = strip_answer(reference.answer) if grader == MATH else reference.answer
        if answer is None or (grader == MATH and not bare):
            raise DataError(
                f"{where}: answer is {_shown(answer)}; give every row a problem and an answer"
            )
        problem = Problem(str(own_id), text, bare, reference.metadata, grader)
    if problem.grader != MATH:
        fault = find_verifier(problem.grader).find_fault(problem.answer, problem.metadata)
        if fault:
            raise DataError(f"{where} has {fault}: {_shown(problem.answer)}; correct the row")
    return problem


def _shown(value: object) -> str:
    return to_line(value).strip()[:LONGEST_SHOWN]


def gpqa(own_id: str, row: Mapping[str, Any]) -> Problem:
    """A question of GPQA. The order of the options is drawn by the question, so the same in every
    run.
    """
    question, correct, *wrong = (_text(row, name) for name in _GPQA)
    options = [text.strip() for text in (correct, *wrong)]
    random.Random(question).shuffle(options)
    return _choice(own_id, question, options, LETTERS[options.index(correct.strip())])


def mmlu_pro(own_id: str, row: Mapping[str, Any]) -> Problem:
    options = row["options"]
    if not isinstance(options, list) or not all(isinstance(option, str) for option in options):
        raise ValueError(
            f"options is {str(options)[:LONGEST_SHOWN]!r}, which is not a list of texts"
        )
    return _choice(own_id, _text(row, "question"), options, _text(row, "answer"))


_GPQA = ("Question", "Correct Answer", *(f"Incorrect Answer {number}" for number in (1, 2, 3)))
FORMATS = {
    _GPQA: gpqa,
    ("question", "options", "answer"): mmlu_pro,
}  # by the columns that tell them


def _text(row: Mapping[str, Any], name: str) -> str:
    value = row[name]
    if not isinstance(value, str) or not value.strip():
        raise ValueError(f"{name} is {str(value)[:LONGEST_SHOWN]!r}, which is not text")
    return value


def _choice(own_id: str, question: str, options: Sequence[str], letter: str) -> Problem:
    listing = "\n".join(
        f"({letter}) {option}" for letter, option in zip(LETTERS, options, strict=False)
    )
    asked, metadata = f"{question.strip()}\n\n{listing}\n\n{CHOOSE}", {OPTIONS: list(options)}
    return Problem(own_id, asked, letter, metadata, "multiple_choice", instructed=True)
