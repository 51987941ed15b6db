"""Run the same OpenRLHF stack on a machine without CUDA.

OpenRLHF 0.11.2 assumes CUDA in a handful of places. On a CPU build of torch `install()` replaces exactly these, in
every process that imports `openrlhf_swap.integration`, before OpenRLHF itself is imported; on a CUDA or ROCm build
it does nothing.
"""

import ctypes
import os
import sys
import time
from contextlib import suppress
from functools import cache
from pathlib import Path
from typing import Any

from torch.distributed.device_mesh import DeviceMesh, init_device_mesh

from openrlhf_swap.integration import patches
from openrlhf_swap.integration.patches import CPU_COMMAND, EVERY_CPU, NO_CLUSTER
from openrlhf_swap.packages import is_cpu_build
from openrlhf_swap.packages.kernels import speed_up_products

# Every process of a CPU run inherits these; values that are already set take precedence.
CPU_ENVIRONMENT = {"DS_ACCELERATOR": "cpu", **patches.VARIABLES[CPU_COMMAND]}
LOADING_SECONDS = 20  # that a process holds the lock of a compiled op of DeepSpeed's to load it
THREADS = "OMP_NUM_THREADS"  # per process; Ray would set it to one


def set_cpu_environment() -> None:
    for name, value in CPU_ENVIRONMENT.items():
        os.environ.setdefault(name, value)


@cache
def install() -> None:
    """Replace OpenRLHF's CUDA assumptions by CPU equivalents. Idempotent; does nothing on an accelerator build."""
    if not is_cpu_build():
        return
    if "RAY_ADDRESS" not in os.environ:
        patches.install(NO_CLUSTER)
    os.environ.setdefault("TORCH_EXTENSIONS_DIR", str(Path(sys.prefix) / "torch_extensions"))
    # This environment's ninja is found however Python was started: another version would recompile everything.
    programs = str(Path(sys.prefix) / "bin")
    others = [entry for entry in os.environ.get("PATH", "").split(os.pathsep) if entry != programs]
    os.environ["PATH"] = os.pathsep.join([programs, *others])
    patches.install(EVERY_CPU)
    speed_up_products()


class _CpuDevice(str):
    """The CPU in every form in which OpenRLHF uses `torch.cuda.current_device()`.

    As an argument it is the device string "cpu"; inside an f-string it is "0", because the replay buffer builds
    `f"cuda:{current_device()}"` (a device which it then never uses).
    """

    def __format__(self, spec: str) -> str:
        return "0"


# Functions of `torch.cuda`. One function object a name: torch.compile keeps a rule for each and refuses duplicates.
def current_device() -> _CpuDevice:
    return _CpuDevice("cpu")


def set_device(*_: Any, **__: Any) -> None: ...


def synchronize(*_: Any, **__: Any) -> None: ...


def empty_cache() -> None:
    """Return free memory to the system: steps differ in size, and the C library keeps most of what one has taken."""
    with suppress(AttributeError):  # only glibc does
        ctypes.CDLL(None).malloc_trim(0)


def current_stream(*_: Any, **__: Any) -> None: ...


def init_cpu_mesh(_device: str, *args: Any, **kwargs: Any) -> DeviceMesh:
    """Stands for the `init_device_mesh` that OpenRLHF's strategy calls with "cuda"."""
    return init_device_mesh("cpu", *args, **kwargs)


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
    with suppress(FileNotFoundError):  # its holder removes it
        while True:
            if time.time() - lock.stat().st_mtime > LOADING_SECONDS:
                print(f"[swap] removing {lock}, left behind by a process that was stopped while compiling", flush=True)
                lock.unlink()
            time.sleep(0.5)
