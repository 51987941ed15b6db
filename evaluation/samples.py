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

Key = tuple[str, int]

# What makes samples comparable; a folder holds samples of one setting only.
SETTINGS = ("model", "temperature", "top_p", "max_tokens", "seed", "suffix")


def samples_path(folder: Path, benchmark: str) -> Path:
    """Where the samples of a benchmark are."""
    return folder / f"{benchmark}.samples.jsonl"


def problems_path(folder: Path, benchmark: str) -> Path:
    """Where its problems are, as they were asked."""
    return folder / f"{benchmark}.problems.jsonl"


def grades_path(folder: Path, benchmark: str) -> Path:
    """Where their grades are."""
    return folder / f"{benchmark}.grades.jsonl"


def key_of(row: dict[str, Any]) -> Key:
    """(problem id, sample number)."""
    return row["id"], row["sample"]


def read_rows(path: Path) -> Iterator[dict[str, Any]]:
    """The complete lines of a file, one at a time; nothing if there is no file."""
    if path.exists():
        with open(path, encoding="utf-8") as file:
            for line in file:
                if line.endswith("\n"):
                    yield json.loads(line)


def read_new_rows(path: Path, offset: int) -> tuple[list[dict[str, Any]], int]:
    """The complete lines after a byte offset, and the offset behind them."""
    if not path.exists():
        return [], offset
    with open(path, "rb") as file:
        file.seek(offset)
        data = file.read()
    complete = data[: data.rfind(b"\n") + 1]
    return [json.loads(line) for line in complete.splitlines()], offset + len(complete)


def drop_unfinished_line(path: Path) -> None:
    """Cut off a last line without an end, left by a process that was killed while it wrote."""
    if not path.exists():
        return
    with open(path, "rb+") as file:
        data_end = file.seek(0, 2)
        position = data_end
        while position > 0:
            start = max(0, position - 65536)
            file.seek(start)
            found = file.read(position - start).rfind(b"\n")
            if found >= 0:
                file.truncate(start + found + 1)
                return
            position = start
        file.truncate(0)


def part_path(path: Path, number: int) -> Path:
    """Where one of several engines writes."""
    return path.with_suffix(f".part{number}")


def merge_parts(path: Path) -> None:
    """Append the complete lines of all parts to the file, and remove the parts."""
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
    offsets = []
    with open(path, "rb") as file:
        offset = 0
        for line in file:
            row = json.loads(line)
            offsets.append((order[row["id"]], row["sample"], offset, len(line)))
            offset += len(line)
        temporary = path.with_suffix(".sorting")
        with open(temporary, "wb") as target:
            for *_, start, size in sorted(offsets):
                file.seek(start)
                target.write(file.read(size))
    temporary.replace(path)
