"""How many GPUs each part of a run takes: nodes times GPUs, out of OpenRLHF's arguments."""

from __future__ import annotations

import os
from types import SimpleNamespace


def policy_ranks(args: SimpleNamespace) -> int:
    """Processes that train the policy, one for each of its GPUs."""
    return int(args.actor.num_nodes * args.actor.num_gpus_per_node)


def engine_gpus(args: SimpleNamespace) -> int:
    """GPUs of all vLLM engines."""
    return int(args.vllm.num_engines * args.vllm.tensor_parallel_size)


def reference_ranks(args: SimpleNamespace) -> int:
    """Processes of the reference model, which only a KL penalty needs."""
    return int(args.ref.num_nodes * args.ref.num_gpus_per_node) if args.algo.kl.init_coef > 0 else 0


def gpu_actors(args: SimpleNamespace) -> int:
    """Ray actors with a GPU of their own: policy, engines and the reference model, unless that shares the policy's."""
    own = policy_ranks(args) + engine_gpus(args)
    return own if args.train.colocate_actor_ref else own + reference_ranks(args)


def crowded(args: SimpleNamespace, cores: int | None = None) -> str | None:
    """A warning when a CPU run has twice as many processes as cores, or more: they start one after the other."""
    processes = policy_ranks(args) + engine_gpus(args) + reference_ranks(args)
    there = cores or len(os.sched_getaffinity(0))
    if processes < 2 * there or "RAY_ADDRESS" in os.environ:
        return None
    return (
        f"{processes} processes (--actor.num_gpus_per_node {args.actor.num_gpus_per_node}, --vllm.num_engines "
        f"{args.vllm.num_engines}) share {there} cores: the start takes minutes; use 1 of each to begin sooner"
    )
