"""How many GPUs each part of a run takes: nodes times GPUs, out of OpenRLHF's arguments."""

from __future__ import annotations

import os
from collections.abc import Iterator
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


def refused_placement(args: SimpleNamespace, on_cpu: bool) -> Iterator[str]:
    """What cannot share GPUs, each with its flags and a remedy."""
    train, actor, ref = args.train, args.actor, args.ref
    shares = next((flag for flag in ("colocate_all", "colocate_actor_ref") if getattr(train, flag)), None)
    places = (ref.num_nodes, ref.num_gpus_per_node)
    if shares and args.algo.kl.init_coef > 0 and places != (actor.num_nodes, actor.num_gpus_per_node):
        yield (
            f"--ref.num_nodes is {ref.num_nodes} and --ref.num_gpus_per_node is {ref.num_gpus_per_node}; with "
            f"--train.{shares} the reference model has the actor's {actor.num_nodes} and {actor.num_gpus_per_node}: "
            "leave them out"
        )
    if not train.colocate_all:
        return
    if policy_ranks(args) != engine_gpus(args):
        yield (
            f"--actor.num_nodes x --actor.num_gpus_per_node is {policy_ranks(args)} and --vllm.num_engines x "
            f"--vllm.tensor_parallel_size is {engine_gpus(args)}; with --train.colocate_all both must be equal"
        )
    if args.vllm.sync_backend == "gloo" and not on_cpu:
        yield (
            "--vllm.sync_backend is gloo with --train.colocate_all; OpenRLHF would send the weights through NCCL, "
            "which takes no two processes on one GPU: use nccl, with which vLLM reads them where they are"
        )


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
