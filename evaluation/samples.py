"""The files of an evaluation: one line a sample, appended as it finishes.

`<benchmark>.samples.jsonl` holds what was generated, `<benchmark>.grades.jsonl` what became of it. Both are keyed by
(problem id, sample number), so that whatever is missing can be told and done later.
"""

from __future__ import annotations

import hashlib
import json
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from openrlhf_swap.errors import DataError
from openrlhf_swap.files import Row, drop_unfinished_line, read_rows, replacing
from openrlhf_swap.rollouts.families import R1

# What makes samples comparable; a folder holds samples of one setting only.
SETTINGS = ("model", "temperature", "top_p", "max_tokens", "seed", "suffix", "end_of_thought")
GRADES = ".grades.jsonl"


def settings_path(folder: Path) -> Path:
    """Where the settings are that the samples were made with."""
    return folder / "run.json"


def samples_path(folder: Path, benchmark: str) -> Path:
    """Where the samples of a benchmark are."""
    return folder / f"{benchmark}.samples.jsonl"


def problems_path(folder: Path, benchmark: str) -> Path:
    """Where its problems are, as they were asked."""
    return folder / f"{benchmark}.problems.jsonl"


def grades_path(folder: Path, benchmark: str) -> Path:
    """Where their grades are."""
    return folder / f"{benchmark}{GRADES}"


def read_settings(folder: Path) -> dict[str, Any]:
    """The settings that the samples were made with; before there was one for it, a thought was closed as R1 does."""
    settings = json.loads(settings_path(folder).read_text(encoding="utf-8"))
    return {"end_of_thought": R1.end_of_thought, **settings}


def read_problems(folder: Path, benchmark: str) -> dict[str, Row]:
    """The problems of a benchmark by id, as they were asked."""
    return {row["id"]: row for row in read_rows(problems_path(folder, benchmark))}


def graded_benchmarks(folder: Path) -> list[str]:
    """The benchmarks of an evaluation that have grades, by name."""
    return sorted(path.name.removesuffix(GRADES) for path in folder.glob(f"*{GRADES}"))


def graded_samples(folder: Path, benchmark: str) -> Iterator[tuple[Row, Row]]:
    """The samples of a benchmark that have a grade, each with it."""
    grades = {key_of(row): row for row in read_rows(grades_path(folder, benchmark))}
    for row in read_rows(samples_path(folder, benchmark)):
        if grade := grades.get(key_of(row)):
            yield row, grade


def no_samples(where: str) -> DataError:
    """The error for a place without graded samples."""
    return DataError(f"{where}; make them with python -m evaluation.run")


def key_of(row: Row) -> tuple[str, int]:
    """(problem id, sample number)."""
    return row["id"], row["sample"]


def part_path(path: Path, number: int) -> Path:
    """Where one of several engines writes."""
    return path.with_suffix(f".part{number}")


def merge_parts(path: Path) -> None:
    """Append the complete lines of all parts to those of the file, and remove the parts."""
    drop_unfinished_line(path)
    for part in sorted(path.parent.glob(f"{path.stem}.part*")):
        drop_unfinished_line(part)
        with open(path, "ab") as file, open(part, "rb") as source:
            shutil.copyfileobj(source, file)
        part.unlink()


def seed_of(benchmark: str, problem: str, sample: int, seed: int) -> int:
    """The sampling seed of one sample; the same in every run, whatever is sampled beside it."""
    digest = hashlib.sha256(f"{seed}:{benchmark}:{problem}:{sample}".encode()).digest()
    return int.from_bytes(digest[:4], "big") >> 1


def sort_file(path: Path, order: dict[str, int]) -> None:
    """Rewrite a file in the order of the problems, atomically: a resumed one ends up as an uninterrupted one."""
    places = []
    with open(path, "rb") as file, replacing(path, "wb") as target:
        while line := file.readline():
            row = json.loads(line)
            places.append((order[row["id"]], row["sample"], file.tell() - len(line)))
        for *_, start in sorted(places):
            file.seek(start)
            target.write(file.readline())
