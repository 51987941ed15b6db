"""Checks of the machine before Ray starts: its GPUs, and its main memory."""

import os
from contextlib import suppress

import psutil
import torch

from openrlhf_swap.errors import ConfigError
from openrlhf_swap.flags.configuration import Configuration
from openrlhf_swap.flags.placement import gpus_of_run
from openrlhf_swap.sizing.engine import cache_bytes
from openrlhf_swap.sizing.fitting import Machine, describe_place
from openrlhf_swap.sizing.fitting import place_optimizer as find_place
from openrlhf_swap.sizing.host import host_bytes
from openrlhf_swap.sizing.models import gib
from openrlhf_swap.sizing.settings import read_run


def check_gpus(configuration: Configuration) -> tuple[Configuration, dict[str, int]]:
    """Place optimizer and vLLM on the GPUs of a machine that can carry the run.

    Returns the configuration, and the limits of vLLM's engines that follow, by vLLM's names. A
    cluster's configuration stays as it is. Raises ConfigError for too few GPUs, for which Ray would
    wait silently, or too little main memory.
    """
    if "RAY_ADDRESS" in os.environ:
        return configuration, {}
    args = configuration.args
    needed = gpus_of_run(args)
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
    pinned = pinned_memory(placed)
    total = sum(pinned.values())
    if total > available:
        parts = ", ".join(f"{name} {gib(size)}" for name, size in pinned.items())
        raise ConfigError(
            f"{gib(available)} GiB of main memory are available, but the run keeps {gib(total)} "
            f"there ({parts}); openrlhf-swap plan --node-memory {available / 2**30:.0f} with these "
            "flags names some that fit"
        )
    return placed, engine_cache(configuration, placed, gpu)


def place_optimizer(configuration: Configuration, gpu: int) -> tuple[Configuration, list[str]]:
    """Keep on GPUs of `gpu` bytes what fits there: the optimizer, and vLLM beside it.

    `--ds.enable_sleep` and `--vllm.enable_sleep` let them leave. Returns the configuration, and
    lines for the console.
    """
    args = configuration.args
    if not (args.ds.enable_sleep and args.train.colocate_all and args.vllm.enable_sleep):
        return configuration, []
    try:
        model, given = read_run(configuration)
    except ConfigError as error:
        return configuration, [f"the optimizer leaves the GPU while vLLM generates: {error}"]
    placed = find_place(model, given, Machine(gpu, args.actor.num_gpus_per_node))
    flags = {
        "ds.enable_sleep": placed.actor_sleeps,
        "vllm.enable_sleep": placed.vllm_sleeps,
        "vllm.gpu_memory_utilization": placed.utilization,
    }
    place = f"the optimizer {describe_place(model, given, placed)}"
    return configuration.replace_flags(flags), [place]


def engine_cache(
    given: Configuration,
    placed: Configuration,
    gpu: int,
) -> dict[str, int]:
    """The cache of an engine that stays on its GPU although it might leave, by vLLM's name.

    vLLM then need not measure its room, and the policy may load beside it. The cache of other
    engines is left to vLLM.
    """
    if not given.args.vllm.enable_sleep or placed.args.vllm.enable_sleep:
        return {}
    model, settings = read_run(placed)
    return {"kv_cache_memory_bytes": cache_bytes(model, settings, gpu)}


def pinned_memory(configuration: Configuration) -> dict[str, int]:
    """Bytes of main memory that the run pins beside its processes, by use.

    They are {} where there is no formula for the model.
    """
    with suppress(ConfigError):
        model, settings = read_run(configuration)
        return host_bytes(model, settings, configuration.args.actor.num_gpus_per_node)
    return {}
