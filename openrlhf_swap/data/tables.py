"""The data set that `prepare` reads: a file, a saved folder, or a data set of the hub."""

import re
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from openrlhf_swap.data.files import (
    DATA_FILES,
    check_columns,
    columns_in,
    has_rows,
    read_entries,
    readable_rows,
)
from openrlhf_swap.errors import reader_errors
from openrlhf_swap.files import Row
from openrlhf_swap.rewards.verifiers import MATH

if TYPE_CHECKING:
    from datasets import Dataset


def read_table(
    source: str, split: str, revision: str | None, configuration: str | None = None
) -> "Dataset":
    """The data set that `--input` names: a file, a folder, or a hub id.

    Raises DataError if any of it cannot be read.
    """
    path = Path(source)
    kind = path.suffix.lower()
    rows: list[Row] = []
    if has_rows(path):
        rows = readable_rows(read_entries(path, "--input", needs_all=True))
    remedy = (
        "check the name, --config, --split and the connection, "
        f"or give a file that ends in {', '.join(DATA_FILES)}"
    )
    with loader_errors(f"--input is {source}, which cannot be loaded ({{reason}}); {remedy}"):
        from datasets import Dataset, load_dataset, load_from_disk

        if rows:
            # Not by the loader of `datasets`, which would guess types from texts.
            columns = columns_in(rows)
            plain = [{**columns, **_fitting(row)} for row in rows]
            return Dataset.from_list(plain, on_mixed_types="use_json")
        if (path / "dataset_dict.json").exists():
            return load_from_disk(source)[split]
        if (path / "dataset_info.json").exists():
            return load_from_disk(source)
        if kind in DATA_FILES:
            return load_dataset(kind[1:], data_files=source, split="train")
        return load_dataset(source, configuration, split=split, revision=revision)


def _fitting(row: Row) -> Row:
    """The row as a table can hold it: integers of more than 64 bits become text."""
    fitting = dict(row)
    for name, value in row.items():
        if isinstance(value, int) and abs(value) >= 2**63:
            fitting[name] = str(value)
    return fitting


def source_rows(
    table: "Dataset",
    source: str,
    problem_key: str,
    answer_key: str,
    grader: str = MATH,
) -> list[Row]:
    """The rows of a table as `problem`, `answer` and, if there is one, `id`.

    Other graders than math-verify may look at the other columns, so these stay for them. A column
    that is called `problem` or `answer` and is not the one that the key chose is left out. A key
    may be dotted, such as `reward_model.ground_truth`, for a field inside a column. Raises
    DataError if a key names no column.
    """
    keys = {"problem": problem_key, "answer": answer_key}
    taken = {*keys, *keys.values()}
    columns = {}
    for name, key in keys.items():
        part = table if key in table.column_names else table.flatten()
        check_columns(part.column_names, {f"--{name}-key": key}, source)
        columns[name] = part[key]
    for name in table.column_names:
        if name == "id" or (grader != MATH and name not in taken):
            columns[name] = table[name]
    rows = zip(*columns.values(), strict=True)
    return [dict(zip(columns, values, strict=True)) for values in rows]


def revision_of(table: "Dataset") -> str | None:
    """The commit of the hub data set that a table was read from; None for a file."""
    # <cache>/<id>/<configuration>/<version>/<commit>/<file>
    for file in table.cache_files:
        folder = Path(file["filename"]).parent.name
        if re.fullmatch(r"[0-9a-f]{40}", folder):
            return folder
    return None


@contextmanager
def loader_errors(message: str) -> Iterator[None]:
    """As `reader_errors`; of a DatasetGenerationError, which says little, its cause is told."""
    from datasets.exceptions import DatasetGenerationError

    with reader_errors(message):
        try:
            yield
        except DatasetGenerationError as error:
            raise error.__cause__ or error from None
