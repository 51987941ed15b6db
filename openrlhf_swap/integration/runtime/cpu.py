"""Run the same OpenRLHF stack on a machine without CUDA, which it assumes in a handful of places."""

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
from openrlhf_swap.integration.patches import EVERY_CPU, NO_CLUSTER
from openrlhf_swap.packages import is_cpu_build
from openrlhf_swap.packages.kernels import speed_up_products

LOADING_SECONDS = 20  # that a process holds the lock of a compiled op of DeepSpeed's to load it
THREADS = "OMP_NUM_THREADS"  # per process; Ray would set it to one


@cache
def install() -> None:
    """Replace calls of CUDA before OpenRLHF is imported; does nothing on an accelerator build of
    torch.
    """
    if not is_cpu_build():
        return
    if "RAY_ADDRESS" not in os.environ:
        patches.install(NO_CLUSTER)
    os.environ.setdefault("TORCH_EXTENSIONS_DIR", str(Path(sys.prefix) / "torch_extensions"))
    # This environment's ninja is found however Python was started: another version would recompile
    # everything.
    programs = str(Path(sys.prefix) / "bin")
    others = [entry for entry in os.environ.get("PATH", "").split(os.pathsep) if entry != programs]
    os.environ["PATH"] = os.pathsep.join([programs, *others])
    patches.install(EVERY_CPU)
    speed_up_products()


class _CpuDevice(str):
    """The device "cpu", but "0" in an f-string: the replay buffer builds
    `f"cuda:{current_device()}"`.
    """

    def __format__(self, spec: str) -> str:
        return "0"


# Functions of `torch.cuda`. One function object a name: torch.compile keeps a rule for each and
# refuses duplicates.
set_device, synchronize, current_stream = [lambda *_, **__: None for _ in range(3)]


def current_device() -> _CpuDevice:
    return _CpuDevice("cpu")


def empty_cache() -> None:
    """Return free memory to the system: steps differ in size, and the C library keeps most of what
    one has taken.
    """
    with suppress(AttributeError):  # only glibc does
        ctypes.CDLL(None).malloc_trim(0)


def init_cpu_mesh(_device: str, *args: Any, **kwargs: Any) -> DeviceMesh:
    return init_device_mesh("cpu", *args, **kwargs)


def build_communication_op() -> None:
    """Compile DeepSpeed's shared-memory communication op where this process looks for it, unless it
    is there.

    DeepSpeed would do so silently in the first actor, for minutes. An actor stopped meanwhile would
    leave the compiler's lock behind, for which every later start would wait. So one process
    compiles it beforehand, under a lock that ends with the process, and removes the other lock if
    it is too old to be in use.
    """
    from deepspeed.accelerator import get_accelerator
    from filelock import FileLock

    builder = get_accelerator().create_op_builder("ShareMemCommBuilder")
    if builder is None or not builder.is_compatible(verbose=False):
        return
    folder = Path(os.environ["TORCH_EXTENSIONS_DIR"]) / builder.name
    folder.mkdir(parents=True, exist_ok=True)
    lock = folder / "lock"
    with FileLock(folder.with_suffix(".building")):
        with suppress(FileNotFoundError):  # its holder removes it
            while True:
                if time.time() - lock.stat().st_mtime > LOADING_SECONDS:
                    print(
                        f"[swap] removing {lock}, left by a process that was stopped while compiling",
                        flush=True,
                    )
                    lock.unlink()
                time.sleep(0.5)
        if not any(folder.glob("*.so")):
            print(
                "[swap] compiling DeepSpeed's communication op, once: half a minute or more",
                flush=True,
            )
        builder.load(verbose=False)
