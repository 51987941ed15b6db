"""The benchmarks: where they come from, how many problems they have, and a checksum of their texts."""

from __future__ import annotations

import hashlib
import pickle
import zlib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from openrlhf_swap.data.formats import Asked, Format, format_of
from openrlhf_swap.data.references import read_task
from openrlhf_swap.data.rows import described, read_entries
from openrlhf_swap.errors import ConfigError, DataError, reader_errors
from openrlhf_swap.files import to_line
from openrlhf_swap.rewards.answers import strip_answer
from openrlhf_swap.rewards.golds import normal_answer
from openrlhf_swap.rewards.verifiers import MATH, Reference, find_verifier


@dataclass(frozen=True)
class Problem:
    r"""One problem with its reference answer; a mathematical one without wrappers such as `$` and `\boxed{}`.

    Attributes:
        id: its own in its benchmark.
        problem: as it is asked.
        answer: the reference answer, or what else the grader judges by.
        metadata: what it looks at besides.
        grader: the verifier's name.
        instructed: whether the problem ends with an instruction, so that no suffix belongs behind it.
    """

    id: str
    problem: str
    answer: str
    metadata: Mapping[str, Any] = field(default_factory=dict)
    grader: str = MATH
    instructed: bool = False

    @property
    def reference(self) -> Reference:
        """What responses are graded against."""
        return Reference(self.answer, self.problem, self.metadata)


@dataclass(frozen=True)
class Benchmark:
    """A benchmark.

    Attributes:
        title: its name in tables.
        file: file name of a local copy.
        hub: data set id on the hub.
        revision: of that data set.
        sizes: the numbers of problems that a complete copy may have.
        checksum: of the local copy's problem texts, see `checksum`; empty if it is not known.
        subset: the data set's configuration.
        split: its split.
        columns: its problem and answer columns.
        format: of its rows (`data.formats`), instead of these two columns.
        is_gated: the hub asks for an account that has accepted its conditions.
    """

    title: str
    file: str
    hub: str
    revision: str
    sizes: tuple[int, ...]
    checksum: str
    subset: str | None = None
    split: str = "test"
    columns: tuple[str, str] = ("problem", "answer")
    format: str | None = None
    is_gated: bool = False


