"""Files that survive a kill: JSONL in which only complete lines count, and files that are replaced as a whole."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Any

Row = dict[str, Any]
BLOCK = 65536  # bytes read at a time in search of the last newline


def to_line(row: Any, indent: int | None = None) -> str:
    """A value as a line of JSONL; with an indent, as a JSON file for people."""
    return json.dumps(row, ensure_ascii=False, default=str, indent=indent) + "\n"


def read_rows(path: Path) -> Iterator[Any]:
    """The rows of a JSONL file, one at a time; none if there is no file. An unterminated line does not count."""
    if path.exists():
        with open(path, encoding="utf-8") as file:
            for line in file:  # not splitlines(), which also splits at separators that a text may contain
                if line.endswith("\n"):
                    yield json.loads(line)


def read_new_rows(path: Path, offset: int) -> tuple[list[Row], int]:
    """The rows after a byte offset, and the offset after the last of them."""
    if not path.exists():
        return [], offset
    with open(path, "rb") as file:
        file.seek(offset)
        data = file.read()
    complete = data[: data.rfind(b"\n") + 1]
    return [json.loads(line) for line in complete.split(b"\n")[:-1]], offset + len(complete)


def drop_unfinished_line(path: Path) -> None:
    """Cut off an unterminated last line, left by a process that was killed while writing."""
    if not path.exists():
        return
    with open(path, "rb+") as file:
        position = file.seek(0, os.SEEK_END)
        while position > 0:
            start = max(0, position - BLOCK)
            file.seek(start)
            newline = file.read(position - start).rfind(b"\n")
            if newline >= 0:
                file.truncate(start + newline + 1)
                return
            position = start
        file.truncate(0)


@contextmanager
def appending(path: Path) -> Iterator[Callable[[Row], None]]:
    """Continue a JSONL file: yields a function that appends a row, visible to every reader when it returns."""
    drop_unfinished_line(path)
    path.parent.mkdir(parents=True, exist_ok=True)
    with open(path, "a", encoding="utf-8") as file:

        def append(row: Row) -> None:
            file.write(to_line(row))
            file.flush()

        yield append


@contextmanager
def replacing(path: Path, mode: str = "w") -> Iterator[IO[Any]]:
    """A file that replaces `path` when complete: readers find the old content or the new, even after a power cut."""
    temporary = path.with_name(path.name + ".writing")
    try:
        with open(temporary, mode, encoding=None if "b" in mode else "utf-8") as file:
            yield file
            file.flush()
            os.fsync(file.fileno())
        os.replace(temporary, path)
    finally:
        temporary.unlink(missing_ok=True)


def write_text(path: Path, text: str) -> None:
    """Write a text file completely or not at all."""
    with replacing(path) as file:
        file.write(text)


def write_rows(path: Path, rows: Iterable[Any]) -> None:
    """Write a JSONL file completely or not at all."""
    with replacing(path) as file:
        file.writelines(map(to_line, rows))
