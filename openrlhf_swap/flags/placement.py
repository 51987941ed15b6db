"""How many processes and GPUs each part of a run takes."""

import math
from types import SimpleNamespace

MOST_SEQUENCES = 1024  # vLLM's own default on large GPUs


def policy_ranks(args: SimpleNamespace) -> int:
    """Processes that train the policy, one for each of its GPUs."""
    return int(args.actor.num_nodes * args.actor.num_gpus_per_node)


def engine_gpus(args: SimpleNamespace) -> int:
    """GPUs of all vLLM engines."""
    return int(args.vllm.num_engines * args.vllm.tensor_parallel_size)


def gpu_actors(args: SimpleNamespace) -> int:
    """Ray actors with a GPU of their own: policy, engines, and a reference model that needs one."""
    total = policy_ranks(args) + engine_gpus(args)
    if args.algo.kl.init_coef > 0 and not args.train.colocate_actor_ref:
        total += args.ref.num_nodes * args.ref.num_gpus_per_node
    return int(total)


def gpus_of_run(args: SimpleNamespace) -> int:
    """GPUs of the whole run; with `--train.colocate_all` all of it shares those of the policy."""
    return policy_ranks(args) if args.train.colocate_all else gpu_actors(args)


def shares_with_reference(args: SimpleNamespace) -> bool:
    """Whether a reference model, if there is one, has the policy's GPUs."""
    return bool(args.train.colocate_actor_ref or args.train.colocate_all)


def takes_turns(args: SimpleNamespace) -> bool:
    """Whether processes take turns with the memory of a GPU.

    They do where engines or the optimizer sleep, and where a reference model has the policy's GPUs.
    """
    sleeps = args.vllm.enable_sleep or args.ds.enable_sleep
    has_reference = args.algo.kl.init_coef > 0 and shares_with_reference(args)
    return bool(sleeps or has_reference)


def updates_a_step(args: SimpleNamespace) -> int:
    """How often a training step's responses are learned from, in batches of the optimizer."""
    responses = args.rollout.batch_size * args.rollout.n_samples_per_prompt
    return int(responses * args.train.max_epochs // args.train.batch_size)


def responses_of_an_engine(args: SimpleNamespace) -> int:
    """The most responses that an engine generates in a step."""
    responses = int(args.rollout.batch_size * args.rollout.n_samples_per_prompt)
    return math.ceil(responses / int(args.vllm.num_engines))
