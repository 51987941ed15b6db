"""The same OpenRLHF stack on a machine without CUDA, which it assumes in a handful of places."""

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
# An argument of vLLM's engines. vLLM on a CPU cannot revoke a seeded token that it has sampled for
# a partly read prompt, so prompts are read whole.
WHOLE_PROMPTS = {"enable_chunked_prefill": False}


@cache
def prepare_for_cpu() -> None:
    """Replace calls of CUDA before OpenRLHF is imported, on a CPU build of torch only."""
    if not is_cpu_build():
        return
    if "RAY_ADDRESS" not in os.environ:
        patches.install(NO_CLUSTER)
    os.environ.setdefault("TORCH_EXTENSIONS_DIR", str(Path(sys.prefix) / "torch_extensions"))
    # This environment's ninja is found however Python was started: another one would recompile all.
    programs = str(Path(sys.prefix) / "bin")
    found_by = os.environ.get("PATH", "")
    if not found_by.startswith(programs):
        os.environ["PATH"] = f"{programs}{os.pathsep}{found_by}"
    patches.install(EVERY_CPU)
    speed_up_products()


class _CpuDevice(str):
    """The device "cpu", but "0" in an f-string: the replay buffer builds `f"cuda:{...}"`."""

    def __format__(self, spec: str) -> str:
        return "0"


# Functions of `torch.cuda`. Each is an object of its own: torch.compile refuses duplicates.


def set_device(*_: Any, **__: Any) -> None: ...


def synchronize(*_: Any, **__: Any) -> None: ...


def current_device() -> _CpuDevice:
    return _CpuDevice("cpu")


def empty_cache() -> None:
    """Return free memory to the system: the C library keeps most of what a large step has taken."""
    with suppress(AttributeError):  # only glibc does
        ctypes.CDLL(None).malloc_trim(0)


def init_cpu_mesh(_device: str, *args: Any, **kwargs: Any) -> DeviceMesh:
    return init_device_mesh("cpu", *args, **kwargs)


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
