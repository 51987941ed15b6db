"""Files that survive a kill: JSONL whose complete lines count, and files replaced as a whole.

Rows are numbered from 1, as editors number lines.
"""

import json
import mmap
import os
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Any

from openrlhf_swap.errors import DataError

Row = dict[str, Any]


def to_line(row: Any, indent: int | None = None) -> str:
    """A value as a line of JSONL; with an indent, as a JSON file for people."""
    return json.dumps(row, ensure_ascii=False, default=str, indent=indent) + "\n"


def read_rows(path: Path) -> Iterator[Any]:
    """The rows of a JSONL file that we wrote, one at a time; none if there is no file.

    An unterminated line does not count, nor do zero bytes, which a power cut leaves in place of the
    last rows. Raises DataError, with the row's number, for any other line that cannot be read.
    """
    if not path.exists():
        return
    with open(path, "rb") as file:
        # Not splitlines(), which also splits at separators in a text.
        for number, line in enumerate(file, 1):
            text = line.strip(b"\0\r\n")
            if not line.endswith(b"\n") or not text:
                continue
            try:
                yield parse_value(text)
            except DataError as error:
                remedy = "remove that line, or restore the file"
                raise DataError(f"{path}, row {number}: {error}; {remedy}") from error


def parse_value(line: bytes) -> Any:
    """A line of JSONL as a value; DataError with what is wrong with it."""
    text = decoded(line)
    try:
        return json.loads(text)
    except (ValueError, RecursionError) as error:
        raise DataError(f"not JSON ({error})") from error


def parse_row(line: bytes) -> Row:
    """A line of somebody else's JSONL as a row; DataError with what is wrong with it."""
    if b"\0" in line:
        raise DataError("zero bytes, as a crash leaves them")
    return checked_row(parse_value(line))


def checked_row(value: Any) -> Row:
    """A value as a row; DataError unless it is a JSON object that can be written again."""
    if not isinstance(value, dict):
        raise DataError("not a JSON object")
    try:
        to_line(value).encode()
    except UnicodeEncodeError as error:
        place = f"\\u{ord(error.object[error.start]):x}"
        raise DataError(f"a lone surrogate ({place}), which is not a character") from error
    return value


def decoded(data: bytes) -> str:
    """Bytes as text; DataError with the first byte that is not UTF-8."""
    try:
        return data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        place = f"byte 0x{data[error.start]:02x} at position {error.start + 1}"
        raise DataError(f"not UTF-8 ({place}; convert it with iconv)") from error


def drop_unfinished_line(path: Path) -> None:
    """Cut off an unterminated last line, left by a process that was killed while writing."""
    if path.exists() and path.stat().st_size:
        with open(path, "rb+") as file:
            with mmap.mmap(file.fileno(), 0) as content:
                end = content.rfind(b"\n") + 1
            file.truncate(end)


@contextmanager
def appending(path: Path) -> Iterator[Callable[[Row], None]]:
    """Continue a JSONL file: yields a function that appends a row.

    Every reader sees the row when the function returns.
    """
    drop_unfinished_line(path)
    path.parent.mkdir(parents=True, exist_ok=True)
    with open(path, "a", encoding="utf-8") as file:

        def append(row: Row) -> None:
            file.write(to_line(row))
            file.flush()

        yield append


@contextmanager
def replacing(path: Path, mode: str = "w") -> Iterator[IO[Any]]:
    """A file that replaces `path` when complete.

    Readers find the old content or the new, even after a power cut.
    """
    temporary = path.with_name(path.name + ".writing")
    try:
        with open(temporary, mode, encoding=None if "b" in mode else "utf-8") as file:
            yield file
            file.flush()
            os.fsync(file.fileno())
        os.replace(temporary, path)
    finally:
        temporary.unlink(missing_ok=True)


def free_name(path: Path) -> Path:
    """The path, or with the first number after it under which there is nothing."""
    number = 1
    free = path
    while free.exists():
        number += 1
        free = path.with_name(f"{path.name}_{number}")
    return free


def write_text(path: Path, text: str) -> None:
    """Write a file that is either whole or not there."""
    with replacing(path) as file:
        file.write(text)


def write_rows(path: Path, rows: Iterable[Any]) -> None:
    """Write JSON lines, as `write_text` does."""
    with replacing(path) as file:
        file.writelines(map(to_line, rows))
