"""The rows of data files as users have them: JSONL, JSON and CSV, row by row.

The loaders of `datasets` read all of a JSON or CSV file or nothing. Here an unreadable row is an
`Entry` with its fault, and the other rows are read. Where rows are many and independent (training,
evaluation during it, scoring), the caller reports unreadable rows and leaves them out. Where the
whole matters (benchmarks, `prepare`), the caller asks for all rows, and one unreadable row is an
error.

Imports nothing heavy: `train` looks into its data files before anything slow is imported.
"""

import csv
import json
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import count, islice
from pathlib import Path
from typing import Any, NamedTuple, TextIO

from openrlhf_swap.errors import DataError, reader_errors
from openrlhf_swap.files import Row, checked_row, decoded, parse_row

READ_BY_ROW = (".jsonl", ".json", ".csv")
DATA_FILES = (*READ_BY_ROW, ".parquet")
LOOKED_AT = 20_000  # rows of a file that are read before anything slow is imported
SHOWN = 3  # unreadable rows that a message names
PIECE = 2**20  # characters of a JSON list that are read at a time, or those of a longer item
_DECODER = json.JSONDecoder()
_SPACE = re.compile(r"\s*")
_EMPTY = re.compile(r"\s*\]\s*$")  # what follows the bracket of an empty list


class Entry(NamedTuple):
    """A row of a data file: its number from 1, and either its fields or what is wrong with it."""

    number: int
    row: Row | None
    fault: str = ""


def has_rows(path: Path) -> bool:
    """Whether `read_entries` can read a file of this name."""
    return path.suffix.lower() in READ_BY_ROW


def read_entries(
    path: Path, flag: str = "", at_most: int | None = None, needs_all: bool = False
) -> list[Entry]:
    """The rows of a JSONL, JSON or CSV file without blank lines, all or the first `at_most`.

    A CSV file's fields are texts. Raises DataError for a file that cannot be read or has no
    readable row; with `needs_all`, for one that has an unreadable row.
    """
    name = f"{flag} is {path}, which" if flag else str(path)
    with reader_errors(f"{name} cannot be read: {{reason}}"):
        entries = list(islice(_entries(path), at_most))
        rows = readable_rows(entries)
        faulty = len(rows) < len(entries)
        if not rows or (needs_all and faulty):
            raise DataError(describe_faults(entries) or "it has no rows")
    return entries


def stream_rows(path: Path, flag: str) -> Iterator[Row]:
    """The rows of a JSONL, JSON or CSV file one at a time.

    Raises DataError, at its end, for a file with an unreadable row or without rows.
    """
    faulty = []
    count = 0
    with reader_errors(f"{flag} is {path}, which cannot be read: {{reason}}"):
        for entry in _entries(path):
            count += 1
            if entry.row is None:
                faulty.append(entry)
            else:
                yield entry.row
        if faulty or not count:
            raise DataError(describe_faults(faulty) or "it has no rows")


def readable_rows(entries: Sequence[Entry]) -> list[Row]:
    """The fields of the rows that can be read."""
    return [entry.row for entry in entries if entry.row is not None]


def describe_faults(entries: Sequence[Entry]) -> str:
    """The first unreadable rows: "row 3: not JSON (...), row 7: not UTF-8 (...), and 12 more"."""
    wrong = [f"row {entry.number}: {entry.fault}" for entry in entries if entry.row is None]
    shown = wrong[:SHOWN]
    if len(wrong) > SHOWN:
        shown.append(f"and {len(wrong) - SHOWN} more")
    return ", ".join(shown)


def check_quickly(flag: str, name: str, keys: Mapping[str, str]) -> None:
    """Refuse a local data file by its first rows.

    Raises DataError if there is no such file, if none of them can be read, or if they lack a column
    of `keys` (flag -> column).
    """
    path = Path(name)
    if not path.exists():
        raise DataError(
            f"{flag} is {name}, which cannot be read: it does not exist; give a file that does, "
            "such as one that `openrlhf-swap prepare --output FILE` writes"
        )
    if has_rows(path):
        rows = readable_rows(read_entries(path, flag, LOOKED_AT))
        check_columns(columns_in(rows), keys, name)


def columns_in(rows: Iterable[Row]) -> dict[str, None]:
    """The columns of all rows, in their order, without values."""
    return dict.fromkeys(column for row in rows for column in row)


def check_columns(columns: Iterable[str], keys: Mapping[str, str], source: str) -> None:
    """Raise DataError for a key, by its flag, that is not one of the columns."""
    for flag, key in keys.items():
        if key not in columns:
            raise DataError(
                f"{flag} is {key}, but {source} has no such column; "
                f"its columns are: {', '.join(columns)}"
            )


