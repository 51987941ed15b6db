"""Read data sets from the hub and from files."""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from openrlhf_swap.data.rows import check_is_file, described, entries
from openrlhf_swap.errors import DataError, reader_errors

if TYPE_CHECKING:
    from datasets import Dataset

LOADERS = {".csv": "csv", ".json": "json", ".jsonl": "json", ".parquet": "parquet"}
"""File extension -> the loader of `datasets` that reads it; CSV is read here."""


def read_table(source: str, split: str, revision: str | None, configuration: str | None = None) -> Dataset:
    """Read the data set that `--input` names: a hub id or a file.

    Args:
        source: the id or the path.
        split: split of a hub data set.
        revision: revision of a hub data set; None is the newest.
        configuration: configuration of a hub data set that has several.

    Raises:
        DataError: when it cannot be read.
    """
    path = Path(source)
    loader = LOADERS.get(path.suffix.lower())
    # Hub ids may contain a dot too, before a version: only a suffix of letters is a file's.
    is_file = loader is not None or path.exists() or path.suffix[1:].isalpha()
    if is_file and loader is None:
        raise DataError(f"--input is {source}, a file of unknown type; give a file that ends in {', '.join(LOADERS)}")
    if is_file:
        _check_rows(path)
    from datasets import Dataset, load_dataset, logging

    remedy = (
        "check the file" if is_file else "check the name, --config, --split and the connection, or give a local file"
    )
    message = f"--input is {source}, which cannot be loaded ({{reason}}); {remedy}"
    with reader_errors(message), causes_of_loaders():
        if loader is None:
            return load_dataset(source, configuration, split=split, revision=revision)
        if loader == "csv":
            rows = [entry.row for entry in entries(path)]
            return Dataset.from_list(rows)  # the loader guesses types, and would turn 0.50 into 5e-1
        logging.set_verbosity(logging.CRITICAL)  # the error already has what it logs about an unreadable file
        return load_dataset(loader, data_files=str(path), split="train")


def revision_of(table: Dataset) -> str | None:
    """The commit of the hub data set that a table was read from, online or from the cache; None for a file."""
    for file in table.cache_files:  # <cache>/<id>/<configuration>/<version>/<commit>/<file>
        folder = Path(file["filename"]).parent.name
        if re.fullmatch(r"[0-9a-f]{40}", folder):
            return folder
    return None


@contextmanager
def causes_of_loaders() -> Iterator[None]:
    """Raise what a loader of `datasets` failed at; its own message only says that an error occurred."""
    from datasets.exceptions import DatasetGenerationError

    try:
        yield
    except DatasetGenerationError as error:
        raise error.__cause__ or error from None


def _check_rows(path: Path) -> None:
    """Refuse a file with a row that cannot be read; DataError with the first ones."""
    try:
        check_is_file(path)
        if LOADERS[path.suffix.lower()] != "parquet":
            found = list(entries(path))
            if any(entry.row is None for entry in found):
                raise DataError(f"cannot be loaded: {described(found)}; correct or remove these rows")
    except DataError as error:
        raise DataError(f"--input is {path}, which {error}") from error


def read_column(table: Dataset, key: str, flag: str, source: str) -> list[Any]:
    """Read a column or, with a dotted key such as `reward_model.ground_truth`, a nested field; None where absent.

    Args:
        table: the data set.
        key: name of the column or field.
        flag: the flag that gave the key, for errors.
        source: name of the data set, for errors.

    Raises:
        DataError: when there is no such column; the message lists those that exist.
    """
    if key in table.column_names:
        return list(table[key])
    column, _, inner = key.partition(".")
    names = inner.split(".")
    values = list(table[column]) if inner and column in table.column_names else []
    for name in names:
        values = [value.get(name) if isinstance(value, dict) else None for value in values]
    if all(value is None for value in values):
        raise DataError(f"{flag} is {key}, but {source} has no such column; its columns are: {_columns(table)}")
    return values


def _columns(table: Dataset) -> str:
    """Names of the columns and, for a column with named fields, of its fields."""
    names = []
    for name, kind in table.features.items():
        names += [f"{name}.{inner}" for inner in kind] if isinstance(kind, dict) else [name]
    return ", ".join(names)
