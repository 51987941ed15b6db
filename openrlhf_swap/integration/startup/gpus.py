"""Can this machine's GPUs and memory carry the run? Asked before Ray starts; otherwise the answer takes minutes."""

import os
from contextlib import suppress

import psutil
import torch
from ray._private.utils import estimate_available_memory
from vllm.platforms import current_platform

from openrlhf_swap.errors import ConfigError
from openrlhf_swap.flags.configuration import Configuration
from openrlhf_swap.flags.placement import gpu_actors, policy_ranks
from openrlhf_swap.sizing import memory
from openrlhf_swap.sizing.memory import host_bytes, read_run
from openrlhf_swap.sizing.models import gib


def check(configuration: Configuration) -> Configuration:
    """Check this machine; nothing where the run is to join a cluster.

    Returns:
        The configuration with its optimizer's place.

    Raises:
        ConfigError: for too few GPUs, for which Ray would wait silently, or too little main memory.
    """
    if "RAY_ADDRESS" in os.environ:
        return configuration
    args = configuration.args
    needed = policy_ranks(args) if args.train.colocate_all else gpu_actors(args)
    if (there := torch.cuda.device_count()) < needed:
        raise ConfigError(
            f"the run takes {needed} GPUs (--actor.num_gpus_per_node, --vllm.num_engines), but {there} are here; "
            "ask for fewer, see nvidia-smi, or set RAY_ADDRESS to a cluster"
        )
    # Of the driver: asked by CUDA, each GPU would give this process memory until it ends.
    gpu = min(current_platform.get_device_total_memory(number) for number in range(needed))
    configuration = place_optimizer(configuration, gpu)
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
    leaves = "[swap] the optimizer leaves the GPU while vLLM generates:"
    try:
        model, given = read_run(configuration)
    except ConfigError as error:
        print(f"{leaves} {error}")
        return configuration
    placed = memory.place_optimizer(model, given, memory.Machine(gpu, args.actor.num_gpus_per_node))
    if placed.actor_sleeps:
        print(f"{leaves} both do not fit into {gib(gpu)} GiB")
        return configuration
    share = placed.utilization
    print(f"[swap] the optimizer stays on the GPU, which holds it beside vLLM with {share:.0%} of {gib(gpu)} GiB")
    return configuration.replace_flags({"ds.enable_sleep": False, "vllm.gpu_memory_utilization": share})


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
    with suppress(ConfigError):
        model, settings = read_run(configuration)
        return host_bytes(model, settings, configuration.args.actor.num_gpus_per_node)
    return {}
