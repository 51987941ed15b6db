"""The rows of a data file, and what is wrong with those that cannot be read. Imports nothing heavy.

One rule for all commands. Where rows are many and independent (training, evaluation during it, scoring), an unreadable
row is counted, reported and left out; where the whole matters (benchmarks, `prepare`), it is an error. Either way the
message has the file, the row's number from 1, what is wrong, and the remedy.
"""

from __future__ import annotations

import csv
import io
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import islice
from pathlib import Path

from openrlhf_swap.errors import DataError
from openrlhf_swap.files import Row, checked_row, decoded, parse_row, parse_value

DATA_FILES = (".jsonl", ".json", ".csv", ".parquet")
LOOKED_AT = 20_000  # rows of a file that are read before anything slow is imported
SHOWN = 3  # unreadable rows that a message names
PARQUET = b"PAR1"  # the first and the last four bytes of a file


@dataclass(frozen=True)
class Entry:
    """A row of a data file: its number from 1, and either its fields or what is wrong with it."""

    number: int
    row: Row | None
    fault: str = ""


def entries(path: Path) -> Iterator[Entry]:
    """The rows of a JSONL, JSON or CSV file, one at a time; blank lines are none.

    Raises:
        DataError: for a file of which no row can be found: it is a folder, empty, or not of its format.
    """
    check_is_file(path)
    suffix = path.suffix.lower()
    if suffix == ".csv":
        yield from _csv_entries(path)
    elif suffix == ".json" and _first_byte(path) == b"[":
        values = parse_value(path.read_bytes())
        yield from (_entry(number, value) for number, value in enumerate(values, 1))
    else:
        with open(path, "rb") as file:
            for number, line in enumerate(file, 1):  # not splitlines(), which also splits at separators in a text
                if line.strip():
                    yield _parsed(number, line)


def has_rows(path: Path) -> bool:
    """Whether `entries` reads the rows of this file: a .json file may hold columns instead."""
    suffix = path.suffix.lower()
    return suffix in (".jsonl", ".csv") or (suffix == ".json" and path.is_file() and _first_byte(path) == b"[")


def check_is_file(path: Path) -> None:
    """Refuse what has no rows: DataError for a folder, a file that is empty or cannot be opened, or none."""
    if path.is_dir():
        raise DataError("is a folder; name a file in it")
    if not path.exists():
        raise DataError("does not exist; give another file")
    try:
        first = _first_byte(path)
    except OSError as error:
        raise DataError(f"cannot be opened ({error.strerror}); change its permissions") from error
    if not first:
        raise DataError("is empty; give one row a line")


def check_quickly(flag: str, name: str, keys: dict[str, str]) -> None:
    """Refuse a local data file that cannot be trained on, from its first rows.

    Args:
        flag: that names it.
        name: the file.
        keys: flag -> the column that it names.

    Raises:
        DataError: when it cannot be read, none of these rows can, or none has the columns.
    """
    path = Path(name)
    try:
        check_is_file(path)
        if path.suffix.lower() == ".parquet":
            _check_parquet(path)
        if not has_rows(path):
            return
        found = list(islice(entries(path), LOOKED_AT))
    except DataError as error:
        raise DataError(f"{flag} is {name}, which {_sentence(error)}") from error
    rows = [entry.row for entry in found if entry.row is not None]
    if not rows:
        raise DataError(f"{flag} is {name}, of which no row can be read: {described(found)}")
    columns = dict.fromkeys(column for row in rows for column in row)
    for key_flag, key in keys.items():
        if key not in columns:
            listing = ", ".join(columns)
            raise DataError(f"{key_flag} is {key}, but {name} has no such column; its columns are: {listing}")


def readable_rows(name: str, flag: str) -> tuple[list[Row], str | None]:
    """The rows of a file that can be read, and a line about the others; None where there are no others."""
    try:
        found = list(entries(Path(name)))
    except DataError as error:
        raise DataError(f"{flag} is {name}, which {_sentence(error)}") from error
    rows = [entry.row for entry in found if entry.row is not None]
    if len(rows) == len(found):
        return rows, None
    return rows, f"{name}: {len(found) - len(rows)} of {len(found)} rows cannot be read: {described(found)}"


def described(found: Sequence[Entry]) -> str:
    """The first unreadable rows: "row 3 is not JSON (...), row 7 is empty, and 12 more"."""
    wrong = [entry for entry in found if entry.row is None]
    shown = ", ".join(f"row {entry.number}: {entry.fault}" for entry in wrong[:SHOWN])
    return shown + (f", and {len(wrong) - SHOWN} more" if len(wrong) > SHOWN else "")


def _sentence(error: DataError) -> str:
    text = str(error)
    return text if text.startswith(("is ", "does ", "cannot ")) else f"cannot be read: {text}"


def _parsed(number: int, line: bytes) -> Entry:
    try:
        return Entry(number, parse_row(line))
    except DataError as error:
        return Entry(number, None, str(error))


def _entry(number: int, value: object) -> Entry:
    try:
        return Entry(number, checked_row(value))
    except DataError as error:
        return Entry(number, None, str(error))


def _csv_entries(path: Path) -> Iterator[Entry]:
    """The rows below the header, as text."""
    with open(path, encoding="utf-8-sig", errors="surrogateescape", newline="") as file:
        reader = csv.DictReader(file, strict=True)
        number = 0
        while True:
            number += 1
            try:
                row = next(reader)
            except StopIteration:
                return
            except csv.Error as error:
                yield Entry(number, None, f"not CSV ({error})")
                continue
            yield Entry(number, None, fault) if (fault := _csv_fault(row)) else Entry(number, row)


def _csv_fault(row: Row) -> str:
    if None in row or None in row.values():  # extra fields have None as their key, missing ones as value
        return "more or fewer fields than the header"
    text = "".join(row.values())
    if "\0" in text:
        return "zero bytes, as a crash leaves them"
    try:
        decoded(text.encode(errors="surrogateescape"))
    except DataError as error:
        return str(error)
    return ""


def _check_parquet(path: Path) -> None:
    with open(path, "rb") as file:
        start = file.read(len(PARQUET))
        file.seek(-len(PARQUET), io.SEEK_END) if path.stat().st_size > 2 * len(PARQUET) else None
        if not start == file.read(len(PARQUET)) == PARQUET:
            raise DataError("is not a complete parquet file; copy it again")


def _first_byte(path: Path) -> bytes:
    """The first byte that is not white space; none in an empty file."""
    with open(path, "rb") as file:
        while block := file.read(65536):
            if text := block.lstrip():
                return text[:1]
    return b""
