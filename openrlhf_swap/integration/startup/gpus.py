"""Can this machine's GPUs and memory carry the run? Asked before Ray starts; otherwise the answer takes minutes."""

from __future__ import annotations

import os
import shutil
from concurrent.futures import ProcessPoolExecutor
from contextlib import suppress
from dataclasses import dataclass
from multiprocessing import get_context
from types import SimpleNamespace

import psutil
import torch
from ray._private.utils import estimate_available_memory

from openrlhf_swap.errors import ConfigError, reader_errors
from openrlhf_swap.flags.configuration import Configuration
from openrlhf_swap.flags.placement import gpu_actors, policy_ranks

SHARED_MEMORY = 2**30  # least of /dev/shm for several GPUs


@dataclass(frozen=True)
class Gpu:
    name: str
    free: int  # bytes
    total: int  # bytes


def check(configuration: Configuration) -> Configuration:
    """Check this machine; nothing where the run is to join a cluster.

    Returns:
        The configuration with its optimizer's place.

    Raises:
        ConfigError: for what the run could not work with.
    """
    if "RAY_ADDRESS" in os.environ:
        return configuration
    gpus = read_gpus(configuration.args)
    configuration = place_optimizer(configuration, min(gpu.total for gpu in gpus))
    check_gpus(gpus, configuration.args.vllm.gpu_memory_utilization)
    if len(gpus) > 1:
        check_shared_memory(shutil.disk_usage("/dev/shm").free)
    # Ray reads the limits of a container, and psutil what other containers leave.
    available = min(estimate_available_memory(), psutil.virtual_memory().available)
    check_main_memory(pinned_memory(configuration), available)
    return configuration


def place_optimizer(configuration: Configuration, gpu: int) -> Configuration:
    """Keep the optimizer on GPUs of `gpu` bytes, although `--ds.enable_sleep` lets it leave, if it fits beside vLLM.

    Prints the choice.
    """
    args = configuration.args
    if not (args.ds.enable_sleep and args.train.colocate_all and args.vllm.enable_sleep):
        return configuration
    # A run on a CPU does without the planner, whose import takes a moment.
    from openrlhf_swap.sizing import remedies, settings

    leaves = "[swap] the optimizer leaves the GPU while vLLM generates:"
    try:
        model, given = settings.read_run(configuration)
    except ConfigError as error:
        print(f"{leaves} {error}")
        return configuration
    placed = remedies.place_optimizer(model, given, remedies.Machine(gpu, args.actor.num_gpus_per_node))
    if placed.actor_sleeps:
        print(f"{leaves} both do not fit into {gib(gpu)} GiB")
        return configuration
    share = placed.utilization
    print(f"[swap] the optimizer stays on the GPU, which holds it beside vLLM with {share:.0%} of {gib(gpu)} GiB")
    return configuration.replace_flags({"ds.enable_sleep": False, "vllm.gpu_memory_utilization": share})


def gib(size: float) -> str:
    return f"{size / 2**30:.1f}"


def read_gpus(args: SimpleNamespace) -> list[Gpu]:
    """The GPUs that Ray will take: the first that a process sees. Ray would wait silently for missing ones.

    Raises:
        ConfigError: when there are too few, or CUDA cannot use them.
    """
    needed = policy_ranks(args) if args.train.colocate_all else gpu_actors(args)
    if (there := torch.cuda.device_count()) < needed:
        raise ConfigError(
            f"the run takes {needed} GPUs (--actor.num_gpus_per_node, --vllm.num_engines), but {there} are here; "
            "ask for fewer, see nvidia-smi, or set RAY_ADDRESS to a cluster"
        )
    message = "the GPUs cannot be used ({reason}); see nvidia-smi, and update a driver that is older than 580"
    # In a process of its own: CUDA takes memory of every GPU that it is asked about, until the process ends.
    with ProcessPoolExecutor(1, get_context("spawn")) as process, reader_errors(message, ConfigError):
        return process.submit(_ask_cuda, needed).result()


def _ask_cuda(number: int) -> list[Gpu]:
    return [Gpu(torch.cuda.get_device_name(n), *torch.cuda.mem_get_info(n)) for n in range(number)]


def check_gpus(gpus: list[Gpu], share: float) -> None:
    """Raise ConfigError for a GPU that has less memory free than the share that vLLM takes."""
    for number, gpu in enumerate(gpus):
        if gpu.free < share * gpu.total:
            raise ConfigError(
                f"GPU {number} ({gpu.name}) has {gib(gpu.free)} of {gib(gpu.total)} GiB free, but vLLM takes "
                f"{share:.0%} (--vllm.gpu_memory_utilization): end the processes that nvidia-smi shows on it, or "
                "choose others with CUDA_VISIBLE_DEVICES"
            )


def check_shared_memory(free: int) -> None:
    """Raise ConfigError for too little of /dev/shm for several GPUs: their processes would die of a bus error."""
    if free < SHARED_MEMORY:
        raise ConfigError(
            f"/dev/shm has {gib(free)} GiB free, but Ray and NCCL need at least {gib(SHARED_MEMORY)} for several "
            "GPUs: enlarge it (docker run --shm-size=16g)"
        )


def check_main_memory(pinned: dict[str, int], available: int) -> None:
    """Raise ConfigError when the run pins more than is available; both in bytes, `pinned` by use."""
    if (total := sum(pinned.values())) > available:
        parts = ", ".join(f"{name} {gib(size)}" for name, size in pinned.items())
        raise ConfigError(
            f"{gib(available)} GiB of main memory are available, but the run keeps {gib(total)} there ({parts}); "
            f"openrlhf-swap plan --node-memory {available / 2**30:.0f} with these flags names some that fit"
        )


def pinned_memory(configuration: Configuration) -> dict[str, int]:
    """Bytes of main memory that the run pins beside its processes, by use; {} where there is no formula for it."""
    # A run on a CPU does without the planner, whose import takes a moment.
    from openrlhf_swap.sizing.memory import host_bytes
    from openrlhf_swap.sizing.settings import read_run

    with suppress(ConfigError):
        model, settings = read_run(configuration)
        return host_bytes(model, settings, configuration.args.actor.num_gpus_per_node)
    return {}
