"""The files of an evaluation: one line per sample, appended as it finishes.

`<benchmark>.samples.jsonl` holds the generated responses, `<benchmark>.grades.jsonl` their grades.
Both are keyed by (problem id, sample number), so that whatever is missing can be found and added
later.
"""

import argparse
import hashlib
import json
from collections.abc import Iterator, Sequence
from pathlib import Path

from openrlhf_swap.errors import DataError
from openrlhf_swap.files import Row, parse_row, read_rows, replacing, to_line, write_text
from openrlhf_swap.flags.configuration import TEMPLATE_ARGUMENTS
from openrlhf_swap.rewards.verifiers import Reference
from openrlhf_swap.runs.provenance import fingerprint, refuse_other_settings

# Samples are comparable only if these agree; a folder holds samples of one setting.
SAMPLING = ("temperature", "top_p", "max_tokens", "max_model_len", "seed", "suffix")
RENDERING = ("chat_template_kwargs", "system_prompt")
SETTINGS = ("model", *SAMPLING, "end_of_thought", *RENDERING)
OF_TRAINING = (
    "end_of_thought",
    "grader",
    "trust_remote_code",
)  # flags that are called as in training
GRADES = ".grades.jsonl"


def rows_path(kind: str, folder: Path, benchmark: str) -> Path:
    """A benchmark's `problems` as they were asked, its `samples`, their `grades`, or what was
    `forced`.
    """
    return folder / f"{benchmark}.{kind}.jsonl"


def settings_path(folder: Path) -> Path:
    return folder / "run.json"


def flag_of(name: str) -> str:
    """The flag of a setting."""
    if name == TEMPLATE_ARGUMENTS.rpartition(".")[2]:
        return TEMPLATE_ARGUMENTS
    return f"--swap.{name}" if name in OF_TRAINING else f"--{name.replace('_', '-')}"


def read_settings(folder: Path) -> Row:
    """The settings that a folder's samples were made with; {} without samples, as a start that
    failed leaves it.
    """
    has_samples = any(True for path in folder.glob("*.samples.jsonl") for _ in read_rows(path))
    if not has_samples or not settings_path(folder).exists():
        return {}
    settings: Row = json.loads(settings_path(folder).read_text(encoding="utf-8"))
    return settings


def compare_settings(args: argparse.Namespace, origin: Row) -> Row:
    """The contents of `run.json`, or {} if there are no samples yet.

    Raises ConfigError for a setting or a model file that differs from what the existing samples
    were made with.
    """
    if before := read_settings(args.output):
        now, recorded = _by_flag(vars(args), origin), _by_flag(before, before)
        refuse_other_settings(
            now, recorded, f"the samples in {args.output} were made", "use another --output"
        )
    return before


def _by_flag(settings: Row, origin: Row) -> Row:
    """The settings by flag; the model is known by all of its files, as its template and tokenizer
    matter, too.
    """
    (model,) = origin["inputs"]["weights"]
    digest = (
        hashlib.sha256(to_line(model["files"]).encode()).hexdigest() if model["files"] else None
    )
    return {flag_of(name): settings[name] for name in SETTINGS} | {
        "--model": {"name": model["name"], "sha256": digest}
    }


def write_settings(
    args: argparse.Namespace, origin: Row, before: Row, benchmarks: Sequence[str]
) -> None:
    """Write `run.json`: settings, provenance of this start, commands of earlier ones."""
    earlier = (
        [*before.get("earlier_commands", ()), before["command"]] if "command" in before else []
    )
    origin["inputs"]["data"] = [
        fingerprint(str(rows_path("problems", args.output, name))) for name in benchmarks
    ]
    settings = {name: getattr(args, name) for name in SETTINGS}
    if Path(args.model).exists():
        settings["model"] = str(Path(args.model).absolute())
    content = {
        **settings,
        **origin,
        "earlier_commands": [line for line in earlier if line != origin["command"]],
    }
    write_text(settings_path(args.output), to_line(content, indent=2))


def read_problems(folder: Path, benchmark: str) -> dict[str, Row]:
    """The problems of a benchmark, as they were asked, by id."""
    return {row["id"]: row for row in read_rows(rows_path("problems", folder, benchmark))}


def asked(problem: Row, suffix: str) -> str:
    """A problem as it was asked: with the suffix, unless it has an instruction of its own."""
    return str(problem["problem"]) + ("" if problem.get("instructed") else suffix)


def sampling(settings: Row, benchmark: str, problem: str, sample: int) -> Row:
    """How vLLM samples a response: as the evaluation's settings say, with a seed of its own."""
    seed = seed_of(benchmark, problem, sample, settings["seed"])
    return {
        **{name: settings[name] for name in ("temperature", "top_p", "max_tokens")},
        "seed": seed,
    }


def seed_of(benchmark: str, problem: str, sample: int, seed: int) -> int:
    """The sampling seed of one sample; the same in every run, whatever else is sampled."""
    digest = hashlib.sha256(f"{seed}:{benchmark}:{problem}:{sample}".encode()).digest()
    return int.from_bytes(digest[:4], "big") >> 1


def reference_of(problem: Row) -> Reference:
    """What responses to a problem are graded against."""
    return Reference(problem["answer"], problem["problem"], problem.get("metadata", {}))


def graded_benchmarks(folder: Path) -> list[str]:
    """The names of an evaluation's graded benchmarks, sorted; raises DataError if there are none."""
    names = sorted(path.name.removesuffix(GRADES) for path in folder.glob(f"*{GRADES}"))
    if not any(True for name in names for _ in read_rows(rows_path("grades", folder, name))):
        raise DataError(f"{folder} holds no graded samples; make them with openrlhf-swap eval run")
    return names


def graded_samples(folder: Path, benchmark: str) -> Iterator[tuple[Row, Row]]:
    """The graded samples of a benchmark, each with its grade."""
    grades = {key_of(row): row for row in read_rows(rows_path("grades", folder, benchmark))}
    for row in read_rows(rows_path("samples", folder, benchmark)):
        if grade := grades.get(key_of(row)):
            yield row, grade


def sampled_ids(folder: Path, benchmark: str) -> set[str]:
    """The ids of a benchmark's problems that have samples."""
    return {row["id"] for row in read_rows(rows_path("samples", folder, benchmark))}


def key_of(row: Row) -> tuple[str, int]:
    """(problem id, sample number)."""
    return row["id"], row["sample"]


def sort_file(path: Path, order: dict[str, int]) -> None:
    """Rewrite a file in problem order, atomically, so that a resumed evaluation ends like an
    uninterrupted one.

    Of a sample that stands there twice, the first line is kept.
    """
    starts: dict[tuple[int, int], int] = {}
    with open(path, "rb") as file, replacing(path, "wb") as target:
        while line := file.readline():
            row = parse_row(line)
            starts.setdefault((order[row["id"]], row["sample"]), file.tell() - len(line))
        for _, start in sorted(starts.items()):
            file.seek(start)
            target.write(file.readline())
