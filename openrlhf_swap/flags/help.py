"""The help of the training command, and its list of objectives."""

from __future__ import annotations

import argparse
import textwrap

from openrlhf_swap.command import Parser
from openrlhf_swap.flags.configuration import (
    CPU_DEFAULTS,
    DEFAULTS,
    FOLDERS,
    TrainingParser,
    add_config,
    add_keep_thoughts,
    add_objective,
    add_settings,
    add_template_arguments,
    add_thought_budget,
    training_parser,
)
from openrlhf_swap.flags.stock import FlagValues, stock_parser
from openrlhf_swap.objectives.table import GROUPS, SUMMARIES
from openrlhf_swap.packages import is_cpu_build
from openrlhf_swap.recipes import NAMES

PROGRAM = "openrlhf-swap train"
COMMON = {
    "actor.model_name_or_path": "the policy: a folder in Hugging Face format, or a hub id",
    "data.prompt_dataset": "the prompts: a file, a folder or a hub id",
    "data.input_key": "column of the problems",
    "data.label_key": "column of the reference answers",
    "data.apply_chat_template": "render each problem with the model's chat template",
    "data.max_samples": "use only the first so many prompts; all by default",
    "data.max_len": "longest prompt and response together, in tokens",
    "rollout.batch_size": "prompts in a training step",
    "rollout.n_samples_per_prompt": "responses to each prompt: the size of a group",
    "rollout.max_new_tokens": "longest response, in tokens; longer ones are cut off",
    "train.batch_size": "responses in an update; prompts times responses make one update a step",
    "train.num_episodes": "passes over the prompts",
    "actor.adam.lr": "learning rate",
    "actor.num_gpus_per_node": "GPUs of a node that train the policy",
    "ds.lora.rank": "rank of LoRA adapters; 0: all weights are trained",
    "vllm.gpu_memory_utilization": "share of a GPU's memory that a vLLM engine takes",
    "ckpt.save_steps": "training steps between two checkpoints; -1: none",
    "ckpt.load_enable": "resume from the last checkpoint if there is one",
    "eval.dataset": "held-out prompts on which the policy is evaluated, as data.prompt_dataset",
    "eval.steps": "training steps between two evaluations; -1: none",
}
"""OpenRLHF's flags that most runs set, in our words."""


def print_help(description: str | None, objective: str | None, whole: bool) -> None:
    """Print our flags, those of OpenRLHF that most runs set, and the settings of an objective.

    The whole help has the rest of OpenRLHF's flags, too.
    """
    parser = Parser(PROGRAM, description)
    parser.usage = f"{PROGRAM} [flags]"
    _add_modes(parser)
    if objective:
        add_objective(parser, objective)
    add_settings(parser)
    _add_common(parser)
    parser.print_help()
    if not whole:
        return
    print()
    rest = TrainingParser(PROGRAM, "All flags of OpenRLHF, in its words and with its defaults:")
    rest.usage = argparse.SUPPRESS
    stock_parser(parser=rest).print_help()
    print("\nDefaults that differ from OpenRLHF's:")
    grader = "the grader that --swap.grader names"
    folders = {name: f"{folder}, in --swap.output_dir" for name, folder in FOLDERS.items()}
    for name, value in {**_our_defaults(), "reward.remote_url": grader, **folders}.items():
        print(f"  --{name} {value}")


def _add_modes(parser: Parser) -> None:
    """Explain the flags that print something and exit, and those that are no settings."""
    text = "this help, and all other flags of OpenRLHF"
    parser.add_argument("--help-all", action="store_true", help=text)
    text = "list the objectives; --help --swap.objective NAME has the settings of one"
    parser.add_argument("--list-objectives", action="store_true", help=text)
    text = "print all settings as a YAML file for --config, and exit"
    parser.add_argument("--dry-run", action="store_true", help=text)
    add_config(parser)
    add_template_arguments(parser)
    add_thought_budget(parser)
    add_keep_thoughts(parser)


def _add_common(parser: Parser) -> None:
    defaults = vars(training_parser().parse_args([])) | _our_defaults()
    group = parser.add_argument_group("OpenRLHF: what most runs set")
    for name, text in COMMON.items():
        default = defaults[name]
        if default is False:
            group.add_argument(f"--{name}", action="store_true", help=text)
            continue
        kind = "STR" if default is None else type(default).__name__.upper()
        if default is not None and "default" not in text:
            text += f" (default: {default!r})"
        group.add_argument(f"--{name}", metavar=kind, help=text)


def _our_defaults() -> FlagValues:
    """Our defaults of OpenRLHF's flags on this machine."""
    return {**DEFAULTS, **CPU_DEFAULTS} if is_cpu_build() else DEFAULTS


def print_objectives() -> None:
    """Print a line on each objective, by what a user has or wants."""
    for title, group in GROUPS.items():
        print(f"{title}:")
        for name in group:
            print(f"  {name:18}{SUMMARIES[name]}")
        print()
    print(f"settings, equation and recipe of one: {PROGRAM} --help --swap.objective NAME")
    recipes = f"recipes (--swap.recipe NAME --dry-run prints one): {', '.join(NAMES)}"
    print(textwrap.fill(recipes, 100))
