"""The files of an evaluation: one line per sample, appended as it finishes.

`<benchmark>.samples.jsonl` holds the generated responses, `<benchmark>.grades.jsonl` their grades. Both are keyed by
(problem id, sample number), so that whatever is missing can be found and added later.
"""

from __future__ import annotations

import argparse
import hashlib
import json
from collections.abc import Iterator, Sequence
from itertools import chain
from pathlib import Path
from typing import Any

from openrlhf_swap.errors import ConfigError, DataError
from openrlhf_swap.files import (
    Row,
    appending,
    drop_unfinished_line,
    parse_row,
    read_rows,
    replacing,
    to_line,
    write_text,
)
from openrlhf_swap.rewards.verifiers import Reference
from openrlhf_swap.rollouts.families import R1
from openrlhf_swap.runs.model_code import FLAG
from openrlhf_swap.runs.provenance import fingerprint

# Samples are comparable only if these agree; a folder holds samples of one setting.
SETTINGS = ("model", "temperature", "top_p", "max_tokens", "max_model_len", "seed", "suffix", "end_of_thought")
OWN_NAMES = {"trust_remote_code": FLAG.removeprefix("--")}  # flags that are not called as what they set
PATHS = ("model", "benchmarks", "data", "output")  # flags that may name files
ONCE = ("config", "verbose", "grade_again")  # flags of a single start
GRADES = ".grades.jsonl"


def settings_path(folder: Path) -> Path:
    """The file of the settings that the samples were made with."""
    return folder / "run.json"


def write_flags(folder: Path, flags: Row) -> None:
    """Write an evaluation's flags, by name with underscores, as a file for `--config` that starts it again.

    Files and folders are written with their whole paths; a flag that was not given, and a switch that is off, not at
    all.
    """
    import yaml

    given = {name: value for name, value in flags.items() if value is not None and value is not False}
    given |= {name: _with_whole_paths(name, given[name]) for name in PATHS if name in given}
    content = {"flags": {OWN_NAMES.get(name, name.replace("_", "-")): value for name, value in given.items()}}
    path = folder / "run.yaml"
    about = f"# All settings of an evaluation: openrlhf-swap eval run --config {path}\n"
    write_text(path, about + yaml.safe_dump(content, sort_keys=False, allow_unicode=True, width=1000))


def _with_whole_paths(name: str, value: Any) -> Any:
    if isinstance(value, list):
        return [_with_whole_paths(name, one) for one in value]
    if name == "benchmarks" and not value.endswith(".jsonl"):
        return value  # a name, even if there is a folder called so
    return str(Path(value).absolute()) if isinstance(value, Path) or Path(value).exists() else value


def samples_path(folder: Path, benchmark: str) -> Path:
    """The file of a benchmark's samples."""
    return folder / f"{benchmark}.samples.jsonl"


def problems_path(folder: Path, benchmark: str) -> Path:
    """The file of its problems, as they were asked."""
    return folder / f"{benchmark}.problems.jsonl"


def grades_path(folder: Path, benchmark: str) -> Path:
    """The file of its grades."""
    return folder / f"{benchmark}{GRADES}"


def forced_path(folder: Path, benchmark: str) -> Path:
    """The file of its accuracies at budgets of thought (`evaluation.forced`)."""
    return folder / f"{benchmark}.forced.jsonl"


def read_settings(folder: Path) -> dict[str, Any]:
    """The settings that the samples were made with.

    Older folders lack `end_of_thought`, which was R1's, and `max_model_len`, which is taken as not given.
    """
    settings = json.loads(settings_path(folder).read_text(encoding="utf-8"))
    return {"end_of_thought": R1.end_of_thought, "max_model_len": None, **settings}


def settings_of_samples(folder: Path) -> dict[str, Any]:
    """The same; {} for a folder without samples, as a start that failed leaves it."""
    return read_settings(folder) if settings_path(folder).exists() and has_samples(folder) else {}


def compare_settings(args: argparse.Namespace, origin: Row) -> Row:
    """The contents of `run.json`, or {} if there are no samples yet.

    Raises:
        ConfigError: for a setting or a model file that differs from what the existing samples were made with.
    """
    if not (before := settings_of_samples(args.output)):
        return {}
    for name in SETTINGS:
        value = getattr(args, name)
        if before[name] != value and not (name == "model" and _same_folder(value, before[name])):
            made = "without it" if before[name] is None else f"with {before[name]!r}"
            raise ConfigError(
                f"--{name.replace('_', '-')} is {shown_setting(value)}, but the samples in {args.output} were made "
                f"{made}; use another --output"
            )
    now, then = _weights(origin), _weights(before)
    if changed := [file for file in now.keys() & then.keys() if now[file] != then[file]]:
        raise ConfigError(
            f"--model is {args.model}, whose {changed[0]} has changed since the samples in {args.output} were made; "
            "use another --output"
        )
    return before


