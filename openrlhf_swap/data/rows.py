"""The rows of data files and of data sets on the hub, and what is wrong with rows that cannot be read.

One rule for all commands. Where rows are many and independent (training, evaluation during it, scoring), an unreadable
row is counted, reported and left out; where the whole matters (benchmarks, `prepare`), it is an error. Either way the
message has the file, the row's number from 1, and what is wrong. The loaders of `datasets` read all of a file or
nothing, so JSON and CSV are read row by row here; parquet files and data sets on the hub are read by `datasets`.

Imports nothing heavy: `train` looks into its data files before anything slow is imported.
"""

from __future__ import annotations

import csv
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from itertools import count, islice
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from openrlhf_swap.errors import DataError, reader_errors
from openrlhf_swap.files import Row, checked_row, decoded, parse_row, parse_value
from openrlhf_swap.rewards.verifiers import MATH

if TYPE_CHECKING:
    from datasets import Dataset

DATA_FILES = (".jsonl", ".json", ".csv", ".parquet")
LOOKED_AT = 20_000  # rows of a file that are read before anything slow is imported
SHOWN = 3  # unreadable rows that a message names


class Entry(NamedTuple):
    """A row of a data file: its number from 1, and either its fields or what is wrong with it."""

    number: int
    row: Row | None
    fault: str = ""


def has_rows(path: Path) -> bool:
    """Whether `read_entries` reads this kind of file."""
    return path.suffix.lower() in (".jsonl", ".json", ".csv")


def read_entries(path: Path, flag: str = "", at_most: int | None = None, needs_all: bool = False) -> list[Entry]:
    """The rows of a JSONL, JSON or CSV file, or the first of them, without blank lines. A CSV file's fields are texts.

    A file that cannot be read is a DataError, as one without a readable row or, with `needs_all`, with another one.
    """
    name = f"{flag} is {path}, which" if flag else str(path)
    with reader_errors(f"{name} cannot be read: {{reason}}"):
        entries = list(islice(_entries(path), at_most))
        rows = readable_rows(entries)
        if not rows or (needs_all and len(rows) < len(entries)):
            raise DataError(describe_faults(entries) or "it has no rows")
    return entries


def readable_rows(entries: Sequence[Entry]) -> list[Row]:
    return [entry.row for entry in entries if entry.row is not None]


def describe_faults(entries: Sequence[Entry]) -> str:
    """The first unreadable rows: "row 3: not JSON (...), row 7: not UTF-8 (...), and 12 more"."""
    wrong = [f"row {entry.number}: {entry.fault}" for entry in entries if entry.row is None]
    return ", ".join(wrong[:SHOWN]) + (f", and {len(wrong) - SHOWN} more" if len(wrong) > SHOWN else "")


def check_quickly(flag: str, name: str, keys: Mapping[str, str]) -> None:
    """Refuse a local data file by its first rows, if none can be read or has the columns (`keys`: flag -> column)."""
    path = Path(name)
    if has_rows(path) or not path.exists():
        rows = readable_rows(read_entries(path, flag, LOOKED_AT))
        check_columns(dict.fromkeys(column for row in rows for column in row), keys, name)


def check_columns(columns: Iterable[str], keys: Mapping[str, str], source: str) -> None:
    """Raise DataError for a key, by its flag, that is not one of the columns."""
    for flag, key in keys.items():
        if key not in columns:
            listing = ", ".join(columns)
            raise DataError(f"{flag} is {key}, but {source} has no such column; its columns are: {listing}")


