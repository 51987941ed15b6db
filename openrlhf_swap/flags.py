"""The `--swap.*` flags of a command line: general ones, the run's, and those of single objectives."""

from __future__ import annotations

import argparse
import ast
import difflib
from collections.abc import Sequence
from datetime import datetime
from importlib.util import find_spec
from itertools import takewhile
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from openrlhf_swap.command import Parser, did_you_mean
from openrlhf_swap.config import FlagSettings, RunConfig, SwapConfig, short_name, type_name
from openrlhf_swap.errors import ConfigError
from openrlhf_swap.objectives.registry import OBJECTIVES, check_name
from openrlhf_swap.packages import versions

NEEDED = {  # flags of OpenRLHF, with remedies
    "actor.model_name_or_path": "give a Hugging Face model or a folder",
    "data.prompt_dataset": "give a data set or a file",
    "data.label_key": "name the column with the reference answers",
}
KINDS: tuple[type[FlagSettings], ...] = (SwapConfig, RunConfig)


def add_swap_arguments(parser: argparse.ArgumentParser) -> None:
    """Add one `--swap.<name>` flag for each setting; its value is text, or None when it is not given."""
    for kind in KINDS:
        group = parser.add_argument_group("SWAP: " + (kind.__doc__ or "").partition(".")[0].lower())
        for name, spec in kind.declared().items():
            text = f"{spec.description} (default: {spec.default!r})".replace("%", "%%")
            if spec.annotation is bool:
                group.add_argument(f"--swap.{name}", action="store_const", const="true", help=text)
            else:
                group.add_argument(f"--swap.{name}", metavar=type_name(spec).upper(), help=text)


def parse_swap_arguments(argv: Sequence[str]) -> tuple[SwapConfig, RunConfig, list[str]]:
    """Take the `--swap.*` flags out of a command line.

    Returns:
        The objective's and the run's settings, and the remaining arguments, in order.

    Raises:
        ConfigError: for an unknown `--swap.*` flag (with the nearest known one) or a bad value.
    """
    known = [f"--swap.{name}" for kind in KINDS for name in kind.declared()]
    given = [argument.partition("=")[0] for argument in argv if argument.startswith("--swap.")]
    own = [flag for flag in dict.fromkeys(given) if flag not in known]
    for flag in own:
        if flag.count(".") != 2:
            raise ConfigError(f"unknown flag {flag}; {did_you_mean(flag, known)}")
    parser = Parser("openrlhf_swap.train", add_help=False)
    add_swap_arguments(parser)
    for flag in own:
        parser.add_argument(flag)
    namespace, rest = parser.parse_known_args(argv)
    values = {name.removeprefix("swap."): text for name, text in vars(namespace).items() if text is not None}

    objective = values.get("objective", SwapConfig.model_fields["objective"].default)
    check_name(objective)
    options = {}
    for flag in own:
        method, name = flag.split(".")[1:]
        if method != short_name(objective):
            if method not in OBJECTIVES:
                raise ConfigError(f"unknown flag {flag}; {did_you_mean(flag, known)}")
            raise ConfigError(f"{flag} belongs to {method}, but --swap.objective is {objective}; leave it out")
        options[name] = values.pop(f"{method}.{name}")
    for name in ("start_of_thought", "end_of_thought", "close_template"):
        if name in values:
            values[name] = values[name].replace("\\n", "\n")
    method_values, run_values = ({n: values[n] for n in kind.declared() if n in values} for kind in KINDS)
    return SwapConfig.from_text({**method_values, "options": options}), RunConfig.from_text(run_values), rest


def prompt_capacity(context: int, new_tokens: int | None) -> int:
    """Most tokens of a prompt.

    Raises:
        ConfigError: when there are none.
    """
    capacity = context - (new_tokens or 1)
    if capacity < 1:
        raise ConfigError(
            f"--data.max_len is {context}, in which --rollout.max_new_tokens {new_tokens} leaves no room for a "
            "prompt; use fewer new tokens, or a longer --data.max_len"
        )
    return capacity


def parse_stock_arguments(argv: Sequence[str]) -> dict[str, Any]:
    """OpenRLHF's flags by name without the dashes, its defaults included, without importing OpenRLHF.

    For another version of OpenRLHF the result is empty: the integration refuses it later.

    Raises:
        ConfigError: for an unknown flag (with the nearest known one) or a bad value.
    """
    parser = _stock_parser()
    if parser is None:
        return {}
    namespace, unknown = parser.parse_known_args(argv)
    if unknown:
        nearest = difflib.get_close_matches(unknown[0].partition("=")[0], parser._option_string_actions, n=1)
        remedy = f"did you mean {nearest[0]}?" if nearest else "--help lists all flags"
        raise ConfigError(f"unrecognized arguments: {' '.join(unknown)}; {remedy}")
    return vars(namespace)


def _stock_parser() -> Parser | None:
    """OpenRLHF's own parser. It is built under `__main__` after slow imports, so only its lines are executed."""
    spec = find_spec("openrlhf")
    if spec is None or versions.installed_version("openrlhf") != versions.VERSIONS["openrlhf"]:
        return None
    source = Path((spec.submodule_search_locations or [""])[0]) / "cli" / "train_ppo_ray.py"
    main = next(node for node in ast.parse(source.read_text(encoding="utf-8")).body if isinstance(node, ast.If))
    lines = takewhile(lambda node: "parse_args" not in ast.unparse(node), main.body)
    parser = Parser("openrlhf_swap.train")
    names = {"argparse": SimpleNamespace(ArgumentParser=lambda: parser), "datetime": datetime}
    exec(compile(ast.Module(list(lines), []), str(source), "exec"), names)
    return parser
