"""A command line becomes one frozen `Configuration`, here and nowhere else.

Layers, each winning over the ones before: OpenRLHF's default, ours, the objective's, the recipe's,
the file's of `--config`, and the command line's.
"""

from __future__ import annotations

import argparse
import difflib
import json
import os
import re
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import cached_property, reduce
from itertools import chain
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from pydantic.fields import FieldInfo

from openrlhf_swap.command import Parser, did_you_mean
from openrlhf_swap.config import (
    FlagSettings,
    RunConfig,
    SwapConfig,
    extra,
    short_name,
    symbol_remedy,
    type_name,
)
from openrlhf_swap.errors import ConfigError
from openrlhf_swap.flags.stock import FlagValues, complete, stock_parser
from openrlhf_swap.objectives.registry import OBJECTIVES, default_flags, objective_class
from openrlhf_swap.packages import is_cpu_build
from openrlhf_swap.recipes import (
    CONFIG,
    NAMES,
    FlagFile,
    as_words,
    find_value,
    layered,
    read_config,
    read_recipe,
)
from openrlhf_swap.rewards.verifiers import NO_GRADER

REWARD_FILE = str(Path(__file__).parents[1] / "rewards" / "openrlhf_reward.py")
# Where OpenRLHF's defaults are not the paper's: GRPO without KL, a constant learning rate, one
# on-policy update a step (128 prompts x 16 responses).
DEFAULTS: FlagValues = {
    "algo.advantage.estimator": "group_norm",
    "algo.kl.init_coef": 0.0,
    "actor.adam.lr": 1e-6,
    "actor.lr_scheduler": "constant",
    "actor.lr_warmup_ratio": 0.0,
    "actor.eps_clip": 0.2,
    "actor.loss_agg_mode": "token-mean",
    "rollout.batch_size": 128,
    "rollout.n_samples_per_prompt": 16,
    "rollout.temperature": 0.6,
    "rollout.top_p": 1.0,
    "rollout.max_new_tokens": 12000,
    "data.max_len": 14000,
    "train.batch_size": 2048,
    "vllm.num_engines": 1,
    "ckpt.max_num": 2,  # OpenRLHF deletes the oldest checkpoint before it writes the new one
    "reward.remote_url": REWARD_FILE,
}
# Rollouts come from older weights: each token's gradient is weighted by how much likelier the
# policy has made it.
ASYNC_DEFAULTS: FlagValues = {"algo.advantage.is_correction_level": "token"}
CPU_DEFAULTS: FlagValues = {
    "vllm.sync_backend": "gloo",
    "vllm.enforce_eager": True,
    "vllm.gpu_memory_utilization": 0.2,
    "ds.attn_implementation": "sdpa",
    "actor.num_gpus_per_node": 1,
}
FOLDERS = {
    "ckpt.output_dir": "policy",
    "ckpt.path": "checkpoints",
    "logger.tensorboard_dir": "tensorboard",
}
"""OpenRLHF's folders, below --swap.output_dir; there the first two are the same for every run."""
# OpenRLHF takes any value of these flags, and fails when the models are loaded.
CHOICES: dict[str, tuple[Any, ...]] = {
    "ds.zero_stage": (1, 2, 3),
    "ds.grad_accum_dtype": ("fp32", "bf16", "fp16"),
    "vllm.sync_backend": ("nccl", "gloo"),
    "actor.lr_scheduler": (
        "constant",
        "constant_with_warmup",
        "cosine",
        "cosine_with_min_lr",
        "cosine_with_restarts",
        "inverse_sqrt",
        "linear",
        "polynomial",
        "cosine_warmup_with_min_lr",
    ),
}
SETTINGS: tuple[type[FlagSettings], ...] = (SwapConfig, RunConfig)
TEMPLATES = (
    "swap.start_of_thought",
    "swap.end_of_thought",
    "swap.close_template",
    "data.input_template",
)
MODEL = "actor.model_name_or_path"
SECRET = "logger.wandb.key"
USER_OF_ADDRESS = re.compile(r"(?<=://)[^/@?\s,]*(?=@)")  # and a password
QUERY_OF_ADDRESS = re.compile(r"(://[^?\s,]*\?)[^\s,]*")
TEMPLATE_ARGUMENTS = "--data.chat_template_kwargs"
THOUGHT_BUDGET = "--rollout.thought_budget"
KEEP_THOUGHTS = "--agent.keep_thoughts"
LOGITS_CHUNK = "swap.logits_chunk"
NO_ANSWERS = "no_answers"  # the column of the answers where nothing is graded
FILES = ("reward.remote_url", "train.agent_func_path")
DATA_SETS = ("data.prompt_dataset", "eval.dataset")
SEPARATORS = ",@"  # between data sets, and between a data set and a folder in it
PATTERNS = "*?["  # by which a path stands for several


