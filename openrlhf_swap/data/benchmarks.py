"""The benchmarks: where they come from, how many problems they have, and a checksum of their texts."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

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
    sizes: tuple[int, ...]
    checksum: str
    subset: str | None = None
    split: str = "test"
    columns: tuple[str, str] | None = ("problem", "answer")
    file: str = ""


PAPER_BENCHMARKS = ("math500", "amc23", "aime24", "aime25", "olympiadbench")
BENCHMARKS = {
    "math500": Benchmark(
        "MATH-500",
        "HuggingFaceH4/MATH-500",
        "6e4ed1a2a79af7d8630a6b768ec859cb5af4d3be",
        (500,),
        "3ebe3c5713ce085c2bdba7c92b47a094d1fcac2d7c16f8bcb68ffa55a6de4b1d",
    ),
    "amc23": Benchmark(
        "AMC23",
        "math-ai/amc23",
        "80815d37005feb82cd7f8fbc6901d5d3eff43057",
        (40,),
        "404fbfa0fb826eabf37ab5a201e32bd55cff9af42cfffaa7f04f35a8cbfe44ec",
        columns=("question", "answer"),
    ),
    "aime24": Benchmark(
        "AIME24",
        "HuggingFaceH4/aime_2024",
        "e6cf0cd64082ada1c025717826bd40e155b1ec81",
        (30,),
        "e9cc93394bd29b916d7cc152a0fde434bd83e038035ad06a178f5ff781183e31",
        split="train",
    ),
    "aime25": Benchmark(
        "AIME25",
        "math-ai/aime25",
        "563bb8404243c5f09de6ec262f2db674fe5bce9b",
        (30,),
        "38f3f638e5b54eb872e682566121ee37cf9c4d42f3c108a4462237f505c21614",
    ),
    "olympiadbench": Benchmark(
        "OlympiadBench",
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
        "openai/gsm8k",
        "740312add88f781978c0658806c59bc2815b9866",
        (1319,),
        "b98b574441d43a3d50b88ff9a9846f2061d6e33d701e4d54778f889ceb3e2b92",
        subset="main",
        columns=("question", "answer"),
        file="gsm8k_test.jsonl",
    ),
    "gpqa_diamond": Benchmark(
        "GPQA Diamond",
        "Idavidrein/gpqa",
        "633f5ee89ab8ad4522a9f850766b73f62147ffdd",
        (198,),
        "",
        subset="gpqa_diamond",
        split="train",
        columns=None,
    ),
    "mmlu_pro": Benchmark(
        "MMLU-Pro",
        "TIGER-Lab/MMLU-Pro",
        "b189ec765aa7ed75c8acfea42df31fdae71f97be",
        (12032,),
        "",
        columns=None,
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
