"""The same OpenRLHF stack on a machine without CUDA, which it assumes in a handful of places."""

import ctypes
import os
import sys
from contextlib import suppress
from functools import cache
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import torch
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh

from openrlhf_swap.flags.placement import takes_turns
from openrlhf_swap.integration import patches
from openrlhf_swap.integration.patches import EVERY_CPU, NO_CLUSTER
from openrlhf_swap.packages import is_cpu_build
from openrlhf_swap.packages.kernels import speed_up_products

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


def init_cpu_mesh(_device: str, *args: Any, **kwargs: Any) -> DeviceMesh:
    return init_device_mesh("cpu", *args, **kwargs)


def release_memory(args: SimpleNamespace) -> None:
    """Return free memory to a GPU that processes of the run take turns with, or to the system.

    Elsewhere a process keeps its part of a GPU: it would ask for the same memory again.
    """
    if takes_turns(args):
        torch.cuda.empty_cache()
    release_freed_blocks()


def release_freed_blocks() -> None:
    """Return to the system what the C library of a CPU run keeps of freed memory: most of it."""
    if is_cpu_build():
        with suppress(AttributeError):  # only glibc does
            ctypes.CDLL(None).malloc_trim(0)
