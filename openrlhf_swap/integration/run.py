"""Start Ray where needed and run OpenRLHF's training CLI with our classes in it."""

from __future__ import annotations

from types import SimpleNamespace

import ray

from openrlhf_swap.config import SwapConfig
from openrlhf_swap.errors import SwapError
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
    if on_cpu:
        from openrlhf_swap.integration.rollout_cpu import CpuReferenceActor, CpuRolloutActor

        replacements["openrlhf.trainer.ray.vllm_engine.RolloutRayActor"] = ray.remote(CpuRolloutActor)
        replacements["openrlhf.trainer.ray.launcher.ReferenceModelActor"] = ray.remote(num_gpus=1)(CpuReferenceActor)
        _start_local_ray(_places(args))
    try:
        patches.run(argv, config, replacements)
    except ray.exceptions.RayTaskError as error:
        if isinstance(error.cause, SwapError):
            raise error.cause from None
        raise
    finally:
        ray.shutdown()


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
        num_cpus=places + 1,
        num_gpus=places,
        include_dashboard=False,
        object_store_memory=OBJECT_STORE_BYTES,
    )