PAPER_BENCHMARKS = ("math500", "amc23", "aime24", "aime25", "olympiadbench")
BENCHMARKS = {
    "math500": Benchmark(
        "MATH-500",
        "math500.jsonl",
        "HuggingFaceH4/MATH-500",
        "6e4ed1a2a79af7d8630a6b768ec859cb5af4d3be",
        (500,),
        "3ebe3c5713ce085c2bdba7c92b47a094d1fcac2d7c16f8bcb68ffa55a6de4b1d",
    ),
    "amc23": Benchmark(
        "AMC23",
        "amc23.jsonl",
        "math-ai/amc23",
        "80815d37005feb82cd7f8fbc6901d5d3eff43057",
        (40,),
        "404fbfa0fb826eabf37ab5a201e32bd55cff9af42cfffaa7f04f35a8cbfe44ec",
        columns=("question", "answer"),
    ),
    "aime24": Benchmark(
        "AIME24",
        "aime24.jsonl",
        "HuggingFaceH4/aime_2024",
        "e6cf0cd64082ada1c025717826bd40e155b1ec81",
        (30,),
        "e9cc93394bd29b916d7cc152a0fde434bd83e038035ad06a178f5ff781183e31",
        split="train",
    ),
    "aime25": Benchmark(
        "AIME25",
        "aime25.jsonl",
        "math-ai/aime25",
        "563bb8404243c5f09de6ec262f2db674fe5bce9b",
        (30,),
        "38f3f638e5b54eb872e682566121ee37cf9c4d42f3c108a4462237f505c21614",
    ),
    "olympiadbench": Benchmark(
        "OlympiadBench",
        "olympiadbench.jsonl",
        "Hothan/OlympiadBench",
        "91184b52131e7fc9455fef848035173aea8cc01a",
        (674, 675),
        "ca9799eeaa7559d7765fdde39de493a48b15641ccb5d3869dad74537c807453e",
        subset="OE_TO_maths_en_COMP",
        split="train",
        columns=("question", "final_answer"),
    ),
    "gsm8k": Benchmark(
        "GSM8K",
        "gsm8k_test.jsonl",
        "openai/gsm8k",
        "740312add88f781978c0658806c59bc2815b9866",
        (1319,),
        "b98b574441d43a3d50b88ff9a9846f2061d6e33d701e4d54778f889ceb3e2b92",
        subset="main",
        columns=("question", "answer"),
    ),
    "gpqa_diamond": Benchmark(
        "GPQA Diamond",
        "gpqa_diamond.jsonl",
        "Idavidrein/gpqa",
        "633f5ee89ab8ad4522a9f850766b73f62147ffdd",
        (198,),
        "",
        subset="gpqa_diamond",
        split="train",
        format="gpqa",
        is_gated=True,
    ),
    "mmlu_pro": Benchmark(
        "MMLU-Pro",
        "mmlu_pro.jsonl",
        "TIGER-Lab/MMLU-Pro",
        "b189ec765aa7ed75c8acfea42df31fdae71f97be",
        (12032,),
        "",
        format="mmlu_pro",
    ),
}


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
        problems = _read_file(folder / benchmark.file)
        found = checksum(problem.problem for problem in problems)
        if benchmark.checksum and found != benchmark.checksum:
            raise DataError(
                f"{folder / benchmark.file} does not hold the problems of {benchmark.title} (checksum {found[:12]}, "
                f"expected {benchmark.checksum[:12]}); to use it anyway, give --benchmarks its path"
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
    found = read_entries(path)
    if any(entry.row is None for entry in found):
        raise DataError(f"{path} cannot be read: {described(found)}; give JSONL with problem and answer")
    rows = [(entry.number, entry.row or {}) for entry in found]
    problems = [
        _problem(f"{path}, row {number}", row.get("id", place), row, grader)
        for place, (number, row) in enumerate(rows)
    ]
    first: dict[str, int] = {}
    for problem, (number, _) in zip(problems, rows, strict=True):
        first.setdefault(problem.grader, number)
    if len(first) > 1:
        listed = " and ".join(f"{name} (row {number})" for name, number in first.items())
        raise DataError(f"{path} has problems for the graders {listed}; put them into one file each")
    return _checked(problems, str(path))


def _problem(where: str, own_id: object, row: Mapping[str, Any], grader: str) -> Problem:
    """A row of one of the formats, or of problem and answer.

    Raises:
        DataError: without a text or an answer, as every evaluation would count it as wrong.
    """
    found = format_of(row)
    if found is not None:
        asked = _asked(where, found, row)
        _check_answer(where, asked.answer, asked.metadata, found.grader)
        return Problem(str(own_id), *asked, grader=found.grader, instructed=True)
    problem, answer = row.get("problem"), row.get("answer")
    if not isinstance(problem, str) or not problem.strip():
        raise DataError(f"{where}: problem is {_shown(problem)}; give every row a problem and an answer")
    if grader != MATH and answer is not None:
        with reader_errors(f"{where}: {{reason}}; give every row a problem and an answer"):
            task = read_task(row, "problem", "answer", grader)
        _check_answer(where, task.answer, task.metadata, grader)
        return Problem(str(own_id), problem, task.answer, task.metadata, grader)
    if not (bare := _answer(answer)):
        raise DataError(f"{where}: answer is {_shown(answer)}; give every row a problem and an answer")
    return Problem(str(own_id), problem, bare)


def _check_answer(where: str, answer: str, metadata: Mapping[str, Any], grader: str) -> None:
    """Raise DataError for a reference answer that the grader could judge nothing by."""
    if fault := find_verifier(grader).find_fault(answer, metadata):
        raise DataError(f"{where} has {fault}: {_shown(answer)}; correct the row")


def _asked(where: str, its_format: Format, row: Mapping[str, Any]) -> Asked:
    try:
        return its_format.read(row)
    except (ValueError, LookupError, AttributeError, TypeError, EOFError, zlib.error, pickle.UnpicklingError) as error:
        raise DataError(
            f"{where} cannot be read ({type(error).__name__}: {error}); correct the row, or give problem and answer"
        ) from error


def _shown(value: object) -> str:
    """A value as JSON has it, shortened."""
    return to_line(value).strip()[:40]


def _read_hub(name: str, benchmark: Benchmark) -> list[Problem]:
    from datasets import load_dataset

    remedy = "give a folder with a local copy: --data"
    if benchmark.is_gated:
        page = f"https://huggingface.co/datasets/{benchmark.hub}"
        remedy = f"accept its conditions on {page} and log in (hf auth login, or HF_TOKEN), or {remedy}"
    with reader_errors(f"{benchmark.hub} cannot be loaded ({{reason}}); {remedy}"):
        rows = load_dataset(benchmark.hub, benchmark.subset, split=benchmark.split, revision=benchmark.revision)
    question, answer = benchmark.columns
    renamed = rows if benchmark.format else ({"problem": row[question], "answer": row[answer]} for row in rows)
    return _checked(
        [_problem(f"{benchmark.hub}, row {i + 1}", f"{name}-{i}", row, MATH) for i, row in enumerate(renamed)],
        benchmark.hub,
    )


def _answer(value: object) -> str:
    """The bare answer; OlympiadBench's on the hub are lists of one text, which may hold several answers."""
    return strip_answer(normal_answer(value[0] if isinstance(value, list) and len(value) == 1 else value))


def _checked(problems: Sequence[Problem], where: str) -> list[Problem]:
    if not problems:
        raise DataError(f"{where} has no problems")
    ids = [problem.id for problem in problems]
    if len(set(ids)) != len(ids):
        raise DataError(f"{where} has {len(ids) - len(set(ids))} duplicate ids; every problem needs its own")
    return list(problems)
