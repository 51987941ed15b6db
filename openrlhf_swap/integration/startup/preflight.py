"""Checks and decisions before any GPU is allocated."""

from __future__ import annotations

import json
import sys
from dataclasses import replace
from hashlib import sha256
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from openrlhf_swap.files import Row, to_line, write_text
from openrlhf_swap.flags.configuration import TEMPLATE_ARGUMENTS, Configuration
from openrlhf_swap.flags.placement import policy_ranks
from openrlhf_swap.integration.startup.model_check import (
    check_heads,
    check_model,
    check_scoring,
    check_weights,
    settle_packing,
)
from openrlhf_swap.integration.startup.prompts import write_usable_prompts
from openrlhf_swap.objectives.registry import build
from openrlhf_swap.rollouts.families import closes_thought, resolve_thought, set_template_arguments
from openrlhf_swap.runs import checkpoints
from openrlhf_swap.runs.provenance import identity, refuse_other_settings

DATA = "--data.prompt_dataset"


def resolve_run(configuration: Configuration) -> Configuration:
    """Check model and data, choose the checkpoint to resume from, and print the decisions.

    Returns:
        The configuration with the marks of the thought of the model's family, without packing where the model does
        not allow it, and with the data sets to train and to evaluate on, which hold the usable rows.

    Raises:
        ConfigError: for a model that cannot be used, or a checkpoint of a run with other settings.
        DataError: for a data set that cannot be used.
        CheckpointError: for a checkpoint of something else.
    """
    args, run = configuration.args, configuration.run
    objective = build(configuration.method)
    settings = settings_of(configuration)
    recorded = choose_checkpoint(args, settings)
    if not objective.scores_steps:
        print(f"[swap] objective {configuration.method.objective} needs no step scores; none will be computed")
    tokenizer = check_model(args.actor.model_name_or_path, args.data.max_len, run.trust_remote_code)
    set_template_arguments(tokenizer, args.data.chat_template_kwargs)
    check_weights("--actor.model_name_or_path", args.actor.model_name_or_path)
    if configuration.on_cpu:
        check_heads(configuration)
    configuration = settle_packing(configuration)
    method, messages = resolve_thought(configuration.method, tokenizer)
    for line in messages:
        print(f"[swap] {line}")
    is_rendered = args.data.apply_chat_template and tokenizer.chat_template
    if objective.scores_steps and is_rendered and closes_thought(tokenizer, method.end_of_thought):
        print(
            f"[swap] warning: the chat template closes the thought, but {method.objective} scores its steps, and only "
            "what follows is left to cut; if the template has an argument that lets the model think, give it: "
            f"{TEMPLATE_ARGUMENTS} '{{\"enable_thinking\": true}}'"
        )
    if objective.scores_steps:
        check_scoring(configuration)
    output = Path(run.output_dir)
    given = (args, objective, tokenizer, output, run.grader, run.keep_placeholders)
    used: dict[str, Any] = {}
    if args.eval.dataset:
        used |= {"eval.dataset": write_usable_prompts(*given, evaluates=True), "eval.split": "train"}
    data = write_usable_prompts(*given)
    used |= {"data.prompt_dataset": data, "data.prompt_split": "train", "data.prompt_probs": None}
    used |= {"data.max_samples": sys.maxsize}  # which has been applied
    # A checkpoint holds a position among these rows, whatever their file is called.
    prompts = {DATA: {"name": args.data.prompt_dataset, "sha256": sha256(Path(data).read_bytes()).hexdigest()}}
    _refuse_others(prompts, recorded, args)
    Path(args.ckpt.path).mkdir(parents=True, exist_ok=True)
    write_text(Path(args.ckpt.path) / checkpoints.ORIGIN, to_line({**settings, **prompts}, indent=1))
    if args.data.chat_template_kwargs:  # the prompts are rendered
        used |= {"data.apply_chat_template": False, "data.chat_template_kwargs": None}
    return replace(configuration, method=method).replace_flags(used)


def settings_of(configuration: Configuration) -> Row:
    """The settings that a checkpoint is bound to, by flag; DeepSpeed splits its state by the last two."""
    args = configuration.args
    return {
        "--swap.objective": configuration.method.objective,
        "--actor.model_name_or_path": identity(args.actor.model_name_or_path),
        "--ds.lora.rank": args.ds.lora.rank,
        "--train.enable_ema": args.train.enable_ema,
        "--actor.num_nodes x --actor.num_gpus_per_node": policy_ranks(args),
        "--ds.zero_stage": args.ds.zero_stage,
    }


def choose_checkpoint(args: SimpleNamespace, settings: Row) -> Row:
    """Select the checkpoint to resume from and move incomplete ones aside; prints what it finds.

    Returns:
        The settings of the run that wrote it; {} to start from the beginning.

    Raises:
        ConfigError: for a checkpoint of a run with other settings.
        CheckpointError: for a checkpoint although the run is to start from the beginning.
    """
    path = Path(args.ckpt.path)
    if not args.ckpt.load_enable:
        checkpoints.refuse_to_overwrite(path)
        return {}
    tag, messages = checkpoints.recover(path)
    for message in messages:
        print(f"[swap] {message}")
    origin = path / checkpoints.ORIGIN
    recorded: Row = json.loads(origin.read_bytes()) if tag and origin.exists() else {}
    _refuse_others(settings, recorded, args)
    return recorded


def _refuse_others(settings: Row, recorded: Row, args: SimpleNamespace) -> None:
    remedy = (
        "resume with that, or start a new run (another --ckpt.path and --swap.output_dir), from the exported policy "
        "(--actor.model_name_or_path) if you like"
    )
    refuse_other_settings(settings, recorded, f"the checkpoint in {args.ckpt.path} was written", remedy)