def read_table(source: str, split: str, revision: str | None, configuration: str | None = None) -> Dataset:
    """The data set that `--input` names: a file, a folder, or a hub id; a DataError if any of it cannot be read."""
    path, kind = Path(source), Path(source).suffix.lower()
    rows = readable_rows(read_entries(path, "--input", needs_all=True)) if has_rows(path) else []
    files = ", ".join(DATA_FILES)
    remedy = f"check the name, --config, --split and the connection, or give a file that ends in {files}"
    with loader_errors(f"--input is {source}, which cannot be loaded ({{reason}}); {remedy}"):
        from datasets import Dataset, load_dataset, load_from_disk

        if rows:  # with the columns of all rows, and with their values: a loader guesses types from texts
            columns = dict.fromkeys(column for row in rows for column in row)
            plain = [{**columns, **{name: _fitting(value) for name, value in row.items()}} for row in rows]
            return Dataset.from_list(plain, on_mixed_types="use_json")
        if any((path / name).exists() for name in ("dataset_info.json", "dataset_dict.json")):
            table = load_from_disk(source)
            return table[split] if isinstance(table, dict) else table
        if kind in DATA_FILES:
            return load_dataset(kind[1:], data_files=source, split="train")
        return load_dataset(source, configuration, split=split, revision=revision)


def _fitting(value: Any) -> Any:
    """A value, or the text of an integer of more than 64 bits, which a table cannot hold."""
    return str(value) if isinstance(value, int) and not -(2**63) <= value < 2**63 else value


def source_rows(table: Dataset, source: str, problem_key: str, answer_key: str, grader: str = MATH) -> list[Row]:
    """The rows of a table as `problem`, `answer` and, if there is one, `id`; a DataError if a key names no column.

    For other graders than math-verify also the other columns, except a `problem` or `answer` that no key chose. A key
    may be dotted, such as `reward_model.ground_truth`, for a field inside a column.
    """
    columns = {}
    for name, key in (("problem", problem_key), ("answer", answer_key)):
        part = table if key in table.column_names else table.flatten()
        check_columns(part.column_names, {f"--{name}-key": key}, source)
        columns[name] = list(part[key])
    kept = {"id"} if grader == MATH else {*table.column_names} - {problem_key, answer_key, *columns}
    columns |= {name: list(table[name]) for name in table.column_names if name in kept}
    return [dict(zip(columns, values, strict=True)) for values in zip(*columns.values(), strict=True)]


def revision_of(table: Dataset) -> str | None:
    """The commit of the hub data set that a table was read from, online or from the cache; None for a file."""
    # <cache>/<id>/<configuration>/<version>/<commit>/<file>
    folders = (Path(file["filename"]).parent.name for file in table.cache_files)
    return next((folder for folder in folders if re.fullmatch(r"[0-9a-f]{40}", folder)), None)


@contextmanager
def loader_errors(message: str) -> Iterator[None]:
    """As `reader_errors`, with what a loader of `datasets` failed at: its own message says that an error occurred."""
    from datasets.exceptions import DatasetGenerationError

    with reader_errors(message):
        try:
            yield
        except DatasetGenerationError as error:
            raise error.__cause__ or error from None


def _entries(path: Path) -> Iterator[Entry]:
    if path.suffix.lower() == ".csv":
        with open(path, encoding="utf-8-sig", errors="surrogateescape", newline="") as table, suppress(StopIteration):
            reader = csv.DictReader(table, strict=True)
            for number in count(1):
                yield _entry(number, _next_fields, reader)
    elif path.suffix.lower() == ".json" and (data := path.read_bytes()).lstrip(b"\xef\xbb\xbf \t\r\n")[:1] == b"[":
        yield from (_entry(number, checked_row, value) for number, value in enumerate(parse_value(data), 1))
    else:
        with open(path, "rb") as lines:
            for number, line in enumerate(lines, 1):  # not splitlines(), which also splits at separators in a text
                if line.strip():
                    yield _entry(number, parse_row, line)


def _entry(number: int, read: Callable[[Any], Row], raw: Any) -> Entry:
    try:
        return Entry(number, read(raw))
    except DataError as error:
        return Entry(number, None, str(error))


def _next_fields(reader: csv.DictReader[str]) -> Row:
    """The next row of a CSV file; pandas would drop a row that is too long, and fill up one that is too short."""
    try:
        row = next(reader)
    except csv.Error as error:
        raise DataError(f"not CSV ({error})") from error
    if None in row or None in row.values():  # extra fields have None as their key, missing ones as value
        raise DataError("more or fewer fields than the header")
    text = "".join(row.values())
    if "\0" in text:
        raise DataError("zero bytes, as a crash leaves them")
    decoded(text.encode(errors="surrogateescape"))
    return row