def _entries(path: Path) -> Iterator[Entry]:
    kind = path.suffix.lower()
    if kind == ".csv":
        return _csv_entries(path)
    if kind == ".json":
        with open(path, "rb") as file:
            beginning = file.read(PIECE)
        if beginning.lstrip(b"\xef\xbb\xbf \t\r\n").startswith(b"["):
            return _list_entries(path)
    return _line_entries(path)


def _line_entries(path: Path) -> Iterator[Entry]:
    """The lines of a JSONL file."""
    with open(path, "rb") as lines:
        # Not splitlines(), which also splits at separators in a text.
        for number, line in enumerate(lines, 1):
            if line.strip():
                yield _entry(number, parse_row, line)


def _list_entries(path: Path) -> Iterator[Entry]:
    """The items of a JSON file that is one list."""
    try:
        with open(path, encoding="utf-8-sig") as file:
            for number, value in enumerate(_items_of_list(file), 1):
                yield _entry(number, checked_row, value)
    except UnicodeDecodeError as error:
        raise DataError(f"not UTF-8 ({error.reason}; convert it with iconv)") from error


@dataclass(frozen=True)
class _Item:
    """An item of a list in a text.

    Attributes:
        value: what it says.
        end: the place behind the comma or bracket that follows it.
        is_last: whether that is the bracket.
    """

    value: Any
    end: int
    is_last: bool


@dataclass
class _Unread:
    """The part of a file that is not parsed yet: `text` from `place` on, and what follows it."""

    file: TextIO
    text: str
    place: int

    def next_item(self) -> _Item:
        """Parse one item of a list, and read as far as it goes; JSONDecodeError for none."""
        while True:
            try:
                item = _item_at(self.text, self.place)
            except json.JSONDecodeError:
                if not self._read_more():
                    raise
            else:
                self.place = item.end
                return item

    def _read_more(self) -> bool:
        """Read a piece, or as much as is held where that is more; False at the end of the file."""
        more = self.file.read(max(PIECE, len(self.text)))
        self.text = self.text[self.place :] + more
        self.place = 0
        return bool(more)


def _items_of_list(file: TextIO) -> Iterator[Any]:
    """The items of a JSON list, which is read in pieces; DataError for anything else.

    Libraries that stream JSON refuse what Python's own module writes and reads, such as NaN.
    """
    text = file.read(PIECE)
    unread = _Unread(file, text, text.index("[") + 1)
    for number in count(1):
        try:
            item = unread.next_item()
        except json.JSONDecodeError as error:
            if number == 1 and _EMPTY.match(unread.text, unread.place):
                return
            raise DataError(f"row {number}: not JSON ({error.msg})") from error
        yield item.value
        if item.is_last:
            break
    if unread.text[unread.place :].strip() or file.read(PIECE).strip():
        raise DataError("not JSON (there is more behind the list)")


def _item_at(text: str, place: int) -> _Item:
    """The item of a list that begins at a place; JSONDecodeError where its end is not there."""
    value, end = _DECODER.raw_decode(text, _end_of_space(text, place))
    stop = _end_of_space(text, end)
    mark = text[stop : stop + 1]
    if mark not in (",", "]"):
        raise json.JSONDecodeError("Expecting ',' delimiter", text, stop)
    return _Item(value, stop + 1, is_last=mark == "]")


def _end_of_space(text: str, place: int) -> int:
    space = _SPACE.match(text, place)
    return space.end() if space else place


def _csv_entries(path: Path) -> Iterator[Entry]:
    with open(path, encoding="utf-8-sig", errors="surrogateescape", newline="") as lines:
        yield from _field_entries(csv.DictReader(lines, strict=True))


def _field_entries(reader: "csv.DictReader[str]") -> Iterator[Entry]:
    names = reader.fieldnames or []
    for name in names:
        if names.count(name) > 1:
            raise DataError(f"it has the column {name} more than once; rename one of them")
    for number in count(1):
        try:
            fields = next(reader, None)
        except csv.Error as error:
            yield Entry(number, None, f"not CSV ({error})")
            continue
        if fields is None:
            return
        yield _entry(number, _checked_fields, fields)


def _entry(number: int, read: Callable[[Any], Row], raw: Any) -> Entry:
    try:
        return Entry(number, read(raw))
    except DataError as error:
        return Entry(number, None, str(error))


def _checked_fields(fields: Row) -> Row:
    """A row of a CSV file as it is; DataError for one that pandas would cut or fill up."""
    # Extra fields have None as their key, missing ones as value.
    if None in fields or None in fields.values():
        raise DataError("more or fewer fields than the header")
    text = "".join(fields.values())
    if "\0" in text:
        raise DataError("zero bytes, as a crash leaves them")
    decoded(text.encode(errors="surrogateescape"))
    return fields
