"""Checkpoints that are complete or absent: a mark is written first and a seal last, and a start looks for both.

DeepSpeed writes a checkpoint file by file into `<--ckpt.path>/_actor/<tag>` and then its tag into `latest`. A process
killed in between, a full disk or a damaged file leaves a folder that looks like any other.
"""

from __future__ import annotations

import json
import shutil
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from openrlhf_swap.errors import CheckpointError
from openrlhf_swap.files import Row, to_line, write_text
from openrlhf_swap.runs import seals
from openrlhf_swap.runs.seals import MARK, SEAL, find_fault

LATEST = "latest"
CONFIGURATION = "swap_config.json"  # in the output folder: settings, command, and what trackers call the run
FOLDER = "_actor"  # where OpenRLHF keeps the policy's checkpoints under --ckpt.path
BESIDE = (LATEST, LATEST + ".writing", "zero_to_fp32.py")  # what DeepSpeed and this package write next to them
ORIGIN = "origin.json"  # under --ckpt.path: what the run was started with, for the seals of its checkpoints
DAMAGED = "damaged"  # under --ckpt.path: checkpoints whose seal does not fit them


def begin(checkpoint: Path) -> None:
    """Mark a checkpoint as incomplete. Call before its first file is written.

    Raises:
        CheckpointError: if the folder holds something that this package did not write.
    """
    discard(checkpoint)  # left by an earlier run in the same folder
    checkpoint.mkdir(parents=True, exist_ok=True)
    if any(checkpoint.iterdir()):
        raise CheckpointError(f"{checkpoint} holds files that openrlhf_swap did not write; move them away")
    (checkpoint / MARK).touch()


def record_origin(path: Path, origin: Row) -> None:
    """Write what a run is started with to `--ckpt.path`, from where the policy's process takes it into the seals."""
    path.mkdir(parents=True, exist_ok=True)
    write_text(path / ORIGIN, to_line(origin, indent=1))


def seal(checkpoint: Path, objective: str, ranks: int, zero_stage: int) -> None:
    """Mark a checkpoint as complete by listing its files with sizes and hashes. Call when all are written.

    Args:
        checkpoint: its folder.
        objective: the objective whose state it holds.
        ranks: processes that train the policy.
        zero_stage: DeepSpeed's.
    """
    before = [seals.order(other)[0] for other in _sealed(checkpoint.parent) if other != checkpoint]
    file = checkpoint.parent.parent / ORIGIN
    origin = json.loads(file.read_bytes()) if file.exists() else {}
    seals.write_seal(checkpoint, objective, 1 + max(before, default=0), ranks, zero_stage, origin)
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


