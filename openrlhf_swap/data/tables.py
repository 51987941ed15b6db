"""Reading data sets of the hub and of files."""

from __future__ import annotations

import csv
from pathlib import Path
from typing import TYPE_CHECKING, Any

from openrlhf_swap.errors import DataError, reader_errors

if TYPE_CHECKING:
    from datasets import Dataset

LOADERS = {".csv": "csv", ".json": "json", ".jsonl": "json", ".parquet": "parquet"}
"""Ending of a file -> which reader reads it: one of datasets', but for CSV."""


def read_table(source: str, split: str, revision: str | None, configuration: str | None = None) -> Dataset:
    """The data set that `--input` names: an id of the hub, or a file.

    Args:
        source: the id, or the path.
        split: of a data set of the hub.
        revision: of a data set of the hub; None is the newest.
        configuration: of a data set of the hub that has several.

    Raises:
        DataError: when it cannot be read.
    """
    from datasets import Dataset, load_dataset, logging
    from datasets.exceptions import DatasetGenerationError

    path = Path(source)
    loader = LOADERS.get(path.suffix.lower())
    # Names of the hub may hold a dot too, before a version: a suffix of letters is a file's.
    is_file = loader is not None or path.exists() or path.suffix[1:].isalpha()
    if is_file and loader is None:
        raise DataError(f"--input is {source}, whose kind is unknown; give a file that ends in {', '.join(LOADERS)}")
    if is_file and not (path.is_file() and path.stat().st_size):
        raise DataError(f"--input is {source}, which is no file, or an empty one; give another, or a hub data set")
    remedy = (
        "check the file" if is_file else "check the name, --config, --split and the connection, or give a local file"
    )
    with reader_errors(f"--input is {source}, which cannot be loaded ({{reason}}); {remedy}"):
        try:
            if loader is None:
                return load_dataset(source, configuration, split=split, revision=revision)
            if loader == "csv":
                return Dataset.from_list(_csv_rows(path))
            logging.set_verbosity(logging.CRITICAL)  # what it logs of an unreadable file is in the error
            return load_dataset(loader, data_files=str(path), split="train")
        except DatasetGenerationError as error:  # says only that something happened
            raise error.__cause__ or error from None


def _csv_rows(path: Path) -> list[dict[str, str]]:
    """The rows below the header, as they are written: a reader that guesses types would make 5e-1 of 0.50."""
    with open(path, encoding="utf-8-sig", newline="") as file:
        rows = list(csv.DictReader(file, restkey="", strict=True))
    for number, row in enumerate(rows, 1):
        if "" in row or None in row.values():
            raise DataError(f"row {number} has more or fewer fields than the header")
    return rows


def read_column(table: Dataset, key: str, flag: str, source: str) -> list[Any]:
    """A column, or with dots in its name what lies in one: `reward_model.ground_truth`; None where a row has none.

    Args:
        table: the data set.
        key: its name.
        flag: which gave it, and
        source: the data set's name, both for errors.

    Raises:
        DataError: when there is no such column, with those that there are.
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
    """Names of the columns; of one that holds named values, these."""
    names = []
    for name, kind in table.features.items():
        names += [f"{name}.{inner}" for inner in kind] if isinstance(kind, dict) else [name]
    return ", ".join(names)