@dataclass(frozen=True)
class StockFlags:
    """The values of OpenRLHF's flags, which its main completes once."""

    values: FlagValues

    @cached_property
    def completed(self) -> tuple[SimpleNamespace, str]:
        """The arguments of the training, and what OpenRLHF's main prints about them."""
        return complete(self.values)


@dataclass(frozen=True)
class Configuration:
    """All settings of a run."""

    method: SwapConfig
    run: RunConfig
    stock: StockFlags
    named: frozenset[str]  # those that are given or have a default of ours
    recipe: FlagFile  # the one that is named, or an empty one
    overruled: frozenset[str]  # the recipe's flags over which a file or the command line wins
    on_cpu: bool  # whether torch was built without an accelerator

    @property
    def values(self) -> FlagValues:
        """The value of each flag of OpenRLHF, by its name without dashes."""
        return self.stock.values

    @property
    def args(self) -> SimpleNamespace:
        """OpenRLHF's arguments as its main hands them to the training.

        Raises ConfigError for arguments that its main refuses.
        """
        return self.stock.completed[0]

    @property
    def notes(self) -> str:
        """What OpenRLHF's main prints about the arguments."""
        return self.stock.completed[1]

    def replace_flags(self, changes: FlagValues) -> Configuration:
        """A copy with other values of OpenRLHF's flags."""
        return replace(self, stock=StockFlags({**self.values, **changes}))

    def use_own_whole_paths(self) -> Configuration:
        """A copy with whole paths in our own settings: the run's folder, the objective's files."""
        options = dict(self.method.options)
        for name, spec in objective_class(self.method.objective).Settings.declared().items():
            if extra(spec)["is_path"] and options.get(name):
                options[name] = str(Path(options[name]).absolute())
        output = str(Path(self.run.output_dir).absolute())
        return replace(
            self,
            method=self.method.replaced(options=options),
            run=self.run.replaced(output_dir=output),
        )

    def use_whole_paths(self) -> Configuration:
        """A copy with whole paths for the files and folders of this machine.

        Ray's actors may run in another folder.
        """
        changes: FlagValues = {MODEL: _whole(self.values[MODEL])}
        for name in FOLDERS:
            if self.values[name]:
                changes[name] = str(Path(self.values[name]).absolute())
        for name in FILES:
            changes[name] = _whole_each(self.values[name], _whole)
        for name in DATA_SETS:
            changes[name] = _whole_each(self.values[name], _whole_data_set)
        return self.replace_flags(changes)

    def dump(self) -> FlagValues:
        """Every setting by its flag without dashes, as `--config` reads it.

        The tracker's key is left out, and so are values that follow from other settings or that
        the plan chooses; secrets in an address are hidden.
        """
        content = {}
        for part in (self.method, self.run):
            values = part.model_dump()
            for name in part.declared():
                content[f"swap.{name}"] = values[name]
        del content["swap.recipe"]  # its values are there
        if LOGITS_CHUNK not in self.named:
            del content[LOGITS_CHUNK]
        objective = short_name(self.method.objective)
        for name, text in self.method.options.items():
            content[f"swap.{objective}.{name}"] = text
        left_out = {
            SECRET: self.values[SECRET],
            "reward.remote_url": REWARD_FILE,
            **_folders(self.run),
        }
        for name in sorted(self.named & self.values.keys()):
            value = self.values[name]
            if value is not None and left_out.get(name) != value:
                content[name] = without_secrets(value) if name == "reward.remote_url" else value
        return content


