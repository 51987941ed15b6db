"""Resume with the settings that earlier work was made with, or refuse."""

from __future__ import annotations

from collections.abc import Mapping
from hashlib import sha256
from pathlib import Path
from typing import Any

from openrlhf_swap.errors import ConfigError
from openrlhf_swap.files import Row, read_rows, to_line, write_rows
from openrlhf_swap.runs.provenance import fingerprint

WEIGHTS = (".safetensors", ".bin")


def identity(name: str) -> Row:
    """What identifies a model or a file of data: its name, and a hash of its weights or rows if they are here.

    Two identities are equal if their hashes are, since a folder may be moved; or their names where a hash is missing,
    as for a model of the Hub.
    """
    files = fingerprint(name)["files"] if Path(name).exists() else {}
    if Path(name).is_file():
        content: Any = list(files.values())  # a renamed file is the same file
    else:
        content = {file: entry for file, entry in files.items() if file.endswith(WEIGHTS)}
    return {"name": name, "sha256": sha256(to_line(content).encode()).hexdigest() if content else None}


def record_or_compare(output: Path, settings: Mapping[str, Any], made: str, remedy: str) -> None:
    """Record the settings that a file or a folder is made with, or compare them if it holds something already.

    The record is a JSON file beside it, OUTPUT.settings.json. Earlier versions wrote none: their work is continued,
    with a note.

    Args:
        output: a JSONL file, or a folder.
        settings: by flag; a model or a file of data as its `identity`.
        made: what `output` holds: "rows".
        remedy: what to do instead: "use another --output".

    Raises:
        ConfigError: as `refuse_other_settings`.
    """
    record = output.with_name(output.name + ".settings.json")
    begun = any(output.iterdir()) if output.is_dir() else any(True for _ in read_rows(output))
    if not begun:
        output.parent.mkdir(parents=True, exist_ok=True)
        write_rows(record, [settings])
    elif recorded := next(read_rows(record), None):
        refuse_other_settings(settings, recorded, f"the {made} in {output} were made", remedy)
    else:
        print(f"note: {record} is missing: the {made} in {output} may be another model's, or of other settings")


def refuse_other_settings(now: Mapping[str, Any], recorded: Mapping[str, Any], work: str, remedy: str) -> None:
    """Compare the settings of a start with those of the work that it would continue.

    Args:
        now: settings by flag; a model or a file of data as its `identity`.
        recorded: those of the work. One that was not recorded, as by an earlier version, is not compared.
        work: "the rows in scores.jsonl were made".
        remedy: "use another --output".

    Raises:
        ConfigError: for the first setting that differs; it names the flag, both values and the remedy.
    """
    for flag, value in now.items():
        before = recorded.get(flag, value)
        if differ(value, before):
            made = "without it" if before is None else f"with {shown(before)}"
            raise ConfigError(f"{flag} is {shown(value)}, but {work} {made}; {remedy}")


def differ(now: Any, before: Any) -> bool:
    """Whether two values of a setting differ."""
    if isinstance(now, dict) and isinstance(before, dict):
        key = "sha256" if now["sha256"] and before.get("sha256") else "name"
        return bool(now[key] != before[key])
    return bool(now != before)


def shown(value: Any) -> str:
    """A value of a setting in an error."""
    if not isinstance(value, dict):
        return "not given" if value is None else repr(value)
    digest = value.get("sha256")
    return f"{value['name']} (SHA-256 {digest[:8]})" if digest else str(value["name"])
