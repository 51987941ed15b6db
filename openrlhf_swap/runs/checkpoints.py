"""Checkpoints that are complete or absent: a mark is written first and a seal last, and a start looks for both.

DeepSpeed writes a checkpoint file by file into `<--ckpt.path>/_actor/<tag>` and then its tag into `latest`. A process
killed in between, a full disk or a damaged file leaves a folder that looks like any other.
"""

import hashlib
import json
import os
import shutil
from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from itertools import count
from pathlib import Path

from openrlhf_swap.errors import CheckpointError
from openrlhf_swap.files import to_line, write_text

CONFIGURATION = "swap_config.json"  # in the output folder: settings, command, and what trackers call the run
FOLDER = "_actor"  # where OpenRLHF keeps the policy's checkpoints under --ckpt.path
LATEST = "latest"
BESIDE = (LATEST, LATEST + ".writing", "zero_to_fp32.py")  # what DeepSpeed and this package write next to them
ORIGIN = "origin.json"  # under --ckpt.path: what the run was started with
DAMAGED = "damaged"  # under --ckpt.path: checkpoints whose seal does not fit them
SEAL = "complete.json"
MARK = "incomplete"  # exists while a checkpoint is being written or deleted
HASH = "sha256"


def begin(checkpoint: Path) -> None:
    """Mark a checkpoint as incomplete. Call before its first file is written.

    Raises CheckpointError if the folder holds something that this package did not write.
    """
    discard(checkpoint)  # left by an earlier run in the same folder
    checkpoint.mkdir(parents=True, exist_ok=True)
    if any(checkpoint.iterdir()):
        raise CheckpointError(f"{checkpoint} holds files that openrlhf_swap did not write; move them away")
    (checkpoint / MARK).touch()


def seal(checkpoint: Path) -> None:
    """Mark a checkpoint as complete: list its files with sizes and hashes, and give it the next number."""
    numbers = [_read_seal(file.parent)[0] for file in checkpoint.parent.glob(f"*/{SEAL}")]
    sizes = file_sizes(checkpoint)
    hashes = _hashes(checkpoint, sizes)
    files = {name: {"bytes": size, HASH: hashes[name]} for name, size in sizes.items()}
    write_text(checkpoint / SEAL, to_line({"number": 1 + max(numbers, default=0), "files": files}, indent=1))
    (checkpoint / MARK).unlink(missing_ok=True)


def take_the_place_of_the_best(checkpoint: Path, tag: str) -> None:
    """Rename a sealed checkpoint to `tag`, a "best_...", and only then delete the previous best."""
    target = checkpoint.with_name(tag)
    discard(target)
    checkpoint.rename(target)
    write_text(checkpoint.with_name(LATEST), tag)
    for older in checkpoint.parent.glob("best*"):
        if older != target:
            discard(older)


def newest(path: Path) -> str | None:
    """The tag of the newest complete checkpoint under `--ckpt.path`, whose files are not read; None without one."""
    complete = (checkpoint.name for checkpoint in reversed(_sealed(path / FOLDER)) if not _find_fault(checkpoint))
    return next(complete, None)


def how_to_resume(path: Path) -> str:
    """What to do after a run that kept its checkpoints in `path` has ended before its time."""
    saved = newest(path)
    return f"start again with --ckpt.load_enable to resume from {saved}" if saved else "no checkpoint was written yet"


def refuse_to_overwrite(path: Path) -> None:
    """Raise CheckpointError if `--ckpt.path` holds a checkpoint, which a new run would overwrite."""
    if tag := newest(path):
        raise CheckpointError(
            f"--ckpt.path is {path}, which holds checkpoint {tag} of an earlier run; give --ckpt.load_enable to "
            "resume from it, or another --ckpt.path (and --swap.output_dir) to start from the beginning"
        )


def recover(path: Path) -> tuple[str | None, list[str]]:
    """Point DeepSpeed's `latest` at the newest complete checkpoint, and move incomplete ones out of the way.

    A checkpoint that was never finished is deleted: nothing in it can be used, and it would count when the oldest are
    rotated out. A damaged one is moved to `<path>/damaged`; so is one whose files no longer have the hashes in the
    seal, which are checked from the newest checkpoint on until one is whole.

    Returns:
        The checkpoint to resume from, None to start from the beginning; and what happened, for the user, line by line.

    Raises:
        CheckpointError: for a checkpoint that this package did not write, when nothing has been changed; and without a
            complete checkpoint for a file between them, because OpenRLHF would take their folder for one.
    """
    folder = path / FOLDER
    unsealed = sorted(entry for entry in folder.glob("*") if entry.is_dir() and not (entry / SEAL).exists())
    for entry in unsealed:
        if any(entry.iterdir()) and not _is_ours(entry):
            raise CheckpointError(
                f"--ckpt.path {path} holds checkpoint {entry.name} without a {SEAL}: it was not written by "
                "openrlhf_swap, or only partly copied; use another --ckpt.path, or move it away"
            )
    messages = []
    for entry in unsealed:
        discard(entry)
        messages.append(f"checkpoint {entry.name} is ignored and deleted: it was not written completely")
    tag = None
    for checkpoint in reversed(_sealed(folder)):
        if fault := _find_fault(checkpoint, reads_files=tag is None):
            messages.append(_set_aside(checkpoint, fault))
        else:
            tag = tag or checkpoint.name
    if tag is None:
        _remove_empty(path)
        return None, [*messages, f"no complete checkpoint in {path}: starting from the beginning"]
    write_text(folder / LATEST, tag)
    return tag, [*messages, f"resuming from checkpoint {tag} in {path}"]


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
            if entry.is_dir() and not entry.is_symlink():
                shutil.rmtree(entry, ignore_errors=True)
            elif entry.name not in (MARK, SEAL):
                entry.unlink(missing_ok=True)
        for name in (SEAL, MARK):
            (checkpoint / name).unlink(missing_ok=True)
    with suppress(OSError):  # not empty, so not ours
        checkpoint.rmdir()