def without_secrets(text: str) -> str:
    """A text in which the users, passwords and queries of its addresses are hidden."""
    return QUERY_OF_ADDRESS.sub(r"\1***", USER_OF_ADDRESS.sub("***", text))


def configure(
    words: Sequence[str],
    on_cpu: bool | None = None,
    defaults: FlagValues | None = None,
) -> Configuration:
    """Read a command line of the training.

    `on_cpu` is whether torch has no accelerator, None to find out. `defaults` are a caller's own
    values of OpenRLHF's flags, which win over our defaults.

    Raises ConfigError for an unknown flag, a value that cannot be read, and what OpenRLHF's main
    refuses; CompatibilityError for another version of OpenRLHF.
    """
    if on_cpu is None:
        on_cpu = is_cpu_build()
    file, words = read_config(words)
    recipe_name = find_value(words, "--swap.recipe") or file.get("swap.recipe")
    recipe = read_recipe(recipe_name) if recipe_name else FlagFile("")

    sources = [as_words(recipe.flags), as_words(file), words]
    parser = training_parser([*chain(*sources)])
    stock = vars(parser.parse_args([]))
    given = [_given(parser, stock, source) for source in sources]
    chosen = reduce(layered, given)
    method, run = _settings(chosen)

    ours = dict(DEFAULTS)
    if on_cpu:
        ours |= CPU_DEFAULTS
    if chosen.get("train.async_enable"):
        ours |= ASYNC_DEFAULTS
    ours |= default_flags(method.objective)
    ours |= _folders(run)
    ours |= defaults or {}
    ours |= _placement({**stock, **ours, **chosen})

    merged = {**stock, **ours, **chosen}
    if run.grader == NO_GRADER:  # nothing reads answers, so the data need none
        merged["data.label_key"] = NO_ANSWERS
    values = {name: value for name, value in merged.items() if not _is_ours(name)}
    named = ours.keys() | chosen.keys()
    overruled = recipe.flags.keys() & {*given[1], *given[2]}
    configuration = Configuration(
        method, run, StockFlags(values), frozenset(named), recipe, frozenset(overruled), on_cpu
    )
    _ = configuration.args  # OpenRLHF's main may refuse them
    return configuration


def _given(parser: Parser, names: FlagValues, words: Sequence[str]) -> FlagValues:
    """The values that some words give to flags, converted by the parser."""
    unset = object()
    namespace = argparse.Namespace(**dict.fromkeys(names, unset))
    _, unknown = parser.parse_known_args(words, namespace)
    if unknown:
        flag = unknown[0].partition("=")[0]
        nearest = difflib.get_close_matches(flag, [f"--{name}" for name in names], n=1)
        symbol = symbol_remedy(flag.removeprefix("--swap."))
        if symbol and flag.startswith("--swap."):
            remedy = symbol
        elif flag.startswith("--no-"):
            remedy = "only switches can be turned off like this"
        elif nearest:
            remedy = f"did you mean {nearest[0]}?"
        else:
            remedy = f"{parser.prog} {parser.help_flag} lists all flags"
        raise ConfigError(f"unrecognized arguments: {' '.join(unknown)}; {remedy}")
    return {name: value for name, value in vars(namespace).items() if value is not unset}


class TrainingParser(Parser):
    """A parser that narrows OpenRLHF's flags, and adds `--no-FLAG` to each of its switches."""

    help_flag = "--help-all"

    def add_argument(self, *flags: str, **options: Any) -> argparse.Action:
        name = flags[0].removeprefix("--")
        if name in CHOICES:
            options["choices"] = CHOICES[name]
        if name in TEMPLATES:
            options["type"] = _unescape
        action = super().add_argument(*flags, **options)
        if options.get("action") == "store_true":
            super().add_argument(
                f"--no-{name}", dest=name, action="store_false", help=argparse.SUPPRESS
            )
        return action


