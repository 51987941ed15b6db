"""A command line becomes one frozen `Configuration`, here and nowhere else; every later function
takes it.

Layers, each winning over the ones before: OpenRLHF's default, ours, the objective's, the recipe's,
the file's of `--config`, and the command line's.
"""

from __future__ import annotations

import argparse
import difflib
import json
import os
import re
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from openrlhf_swap.command import Parser, did_you_mean
from openrlhf_swap.config import FlagSettings, RunConfig, SwapConfig, short_name, type_name
from openrlhf_swap.errors import ConfigError
from openrlhf_swap.flags.stock import complete, stock_parser
from openrlhf_swap.objectives.registry import OBJECTIVES, default_flags
from openrlhf_swap.packages import is_cpu_build
from openrlhf_swap.recipes import (
    CONFIG,
    FlagFile,
    as_words,
    find_value,
    layered,
    read_config,
    read_recipe,
)

REWARD_FILE = str(Path(__file__).parents[1] / "rewards" / "openrlhf_reward.py")
# Where OpenRLHF's defaults are not the paper's: GRPO without KL, a constant learning rate, one
# on-policy update a step (128 prompts x 16 responses).
DEFAULTS: dict[str, Any] = {
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
ASYNC_DEFAULTS: dict[str, Any] = {"algo.advantage.is_correction_level": "token"}
CPU_DEFAULTS: dict[str, Any] = {
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
CHOICES = {  # OpenRLHF takes any value, and fails when the models are loaded
    "ds.zero_stage": (1, 2, 3),
    "ds.grad_accum_dtype": ("fp32", "bf16", "fp16"),
    "vllm.sync_backend": ("nccl", "gloo"),
    "actor.lr_scheduler": (
        *(
            "constant",
            "constant_with_warmup",
            "cosine",
            "cosine_with_min_lr",
            "cosine_with_restarts",
            "inverse_sqrt",
        ),
        *("linear", "polynomial", "cosine_warmup_with_min_lr"),
    ),
}
SETTINGS: tuple[type[FlagSettings], ...] = (SwapConfig, RunConfig)
TEMPLATES = (
    "swap.start_of_thought",
    "swap.end_of_thought",
    "swap.close_template",
    "data.input_template",
)
SECRET = "logger.wandb.key"
TEMPLATE_ARGUMENTS = "--data.chat_template_kwargs"
WRITTEN = ("ckpt.path", "ckpt.output_dir", "logger.tensorboard_dir")
SEPARATORS = ",@"  # between data sets, and between a data set and a folder in it
PATTERNS = "*?["  # by which a path stands for several


@dataclass(frozen=True)
class Configuration:
    """All settings of a run."""

    method: SwapConfig
    run: RunConfig
    values: Mapping[str, Any]  # of each flag of OpenRLHF, without dashes
    named: frozenset[str]  # those that are given or have a default of ours
    recipe: FlagFile  # the one that is named, or an empty one
    overruled: frozenset[str]  # the recipe's flags over which a file or the command line wins
    on_cpu: bool  # whether torch was built without an accelerator

    @cached_property
    def args(self) -> SimpleNamespace:
        """OpenRLHF's arguments as its main hands them to the training; raises ConfigError for what
        that refuses.
        """
        return complete(self.values)[0]

    def replace_flags(self, changes: Mapping[str, Any]) -> Configuration:
        """A copy with other values of OpenRLHF's flags."""
        return replace(self, values={**self.values, **changes})

    def use_whole_paths(self) -> Configuration:
        """A copy with whole paths for what is on this machine: Ray's actors may run in another
        folder.
        """
        values = self.values
        changes = {name: str(Path(values[name]).absolute()) for name in WRITTEN if values[name]}
        changes["actor.model_name_or_path"] = _whole(values["actor.model_name_or_path"])
        files = dict.fromkeys(("reward.remote_url", "train.agent_func_path"), _whole)
        for name, whole in (
            files | dict.fromkeys(("data.prompt_dataset", "eval.dataset"), _whole_data_set)
        ).items():
            if values[name]:
                changes[name] = ",".join(
                    whole(source.strip()) for source in values[name].split(",")
                )
        return self.replace_flags(changes)

    def dump(self) -> dict[str, Any]:
        """Every setting by flag without dashes, as `--config` reads it; without the tracker's key."""
        parts, objective = (self.method, self.run), short_name(self.method.objective)
        ours = {
            f"swap.{name}": getattr(part, name)
            for part in parts
            for name in part.declared()
            if name != "recipe"
        }
        ours |= {f"swap.{objective}.{name}": text for name, text in self.method.options.items()}
        hidden = {
            SECRET: self.values[SECRET],
            "reward.remote_url": REWARD_FILE,
            **_folders(self.run),
        }
        theirs = {
            name: self.values[name] for name in sorted(self.named) if self.values[name] is not None
        }
        return ours | {name: value for name, value in theirs.items() if hidden.get(name) != value}


def configure(
    words: Sequence[str], on_cpu: bool | None = None, defaults: Mapping[str, Any] | None = None
) -> Configuration:
    """Read a command line of the training; a caller's own `defaults` of OpenRLHF's flags win over
    ours.

    Raises ConfigError for an unknown flag, a value that cannot be read, and what OpenRLHF's main
    refuses, and CompatibilityError for another version of OpenRLHF.
    """
    filed, words = read_config(words)
    name = find_value(words, "--swap.recipe") or filed.get("swap.recipe")
    recipe = read_recipe(name) if name else FlagFile("")
    typed = dict.fromkeys(
        found[1] for word in words if (found := re.match(r"--(?:no-)?([^=]*)", word))
    )
    below = layered(layered(recipe.flags, filed), typed)
    words = [*as_words({name: value for name, value in below.items() if name not in typed}), *words]
    parser = training_parser(words)
    stock: dict[str, Any] = {}
    for action in reversed(parser._actions):
        default = action.default  # as the parser gives it, text becomes the flag's type
        stock[action.dest] = (
            parser._get_value(action, default) if isinstance(default, str) else default
        )
        action.default = argparse.SUPPRESS  # the parser then says what was given
    namespace, unknown = parser.parse_known_args(words)
    if unknown:
        flag = unknown[0].partition("=")[0]
        known = [each for each in parser._option_string_actions if not each.startswith("--no-")]
        nearest = difflib.get_close_matches(flag, known, n=1)
        remedy = (
            f"did you mean {nearest[0]}?" if nearest else f"{parser.prog} --help lists all flags"
        )
        remedy = "only switches can be turned off like this" if flag.startswith("--no-") else remedy
        raise ConfigError(f"unrecognized arguments: {' '.join(unknown)}; {remedy}")
    chosen = vars(namespace)

    on_cpu = is_cpu_build() if on_cpu is None else on_cpu
    method, run = _settings(chosen)
    ours = (
        DEFAULTS
        | (CPU_DEFAULTS if on_cpu else {})
        | (ASYNC_DEFAULTS if chosen.get("train.async_enable") else {})
    )
    ours |= default_flags(method.objective) | _folders(run) | dict(defaults or {})
    ours |= _placement({**stock, **ours, **chosen})
    values = {
        name: value for name, value in {**stock, **ours, **chosen}.items() if not _is_ours(name)
    }
    named = frozenset(values.keys() & (ours.keys() | chosen.keys()))
    overruled = frozenset(recipe.flags.keys() & {*filed, *typed})
    configuration = Configuration(method, run, values, named, recipe, overruled, on_cpu)
    _ = configuration.args  # OpenRLHF's main may refuse them
    return configuration


def training_parser(words: Sequence[str] = ()) -> Parser:
    """OpenRLHF's parser with our flags, those of single objectives that `words` name, and
    `--no-FLAG` for switches.
    """
    parser = stock_parser()
    for action in list(parser._actions):
        action.choices = CHOICES.get(action.dest, action.choices)
        action.type = _unescape if action.dest in TEMPLATES else action.type
        if isinstance(action, argparse._StoreTrueAction):
            off = f"--no-{action.dest}"
            parser.add_argument(off, dest=action.dest, action="store_false", help=argparse.SUPPRESS)
    add_settings(parser)
    add_template_arguments(parser, TEMPLATE_ARGUMENTS.removeprefix("--"))
    for flag in dict.fromkeys(word.partition("=")[0] for word in words):
        if flag.startswith("--swap.") and flag.count(".") == 2:
            parser.add_argument(flag, help=argparse.SUPPRESS)
    text = "YAML file of flags, such as a run's run.yaml; later files win, and flags of the command line"
    parser.add_argument(CONFIG, metavar="FILE", action="append", help=text)
    return parser


def add_settings(parser: argparse.ArgumentParser, names: Sequence[str] | None = None) -> None:
    """Add a flag `--swap.<name>` for each setting of ours, or for those that are named, whose value
    stays text.
    """
    for kind in SETTINGS:
        group = parser.add_argument_group("SWAP: " + (kind.__doc__ or "").partition(".")[0].lower())
        for name, spec in kind.declared().items():
            if names is not None and name not in names:
                continue
            text = f"{spec.description} (default: {spec.default!r})".replace("%", "%%")
            flag = f"--swap.{name}"
            if spec.annotation is bool:
                group.add_argument(
                    flag, action=argparse.BooleanOptionalAction, default=spec.default, help=text
                )
            else:
                convert = _unescape if f"swap.{name}" in TEMPLATES else str
                metavar = type_name(spec).upper()
                group.add_argument(
                    flag, metavar=metavar, type=convert, default=spec.default, help=text
                )


def add_template_arguments(
    parser: argparse.ArgumentParser, dest: str = "chat_template_kwargs"
) -> None:
    """Add the flag for arguments of the chat template, which stay text."""
    text = """arguments of the model's chat template, as JSON, such as {"enable_thinking": false}"""
    parser.add_argument(TEMPLATE_ARGUMENTS, dest=dest, metavar="JSON", type=_json_object, help=text)


def add_rendering(parser: argparse.ArgumentParser) -> None:
    """Add the flags of commands whose problems are no chats: arguments of the template, and a
    system's turn.
    """
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
    parser: argparse.ArgumentParser, names: Sequence[str], words: Sequence[str]
) -> argparse.Namespace:
    """Parse the flags of a command that takes some of the training's settings, too; these have no
    prefix then.
    """
    add_settings(parser, names)
    given = vars(parser.parse_args(words))
    return argparse.Namespace(
        **{name.removeprefix("swap."): value for name, value in given.items()}
    )


def _unescape(text: str) -> str:
    return text.replace("\\n", "\n")


def _settings(chosen: Mapping[str, Any]) -> tuple[SwapConfig, RunConfig]:
    """Our settings out of the chosen flags; raises ConfigError for a bad value or another
    objective's setting.
    """
    objective, options = (
        chosen.get("swap.objective", SwapConfig.model_fields["objective"].default),
        {},
    )
    for name, value in chosen.items():
        if _is_ours(name) and name.count(".") == 2:
            owner, option = name.split(".")[1:]
            if owner != short_name(objective):
                known = [f"--swap.{setting}" for kind in SETTINGS for setting in kind.declared()]
                remedy = f"belongs to {owner}, but --swap.objective is {objective}: leave it out"
                unknown = f"unknown flag --{name}; {did_you_mean('--' + name, known)}"
                raise ConfigError(f"--{name} {remedy}" if owner in OBJECTIVES else unknown)
            options[option] = str(value)
    method, run = (
        {name: chosen[f"swap.{name}"] for name in kind.declared() if f"swap.{name}" in chosen}
        for kind in SETTINGS
    )
    return SwapConfig(**method, options=options), RunConfig(**run)


def _is_ours(name: str) -> bool:
    return name.startswith("swap.") or name in ("config", "help")


def _placement(values: Mapping[str, Any]) -> dict[str, Any]:
    """Defaults that follow from the actor's GPUs: engines fill them if both share, the reference
    model has as many.
    """
    places = {
        f"ref.{place}": values[f"actor.{place}"] for place in ("num_nodes", "num_gpus_per_node")
    }
    placed = places if values["algo.kl.init_coef"] > 0 else {}
    if values["train.colocate_all"] and not values["train.async_enable"]:
        gpus = values["actor.num_nodes"] * values["actor.num_gpus_per_node"]
        return placed | {"vllm.num_engines": gpus // max(1, values["vllm.tensor_parallel_size"])}
    return placed


def _folders(run: RunConfig) -> dict[str, str]:
    return {name: str(Path(run.output_dir) / folder) for name, folder in FOLDERS.items()}


def find_special(path: Path | str, characters: str = SEPARATORS + PATTERNS) -> str | None:
    """The first of these characters in a path, or None."""
    return next((character for character in str(path) if character in characters), None)


def _whole(name: str) -> str:
    return str(Path(name).absolute()) if os.path.exists(name) else name


def _whole_data_set(name: str) -> str:
    """The same for `DATA_SET@FOLDER`; a path that OpenRLHF would split stays as it is."""
    place, at, inside = name.partition("@")
    whole = _whole(place)
    return name if find_special(whole, SEPARATORS) else whole + at + inside
