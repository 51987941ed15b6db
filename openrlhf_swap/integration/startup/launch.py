"""Start Ray where needed and run OpenRLHF's training CLI with our classes in it."""

from __future__ import annotations

import os
import re
import runpy
import sys
import time
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any, NoReturn

import ray
from vllm.v1.engine.exceptions import EngineDeadError

from openrlhf_swap.errors import RunError, SwapError
from openrlhf_swap.flags.configuration import Configuration
from openrlhf_swap.flags.placement import engine_gpus, engine_limits, gpu_actors, policy_ranks
from openrlhf_swap.flags.stock import TRAIN
from openrlhf_swap.integration import patches
from openrlhf_swap.integration.generation.rollout_actor import EngineFactory, SwapRolloutActor, expert_kernels
from openrlhf_swap.integration.patches import DRIVER, TRAINS, TRAINS_ALONE
from openrlhf_swap.integration.runtime import attention
from openrlhf_swap.integration.runtime.cpu import CPU_ENVIRONMENT, THREADS
from openrlhf_swap.integration.runtime.cpu_build import build_communication_op
from openrlhf_swap.integration.runtime.weights import engine_arguments
from openrlhf_swap.integration.startup import gpus
from openrlhf_swap.integration.startup.cluster import watch_gcs
from openrlhf_swap.runs import checkpoints
from openrlhf_swap.runs.console import end_process

LAST_WORDS_SECONDS = 1  # that Ray takes to deliver the last output of an actor
# What OpenRLHF gives to its processes.
OPENRLHFS_VARIABLES = {
    "TOKENIZERS_PARALLELISM": "true",
    "NCCL_DEBUG": "WARN",
    "RAY_ENABLE_ZERO_COPY_TORCH_TENSORS": "1",
}
OBJECT_STORE_BYTES = 256 * 2**20  # enough for the embedded policy's rollouts; Ray would take 30% of memory


def launch(configuration: Configuration) -> None:
    """Train; returns when the last checkpoint is written.

    On a CPU "GPUs" are slots for processes, on this machine or in the cluster that RAY_ADDRESS names.

    Raises:
        ConfigError: when the machine cannot carry the run.
        SwapError: one of our errors that was raised in an actor.
    """
    args, run = configuration.args, configuration.run
    patches.install(TRAINS)
    if "RAY_ADDRESS" not in os.environ:
        patches.install(TRAINS_ALONE)
    print(f"[swap] {attention.summary(args.ds.attn_implementation, args.actor.model_name_or_path)}")
    # OpenRLHF itself says True.
    more = {"trust_remote_code": run.trust_remote_code, **engine_arguments(args)}
    if configuration.on_cpu:
        # On a CPU, vLLM cannot revoke a seeded token sampled for a partly read prompt, so prompts are read whole.
        more["enable_chunked_prefill"] = False
        os.environ.setdefault(THREADS, str(threads(args, len(os.sched_getaffinity(0)))))
    else:
        configuration = gpus.check(configuration)
        args = configuration.args
        more |= expert_kernels(args.actor.model_name_or_path)
    start_ray(gpu_actors(args), configuration.on_cpu)
    limits = engine_limits(configuration)
    print(f"[swap] an engine's limits: {', '.join(f'{name} {number}' for name, number in limits.items())}")
    engines = EngineFactory(ray.remote(SwapRolloutActor), {**limits, **more})
    print("[swap] starting vLLM and DeepSpeed, which takes a minute or more: their processes import", flush=True)
    where = "above" if run.verbose else f"at the end of {Path(run.output_dir) / 'train.log'}"
    try:
        with watch_gcs(partial(end_without_gcs, args, where)):
            run_openrlhf(configuration, engines)
    except ray.exceptions.RayError as error:
        cause = error
        while isinstance(cause, ray.exceptions.RayTaskError) and cause.cause is not None:
            cause = cause.cause
        if isinstance(cause, SwapError):
            raise cause from None
        if isinstance(cause, ray.exceptions.RayActorError | EngineDeadError):
            raise RunError(describe_death(cause, args, where)) from error
        raise
    finally:
        if sys.exc_info()[0]:
            time.sleep(LAST_WORDS_SECONDS)
        ray.shutdown()


def run_openrlhf(configuration: Configuration, engines: Any) -> None:
    """Call the training of OpenRLHF's CLI, which would parse the arguments again, with our classes instead of its own.

    Args:
        configuration: its settings reach every actor as `strategy.args.swap` and `strategy.args.swap_run`.
        engines: what makes rollout engines: an `EngineFactory`.
    """
    from openrlhf import utils

    stock_strategy = utils.get_strategy

    def get_strategy(args: SimpleNamespace) -> object:
        args.swap, args.swap_run = configuration.method, configuration.run
        return stock_strategy(args)

    computed = {
        "openrlhf.trainer.ray.vllm_engine.RolloutRayActor": engines,
        "openrlhf.utils.get_strategy": get_strategy,
    }
    with patches.installed(DRIVER, computed):
        runpy.run_module(f"openrlhf.cli.{TRAIN}")["train"](configuration.args)


def describe_death(error: Exception, args: SimpleNamespace, where: str) -> str:
    """Which process died, how, where its output is, and how to resume."""
    text = str(error)
    if created := re.search(r"creation task, .*?ray::(?:\w+\.)?(\w+)\.__init__\(\)", text):
        lines = [line for line in text.strip().splitlines() if "errors.pydantic.dev" not in line]
        reason = lines[-1].strip().rstrip(".")
        remedy = checkpoints.how_to_resume(Path(args.ckpt.path))
        return f"{created[1]} could not start: {reason}. The output before it is {where}; {remedy}"
    name = re.search(r"class_name: (\w+)", text)
    pid = re.search(r"pid: (\d+)", text)
    who = name[1] if name else "vLLM's engine" if isinstance(error, EngineDeadError) else "a Ray actor"
    return died(f"{who}{f' (pid {pid[1]})' if pid else ''}", args, where)


def end_without_gcs(args: SimpleNamespace, where: str, pid: int) -> NoReturn:
    """End this process, as Ray would in seconds, but with a line that says why."""
    end_process(died(f"Ray's GCS, which keeps the cluster's state (pid {pid}),", args, where))


def died(who: str, args: SimpleNamespace, where: str) -> str:
    """A line about a process that is gone."""
    return (
        f"{who} died. Its last words, if it had any, are {where}; a process that dies silently was usually killed for "
        f"lack of memory (see the kernel's log): {checkpoints.how_to_resume(Path(args.ckpt.path))}"
    )


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
    if on_cpu:
        build_communication_op()
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


def leave_awake(*_: Any, **__: Any) -> None:
    """Stands for the call with which OpenRLHF puts engines to sleep before it starts any other process.

    So the policy's process imports while vLLM compiles. `SwapTrainer.get_max_steps` puts the engines to sleep.
    """
