"""A training run in order: strategy, places, actors, engines, data, the loop, the export."""

import time
from types import SimpleNamespace
from typing import Any

import ray
import torch
from openrlhf.trainer.ppo_trainer import prepare_datasets
from openrlhf.trainer.ray.launcher import RayActorGroup
from openrlhf.utils.utils import get_tokenizer
from ray.util.placement_group import placement_group
from safetensors import SafetensorError

from openrlhf_swap.errors import RunError, first_line
from openrlhf_swap.flags.configuration import Configuration
from openrlhf_swap.flags.placement import policy_ranks, shares_with_reference, updates_a_step
from openrlhf_swap.integration.budget import budget_of
from openrlhf_swap.integration.contexts import old_thoughts_of
from openrlhf_swap.integration.driver.ahead import Ahead
from openrlhf_swap.integration.driver.loop import Loop
from openrlhf_swap.integration.driver.policy import Policy
from openrlhf_swap.integration.driver.records import Records
from openrlhf_swap.integration.driver.sampler import Sampler
from openrlhf_swap.integration.driver.waiting import results, tell_engines
from openrlhf_swap.integration.engine.start import start_engines
from openrlhf_swap.integration.policy import actors as policy_actors
from openrlhf_swap.integration.policy.strategy import SwapStrategy
from openrlhf_swap.integration.weights.way import share_gpus
from openrlhf_swap.objectives.base import Objective
from openrlhf_swap.objectives.registry import build, penalty_temperature
from openrlhf_swap.process.console import say
from openrlhf_swap.rollouts.families import set_template_arguments
from openrlhf_swap.rollouts.reader import StepReader
from openrlhf_swap.runs import checkpoints
from openrlhf_swap.runs.guards import Guards

EXPORT_TRIES = 60  # of writing the policy, with a minute in between
SHARE = 0.2  # of a GPU that several processes share, as OpenRLHF counts them


def train(
    configuration: Configuration,
    objective: Objective,
    engine_arguments: dict[str, Any],
) -> None:
    """Train, and export the policy; Ray has been started.

    `engine_arguments` are vLLM's that OpenRLHF has no flag for. OpenRLHF's actors read our settings
    as `args.swap` and `args.swap_run`.
    """
    args = configuration.args
    args.swap = configuration.method
    args.swap_run = configuration.run
    # A step's arithmetic is small, and other threads would take the cores of the engines.
    torch.set_num_threads(1)
    strategy = make_strategy(args)
    shared = _shared_places(args)
    engines = start_engines(args, engine_arguments, shared)
    actors = _start_group(args.actor, policy_actors.IntrinsicRewardActor, shared)
    reference = None
    if args.algo.kl.init_coef > 0:
        reference = _start_group(args.ref, policy_actors.SwapReferenceActor, shared)

    model = args.actor.model_name_or_path
    tokenizer = get_tokenizer(
        model, None, "left", strategy, use_fast=not args.data.disable_fast_tokenizer
    )
    set_template_arguments(tokenizer, None)  # its fixed date; others are in rendered prompts
    torch.manual_seed(args.train.seed)  # the loader of the prompts takes its own seed from this
    prompts, evaluation_prompts, max_steps = prepare_datasets(strategy, tokenizer)
    if args.swap_run.training_steps:
        max_steps = args.swap_run.training_steps * updates_a_step(args)
    prepared = _prepare_engines(args, engines, tokenizer)
    # The policy's process starts while the engines do. It loads when they sleep; beside engines
    # that stay on its GPUs it loads at once, unless they measure what is free there.
    started = "the start of the rollout engines"
    if args.vllm.enable_sleep:
        results(prepared, args, started)
        tell_engines(engines, args, "sleep")
    elif share_gpus(args) and "kv_cache_memory_bytes" not in engine_arguments:
        results(prepared, args, started)
    loading = actors.async_init_model_from_pretrained(strategy, model, max_steps, engines)
    if reference:
        loading += reference.async_init_model_from_pretrained(strategy, model)
    results(loading, args, "the load of the policy's weights")
    results(prepared, args, started)

    policy = Policy(strategy, tokenizer, actors, reference, engines)
    run_loop(args, objective, tokenizer, prompts, evaluation_prompts, engines, policy)
    export(args, actors)


