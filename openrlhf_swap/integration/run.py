"""Start Ray where needed and run OpenRLHF's training CLI with our classes in it."""

from __future__ import annotations

import re
from pathlib import Path
from types import SimpleNamespace

import ray
from vllm.v1.engine.exceptions import EngineDeadError

from openrlhf_swap import checkpoints
from openrlhf_swap.config import SwapConfig
from openrlhf_swap.errors import LostActorError, SwapError
from openrlhf_swap.integration import cpu, patches
from openrlhf_swap.integration.policy_actor import IntrinsicRewardActor
from openrlhf_swap.integration.trainer import SwapTrainer

OBJECT_STORE_BYTES = 256 * 2**20  # enough for the embedded policy's rollouts; Ray would take 30% of memory


def run(argv: list[str], args: SimpleNamespace, config: SwapConfig, on_cpu: bool) -> None:
    """Train; returns when the last checkpoint is written.

    Args:
        argv: OpenRLHF's arguments.
        args: the same, parsed.
        config: the method's settings.
        on_cpu: no accelerator here: start a local Ray whose "GPUs" are places for processes on this machine.

    Raises:
        SwapError: one of ours that was raised in an actor.
    """
    replacements = {
        "openrlhf.trainer.ppo_trainer.PPOTrainer": ray.remote(SwapTrainer),
        "openrlhf.trainer.ray.ppo_actor.PolicyModelActor": ray.remote(num_gpus=1)(IntrinsicRewardActor),
    }
    rollout_actor = "openrlhf.trainer.ray.vllm_engine.RolloutRayActor"
    if not on_cpu:
        from openrlhf_swap.integration.rollout_actor import SwapRolloutActor

        replacements[rollout_actor] = ray.remote(SwapRolloutActor)
    else:
        from openrlhf_swap.integration.rollout_cpu import CpuReferenceActor, CpuRolloutActor

        replacements[rollout_actor] = ray.remote(CpuRolloutActor)
        replacements["openrlhf.trainer.ray.launcher.ReferenceModelActor"] = ray.remote(num_gpus=1)(CpuReferenceActor)
        _start_local_ray(_places(args))
    try:
        patches.run(argv, config, replacements)
    except ray.exceptions.RayError as error:
        cause = error
        while isinstance(cause, ray.exceptions.RayTaskError) and cause.cause is not None:
            cause = cause.cause
        if isinstance(cause, SwapError):
            raise cause from None
        if isinstance(cause, ray.exceptions.RayActorError | EngineDeadError):
            raise LostActorError(obituary(cause, args)) from error
        raise
    finally:
        ray.shutdown()


def obituary(error: Exception, args: SimpleNamespace) -> str:
    """Which process died, how, and how to go on."""
    text = str(error)
    saved = checkpoints.newest(Path(args.ckpt.path))
    remedy = f"start again with --ckpt.load_enable to go on from {saved}" if saved else "no checkpoint was written yet"
    if created := re.search(r"creation task, .*?ray::(?:\w+\.)?(\w+)\.__init__\(\)", text):
        return f"{created[1]} could not start: {text.strip().splitlines()[-1]} What led to it is above; {remedy}"
    name = re.search(r"class_name: (\w+)", text)
    pid = re.search(r"pid: (\d+)", text)
    who = name[1] if name else "vLLM's engine" if isinstance(error, EngineDeadError) else "a Ray actor"
    return (
        f"{who}{f' (pid {pid[1]})' if pid else ''} died. Its last words, if it had any, are above; a process "
        f"that dies without a word was mostly killed for want of memory (the kernel's log tells): {remedy}"
    )


def _places(args: SimpleNamespace) -> int:
    """Ray actors of a run that ask for a GPU."""
    actors = args.actor.num_nodes * args.actor.num_gpus_per_node
    engines = args.vllm.num_engines * args.vllm.tensor_parallel_size
    reference = args.ref.num_nodes * args.ref.num_gpus_per_node if args.algo.kl.init_coef > 0 else 0
    return actors + engines + reference


def _start_local_ray(places: int) -> None:
    cpu.build_communication_op()
    # One CPU more for the trainer, which asks for no GPU.
    ray.init(
        address="local",
        num_cpus=places + 1,
        num_gpus=places,
        include_dashboard=False,
        object_store_memory=OBJECT_STORE_BYTES,
    )
