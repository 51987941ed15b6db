"""Compile DeepSpeed's CPU op once, before any actor would."""

import contextlib
import os
import time
from pathlib import Path

LOADING_SECONDS = 20  # that a process holds the lock to load an op that is there


def build_communication_op() -> None:
    """Compile DeepSpeed's shared-memory communication op where this process looks for it, unless it is there.

    DeepSpeed would compile it silently inside the first actor, for up to minutes. An actor stopped meanwhile would
    leave the compiler's lock behind, and every later start would wait for it forever. So one process compiles it
    beforehand, under a lock that ends with the process, and removes the other lock if it is too old to be in use.
    """
    from deepspeed.accelerator import get_accelerator
    from filelock import FileLock

    builder = get_accelerator().create_op_builder("ShareMemCommBuilder")
    if builder is None or not builder.is_compatible(verbose=False):
        return
    folder = Path(os.environ["TORCH_EXTENSIONS_DIR"]) / builder.name
    folder.mkdir(parents=True, exist_ok=True)
    with FileLock(folder.with_suffix(".building")):
        _wait_for_lock(folder)
        if not any(folder.glob("*.so")):
            print("[swap] compiling DeepSpeed's communication op, once: half a minute or more", flush=True)
        builder.load(verbose=False)


def _wait_for_lock(folder: Path) -> None:
    lock = folder / "lock"
    with contextlib.suppress(FileNotFoundError):  # its holder removes it
        while True:
            if time.time() - lock.stat().st_mtime > LOADING_SECONDS:
                print(f"[swap] removing {lock}, left behind by a process that was stopped while compiling", flush=True)
                lock.unlink()
            time.sleep(0.5)
