"""Checks and decisions before any GPU is allocated."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace

from openrlhf_swap.config import RunConfig, SwapConfig
from openrlhf_swap.errors import ConfigError
from openrlhf_swap.flags.placement import policy_ranks
from openrlhf_swap.integration.startup.model_check import check_model, check_packing, check_scoring
from openrlhf_swap.integration.startup.prompts import write_usable_evaluation, write_usable_prompts
from openrlhf_swap.objectives.registry import build
from openrlhf_swap.rollouts.families import resolve_thought
from openrlhf_swap.runs import checkpoints
from openrlhf_swap.runs.seals import Seal


def resolve_run(args: SimpleNamespace, config: SwapConfig, run: RunConfig) -> tuple[SwapConfig, str, str | None]:
    """Check model and data, choose the checkpoint to resume from, and print the decisions.

    Args:
        args: OpenRLHF's arguments.
        config: the objective's settings.
        run: the run's.

    Returns:
        The objective's settings with the marks of the model's family, the data set to train on, and the
        one to evaluate on if there is one.

    Raises:
        ConfigError: for a model that cannot be used.
        DataError: for a data set that cannot be used.
        CheckpointError: for a checkpoint that belongs to something else.
    """
    objective = build(config)
    choose_checkpoint(args, config.objective)
    if not objective.scores_steps:
        print(f"[swap] objective {config.objective} needs no step scores; none will be computed")
    tokenizer = check_model(args.actor.model_name_or_path, args.data.max_len, run.trust_remote_code)
    check_packing(args, run)
    config, messages = resolve_thought(config, tokenizer)
    for line in messages:
        print(f"[swap] {line}")
    if objective.scores_steps:
        check_scoring(args, run)
    output = Path(run.output_dir)
    evaluation = write_usable_evaluation(args, tokenizer, output, run.grader)
    return config, write_usable_prompts(args, objective, tokenizer, output, run.grader), evaluation


def choose_checkpoint(args: SimpleNamespace, objective: str) -> None:
    """Select the checkpoint to resume from and move incomplete ones aside; prints what it finds.

    Raises:
        ConfigError: when it holds the state of another objective, or shares that this run could not load.
        CheckpointError: when there is one although the run is to start from the beginning.
    """
    path = Path(args.ckpt.path)
    if not args.ckpt.load_enable:
        checkpoints.refuse_to_overwrite(path)
        return
    recovery = checkpoints.recover(path)
    for message in recovery.messages:
        print(f"[swap] {message}")
    if recovery.seal:
        _check_seal(recovery.seal, args, objective)


def _check_seal(seal: Seal, args: SimpleNamespace, objective: str) -> None:
    """Raise ConfigError for a checkpoint of another objective, or split otherwise than DeepSpeed would load it."""
    path = args.ckpt.path
    if seal.objective not in (None, objective):
        raise ConfigError(
            f"--swap.objective is {objective}, but the checkpoint in {path} was written by {seal.objective}; "
            "use that, or another --ckpt.path"
        )
    for flag, now, then in (
        ("--actor.num_nodes x --actor.num_gpus_per_node", policy_ranks(args), seal.ranks),
        ("--ds.zero_stage", args.ds.zero_stage, seal.zero_stage),
    ):
        if then not in (None, now):
            raise ConfigError(
                f"{flag} is {now}, but the checkpoint in {path} was written with {then}, for which DeepSpeed has "
                f"split it; resume with {then}, or start a new run (another --ckpt.path and --swap.output_dir) from "
                "an exported policy (--actor.model_name_or_path)"
            )
