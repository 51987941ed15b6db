"""Can this machine's GPUs and memory carry the run? Asked of the driver and the kernel before Ray starts."""

from __future__ import annotations

import importlib
import os
import shutil
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from itertools import takewhile
from pathlib import Path
from typing import Any

import psutil
import torch

from openrlhf_swap.errors import ConfigError
from openrlhf_swap.flags.configuration import Configuration
from openrlhf_swap.flags.placement import gpu_actors, policy_ranks, reference_ranks

GIB = 2**30
DRIVER = 580  # the first with CUDA 13, for which torch is built
BFLOAT16 = (8, 0)  # the first compute capability with it
SHARED_MEMORY = GIB  # least of /dev/shm for several GPUs
DEFAULT = "DEFAULT"
COMPUTE_MODES = (DEFAULT, "EXCLUSIVE_THREAD", "PROHIBITED", "EXCLUSIVE_PROCESS")  # by NVML's numbers
CGROUP = Path("/sys/fs/cgroup")


@dataclass(frozen=True)
class Gpu:
    """One GPU, or a MIG instance of one."""

    name: str
    total: int  # bytes
    free: int  # bytes
    capability: tuple[int, int]
    mig: bool = False
    compute_mode: str = DEFAULT  # which processes it lets in, as nvidia-smi -c takes it


@dataclass(frozen=True)
class Machine:
    """What a run finds on a machine."""

    driver: str  # its version
    cuda: tuple[int, int]  # the newest version of CUDA that it runs
    gpus: tuple[Gpu, ...]  # those that a process would see, in its order
    shared_memory: int  # bytes free in /dev/shm
    memory: int  # bytes of main memory available


@dataclass(frozen=True)
class Needs:
    """What a run takes."""

    gpus: int
    share: float  # of a GPU's memory for vLLM
    cuda: str  # the version that torch is built for, such as 13.0
    pinned: dict[str, int]  # bytes of main memory by use, beside the processes
    shared: bool  # several processes compute on each GPU


def check(configuration: Configuration) -> None:
    """Check this machine; nothing where a run is to join a cluster, or NVIDIA's library does not answer.

    Raises:
        ConfigError: for what the run could not work with.
    """
    machine = None if "RAY_ADDRESS" in os.environ else read_machine()
    if machine and (problem := next(find_problems(machine, read_needs(configuration)), None)):
        raise ConfigError(problem)


def find_problems(machine: Machine, needs: Needs) -> Iterator[str]:
    """What a run could not work with on a machine, each with its remedy."""
    used = machine.gpus[: needs.gpus]  # Ray takes the first ones
    if machine.cuda[0] < int(needs.cuda.partition(".")[0]):
        newest = ".".join(map(str, machine.cuda))
        yield (
            f"the NVIDIA driver {machine.driver} runs CUDA {newest} at most, but torch is built for CUDA "
            f"{needs.cuda}; update it to {DRIVER} or newer"
        )
    for number, gpu in enumerate(used):
        where = f"GPU {number} ({gpu.name})"
        if gpu.capability < BFLOAT16:
            capability = ".".join(map(str, gpu.capability))
            yield (
                f"{where} has compute capability {capability} and no bfloat16, in which the run computes: use GPUs of "
                "8.0 or newer (Ampere), see CUDA_VISIBLE_DEVICES"
            )
        if gpu.mig and len(used) > 1:
            yield (
                f"{where} is divided by MIG, whose instances NCCL cannot connect; switch it off (nvidia-smi -mig 0), "
                "or use one instance"
            )
        if needs.shared and gpu.compute_mode != DEFAULT:
            yield (
                f"{where} is in compute mode {gpu.compute_mode}, but several processes of the run share it: change "
                f"the mode (nvidia-smi -c {DEFAULT}, as root)"
            )
        if gpu.free < needs.share * gpu.total:
            yield (
                f"{where} has {gib(gpu.free)} of {gib(gpu.total)} GiB free, but vLLM takes {needs.share:.0%} "
                "(--vllm.gpu_memory_utilization): end the processes that nvidia-smi shows on it, or choose others "
                "with CUDA_VISIBLE_DEVICES"
            )
    if len(used) > 1 and machine.shared_memory < SHARED_MEMORY:
        yield (
            f"/dev/shm has {gib(machine.shared_memory)} GiB free, but Ray and NCCL need at least {gib(SHARED_MEMORY)} "
            f"for {len(used)} GPUs: enlarge it (docker run --shm-size=16g)"
        )
    if (pinned := sum(needs.pinned.values())) > machine.memory:
        from openrlhf_swap.sizing.remedies import host_remedy

        parts = ", ".join(f"{name} {gib(size)}" for name, size in needs.pinned.items())
        yield (
            f"{gib(machine.memory)} GiB of main memory are available, but the run keeps {gib(pinned)} there "
            f"({parts}); use {host_remedy(needs.pinned)}"
        )


