"""Checkpoints that are complete or absent: a mark is written first and a seal last, and a start looks for both.

DeepSpeed writes a checkpoint file by file into `<--ckpt.path>/_actor/<tag>` and then its tag into `latest`. A process
killed in between, a full disk or a damaged file leaves a folder that looks like any other.
"""

from __future__ import annotations

import json
import shutil
from dataclasses import dataclass
from pathlib import Path

from openrlhf_swap.errors import CheckpointError
from openrlhf_swap.files import to_line, write_text

SEAL = "complete.json"
MARK = "incomplete"  # exists while a checkpoint is being written
LATEST = "latest"
CONFIGURATION = "swap_config.json"  # in the output folder: settings, command, and what trackers call the run
FOLDER = "_actor"  # where OpenRLHF keeps the policy's checkpoints under --ckpt.path


def begin(checkpoint: Path) -> None:
    """Mark a checkpoint as incomplete. Call before its first file is written."""
    discard(checkpoint)  # left by an earlier run in the same folder
    checkpoint.mkdir(parents=True)
    (checkpoint / MARK).touch()


def seal(checkpoint: Path, objective: str) -> None:
    """Mark a checkpoint as complete by listing its files and their sizes in bytes. Call when all are written.

    Args:
        checkpoint: its folder.
        objective: the objective whose state it holds.
    """
    content = {"objective": objective, "files": _sizes(checkpoint)}
    write_text(checkpoint / SEAL, to_line(content, indent=1))
    (checkpoint / MARK).unlink(missing_ok=True)


def take_the_place_of_the_best(checkpoint: Path, tag: str) -> None:
    """Rename a sealed checkpoint to `tag`, a "best_...", and only then delete the previous best."""
    target = checkpoint.with_name(tag)
    discard(target)
    checkpoint.rename(target)
    write_text(checkpoint.with_name(LATEST), tag)
    for older in checkpoint.parent.glob("best*"):
        if older.is_dir() and older != target:
            discard(older)


def find_fault(checkpoint: Path) -> str | None:
    """What is wrong with a checkpoint, in words; None for a complete one."""
    try:
        expected = json.loads((checkpoint / SEAL).read_text(encoding="utf-8"))["files"]
    except FileNotFoundError:
        return "it was not written completely"
    except (ValueError, KeyError, TypeError):
        return f"its {SEAL} cannot be read"
    sizes = _sizes(checkpoint)
    for name, size in expected.items():
        if name not in sizes:
            return f"{name} is missing"
        if sizes[name] != size:
            return f"{name} has {sizes[name]} bytes instead of {size}"
    return None


def newest(path: Path) -> str | None:
    """The tag of the newest complete checkpoint under `--ckpt.path`; None if there is none. Changes nothing."""
    return _newest({seal.parent for seal in (path / FOLDER).glob(f"*/{SEAL}") if find_fault(seal.parent) is None})


def refuse_to_overwrite(path: Path) -> None:
    """Raise CheckpointError if `--ckpt.path` holds a checkpoint, which a new run would overwrite."""
    if tag := newest(path):
        raise CheckpointError(
            f"--ckpt.path is {path}, which holds checkpoint {tag} of an earlier run; give --ckpt.load_enable to "
            "resume from it, or another --ckpt.path (and --swap.output_dir) to start from the beginning"
        )


@dataclass(frozen=True)
class Recovery:
    """What a restarted run finds.

    Attributes:
        tag: the checkpoint to resume from; None to start from the beginning.
        objective: the objective whose state it holds; None if unknown.
        messages: what happened, for the user, one line each.
    """

    tag: str | None
    objective: str | None
    messages: list[str]


def recover(path: Path) -> Recovery:
    """Point DeepSpeed's `latest` at the newest complete checkpoint, and move incomplete ones out of the way.

    A checkpoint that was never finished is deleted: nothing in it can be used, and it would count when the oldest are
    rotated out. A damaged one is moved to `<path>/damaged`.

    Args:
        path: `--ckpt.path`.

    Raises:
        CheckpointError: for a checkpoint that something else wrote; nothing has been changed then.
    """
    folder = path / FOLDER
    messages: list[str] = []
    complete = set()
    found = sorted(entry for entry in folder.iterdir() if entry.is_dir()) if folder.is_dir() else []
    for checkpoint in found:
        if any(checkpoint.iterdir()) and not any((checkpoint / name).exists() for name in (SEAL, MARK)):
            raise CheckpointError(
                f"--ckpt.path {path} holds checkpoint {checkpoint.name} without a {SEAL}: it was not written by "
                "openrlhf_swap, or only partly copied; use another --ckpt.path, or move it away"
            )
    for checkpoint in found:
        fault = find_fault(checkpoint)
        if fault is None:
            complete.add(checkpoint)
        elif not (checkpoint / SEAL).exists():
            discard(checkpoint)
            messages.append(f"checkpoint {checkpoint.name} is ignored and deleted: {fault}")
        else:
            target = path / "damaged" / checkpoint.name
            target.parent.mkdir(exist_ok=True)
            shutil.rmtree(target, ignore_errors=True)
            checkpoint.rename(target)
            messages.append(f"checkpoint {checkpoint.name} is ignored and moved to {target}: {fault}")
    tag = _newest(complete)
    if tag is None:
        shutil.rmtree(folder, ignore_errors=True)  # OpenRLHF would take an empty folder for a checkpoint
        messages.append(f"no complete checkpoint in {path}: starting from the beginning")
        return Recovery(None, None, messages)
    write_text(folder / LATEST, tag)
    messages.append(f"resuming from checkpoint {tag} in {path}")
    sealed = json.loads((folder / tag / SEAL).read_text(encoding="utf-8"))
    return Recovery(tag, sealed.get("objective"), messages)


def discard(checkpoint: Path) -> None:
    """Delete a checkpoint, complete or not.

    It is moved away first, in one step: an interrupted deletion leaves nothing that looks like a checkpoint.
    """
    trash = checkpoint.parent.parent / "deleted"
    if checkpoint.exists():
        try:
            trash.mkdir(exist_ok=True)
            checkpoint.rename(trash / checkpoint.name)
        except OSError:  # a full disk has no room for one more folder
            (checkpoint / SEAL).unlink(missing_ok=True)
            shutil.rmtree(checkpoint, ignore_errors=True)
    shutil.rmtree(trash, ignore_errors=True)


def rotate(path: Path, keep: int, max_bytes: float) -> None:
    """Delete the oldest complete checkpoints until at most `keep` are left, with at most `max_bytes` in total.

    The newest always stays, and so do those with the best evaluation ("best_..."). Call after the new one is sealed:
    OpenRLHF itself deletes before it writes, and a run killed in between would have lost both.
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
        if file.is_file() and file.name not in (SEAL, SEAL + ".writing", MARK)
    }
