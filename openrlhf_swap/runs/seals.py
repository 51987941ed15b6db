"""The seal of a checkpoint: what its files hold, and its place in the order of checkpoints."""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path

from openrlhf_swap.files import Row, to_line, write_text

SEAL = "complete.json"
MARK = "incomplete"  # exists while a checkpoint is being written or deleted
HASH = "sha256"


@dataclass(frozen=True)
class Seal:
    """What `complete.json` says.

    Attributes:
        objective: the objective whose state the checkpoint holds; None if unknown.
        number: checkpoints are numbered in the order in which they are written, from 1; 0 in seals of versions that
            did not number them.
        ranks: processes that trained the policy, each with a part of the checkpoint; None in older seals.
        zero_stage: DeepSpeed's, which decides what the parts are; None in older seals.
        sizes: bytes of each file, by name relative to the checkpoint.
        hashes: SHA-256 of each file in hexadecimal; empty in seals of versions without hashes.
        origin: what the run was started with, as `checkpoints.record_origin` got it; empty in older seals.
    """

    objective: str | None
    number: int
    ranks: int | None
    zero_stage: int | None
    sizes: dict[str, int]
    hashes: dict[str, str]
    origin: Row = field(default_factory=dict)


def write_seal(checkpoint: Path, objective: str, number: int, ranks: int, zero_stage: int, origin: Row) -> None:
    """Write the seal of a checkpoint whose files are all there."""
    sizes = file_sizes(checkpoint)
    hashes = file_hashes(checkpoint, sizes)
    files = {name: {"bytes": size, HASH: hashes[name]} for name, size in sizes.items()}
    run = {"objective": objective, "number": number, "ranks": ranks, "zero_stage": zero_stage, "origin": origin}
    write_text(checkpoint / SEAL, to_line({**run, "files": files}, indent=1))


def read_seal(checkpoint: Path) -> Seal | None:
    """The seal of a checkpoint; None if it is torn or is not one.

    Raises:
        FileNotFoundError: if there is none.
    """
    text = (checkpoint / SEAL).read_bytes()
    try:
        content = json.loads(text)
        files, number, objective = content["files"], content.get("number", 0), content.get("objective")
        if files and all(type(size) is int for size in files.values()):  # written before seals had hashes
            return Seal(objective, 0, None, None, files, {})
        sizes = {name: int(entry["bytes"]) for name, entry in files.items()}
        hashes = {name: str(entry[HASH]) for name, entry in files.items()}
    except (ValueError, LookupError, TypeError, AttributeError, RecursionError):
        return None
    ranks, zero_stage, origin = content.get("ranks"), content.get("zero_stage"), content.get("origin") or {}
    return Seal(objective, number, ranks, zero_stage, sizes, hashes, origin) if type(number) is int else None


def order(checkpoint: Path) -> tuple[int, int]:
    """Sorts sealed checkpoints from the oldest to the newest: by number, those without one by time and first."""
    seal = read_seal(checkpoint)
    number = seal.number if seal else 0
    return (number, 0) if number else (0, (checkpoint / SEAL).stat().st_mtime_ns)


def find_fault(checkpoint: Path) -> str | None:
    """What can be seen to be wrong with a checkpoint without reading its files, in words; None for nothing."""
    try:
        seal = read_seal(checkpoint)
    except FileNotFoundError:
        return "it was not written completely"
    if seal is None:
        return f"its {SEAL} cannot be read"
    sizes = file_sizes(checkpoint)
    for name, size in seal.sizes.items():
        if name not in sizes:
            return f"{name} is missing"
        if sizes[name] != size:
            return f"{name} has {sizes[name]} bytes instead of {size}"
    return None


def find_change(checkpoint: Path) -> str | None:
    """Which file of a checkpoint no longer holds what was written, in words; None for none. Reads all of them."""
    seal = read_seal(checkpoint)
    hashes = seal.hashes if seal else {}
    try:
        now = file_hashes(checkpoint, hashes)
    except OSError as error:
        return f"{Path(error.filename or checkpoint).name} cannot be read ({error.strerror})"
    changed = next((name for name in hashes if now[name] != hashes[name]), None)
    return changed and f"{changed} has changed since it was written (its {HASH} is another)"


def file_hashes(checkpoint: Path, names: Iterable[str]) -> dict[str, str]:
    """SHA-256 of files, by name; a thread for each core reads one at a time, since hashing does not hold the GIL."""

    def hash_of(name: str) -> str:
        with open(checkpoint / name, "rb") as file:
            # The stack runs on Python 3.11; the types are checked for the lowest version of the other parts.
            return hashlib.file_digest(file, HASH).hexdigest()  # type: ignore[attr-defined, no-any-return]

    listed = list(names)
    with ThreadPoolExecutor(len(os.sched_getaffinity(0))) as threads:
        return dict(zip(listed, threads.map(hash_of, listed), strict=True))


def file_sizes(checkpoint: Path) -> dict[str, int]:
    """Bytes of each file below `checkpoint`, by relative name, without the seal itself."""
    return {
        str(file.relative_to(checkpoint)): file.stat().st_size
        for file in sorted(checkpoint.rglob("*"))
        if file.is_file() and file.name not in (SEAL, SEAL + ".writing", MARK)
    }
