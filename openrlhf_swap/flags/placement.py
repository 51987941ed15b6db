"""How many GPUs each part of a run takes: nodes times GPUs, out of OpenRLHF's arguments."""

from __future__ import annotations

from types import SimpleNamespace


def policy_ranks(args: SimpleNamespace) -> int:
    """Processes that train the policy, one for each of its GPUs."""
    return int(args.actor.num_nodes * args.actor.num_gpus_per_node)


def engine_gpus(args: SimpleNamespace) -> int:
    """GPUs of all vLLM engines."""
    return int(args.vllm.num_engines * args.vllm.tensor_parallel_size)


def gpu_actors(args: SimpleNamespace) -> int:
    """Ray actors that ask for a GPU: policy, engines and, with a KL penalty, the reference model."""
    reference = args.ref.num_nodes * args.ref.num_gpus_per_node if args.algo.kl.init_coef > 0 else 0
    return policy_ranks(args) + engine_gpus(args) + int(reference)