def shown_setting(value: Any) -> str:
    """A setting's value in a message."""
    return "not given" if value is None else repr(value)


def _same_folder(one: str, other: str) -> bool:
    return Path(one).is_dir() and Path(other).is_dir() and Path(one).samefile(other)


def _weights(origin: Row) -> Row:
    return {
        file: found for model in origin.get("inputs", {}).get("weights", ()) for file, found in model["files"].items()
    }


def write_settings(args: argparse.Namespace, origin: Row, before: Row, benchmarks: Sequence[str]) -> None:
    """Write `run.json` (settings, provenance of this start, commands of earlier ones) and `run.yaml`, its flags."""
    earlier = [*before.get("earlier_commands", ()), before["command"]] if "command" in before else []
    origin["inputs"]["data"] = [fingerprint(str(problems_path(args.output, name))) for name in benchmarks]
    settings = {name: getattr(args, name) for name in SETTINGS}
    settings["model"] = _with_whole_paths("model", args.model)  # found from another working directory, too
    content = {**settings, **origin, "earlier_commands": [line for line in earlier if line != origin["command"]]}
    write_text(settings_path(args.output), to_line(content, indent=2))
    write_flags(args.output, {name: value for name, value in vars(args).items() if name not in ONCE})


def read_problems(folder: Path, benchmark: str) -> dict[str, Row]:
    """The problems of a benchmark, as they were asked, by id."""
    return {row["id"]: row for row in read_rows(problems_path(folder, benchmark))}


def asked(problem: Row, suffix: str) -> str:
    """A problem as it was asked: with the suffix, unless it has an instruction of its own."""
    return str(problem["problem"]) + ("" if problem.get("instructed") else suffix)


def reference_of(problem: Row) -> Reference:
    """What responses to a problem are graded against."""
    return Reference(problem["answer"], problem["problem"], problem.get("metadata", {}))


def graded_benchmarks(folder: Path) -> list[str]:
    """The names of an evaluation's graded benchmarks, sorted."""
    return sorted(path.name.removesuffix(GRADES) for path in folder.glob(f"*{GRADES}"))


def graded_samples(folder: Path, benchmark: str) -> Iterator[tuple[Row, Row]]:
    """The graded samples of a benchmark, each with its grade."""
    grades = {key_of(row): row for row in read_rows(grades_path(folder, benchmark))}
    for row in read_rows(samples_path(folder, benchmark)):
        if grade := grades.get(key_of(row)):
            yield row, grade


def has_samples(folder: Path) -> bool:
    """Whether a folder holds a sample of any benchmark, be it in a part."""
    files = chain(folder.glob("*.samples.jsonl"), folder.glob("*.samples.part*"))
    return any(True for path in files for _ in read_rows(path))


def sampled_ids(folder: Path, benchmark: str) -> set[str]:
    """The ids of a benchmark's problems that have samples, be it in a part."""
    path = samples_path(folder, benchmark)
    return {row["id"] for file in (path, *parts_of(path)) for row in read_rows(file)}


def no_samples(where: str) -> DataError:
    """The error for a place without graded samples."""
    return DataError(f"{where}; make them with openrlhf-swap eval run")


def key_of(row: Row) -> tuple[str, int]:
    """(problem id, sample number)."""
    return row["id"], row["sample"]


def part_path(path: Path, number: int) -> Path:
    """The file that one of several engines writes."""
    return path.with_suffix(f".part{number}")


def parts_of(path: Path) -> list[Path]:
    """The parts of a file that are there."""
    return sorted(path.parent.glob(f"{path.stem}.part*"))


def merge_parts(path: Path) -> None:
    """Append the complete lines of all parts to the file, and remove the parts.

    A sample that the file has already, as a merge leaves it that was stopped before it removed the part, is not
    appended again.
    """
    drop_unfinished_line(path)
    parts = parts_of(path)
    if not parts:
        return
    there = {key_of(row) for row in read_rows(path)}
    with appending(path) as append:
        for part in parts:
            for row in read_rows(part):
                if key_of(row) not in there:
                    there.add(key_of(row))
                    append(row)
            part.unlink()


def seed_of(benchmark: str, problem: str, sample: int, seed: int) -> int:
    """The sampling seed of one sample; the same in every run, whatever else is sampled."""
    digest = hashlib.sha256(f"{seed}:{benchmark}:{problem}:{sample}".encode()).digest()
    return int.from_bytes(digest[:4], "big") >> 1


def sort_file(path: Path, order: dict[str, int]) -> None:
    """Rewrite a file in problem order, atomically, so that a resumed evaluation ends like an uninterrupted one.

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
