"""The checkpoints of a run: those that are complete, and which of them is the best.

Each is written as `unfinished_...`, and renamed when it is complete. They are in
`<--ckpt.path>/_actor/<tag>`, where a tag is `global_step4` or `best_global_step4`; DeepSpeed loads
the one whose tag is in `latest`. The next start deletes what a killed process left unfinished.
"""

import os
import re
import shutil
import zlib
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from openrlhf_swap.errors import CheckpointError, ConfigError, DataError
from openrlhf_swap.files import parse_row, to_line, write_text

# In the output folder: the run's settings, its command, and what trackers call it.
CONFIGURATION = "swap_config.json"
FOLDER = "_actor"  # where OpenRLHF keeps the policy's checkpoints under --ckpt.path
LATEST = "latest"
ORIGIN = "origin.json"  # under --ckpt.path: what the run was started with
UNFINISHED = "unfinished_"
BEST = "best_"
PART = 2**24  # bytes of a file that have a checksum together
LoopStates = dict[str, Any]
"""The loop's part of a checkpoint, by name."""
_TAG = re.compile(r"(best_)?global_step\d+")


def finish(checkpoint: Path) -> None:
    """Name an `unfinished_...` checkpoint, and make it the latest; a best one replaces the last."""
    os.sync()  # a power cut must not leave the name without the content
    finished = checkpoint.with_name(checkpoint.name.removeprefix(UNFINISHED))
    discard(finished)  # an earlier run's
    checkpoint.rename(finished)
    write_text(finished.with_name(LATEST), finished.name)
    if not finished.name.startswith(BEST):
        return
    for other in _complete(finished.parent):
        if other.name.startswith(BEST) and other != finished:
            discard(other)


def newest(path: Path) -> str | None:
    """The tag of the newest complete checkpoint under `--ckpt.path`, by its step, or None."""
    complete = _complete(path / FOLDER)
    return complete[-1].name if complete else None


def how_to_resume(ckpt: SimpleNamespace) -> str:
    """What to do after a run with these `--ckpt.*` settings has ended before its time."""
    saved = newest(Path(ckpt.path))
    if saved is None:
        return "no checkpoint was written yet"
    how = "the same command again" if ckpt.load_enable else "again with --ckpt.load_enable"
    return f"start {how} to resume from {saved}"


def how_to_end(path: Path) -> str:
    """How to get a policy from a run with checkpoints in `path` that is not to go on; else empty.

    A run that has trained its last step already writes its policy and ends.
    """
    saved = newest(path)
    if saved is None:
        return ""
    step = step_of(saved)
    return f", or add --swap.training_steps {step} to write its policy and end"


def step_of(tag: str) -> int:
    """The last training step that a checkpoint has."""
    return int(tag.rpartition("global_step")[2])


def refuse_to_overwrite(path: Path) -> None:
    """Raise CheckpointError if `--ckpt.path` holds a checkpoint: a new run would overwrite it."""
    tag = newest(path)
    if tag is not None:
        raise CheckpointError(
            f"--ckpt.path is {path}, which holds checkpoint {tag} of an earlier run; give "
            "--ckpt.load_enable to resume from it, or another --ckpt.path (and "
            "--swap.output_dir) to start from the beginning"
        )


def recover(path: Path) -> tuple[str | None, list[str]]:
    """Delete unfinished checkpoints, and point DeepSpeed's `latest` at the newest complete one.

    Returns the tag of that one, None to start from the beginning, and lines that tell the user
    what happened. Raises CheckpointError if its files are not those that were written, or if
    there is none among other files.
    """
    messages = []
    for unfinished in [*sorted(path.glob(f"{FOLDER}/{UNFINISHED}*")), *_empty(path / FOLDER)]:
        _delete(unfinished)
        messages.append(f"checkpoint {unfinished.name} is deleted: it was not written completely")
    tag = newest(path)
    if tag is not None:
        _check(path, tag)
        write_text(path / FOLDER / LATEST, tag)
        return tag, [*messages, f"resuming from checkpoint {tag} in {path}"]
    for name in (LATEST, "zero_to_fp32.py"):  # the latter is DeepSpeed's
        (path / FOLDER / name).unlink(missing_ok=True)
    _remove_folder(path / FOLDER)
    return None, [*messages, f"no complete checkpoint in {path}: starting from the beginning"]


def _remove_folder(folder: Path) -> None:
    """Remove the folder of checkpoints, which OpenRLHF would take for one.

    Raises CheckpointError for a folder that holds something.
    """
    if not folder.exists():
        return
    others = sorted(entry.name for entry in folder.iterdir())
    if others:
        raise CheckpointError(
            f"{folder} holds {others[0]} but no checkpoint of a run; move it away, or give another "
            "--ckpt.path"
        )
    folder.rmdir()


def write_checksums(checkpoint: Path, rank: int, ranks: int) -> None:
    """Write the checksums of this rank's share of a checkpoint's files, which all ranks see."""
    files = _files_in(checkpoint)[rank::ranks]
    with ThreadPoolExecutor() as threads:
        sums = {str(file.relative_to(checkpoint)): _checksum(file, threads) for file in files}
    write_text(checkpoint / f"checksums_{rank}.json", to_line(sums, indent=1))


