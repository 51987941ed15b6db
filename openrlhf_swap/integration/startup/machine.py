"""Checks of the machine before Ray starts: its GPUs, and its main memory."""

import os
from contextlib import suppress

import psutil
import torch

from openrlhf_swap.errors import ConfigError
from openrlhf_swap.flags.configuration import Configuration
from openrlhf_swap.flags.placement import gpu_actors, policy_ranks
from openrlhf_swap.sizing.memory import Machine, host_bytes, read_run
from openrlhf_swap.sizing.memory import place_optimizer as find_place
from openrlhf_swap.sizing.models import gib


def check_gpus(configuration: Configuration) -> Configuration:
    """The configuration with the optimizer's place, for a machine that can carry the run.

    That of a cluster stays as it is. Raises ConfigError for too few GPUs, for which Ray would wait
    silently, or too little main memory.
    """
    if "RAY_ADDRESS" in os.environ:
        return configuration
    args = configuration.args
    needed = policy_ranks(args) if args.train.colocate_all else gpu_actors(args)
    present = torch.cuda.device_count()
    if present < needed:
        raise ConfigError(
            f"the run takes {needed} GPUs (--actor.num_gpus_per_node, --vllm.num_engines), but "
            f"{present} are here; ask for fewer, see nvidia-smi, or set RAY_ADDRESS to a cluster"
        )
    from ray._private.utils import estimate_available_memory
    from vllm.platforms import current_platform

    # The driver says it: asked by CUDA, each GPU would give this process memory until it ends.
    gpu = min(current_platform.get_device_total_memory(number) for number in range(needed))
    placed, messages = place_optimizer(configuration, gpu)
    for message in messages:
        print(f"[swap] {message}")
    # Ray reads the limits of a container, and psutil what other containers leave.
    available = min(estimate_available_memory(), psutil.virtual_memory().available)
    check_main_memory(pinned_memory(placed), available)
    return placed


def place_optimizer(configuration: Configuration, gpu: int) -> tuple[Configuration, list[str]]:
    """Keep the optimizer on GPUs of `gpu` bytes, if it fits beside vLLM.

    `--ds.enable_sleep` lets it leave. Returns the configuration, and lines for the console.
    """
    args = configuration.args
    if not (args.ds.enable_sleep and args.train.colocate_all and args.vllm.enable_sleep):
        return configuration, []
    leaves = "the optimizer leaves the GPU while vLLM generates:"
    try:
        model, given = read_run(configuration)
    except ConfigError as error:
        return configuration, [f"{leaves} {error}"]
    placed = find_place(model, given, Machine(gpu, args.actor.num_gpus_per_node))
    if placed.actor_sleeps:
        return configuration, [f"{leaves} both do not fit into {gib(gpu)} GiB"]
    share = placed.utilization
    stays = "the optimizer stays on the GPU, which holds it beside vLLM with"
    flags = {"ds.enable_sleep": False, "vllm.gpu_memory_utilization": share}
    return configuration.replace_flags(flags), [f"{stays} {share:.0%} of {gib(gpu)} GiB"]


def check_main_memory(pinned: dict[str, int], available: int) -> None:
    """Raise ConfigError when the run pins more bytes, by use, than are available."""
    total = sum(pinned.values())
    if total > available:
        parts = ", ".join(f"{name} {gib(size)}" for name, size in pinned.items())
        raise ConfigError(
            f"{gib(available)} GiB of main memory are available, but the run keeps {gib(total)} "
            f"there ({parts}); openrlhf-swap plan --node-memory {available / 2**30:.0f} with these "
            "flags names some that fit"
        )


def pinned_memory(configuration: Configuration) -> dict[str, int]:
    """Bytes of main memory that the run pins beside its processes, by use.

    They are {} where there is no formula for the model.
    """
    with suppress(ConfigError):
        model, settings = read_run(configuration)
        return host_bytes(model, settings, configuration.args.actor.num_gpus_per_node)
    return {}
