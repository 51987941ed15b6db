"""Checks and decisions before Ray starts: afterwards an answer takes minutes."""

import sys
from collections.abc import Iterable
from dataclasses import replace
from hashlib import sha256
from pathlib import Path
from types import SimpleNamespace

from transformers import PreTrainedTokenizerBase

from openrlhf_swap.algorithm.signals import NEED
from openrlhf_swap.errors import CheckpointError, reader_errors
from openrlhf_swap.files import Row, parse_row, to_line, write_text
from openrlhf_swap.flags.configuration import TEMPLATE_ARGUMENTS, Configuration
from openrlhf_swap.flags.placement import policy_ranks
from openrlhf_swap.flags.stock import FlagValues
from openrlhf_swap.integration.startup.data import write_usable_prompts
from openrlhf_swap.integration.startup.model import (
    MODEL,
    check_heads,
    check_hidden_steps,
    check_model,
    check_weights,
    model_code,
    packs,
    settle_packing,
)
from openrlhf_swap.objectives.base import Objective
from openrlhf_swap.objectives.registry import build
from openrlhf_swap.rewards.graded_text import closes_thought
from openrlhf_swap.rollouts.families import prompt_text, resolve_thought, set_template_arguments
from openrlhf_swap.runs import checkpoints
from openrlhf_swap.runs.provenance import identity, refuse_other_settings
from openrlhf_swap.scoring.backends import find_backend

DATA = "--data.prompt_dataset"


def resolve_run(configuration: Configuration) -> Configuration:
    """Check model and data, choose the checkpoint to resume from, and print the decisions.

    Returns the configuration with the marks of the thought of the model's family, without packing
    where the model does not allow it, and with the data sets to train and to evaluate on, which
    hold the usable rows. Raises ConfigError, DataError and CheckpointError for a model, data set or
    checkpoint that cannot be used.
    """
    args = configuration.args
    objective = build(configuration.method)
    settings = settings_of(configuration)
    recorded, messages = choose_checkpoint(args, settings)
    _say(messages)
    tokenizer = _check_policy(configuration)
    configuration, messages = settle_packing(configuration)
    _say(messages)
    method, messages = resolve_thought(configuration.method, tokenizer)
    configuration = replace(configuration, method=method)
    _say(messages)
    _say(_about_scoring(configuration, objective, tokenizer))
    used = _write_data(configuration, objective, tokenizer)
    settings[DATA] = {
        # A checkpoint holds a position among the usable rows, whatever their file is called.
        "name": args.data.prompt_dataset,
        "sha256": sha256(Path(used["data.prompt_dataset"]).read_bytes()).hexdigest(),
    }
    _refuse_others(settings, recorded, args)
    folder = Path(args.ckpt.path)
    folder.mkdir(parents=True, exist_ok=True)
    write_text(folder / checkpoints.ORIGIN, to_line(settings, indent=1))
    return configuration.replace_flags(used)


def _say(messages: Iterable[str]) -> None:
    for message in messages:
        print(f"[swap] {message}")


def settings_of(configuration: Configuration) -> Row:
    """The settings that a checkpoint is bound to, by flag.

    DeepSpeed splits its state by the last two; the place in the data counts batches of prompts.
    """
    args = configuration.args
    return {
        "--swap.objective": configuration.method.objective,
        MODEL: identity(args.actor.model_name_or_path),
        "--ds.lora.rank": args.ds.lora.rank,
        "--rollout.batch_size": args.rollout.batch_size,
        "--actor.num_nodes x --actor.num_gpus_per_node": policy_ranks(args),
        "--ds.zero_stage": args.ds.zero_stage,
    }


def choose_checkpoint(args: SimpleNamespace, settings: Row) -> tuple[Row, list[str]]:
    """The settings of the run that wrote the checkpoint to resume from, and lines for the console.

    They are {} to start from the beginning. Incomplete checkpoints are deleted. Raises ConfigError
    for a checkpoint of a run with other settings.
    """
    if not args.ckpt.load_enable:
        return {}, []
    path = Path(args.ckpt.path)
    tag, messages = checkpoints.recover(path)
    origin = path / checkpoints.ORIGIN
    recorded: Row = {}
    if tag and origin.exists():
        remedy = "delete it to resume without a check of the settings"
        with reader_errors(f"{origin} cannot be read ({{reason}}); {remedy}", CheckpointError):
            recorded = parse_row(origin.read_bytes())
    _refuse_others(settings, recorded, args)
    return recorded, messages


def _refuse_others(
    settings: Row,
    recorded: Row,
    args: SimpleNamespace,
) -> None:
    work = f"the checkpoint in {args.ckpt.path} was written"
    remedy = (
        "resume with that, or start a new run (another --ckpt.path and --swap.output_dir), from "
        "the exported policy (--actor.model_name_or_path) if you like"
    )
    refuse_other_settings(settings, recorded, work, remedy)


def _check_policy(configuration: Configuration) -> PreTrainedTokenizerBase:
    """Check the model's files, and return its tokenizer, which knows the template's arguments."""
    args = configuration.args
    path = args.actor.model_name_or_path
    tokenizer = check_model(path, args.data.max_len, configuration.run.trust_remote_code)
    set_template_arguments(tokenizer, args.data.chat_template_kwargs)
    check_weights(MODEL, path)
    if configuration.on_cpu:
        check_heads(configuration)
    return tokenizer


def _about_scoring(
    configuration: Configuration,
    objective: Objective,
    tokenizer: PreTrainedTokenizerBase,
) -> list[str]:
    """Lines about how the steps will be scored, and a thought that is closed before it begins.

    Raises ConfigError where need is wanted of a model from which steps cannot be hidden.
    """
    method = configuration.method
    if not objective.scores_steps:
        return [f"objective {method.objective} needs no step scores; none will be computed"]
    messages = []
    is_rendered = configuration.args.data.apply_chat_template and tokenizer.chat_template
    if is_rendered and closes_thought(prompt_text(tokenizer, "?"), method.end_of_thought):
        messages.append(
            f"warning: the chat template closes the thought, but {method.objective} scores its "
            "steps, and only what follows is left to cut; if the template has an argument that "
            f"lets the model think, give it: {TEMPLATE_ARGUMENTS} '{{\"enable_thinking\": true}}'"
        )
    config, make = model_code(configuration)
    backend = find_backend(config, make, configuration.run.scoring, packed=packs(configuration))
    if NEED.name in objective.wanted_signals:
        check_hidden_steps(configuration, backend)
    return [*messages, str(backend)]


def _write_data(
    configuration: Configuration,
    objective: Objective,
    tokenizer: PreTrainedTokenizerBase,
) -> FlagValues:
    """Write the usable rows to train and to evaluate on; returns the flags that name them."""
    args = configuration.args
    flags: FlagValues = {}
    if args.eval.dataset:
        flags["eval.dataset"] = write_usable_prompts(
            configuration, objective, tokenizer, evaluates=True
        )
        flags["eval.split"] = "train"
    flags["data.prompt_dataset"] = write_usable_prompts(configuration, objective, tokenizer)
    flags["data.prompt_split"] = "train"
    flags["data.max_samples"] = sys.maxsize  # it has been applied
    if args.data.chat_template_kwargs:  # the prompts are rendered
        flags["data.apply_chat_template"] = False
        flags["data.chat_template_kwargs"] = None
    return flags