def newest(path: Path) -> str | None:
    """The tag of the newest complete checkpoint under `--ckpt.path`; None if there is none.

    Changes nothing, and does not read the checkpoint's files.
    """
    complete = [checkpoint for checkpoint in _sealed(path / FOLDER) if find_fault(checkpoint) is None]
    return max(complete, key=seals.order).name if complete else None


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
        seal: what its seal says; None without a checkpoint.
        messages: what happened, for the user, one line each.
    """

    tag: str | None
    seal: seals.Seal | None
    messages: list[str]


def recover(path: Path) -> Recovery:
    """Point DeepSpeed's `latest` at the newest complete checkpoint, and move incomplete ones out of the way.

    A checkpoint that was never finished is deleted: nothing in it can be used, and it would count when the oldest are
    rotated out. A damaged one is moved to `<path>/damaged`; so is one whose files no longer have the hashes in the
    seal, which are checked from the newest checkpoint on until one is whole.

    Args:
        path: `--ckpt.path`.

    Raises:
        CheckpointError: for a checkpoint that this package did not write, when nothing has been changed; and without a
            complete checkpoint for a file between them, because OpenRLHF would take their folder for one.
    """
    folder = path / FOLDER
    found = sorted(folder.iterdir()) if folder.is_dir() else []
    _refuse_foreign(path, found)
    messages: list[str] = []
    complete = []
    for checkpoint in filter(Path.is_dir, found):
        if not (checkpoint / SEAL).exists():
            discard(checkpoint)
            messages.append(f"checkpoint {checkpoint.name} is ignored and deleted: it was not written completely")
        elif fault := find_fault(checkpoint):
            messages.append(_set_aside(checkpoint, fault))
        else:
            complete.append(checkpoint)
    complete.sort(key=seals.order)
    while complete and (change := seals.find_change(complete[-1])):
        messages.append(_set_aside(complete.pop(), change))
    if not complete:
        _remove_empty(path)
        messages.append(f"no complete checkpoint in {path}: starting from the beginning")
        return Recovery(None, None, messages)
    used, tag = seals.read_seal(complete[-1]), complete[-1].name
    write_text(folder / LATEST, tag)
    verified = "" if used and used.hashes else " (not verified: an earlier version wrote it, without hashes)"
    messages.append(f"resuming from checkpoint {tag} in {path}{verified}")
    return Recovery(tag, used, messages)


def _refuse_foreign(path: Path, entries: list[Path]) -> None:
    """Raise CheckpointError for the first folder in `_actor` that this package did not write."""
    for entry in entries:
        if entry.is_dir() and not _is_ours(entry) and any(entry.iterdir()):
            raise CheckpointError(
                f"--ckpt.path {path} holds checkpoint {entry.name} without a {SEAL}: it was not written by "
                "openrlhf_swap, or only partly copied; use another --ckpt.path, or move it away"
            )


def _remove_empty(path: Path) -> None:
    """Remove `_actor` without checkpoints, which OpenRLHF would take for one."""
    folder = path / FOLDER
    if not folder.is_dir():
        return
    for name in BESIDE:
        (folder / name).unlink(missing_ok=True)
    if others := sorted(entry.name for entry in folder.iterdir()):
        raise CheckpointError(
            f"--ckpt.path {path} holds {FOLDER}/{others[0]}, which openrlhf_swap did not write; move it away"
        )
    folder.rmdir()


def _set_aside(checkpoint: Path, fault: str) -> str:
    """Move a damaged checkpoint out of the way, under a name that is free, and say so in a line."""
    folder = checkpoint.parent.parent / DAMAGED
    folder.mkdir(exist_ok=True)
    target, count = folder / checkpoint.name, 1
    while target.exists():
        count += 1
        target = folder / f"{checkpoint.name}.{count}"
    checkpoint.rename(target)
    return f"checkpoint {checkpoint.name} is ignored and moved to {target}: {fault}"


def discard(checkpoint: Path) -> None:
    """Delete a checkpoint that this package wrote, complete or not, or an empty folder; anything else stays.

    It is marked as incomplete first, and the mark goes last: an interrupted deletion leaves what the next start
    deletes.
    """
    if not checkpoint.is_dir():
        return
    if _is_ours(checkpoint):
        with suppress(OSError):  # a full disk may have no room for the mark; then the seal goes last
            (checkpoint / MARK).touch()
            (checkpoint / SEAL).unlink(missing_ok=True)
        for entry in checkpoint.iterdir():
            if entry.name not in (MARK, SEAL):
                _delete(entry)
        for name in (SEAL, MARK):
            (checkpoint / name).unlink(missing_ok=True)
    with suppress(OSError):  # not empty, so not ours
        checkpoint.rmdir()


def _delete(entry: Path) -> None:
    if entry.is_dir() and not entry.is_symlink():
        shutil.rmtree(entry, ignore_errors=True)
    else:
        entry.unlink(missing_ok=True)


def rotate(path: Path, keep: int, max_bytes: float) -> None:
    """Delete the oldest complete checkpoints until at most `keep` are left, with at most `max_bytes` in total.

    The newest always stays, and so do those with the best evaluation ("best_..."). Call after the new one is sealed:
    OpenRLHF itself deletes before it writes, and a run killed in between would have lost both.
    """
    rotated = [checkpoint for checkpoint in _sealed(path / FOLDER) if not checkpoint.name.startswith("best")]
    sizes = {checkpoint: sum(seals.file_sizes(checkpoint).values()) for checkpoint in sorted(rotated, key=seals.order)}
    while len(sizes) > 1 and (len(sizes) > keep or sum(sizes.values()) > max_bytes):
        oldest = next(iter(sizes))
        discard(oldest)
        del sizes[oldest]


def _sealed(folder: Path) -> list[Path]:
    """The checkpoints in a folder that have a seal, whatever it says."""
    return [seal.parent for seal in folder.glob(f"*/{SEAL}")]


def _is_ours(checkpoint: Path) -> bool:
    return any((checkpoint / name).exists() for name in (SEAL, MARK))