def gib(size: float) -> str:
    """Bytes as GiB with one decimal."""
    return f"{size / GIB:.1f}"


def read_needs(configuration: Configuration) -> Needs:
    """What a run takes of a machine, from its settings; no pinned memory where there is no formula for it."""
    # A run on a CPU does without the planner, whose import takes a moment.
    from openrlhf_swap.sizing.memory import host_bytes
    from openrlhf_swap.sizing.settings import read_run

    args, pinned = configuration.args, {}
    with suppress(ConfigError):
        model, settings = read_run(configuration)
        pinned = host_bytes(model, settings, args.actor.num_gpus_per_node)
    gpus = policy_ranks(args) if args.train.colocate_all else gpu_actors(args)
    shared = args.train.colocate_all or (args.train.colocate_actor_ref and reference_ranks(args) > 0)
    return Needs(gpus, args.vllm.gpu_memory_utilization, torch.version.cuda or "0", pinned, shared)


def read_machine(nvml: Any = None) -> Machine | None:
    """This machine, from NVIDIA's management library, which takes no GPU memory; None where that does not answer.

    Args:
        nvml: the library; by default the one that vLLM brings.
    """
    if nvml is None:
        nvml = importlib.import_module("vllm.third_party.pynvml")
    try:
        nvml.nvmlInit()
        version = nvml.nvmlSystemGetCudaDriverVersion_v2()
        return Machine(
            driver=nvml.nvmlSystemGetDriverVersion(),
            cuda=(version // 1000, version % 1000 // 10),
            gpus=tuple(_read_gpu(nvml, name) for name in _visible_gpus(nvml)),
            shared_memory=shutil.disk_usage("/dev/shm").free,
            memory=available_memory(),
        )
    except nvml.NVMLError:
        return None


def _visible_gpus(nvml: Any) -> list[str]:
    """Names of the GPUs that a process sees: numbers, or ids that begin with GPU or MIG."""
    listed = os.environ.get("CUDA_VISIBLE_DEVICES")
    if listed is None:
        return [str(number) for number in range(nvml.nvmlDeviceGetCount())]
    return list(takewhile(lambda name: name not in ("", "-1"), map(str.strip, listed.split(","))))


def _read_gpu(nvml: Any, name: str) -> Gpu:
    """A GPU; a MIG instance with its own memory, and the rest of the GPU that it belongs to."""
    by_number = name.isdecimal()
    handle = nvml.nvmlDeviceGetHandleByIndex(int(name)) if by_number else nvml.nvmlDeviceGetHandleByUUID(name)
    memory, mig, mode = nvml.nvmlDeviceGetMemoryInfo(handle), name.startswith("MIG-"), 0
    if mig:
        handle = nvml.nvmlDeviceGetDeviceHandleFromMigDeviceHandle(handle)
    else:
        with suppress(nvml.NVMLError):  # one that has no MIG
            mig = nvml.nvmlDeviceGetMigMode(handle)[0] == 1
    with suppress(nvml.NVMLError):  # one that has no modes
        mode = nvml.nvmlDeviceGetComputeMode(handle)
    capability = tuple(nvml.nvmlDeviceGetCudaComputeCapability(handle))
    return Gpu(nvml.nvmlDeviceGetName(handle), memory.total, memory.free, capability, mig, COMPUTE_MODES[mode])


def available_memory(cgroup: Path = CGROUP) -> int:
    """Bytes of main memory that processes can still take, in a container of what its limit leaves.

    Cached files count as used there, and are given up when processes need the memory.
    """
    available = int(psutil.virtual_memory().available)
    with suppress(OSError, ValueError):  # no limit: no such file, or the word max
        limit, used = (int((cgroup / name).read_text()) for name in ("memory.max", "memory.current"))
        kinds = dict(line.split() for line in (cgroup / "memory.stat").read_text().splitlines())
        cached = sum(int(kinds[kind]) for kind in ("inactive_file", "active_file"))
        available = min(available, limit - used + cached)
    return available
