"""What a run or a file of rows was made with, so that a later start goes on with nothing else."""

from __future__ import annotations

import argparse
from collections.abc import Mapping, Sequence
from hashlib import sha256
from pathlib import Path
from typing import Any

from openrlhf_swap.errors import ConfigError
from openrlhf_swap.files import Row, read_rows, to_line, write_rows
from openrlhf_swap.runs.provenance import fingerprint

WEIGHTS = (".safetensors", ".bin")


def model_origin(name: str) -> Row:
    """What a model is known by: a folder, which may be moved, by a hash of its weights; a hub model by its name."""
    files = fingerprint(name)["files"] if Path(name).is_dir() else {}
    weights = {file: found for file, found in files.items() if file.endswith(WEIGHTS)}
    return {"name": name, "weights": sha256(to_line(weights).encode()).hexdigest() if weights else None}


def differ(now: Any, then: Any) -> bool:
    """Whether two values of a setting differ; two models do if their weights do, or their names where one has none."""
    if isinstance(now, dict) and isinstance(then, dict):
        known_by = "weights" if now["weights"] and then["weights"] else "name"
        return bool(now[known_by] != then[known_by])
    return bool(now != then)


def shown(value: Any) -> str:
    """A value of a setting as an error names it."""
    if not isinstance(value, dict):
        return repr(value)
    return f"{value['name']} (weights {value['weights'][:8]})" if value["weights"] else str(value["name"])


def settings_of(args: argparse.Namespace, names: Sequence[str]) -> Row:
    """The model and the settings that rows are made with, by their flags."""
    settings = {f"--{name.replace('_', '-')}": getattr(args, name) for name in names}
    return {"--model": model_origin(args.model), **settings}


def settings_path(output: Path) -> Path:
    """The file beside a file of rows that records what they were made with."""
    return output.with_name(output.name + ".settings.json")


def refuse_other_settings(output: Path, settings: Mapping[str, Any]) -> None:
    """Compare the settings with those that the rows of `output` were made with, if there are rows.

    Rows of versions that did not record them are continued, with a note.

    Raises:
        ConfigError: for the first setting that differs.
    """
    if not _has_rows(output):
        return
    before = next(read_rows(settings_path(output)), None)
    if before is None:
        print(f"note: {output} does not record what its rows were made with: they may be another model's")
        return
    for flag, now in settings.items():
        then = before.get(flag, now)
        if differ(now, then):
            raise ConfigError(
                f"{flag} is {shown(now)}, but the rows in {output} were made with {shown(then)}; use another --output"
            )


def record_settings(output: Path, settings: Mapping[str, Any]) -> None:
    """Write the settings beside a file that has no row yet. Call before its first one is written."""
    if not _has_rows(output):
        output.parent.mkdir(parents=True, exist_ok=True)
        write_rows(settings_path(output), [settings])


def _has_rows(output: Path) -> bool:
    return next(read_rows(output), None) is not None