def _check(path: Path, tag: str) -> None:
    """Raise CheckpointError for a checkpoint whose files changed since they were written.

    A checkpoint of an earlier version has no checksums and is not checked.
    """
    if (path / FOLDER / LATEST).is_dir():
        raise CheckpointError(
            f"{path / FOLDER / LATEST} is a folder, but the name of a checkpoint is to be written "
            "there; move it away"
        )
    checkpoint = path / FOLDER / tag
    fault = _find_damage(checkpoint)
    if fault is None:
        return
    earlier = [other.name for other in _complete(path / FOLDER) if other.name != tag]
    remedy = f"resume from {earlier[-1]}" if earlier else "start from the beginning"
    raise CheckpointError(
        f"checkpoint {tag} in {path} is damaged ({fault}); delete {checkpoint} to {remedy}"
    )


def _find_damage(checkpoint: Path) -> str | None:
    """What is wrong with the files of a checkpoint by their checksums; None for nothing."""
    with ThreadPoolExecutor() as threads:
        for record in sorted(checkpoint.glob("checksums_*.json")):
            try:
                sums = parse_row(record.read_bytes())
            except DataError as error:
                return f"{record.name} cannot be read: {error}"
            for name, checksum in sums.items():
                file = checkpoint / name
                if not file.is_file():
                    return f"{name} is missing"
                if _checksum(file, threads) != checksum:
                    return f"{name} has other bytes than were written"
    return None


def _checksum(file: Path, threads: ThreadPoolExecutor) -> str:
    """The size of a file and a CRC-32, computed in parallel, of those of its parts."""
    size = file.stat().st_size
    sums = threads.map(lambda start: _checksum_of_part(file, start), range(0, size, PART))
    whole = zlib.crc32(repr(list(sums)).encode())
    return f"{size} {whole:08x}"


def _checksum_of_part(file: Path, start: int) -> int:
    with open(file, "rb") as opened:
        opened.seek(start)
        return zlib.crc32(opened.read(PART))


def _files_in(checkpoint: Path) -> list[Path]:
    """The files of a checkpoint, without those of checksums."""
    files = sorted(file for file in checkpoint.rglob("*") if file.is_file())
    return [file for file in files if not file.name.startswith("checksums_")]


def discard(checkpoint: Path) -> None:
    """Delete a checkpoint, if there is one; what an interruption leaves, the next start deletes."""
    if not os.path.lexists(checkpoint):
        return
    doomed = checkpoint.with_name(f"{UNFINISHED}deletion_of_{checkpoint.name}")
    if os.path.lexists(doomed):
        _delete(doomed)
    checkpoint.rename(doomed)
    _delete(doomed)


def _delete(place: Path) -> None:
    """Delete a folder with its files, or a file, or a link: what a link leads to stays."""
    if place.is_symlink() or not place.is_dir():
        place.unlink()
    else:
        shutil.rmtree(place)


def rotate(path: Path, keep: int, max_bytes: float) -> None:
    """Delete the oldest checkpoints until at most `keep` of at most `max_bytes` are left.

    The newest and the best one stay. Call this after a new one is finished: OpenRLHF deletes before
    it writes, and a run that is killed in between would lose both.
    """
    complete = _complete(path / FOLDER)
    rotated = [checkpoint for checkpoint in complete if not checkpoint.name.startswith(BEST)]
    sizes = [_bytes_in(checkpoint) for checkpoint in rotated]
    while len(rotated) > 1 and (len(rotated) > keep or sum(sizes) > max_bytes):
        discard(rotated.pop(0))
        del sizes[0]


def _bytes_in(folder: Path) -> int:
    return sum(file.stat().st_size for file in folder.rglob("*") if file.is_file())


def _complete(folder: Path) -> list[Path]:
    """The complete checkpoints in a folder, oldest first; the best one follows that of its step."""
    return sorted(filter(_has_files, _tagged(folder)), key=_age)


def _empty(folder: Path) -> list[Path]:
    """The folders that have the name of a checkpoint and nothing in them."""
    return [entry for entry in _tagged(folder) if entry.is_dir() and not _has_files(entry)]


def _tagged(folder: Path) -> list[Path]:
    return [entry for entry in folder.glob("*global_step*") if _TAG.fullmatch(entry.name)]


def _has_files(checkpoint: Path) -> bool:
    return checkpoint.is_dir() and any(checkpoint.iterdir())


def _age(checkpoint: Path) -> tuple[int, bool]:
    return step_of(checkpoint.name), checkpoint.name.startswith(BEST)


class BestCheckpoint:
    """The largest value so far of one metric of the evaluations during the training.

    `--ckpt.best_metric_key` names the metric. An empty one takes the first share of correct
    answers, and "none" looks for no best checkpoint.
    """

    def __init__(self, asked: str) -> None:
        self._asked = asked or ""
        self.key = self._asked
        self.value = float("-inf")

    def observe(self, metrics: Mapping[str, float]) -> bool:
        """Whether an evaluation is better than all before it.

        Raises ConfigError for a metric that the evaluations do not measure.
        """
        if self.key == "none":
            return False
        if not self.key:
            shares = sorted(name for name in metrics if name.endswith("_pass1"))
            if not shares:
                return False
            self.key = shares[0]
        if self.key not in metrics:
            raise ConfigError(
                f"--ckpt.best_metric_key is {self.key!r}, which no evaluation measures; use one of "
                f"{', '.join(metrics)}"
            )
        is_best = metrics[self.key] > self.value
        self.value = max(self.value, metrics[self.key])
        return is_best

    def states(self) -> LoopStates:
        """The part of a checkpoint, by OpenRLHF's names."""
        return {"best_eval_metric_key": self.key, "best_eval_metric_value": self.value}

    def resume(self, states: LoopStates) -> None:
        """Go on from a checkpoint's states, unless the flag names another metric than they do."""
        kept = states.get("best_eval_metric_key")
        if not kept or (self._asked and self._asked != kept):
            return
        self.key = kept
        self.value = states["best_eval_metric_value"]