def training_parser(words: Sequence[str] = ()) -> Parser:
    """OpenRLHF's parser with our flags, and those of single objectives that `words` name."""
    parser = stock_parser(parser=TrainingParser("openrlhf-swap train"))
    add_settings(parser)
    add_template_arguments(parser, TEMPLATE_ARGUMENTS.removeprefix("--"))
    add_thought_budget(parser)
    add_keep_thoughts(parser)
    for flag in dict.fromkeys(word.partition("=")[0] for word in words):
        if flag.startswith("--swap.") and flag.count(".") == 2:
            parser.add_argument(flag, default=argparse.SUPPRESS, help=argparse.SUPPRESS)
    return parser


def add_config(parser: argparse.ArgumentParser) -> None:
    """Explain `--config`, which `read_config` takes out of the words before they are parsed."""
    text = (
        "YAML file of flags, such as a run's run.yaml; "
        "later files win, and flags of the command line"
    )
    parser.add_argument(CONFIG, metavar="FILE", action="append", help=text)


def add_settings(parser: argparse.ArgumentParser, names: Sequence[str] | None = None) -> None:
    """Add a flag `--swap.<name>` for each setting of ours, or for those that are named.

    The values stay text: the settings convert and check them.
    """
    for kind in SETTINGS:
        title = (kind.__doc__ or "").partition(".")[0].lower()
        group = parser.add_argument_group(f"SWAP: {title}")
        for name, spec in kind.declared().items():
            if names is not None and name not in names:
                continue
            options: Any = {"default": spec.default, "help": _help_of(spec)}
            if spec.annotation is bool:
                options["action"] = argparse.BooleanOptionalAction
            else:
                options["metavar"] = type_name(spec).upper()
                options["type"] = _unescape if f"swap.{name}" in TEMPLATES else str
            group.add_argument(f"--swap.{name}", **options)


def add_objective(parser: argparse.ArgumentParser, objective: str) -> None:
    """Explain an objective, and the flags of its own settings, which the parser takes as text."""
    lines = (objective_class(objective).__doc__ or "").splitlines()[:1]
    if objective in NAMES:
        lines.append(f"--swap.recipe {objective}: all that {read_recipe(objective).origin} sets")
    group = parser.add_argument_group(f"objective {objective}", "\n".join(lines))
    for name, spec in objective_class(objective).Settings.declared().items():
        flag = f"--swap.{short_name(objective)}.{name}"
        group.add_argument(flag, metavar=type_name(spec).upper(), help=_help_of(spec))


def _help_of(spec: FieldInfo) -> str:
    return f"{spec.description} (default: {spec.default!r})".replace("%", "%%")


def add_template_arguments(
    parser: argparse.ArgumentParser, dest: str = "chat_template_kwargs"
) -> None:
    """Add the flag for arguments of the chat template, which stay text."""
    text = """arguments of the model's chat template, as JSON, such as {"enable_thinking": false}"""
    parser.add_argument(TEMPLATE_ARGUMENTS, dest=dest, metavar="JSON", type=_json_object, help=text)


def add_thought_budget(parser: argparse.ArgumentParser) -> None:
    """Add the flag for a budget of the thought alone."""
    text = (
        "most tokens of a thought: a longer one is closed, by tokens that are not trained on, and "
        "the answer follows; no budget by default"
    )
    parser.add_argument(THOUGHT_BUDGET, type=int, metavar="INT", help=text)


def add_keep_thoughts(parser: argparse.ArgumentParser) -> None:
    """Add the flag for an agent's thoughts of earlier turns."""
    text = (
        "thoughts that an agent reads in its conversation: all, or the last, as under R1's chat "
        "template, which leaves those of earlier turns out (default: all)"
    )
    parser.add_argument(KEEP_THOUGHTS, choices=("all", "last"), default="all", help=text)