def export(args: SimpleNamespace, actors: RayActorGroup) -> None:
    """Write the policy to `--ckpt.output_dir`; a full disk is waited for, with the policy alive.

    Raises RunError when it cannot be written. Under ZeRO-3 no second try is possible with several
    ranks: they wait for the one that writes.
    """
    writing = actors.async_save_model()
    is_alone = args.ds.zero_stage < 3 or policy_ranks(args) == 1
    for tries_left in reversed(range(EXPORT_TRIES if is_alone else 1)):
        try:
            results(writing, args, "the export of the policy")
            return
        except ray.exceptions.RayTaskError as error:
            if not isinstance(error.cause, OSError | SafetensorError):
                raise
            problem = (
                f"the policy cannot be written to {args.ckpt.output_dir} "
                f"({first_line(error.cause)}); free some space there"
            )
            if not tries_left:
                remedy = checkpoints.how_to_resume(args.ckpt)
                raise RunError(f"{problem}, or name another --ckpt.output_dir: {remedy}") from error
        say(
            f"warning: {problem}: the run keeps the policy and tries again each minute, "
            f"{tries_left} times at most"
        )
        time.sleep(60)
        # The first rank alone writes; the others wait in their first call until it has.
        writing = [actors._actor_handlers[0].save_model.remote()]


def run_loop(
    args: SimpleNamespace,
    objective: Objective,
    tokenizer: Any,
    prompts: Any,
    evaluation_prompts: Any,
    engines: list[Any],
    policy: Policy,
) -> None:
    """Make the loop of a run that was started, and let it train to the end."""
    config = args.swap
    sampling_objective = build(config) if args.train.async_enable else objective
    reader = StepReader(tokenizer, config.end_of_thought, *config.segmentation)
    sampler: Sampler | Ahead
    sampler = Sampler(args, prompts, evaluation_prompts, engines, sampling_objective, reader)
    if args.train.async_enable:
        sampler = Ahead(sampler, engines, args)
    self_test_steps = args.swap_run.self_test_steps if objective.scores_steps else 0
    guards = Guards(config, penalty_temperature(config), self_test_steps)
    last_step = args.swap_run.training_steps or None
    if not args.algo.dynamic_filtering_enable:
        steps_a_pass = len(prompts) // args.rollout.batch_size
        last_step = args.swap_run.total_steps(steps_a_pass, args.train.num_episodes)
    records = Records(args, guards, last_step)
    try:
        Loop(args, objective, reader, sampler, policy, records).fit()
    except BaseException:
        sampler.stop()
        raise


def make_strategy(args: SimpleNamespace) -> SwapStrategy:
    """Make the strategy as OpenRLHF's `get_strategy` does."""
    return SwapStrategy(
        seed=args.train.seed,
        full_determinism=args.train.full_determinism_enable,
        micro_train_batch_size=args.train.micro_batch_size,
        train_batch_size=args.train.batch_size,
        zero_stage=args.ds.zero_stage,
        args=args,
    )


def _shared_places(args: SimpleNamespace) -> Any:
    """Reserve the GPUs that the policy shares with the reference model or all; None for none."""
    if not shares_with_reference(args):
        return None
    places = placement_group([{"GPU": 1, "CPU": 1}] * policy_ranks(args), strategy="PACK")
    results(places.ready(), args, "the reservation of GPUs")
    return places


def _start_group(size: SimpleNamespace, actor_class: Any, shared: Any) -> RayActorGroup:
    return RayActorGroup(
        size.num_nodes,
        size.num_gpus_per_node,
        ray.remote(num_gpus=1)(actor_class),
        pg=shared,
        num_gpus_per_actor=SHARE if shared else 1,
    )


def _prepare_engines(args: SimpleNamespace, engines: list[Any], tokenizer: Any) -> list[Any]:
    """Give the engines what all requests share; the reward function gets its settings."""
    shared = ray.put(tokenizer)
    budget = budget_of(args, tokenizer)
    old_thoughts = old_thoughts_of(args, tokenizer)
    return [
        engine.prepare.remote(
            shared,
            args.data.max_len,
            budget,
            old_thoughts,
            end_of_thought=args.swap.end_of_thought,
            grader=args.swap_run.grader,
        )
        for engine in engines
    ]
