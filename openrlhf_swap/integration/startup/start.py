"""The start of a run in order: each line settles one thing, and no later one asks for it again."""

import os
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Protocol, TypeVar

from openrlhf_swap.flags.configuration import Configuration
from openrlhf_swap.flags.placement import policy_ranks
from openrlhf_swap.integration.startup.checkpoint import ChosenCheckpoint, choose_checkpoint
from openrlhf_swap.integration.startup.data import TRAINED_ON, write_data
from openrlhf_swap.integration.startup.model import MODEL, TriedModel, read_policy
from openrlhf_swap.integration.startup.places import place
from openrlhf_swap.integration.startup.prepared import PreparedRun
from openrlhf_swap.integration.startup.ray import starting_ray
from openrlhf_swap.integration.startup.settling import (
    choose_scoring,
    settle,
    settle_logprobs,
    warn_of_long_wrong,
)
from openrlhf_swap.objectives.registry import build
from openrlhf_swap.process.console import say
from openrlhf_swap.runs.card import try_write_card
from openrlhf_swap.runs.export import PolicyFolder, exported_bytes
from openrlhf_swap.runs.record import RUN_NAME, tracked_run, write_record


class Settled(Protocol):
    """Something that a start has settled."""

    @property
    def messages(self) -> Sequence[str]:
        """Lines that tell the user about it."""


T = TypeVar("T", bound=Settled)


def start(given: Configuration, words: list[str]) -> None:
    """Check and settle a run, launch it, and write the card of its policy.

    `words` are those of its command line, for the records. Raises ConfigError, DataError,
    CheckpointError and CompatibilityError for what cannot be trained with, before Ray starts, and
    RunError for what ends the training.
    """
    tracked = tracked_run(given)
    given = given.replace_flags({RUN_NAME: tracked.run_name}).use_own_whole_paths()
    checkpoint = tell(choose_checkpoint(given))
    model = read_policy(given)
    policy = make_room_for_policy(given, checkpoint, model)
    run = tell(settle(given, model)).configuration
    objective = build(run.method)
    tell(warn_of_long_wrong(objective))
    tell(choose_scoring(run, objective, model))
    run = tell(settle_logprobs(run, objective)).configuration
    data = write_data(run, objective, model.tokenizer)
    checkpoint = checkpoint.with_setting(TRAINED_ON, data.trained_on)
    checkpoint.write()
    places = tell(place(run, objective, model))
    recorded = replace(given, method=run.method, run=given.run.replaced(**places.settings))
    write_record(recorded, words, tracked, checkpoint.starts)
    say(opening(run))
    exporting = {"ckpt.output_dir": str(policy.unfinished)}
    run = replace(run, run=run.run.replaced(**places.settings))
    placed = run.replace_flags({**data.flags, **places.flags, **exporting}).use_whole_paths()
    prepared = PreparedRun(placed, model.config, objective, places.engine_limits)
    with starting_ray(placed) as wait_for_ray:
        # This import takes longer than Ray does to start.
        from openrlhf_swap.integration.startup.launch import launch

        launch(prepared, wait_for_ray)
    finish(policy, Path(placed.run.output_dir))


def make_room_for_policy(
    run: Configuration, checkpoint: ChosenCheckpoint, model: TriedModel
) -> PolicyFolder:
    """The folder of the exported policy; raises ConfigError for too little room there.

    Adapters take next to nothing.
    """
    needed = 0
    if not run.args.ds.lora.rank:
        files = checkpoint.bound[MODEL].get("files", {})
        needed = exported_bytes(files, str(model.config.dtype).removeprefix("torch."))
    policy = PolicyFolder(Path(run.args.ckpt.output_dir).absolute())
    policy.prepare(needed)
    return policy


def finish(policy: PolicyFolder, output: Path) -> None:
    """Put the exported policy into its place, and say where everything is."""
    exported = policy.publish()
    try_write_card(exported, output)
    say(
        f"finished; the policy is in {os.path.relpath(exported)}, everything else in "
        f"{os.path.relpath(output)}"
    )


def tell(settled: T) -> T:
    """Print the lines about something that is settled."""
    for line in settled.messages:
        say(line)
    return settled


def opening(run: Configuration) -> str:
    """What a run trains, in one line."""
    args = run.args
    engines = args.vllm.num_engines
    ranks = policy_ranks(args)
    return (
        f"training {args.actor.model_name_or_path} with {run.method.objective}: "
        f"{args.rollout.batch_size} prompts x {args.rollout.n_samples_per_prompt} responses a "
        f"step, up to {args.rollout.max_new_tokens} tokens each; "
        f"{ranks} policy process{'es' * (ranks > 1)} under ZeRO-{args.ds.zero_stage}, "
        f"{engines} vLLM engine{'s' * (engines > 1)} "
        f"with {args.vllm.gpu_memory_utilization:.0%} of the memory"
    )
