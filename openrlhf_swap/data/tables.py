"""Reading data sets of the hub and of files."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from openrlhf_swap.errors import DataError, reader_errors

if TYPE_CHECKING:
    from datasets import Dataset

LOADERS = {".json": "json", ".jsonl": "json", ".parquet": "parquet"}
"""Ending of a file -> which of datasets' readers reads it."""


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
    from datasets import load_dataset, logging
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
            logging.set_verbosity(logging.CRITICAL)  # what it logs of an unreadable file is in the error
            return load_dataset(loader, data_files=str(path), split="train")
        except DatasetGenerationError as error:  # says only that something happened
            raise error.__cause__ or error from None
