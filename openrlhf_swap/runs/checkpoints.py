"""Checkpoints that are complete or absent: each is written as `unfinished_...`, and renamed when it
is complete.

They are in `<--ckpt.path>/_actor/<tag>`, where a tag is `global_step4` or `best_global_step4`;
DeepSpeed loads the one whose tag is in `latest`. The next start deletes those that a killed process
left unfinished.
"""

import os
import re
import shutil
from contextlib import suppress
from pathlib import Path

from openrlhf_swap.errors import CheckpointError
from openrlhf_swap.files import write_text

CONFIGURATION = (
    "swap_config.json"  # in the output folder: settings, command, and what trackers call the run
)
FOLDER = "_actor"  # where OpenRLHF keeps the policy's checkpoints under --ckpt.path
LATEST = "latest"
ORIGIN = "origin.json"  # under --ckpt.path: what the run was started with
UNFINISHED = "unfinished_"
_TAG = re.compile(r"(best_)?global_step(\d+)")


def finish(checkpoint: Path) -> None:
    """Name an `unfinished_...` checkpoint, make it the latest, and delete the best one before a
    better one.
    """
    os.sync()  # a power cut must not leave the name without the content
    finished = checkpoint.with_name(checkpoint.name.removeprefix(UNFINISHED))
    discard(finished)  # an earlier run's
    checkpoint.rename(finished)
    write_text(finished.with_name(LATEST), finished.name)
    if finished.name.startswith("best_"):
        for older in _complete(finished.parent):
            if older.name.startswith("best_") and older != finished:
                discard(older)


def newest(path: Path) -> str | None:
    """The tag of the newest complete checkpoint under `--ckpt.path`, by its step; None without one."""
    return next((checkpoint.name for checkpoint in reversed(_complete(path / FOLDER))), None)


def how_to_resume(path: Path) -> str:
    """What to do after a run that kept its checkpoints in `path` has ended before its time."""
    saved = newest(path)
    return (
        f"start again with --ckpt.load_enable to resume from {saved}"
        if saved
        else "no checkpoint was written yet"
    )


def refuse_to_overwrite(path: Path) -> None:
    """Raise CheckpointError if `--ckpt.path` holds a checkpoint, which a new run would overwrite."""
    if tag := newest(path):
        raise CheckpointError(
            f"--ckpt.path is {path}, which holds checkpoint {tag} of an earlier run; give --ckpt.load_enable to "
            "resume from it, or another --ckpt.path (and --swap.output_dir) to start from the beginning"
        )


def recover(path: Path) -> tuple[str | None, list[str]]:
    """Delete unfinished checkpoints, and point DeepSpeed's `latest` at the newest complete one.

    Returns that one, None to start from the beginning; and what happened, for the user, line by
    line.
    """
    messages = []
    for unfinished in sorted(path.glob(f"{FOLDER}/{UNFINISHED}*")):
        shutil.rmtree(unfinished)
        messages.append(f"checkpoint {unfinished.name} is deleted: it was not written completely")
    if tag := newest(path):
        write_text(path / FOLDER / LATEST, tag)
        return tag, [*messages, f"resuming from checkpoint {tag} in {path}"]
    for name in (LATEST, "zero_to_fp32.py"):  # the latter is DeepSpeed's
        (path / FOLDER / name).unlink(missing_ok=True)
    with suppress(FileNotFoundError):  # OpenRLHF would take the folder for a checkpoint
        (path / FOLDER).rmdir()
    return None, [*messages, f"no complete checkpoint in {path}: starting from the beginning"]


def discard(checkpoint: Path) -> None:
    """Delete a checkpoint, if there is one; an interrupted deletion leaves what the next start
    deletes.
    """
    if checkpoint.exists():
        doomed = checkpoint.with_name(f"{UNFINISHED}deletion_of_{checkpoint.name}")
        shutil.rmtree(doomed, ignore_errors=True)
        checkpoint.rename(doomed)
        shutil.rmtree(doomed)


def rotate(path: Path, keep: int, max_bytes: float) -> None:
    """Delete the oldest checkpoints, but not the newest and the best, until at most `keep` and
    `max_bytes` are left.

    Call after a new one is finished: OpenRLHF deletes before it writes, and a run killed in between
    would lose both.
    """
    rotated = [
        checkpoint
        for checkpoint in _complete(path / FOLDER)
        if not checkpoint.name.startswith("best_")
    ]
    sizes = [
        sum(file.stat().st_size for file in checkpoint.rglob("*") if file.is_file())
        for checkpoint in rotated
    ]
    while len(rotated) > 1 and (len(rotated) > keep or sum(sizes) > max_bytes):
        discard(rotated.pop(0))
        del sizes[0]


def _complete(folder: Path) -> list[Path]:
    """The complete checkpoints in a folder, from the oldest to the newest; the best one after that
    of its step.
    """
    tags = {
        entry: match
        for entry in folder.glob("*global_step*")
        if (match := _TAG.fullmatch(entry.name))
    }
    return sorted(tags, key=lambda entry: (int(tags[entry][2]), entry.name.startswith("best_")))