def rotate(path: Path, keep: int, max_bytes: float) -> None:
    """Delete the oldest complete checkpoints until at most `keep` are left, with at most `max_bytes` in total.

    The newest always stays, and so do those with the best evaluation ("best_..."). Call after the new one is sealed:
    OpenRLHF itself deletes before it writes, and a run killed in between would have lost both.
    """
    rotated = [checkpoint for checkpoint in _sealed(path / FOLDER) if not checkpoint.name.startswith("best")]
    sizes = [sum(file_sizes(checkpoint).values()) for checkpoint in rotated]
    while len(rotated) > 1 and (len(rotated) > keep or sum(sizes) > max_bytes):
        discard(rotated.pop(0))
        del sizes[0]


def file_sizes(checkpoint: Path) -> dict[str, int]:
    """Bytes of each file below `checkpoint`, by relative name, without the seal itself."""
    return {
        str(file.relative_to(checkpoint)): file.stat().st_size
        for file in sorted(checkpoint.rglob("*"))
        if file.is_file() and file.name not in (SEAL, SEAL + ".writing", MARK)
    }


def _read_seal(checkpoint: Path) -> tuple[int, dict[str, tuple[int, str]]]:
    """What the seal of a checkpoint says: its number, and each file's size and hash; 0 and no files if it is torn."""
    try:
        content = json.loads((checkpoint / SEAL).read_bytes())
        files = {name: (int(entry["bytes"]), str(entry[HASH])) for name, entry in content["files"].items()}
        return int(content["number"]), files
    except (ValueError, LookupError, TypeError, AttributeError, RecursionError):
        return 0, {}


def _sealed(folder: Path) -> list[Path]:
    """The checkpoints in a folder that have a seal, from the oldest to the newest; those with a torn one first."""
    return sorted((file.parent for file in folder.glob(f"*/{SEAL}")), key=lambda checkpoint: _read_seal(checkpoint)[0])


def _find_fault(checkpoint: Path, reads_files: bool = False) -> str | None:
    """What is wrong with a sealed checkpoint, in words, and None for nothing; if asked, by what is in its files."""
    number, sealed = _read_seal(checkpoint)
    if not number:
        return f"its {SEAL} cannot be read"
    sizes = file_sizes(checkpoint)
    for name, (size, _) in sealed.items():
        if sizes.get(name) != size:
            return f"{name} has {sizes[name]} bytes instead of {size}" if name in sizes else f"{name} is missing"
    try:
        hashes = _hashes(checkpoint, sealed) if reads_files else {}
    except OSError as error:
        return f"{Path(error.filename or checkpoint).name} cannot be read ({error.strerror})"
    changed = next((name for name in hashes if hashes[name] != sealed[name][1]), None)
    return changed and f"{changed} has changed since it was written (its {HASH} is another)"


def _hashes(checkpoint: Path, names: Iterable[str]) -> dict[str, str]:
    """SHA-256 of files, by name; a thread for each core reads one at a time, since hashing does not hold the GIL."""

    def hash_of(name: str) -> str:
        with open(checkpoint / name, "rb") as file:
            # The stack runs on Python 3.11; the types are checked for the lowest version of the other parts.
            return hashlib.file_digest(file, HASH).hexdigest()  # type: ignore[attr-defined, no-any-return]

    with ThreadPoolExecutor(len(os.sched_getaffinity(0))) as threads:
        return dict(zip(names, threads.map(hash_of, names), strict=True))


def _is_ours(checkpoint: Path) -> bool:
    return any((checkpoint / name).exists() for name in (SEAL, MARK))


def _set_aside(checkpoint: Path, fault: str) -> str:
    """Move a damaged checkpoint out of the way, under a name that is free, and say so in a line."""
    folder = checkpoint.parent.parent / DAMAGED
    folder.mkdir(exist_ok=True)
    targets = (folder / f"{checkpoint.name}{f'.{number}' if number > 1 else ''}" for number in count(1))
    target = next(target for target in targets if not target.exists())
    checkpoint.rename(target)
    return f"checkpoint {checkpoint.name} is ignored and moved to {target}: {fault}"


def _remove_empty(path: Path) -> None:
    """Remove `_actor` without checkpoints, which OpenRLHF would take for one."""
    folder = path / FOLDER
    for name in BESIDE:
        (folder / name).unlink(missing_ok=True)
    if others := sorted(entry.name for entry in folder.glob("*")):
        raise CheckpointError(f"--ckpt.path {path} holds {FOLDER}/{others[0]}, which is not ours; move it away")
    with suppress(FileNotFoundError):
        folder.rmdir()
