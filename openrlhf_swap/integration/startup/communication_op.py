"""DeepSpeed's communication op for CPUs, compiled before the first process needs it."""

import os
import time
from contextlib import suppress
from pathlib import Path

LOADING_SECONDS = 20  # that a process holds the lock of a compiled op of DeepSpeed's to load it


def build_communication_op() -> None:
    """Compile DeepSpeed's shared-memory communication op where this process looks for it.

    DeepSpeed would do so silently in the first actor, for minutes. An actor that is stopped
    meanwhile would leave the compiler's lock behind, and every later start would wait for it. So
    one process compiles the op beforehand, under a lock that ends with the process.
    """
    from deepspeed.accelerator import get_accelerator
    from filelock import FileLock

    builder = get_accelerator().create_op_builder("ShareMemCommBuilder")
    if builder is None or not builder.is_compatible(verbose=False):
        return
    folder = Path(os.environ["TORCH_EXTENSIONS_DIR"]) / builder.name
    folder.mkdir(parents=True, exist_ok=True)
    with FileLock(folder.with_suffix(".building")):
        _wait_for_compiler(folder / "lock")
        if not any(folder.glob("*.so")):
            op = "DeepSpeed's communication op"
            print(f"[swap] compiling {op}, once: half a minute or more", flush=True)
        builder.load(verbose=False)


def _wait_for_compiler(lock: Path) -> None:
    """Wait until nobody holds the compiler's lock; remove it if it is too old to be in use."""
    while lock.exists():
        with suppress(FileNotFoundError):  # its holder removes it
            if time.time() - lock.stat().st_mtime > LOADING_SECONDS:
                reason = "left by a process that was stopped while compiling"
                print(f"[swap] removing {lock}, {reason}", flush=True)
                lock.unlink()
        time.sleep(0.5)