def add_rendering(parser: argparse.ArgumentParser) -> None:
    """Add the flags with which a command turns problems into chats."""
    add_template_arguments(parser)
    text = "the system's turn before each problem, as the training's chats have it"
    parser.add_argument("--system-prompt", help=text)


def _json_object(text: str) -> str:
    with suppress(ValueError, RecursionError):
        if isinstance(json.loads(text), dict):
            return text
    raise argparse.ArgumentTypeError(
        f"""{text!r} is no JSON object such as {{"enable_thinking": false}}"""
    )


def parse_with_settings(
    parser: argparse.ArgumentParser,
    names: Sequence[str],
    words: Sequence[str],
) -> argparse.Namespace:
    """Parse a command line in which some of the training's settings are flags, too.

    In the result these have no prefix `swap.`.
    """
    add_settings(parser, names)
    given = vars(parser.parse_args(words))
    return argparse.Namespace(
        **{name.removeprefix("swap."): value for name, value in given.items()}
    )


def _unescape(text: str) -> str:
    return text.replace("\\n", "\n")


def _settings(chosen: FlagValues) -> tuple[SwapConfig, RunConfig]:
    """Our settings out of the chosen flags.

    Raises ConfigError for an invalid value, and for a setting of another objective.
    """
    own = {name.removeprefix("swap."): value for name, value in chosen.items() if _is_ours(name)}
    objective = own.get("objective", SwapConfig.model_fields["objective"].default)
    options = {}
    for name, value in own.items():
        owner, dot, option = name.partition(".")
        if dot:
            _check_owner(owner, option, objective)
            options[option] = str(value)
    method = {name: own[name] for name in SwapConfig.declared() if name in own}
    run = {name: own[name] for name in RunConfig.declared() if name in own}
    return SwapConfig(**method, options=options), RunConfig(**run)


def _check_owner(owner: str, option: str, objective: str) -> None:
    """Raise ConfigError for a flag `--swap.<owner>.<option>` of another objective."""
    if owner == short_name(objective):
        return
    flag = f"--swap.{owner}.{option}"
    if owner in OBJECTIVES:
        raise ConfigError(
            f"{flag} belongs to {owner}, but --swap.objective is {objective}: leave it out"
        )
    known = [f"--swap.{name}" for kind in SETTINGS for name in kind.declared()]
    raise ConfigError(f"unknown flag {flag}; {did_you_mean(flag, known)}")


def _is_ours(name: str) -> bool:
    return name.startswith("swap.")


def _placement(values: FlagValues) -> FlagValues:
    """Defaults that follow from the actor's GPUs.

    The reference model has as many, and engines that share them fill them.
    """
    nodes = values["actor.num_nodes"]
    gpus = values["actor.num_gpus_per_node"]
    placed: FlagValues = {}
    if values["algo.kl.init_coef"] > 0:
        placed |= {"ref.num_nodes": nodes, "ref.num_gpus_per_node": gpus}
    if values["train.colocate_all"] and not values["train.async_enable"]:
        size = max(1, values["vllm.tensor_parallel_size"])
        placed["vllm.num_engines"] = nodes * gpus // size
    return placed


def _folders(run: RunConfig) -> dict[str, str]:
    return {name: str(Path(run.output_dir) / folder) for name, folder in FOLDERS.items()}


def find_special(path: Path | str, characters: str = SEPARATORS + PATTERNS) -> str | None:
    """The first of these characters in a path, or None."""
    return next((character for character in str(path) if character in characters), None)


def _whole_each(names: str | None, whole: Callable[[str], str]) -> str | None:
    """A list of paths, separated by commas, with each made whole; None stays None."""
    if not names:
        return names
    return ",".join(whole(name.strip()) for name in names.split(","))


def _whole(name: str) -> str:
    return str(Path(name).absolute()) if os.path.exists(name) else name


def _whole_data_set(name: str) -> str:
    """The whole path of `DATA_SET@FOLDER`; a path that OpenRLHF would split stays as it is."""
    place, at, inside = name.partition("@")
    whole = _whole(place)
    return name if find_special(whole, SEPARATORS) else whole + at + inside
