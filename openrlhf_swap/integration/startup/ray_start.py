"""Ray, which takes seconds to start, started while OpenRLHF and vLLM are imported."""

import os
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from types import SimpleNamespace
from typing import Any

import ray

from openrlhf_swap.flags.configuration import Configuration
from openrlhf_swap.flags.placement import engine_gpus, gpu_actors, policy_ranks
from openrlhf_swap.integration.runtime.cpu import CPU_ENVIRONMENT, THREADS, set_cpu_environment

# What OpenRLHF gives to its processes.
OPENRLHFS_VARIABLES = {
    "TOKENIZERS_PARALLELISM": "true",
    "NCCL_DEBUG": "WARN",
    "RAY_ENABLE_ZERO_COPY_TORCH_TENSORS": "1",
}
OBJECT_STORE_BYTES = 256 * 2**20  # enough for the embedded policy's rollouts; Ray would take 30% of memory


@contextmanager
def starting_ray(configuration: Configuration) -> Iterator[Future[None]]:
    """Start Ray behind the block, which waits for the result before it uses Ray, and shut it down with the block."""
    args, on_cpu = configuration.args, configuration.on_cpu
    if on_cpu:
        set_cpu_environment()
        os.environ.setdefault(THREADS, str(threads(args, len(os.sched_getaffinity(0)))))
    with ThreadPoolExecutor(1) as pool:
        started = pool.submit(start_ray, gpu_actors(args), on_cpu)
        try:
            yield started
        finally:
            pool.submit(ray.shutdown).result()


def threads(args: SimpleNamespace, cores: int) -> int:
    """Threads per process of a CPU run, so that processes that work at the same time share the cores.

    Engines and policy take turns, unless the run is asynchronous.
    """
    actors, engines = policy_ranks(args), engine_gpus(args)
    return max(1, cores // (actors + engines if args.train.async_enable else max(actors, engines)))


def start_ray(places: int, on_cpu: bool) -> None:
    """Join the cluster that RAY_ADDRESS names or start Ray on this machine alone, without its dashboard.

    On a CPU a Ray of our own has as many slots as `places` for processes that ask for a GPU.
    """
    if "RAY_ADDRESS" not in os.environ:
        # One CPU more for the trainer, which asks for no GPU.
        slots = {"num_cpus": places + 1, "num_gpus": places, "object_store_memory": OBJECT_STORE_BYTES}
        if on_cpu:
            os.environ.pop("CUDA_VISIBLE_DEVICES", None)  # Ray counts these slots as GPUs, and would miss them there
        options: dict[str, Any] = {"address": "local", "include_dashboard": False, **(slots if on_cpu else {})}
    else:
        options = {}
    if not on_cpu:
        variables = {name: os.environ.get(name, value) for name, value in OPENRLHFS_VARIABLES.items()}
        options["runtime_env"] = {"env_vars": variables}
    elif not options:
        options["runtime_env"] = {"env_vars": {name: os.environ[name] for name in (*CPU_ENVIRONMENT, THREADS)}}
    ray.init(**options)
