"""The data set that `prepare` reads: a file, a saved folder, or a data set of the hub."""

import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from openrlhf_swap.data.files import DATA_FILES, check_columns, has_rows, stream_rows
from openrlhf_swap.errors import reader_errors
from openrlhf_swap.files import Row
from openrlhf_swap.rewards.verifiers import MATH

if TYPE_CHECKING:
    from datasets import Dataset


@dataclass(frozen=True)
class Source:
    """A data set that can be read row by row, as often as wanted.

    Attributes:
        name: what `--input` says.
        columns: their names.
        fields: those of the columns, and of the fields inside them as COLUMN.NAME.
        read: a function that reads the rows from the beginning; of a table it reads the columns
            that it is given alone.
        revision: the commit of a hub data set; None for a file.
    """

    name: str
    columns: Sequence[str]
    fields: Sequence[str]
    read: Callable[[Sequence[str]], Iterator[Row]]
    revision: str | None = None

    def rows(self, problem_key: str, answer_key: str, grader: str = MATH) -> Iterator[Row]:
        """The rows as `problem`, `answer` and, if there is one, `id`.

        Other graders than math-verify may look at the other columns, so these stay for them. A
        column that is called `problem` or `answer` and is not the one that the key chose is left
        out. A key may be dotted, such as `reward_model.ground_truth`, for a field inside a column.
        Raises DataError if a key names no column.
        """
        keys = {"problem": problem_key, "answer": answer_key}
        for name, key in keys.items():
            known = self.columns if key in self.columns else self.fields
            check_columns(known, {f"--{name}-key": key}, self.name)
        taken = {*keys, *keys.values()}
        others = []
        for name in self.columns:
            if name == "id" or (grader != MATH and name not in taken):
                others.append(name)
        read = [name for name in self.columns if name in others or _holds_any(name, keys.values())]
        for row in self.read(read):
            chosen = {name: _field(row, key) for name, key in keys.items()}
            yield chosen | {name: row.get(name) for name in others}


def open_source(
    name: str, split: str, revision: str | None, configuration: str | None = None
) -> Source:
    """The data set that `--input` names: a file, a folder, or a hub id.

    Raises DataError if any of it cannot be read.
    """
    path = Path(name)
    if has_rows(path):
        # Not by the loader of `datasets`, which would guess types from texts.
        columns: dict[str, None] = {}
        fields: dict[str, None] = {}
        for row in stream_rows(path, "--input"):
            columns.update(dict.fromkeys(row))
            fields.update(dict.fromkeys(_fields_in(row)))
        return Source(name, list(columns), list(fields), lambda _: stream_rows(path, "--input"))
    table = _load_table(name, split, revision, configuration)
    return Source(
        name,
        table.column_names,
        table.flatten().column_names,
        lambda columns: iter(table.select_columns(list(columns))),
        _revision_of(table),
    )


def _load_table(
    source: str, split: str, revision: str | None, configuration: str | None
) -> "Dataset":
    path = Path(source)
    kind = path.suffix.lower()
    remedy = (
        "check the name, --config, --split and the connection, "
        f"or give a file that ends in {', '.join(DATA_FILES)}"
    )
    with loader_errors(f"--input is {source}, which cannot be loaded ({{reason}}); {remedy}"):
        from datasets import load_dataset, load_from_disk

        if (path / "dataset_dict.json").exists():
            return load_from_disk(source)[split]
        if (path / "dataset_info.json").exists():
            return load_from_disk(source)
        if kind in DATA_FILES:
            return load_dataset(kind[1:], data_files=source, split="train")
        return load_dataset(source, configuration, split=split, revision=revision)


def _fields_in(row: Mapping[str, object]) -> Iterator[str]:
    """The names of a row's values, those inside of objects as COLUMN.NAME."""
    for name, value in row.items():
        if isinstance(value, dict) and value:
            yield from (f"{name}.{inner}" for inner in _fields_in(value))
        else:
            yield name


def _holds_any(column: str, keys: Iterable[str]) -> bool:
    """Whether a key is that of the column or of a field inside it."""
    return any(key == column or key.startswith(f"{column}.") for key in keys)


def _field(row: Mapping[str, object], key: str) -> object:
    """The value under a key that may be dotted; None for one that the row does not have."""
    if key in row:
        return row[key]
    for name, value in row.items():
        if isinstance(value, dict) and _holds_any(name, [key]):
            return _field(value, key.removeprefix(f"{name}."))
    return None


def _revision_of(table: "Dataset") -> str | None:
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
