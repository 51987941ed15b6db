"""Checkpoints that are whole or not there: a seal written last, and a start that trusts nothing without one.

DeepSpeed writes a checkpoint file by file into `<--ckpt.path>/_actor/<tag>` and then its tag into `latest`. A process
killed in between, a full disk or a damaged file leaves a folder that looks like the others.
"""

from __future__ import annotations

import json
import os
import shutil
from dataclasses import dataclass
from pathlib import Path

SEAL = "complete.json"
LATEST = "latest"
FOLDER = "_actor"  # where OpenRLHF keeps the policy's checkpoints under --ckpt.path


def write_atomically(path: Path, text: str) -> None:
    """Write a text file such that a reader finds the old content or the new one, also after a power failure."""
    temporary = path.with_name(path.name + ".writing")
    with open(temporary, "w", encoding="utf-8") as file:
        file.write(text)
        file.flush()
        os.fsync(file.fileno())
    os.replace(temporary, path)


def seal(checkpoint: Path) -> None:
    """Declare a checkpoint complete: list its files and their sizes in bytes. To be called when all are written."""
    write_atomically(checkpoint / SEAL, json.dumps({"files": _sizes(checkpoint)}, indent=1) + "\n")


def damage(checkpoint: Path) -> str | None:
    """What is wrong with a checkpoint, in words; None for a complete one."""
    try:
        expected = json.loads((checkpoint / SEAL).read_text(encoding="utf-8"))["files"]
    except FileNotFoundError:
        return "it was not written to its end"
    except (ValueError, KeyError, TypeError):
        return f"its {SEAL} cannot be read"
    found = _sizes(checkpoint)
    for name, size in expected.items():
        if name not in found:
            return f"{name} is missing"
        if found[name] != size:
            return f"{name} has {found[name]} bytes instead of {size}"
    return None


def newest(path: Path) -> str | None:
    """Tag of the newest complete checkpoint under `--ckpt.path`, None when there is none. Changes nothing."""
    return _newest({seal.parent for seal in (path / FOLDER).glob(f"*/{SEAL}") if damage(seal.parent) is None})


@dataclass(frozen=True)
class Recovery:
    """What a run that is started again finds.

    Attributes:
        tag: the checkpoint to go on from; None to start at the beginning.
        messages: what happened, for the user, one line each.
    """

    tag: str | None
    messages: list[str]


def recover(path: Path) -> Recovery:
    """Make DeepSpeed's `latest` name the newest complete checkpoint, and put the others out of the way.

    A checkpoint that was never finished is deleted: it holds nothing that can be used, and it would count when the
    oldest are rotated out. A damaged one is moved to `<path>/damaged`.

    Args:
        path: `--ckpt.path`.
    """
    folder = path / FOLDER
    messages: list[str] = []
    complete = set()
    for checkpoint in sorted(folder.iterdir()) if folder.is_dir() else []:
        if not checkpoint.is_dir():
            continue
        fault = damage(checkpoint)
        if fault is None:
            complete.add(checkpoint)
        elif not (checkpoint / SEAL).exists():
            shutil.rmtree(checkpoint)
            messages.append(f"checkpoint {checkpoint.name} is left out and deleted: {fault}")
        else:
            target = path / "damaged" / checkpoint.name
            target.parent.mkdir(exist_ok=True)
            shutil.rmtree(target, ignore_errors=True)
            checkpoint.rename(target)
            messages.append(f"checkpoint {checkpoint.name} is left out and moved to {target}: {fault}")
    tag = _newest(complete)
    if tag is None:
        shutil.rmtree(folder, ignore_errors=True)  # OpenRLHF would take an empty folder for a checkpoint
        messages.append(f"no complete checkpoint in {path}: starting at the beginning")
        return Recovery(None, messages)
    write_atomically(folder / LATEST, tag)
    messages.append(f"going on from checkpoint {tag} in {path}")
    return Recovery(tag, messages)


def discard(checkpoint: Path) -> None:
    """Delete what there is of a checkpoint that could not be written."""
    (checkpoint / SEAL).unlink(missing_ok=True)
    shutil.rmtree(checkpoint, ignore_errors=True)


def rotate(path: Path, keep: int, max_bytes: float) -> None:
    """Delete the oldest complete checkpoints until `keep` are left and they take no more than `max_bytes` together.

    The newest one always stays, and so do those with the best evaluation ("best_..."). To be called when the new one
    is sealed: OpenRLHF itself deletes before it writes, and a run killed in between would have lost both.
    """
    sizes = {
        file.parent: sum(_sizes(file.parent).values())
        for file in sorted((path / FOLDER).glob(f"*/{SEAL}"), key=lambda file: file.stat().st_mtime_ns)
        if not file.parent.name.startswith("best")
    }
    while len(sizes) > 1 and (len(sizes) > keep or sum(sizes.values()) > max_bytes):
        oldest = next(iter(sizes))
        discard(oldest)
        del sizes[oldest]


def _newest(complete: set[Path]) -> str | None:
    return max(complete, key=lambda folder: (folder / SEAL).stat().st_mtime_ns).name if complete else None


def _sizes(checkpoint: Path) -> dict[str, int]:
    """Bytes of each file below `checkpoint`, by relative name, without the seal itself."""
    return {
        str(file.relative_to(checkpoint)): file.stat().st_size
        for file in sorted(checkpoint.rglob("*"))
        if file.is_file() and file.name not in (SEAL, SEAL + ".writing")
    }
