"""SwapConfig: every setting of the method, validated, and the `--swap.*` flags made from it."""

from __future__ import annotations

import argparse
import dataclasses
import difflib
import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from openrlhf_swap.errors import ConfigError
from openrlhf_swap.objectives.registry import METHODS

TYPES = {"int": int, "float": float, "str": str, "bool": bool}
R1_CLOSE = "\n</think>\n\n**Final Answer**\n\\boxed{"


def _setting(default: Any, doc: str) -> Any:
    return field(default=default, metadata={"doc": doc})


@dataclass(frozen=True)
class SwapConfig:
    """All settings of SWAP. Defaults are the paper's where it gives one: M, K, lambda, beta, theta.

    Raises:
        ConfigError: for a value out of range; the message names the flag, the value and the remedy.
    """

    objective: str = _setting("swap", "which method's advantages to train with: " + ", ".join(METHODS))
    step_tokens: int = _setting(350, "M: tokens of a reasoning step, before it is extended to the next newline")
    max_steps: int = _setting(25, "K: most steps of a response; longer responses get longer steps")
    newline_patience: float = _setting(
        2.0, "cut a step after this many times M tokens when no newline comes (the paper is silent; ours)"
    )
    length_coef: float = _setting(1.0, "lambda: penalty mass of a response twice as long as the target; 0 is none")
    temperature: float = _setting(
        1.0, "tau, in nats: how sharply the penalty goes to the steps with the least gain; inf is uniform (ours)"
    )
    outcome_weight: float = _setting(1.0, "beta: weight of the group-normalised outcome advantage")
    process_weight: float = _setting(0.3, "theta: weight of the process advantage of correct responses; 0 is GRPO")
    static_penalty: float = _setting(
        0.1, "constant that static_penalty takes from every normalised step reward (the paper gives none; ours)"
    )
    eps: float = _setting(1e-6, "added to standard deviations; a deviation below it counts as zero (ours)")
    close_template: str = _setting(
        R1_CLOSE, "text that ends the thought and opens the answer when a prefix is scored; \\n means a newline (ours)"
    )
    scoring: str = _setting(
        "shared_prefix", "shared_prefix: all prefixes in one forward; per_prefix: one forward each (slow reference)"
    )
    self_test_steps: int = _setting(
        5, "stop when no process term reached an update within this many steps; 0 switches the test off"
    )
    max_skipped_steps: int = _setting(
        5, "stop after this many steps in a row without an update, because a score, loss or gradient was not finite"
    )
    generation_timeout: float = _setting(
        3600.0, "stop when the rollout engines finish no prompt for this many seconds; inf waits for ever"
    )
    rollouts_every: int = _setting(10, "write a table of rollouts with their steps every so many steps; 0 is never")
    rollouts_groups: int = _setting(2, "groups in each of those tables")
    output_dir: str = _setting("outputs/swap", "folder for metrics.jsonl, rollouts/ and swap_config.json")
    trust_remote_code: bool = _setting(
        False, "allow a model that brings Python code of its own, which OpenRLHF would run without asking"
    )
    options: Mapping[str, str] = field(default_factory=dict)
    """The objective's own settings, by name, as text: the flags `--swap.<objective>.<name>`."""

    def __post_init__(self) -> None:
        self._convert_types()
        self._require(self.objective in METHODS, "objective", _did_you_mean(self.objective, METHODS))
        self._require(self.scoring in ("shared_prefix", "per_prefix"), "scoring", "use shared_prefix or per_prefix")
        for name in ("step_tokens", "max_steps", "rollouts_groups", "max_skipped_steps"):
            self._require(getattr(self, name) >= 1, name, "use a whole number of at least 1")
        for name in ("self_test_steps", "rollouts_every"):
            self._require(getattr(self, name) >= 0, name, "use 0 (never) or a positive whole number")
        for name in ("length_coef", "outcome_weight", "process_weight", "static_penalty"):
            value = getattr(self, name)
            self._require(math.isfinite(value) and value >= 0, name, "use a finite number of at least 0")
        self._require(
            self.temperature > 0, "temperature", "use a positive number of nats, or inf for a uniform penalty"
        )
        self._require(
            self.generation_timeout > 0, "generation_timeout", "use a positive number of seconds, or inf for no limit"
        )
        self._require(0 < self.eps < 1, "eps", "use a small positive number such as 1e-6")
        self._require(
            math.isfinite(self.newline_patience) and self.newline_patience >= 1,
            "newline_patience",
            "use a finite number of at least 1",
        )
        if self.objective == "step_only":
            self._require(self.process_weight > 0, "process_weight", "step_only has no other signal: use more than 0")

    def to_dict(self) -> dict[str, Any]:
        """The settings as plain values, for JSON and trackers."""
        return dataclasses.asdict(self)

    def _convert_types(self) -> None:
        for spec in _flag_fields():
            value = getattr(self, spec.name)
            kind = TYPES[spec.type]
            usable = isinstance(value, kind) or (kind is float and isinstance(value, int))
            usable = usable and isinstance(value, bool) == (kind is bool)
            self._require(usable, spec.name, f"use a value of type {spec.type}")
            object.__setattr__(self, spec.name, kind(value))

    def _require(self, satisfied: bool, name: str, remedy: str) -> None:
        if not satisfied:
            raise ConfigError(f"--swap.{name} is {getattr(self, name)!r}; {remedy}")


def add_swap_arguments(parser: argparse.ArgumentParser) -> None:
    """Add one `--swap.<field>` flag for each field of SwapConfig."""
    group = parser.add_argument_group("SWAP")
    for spec in _flag_fields():
        kind = TYPES[spec.type]
        takes = {"action": "store_true"} if kind is bool else {"type": kind, "metavar": spec.type.upper()}
        group.add_argument(
            f"--swap.{spec.name}",
            default=spec.default,
            help=f"{spec.metadata['doc']} (default: {spec.default!r})".replace("%", "%%"),
            **takes,
        )


def parse_swap_arguments(argv: list[str]) -> tuple[SwapConfig, list[str]]:
    """Take the `--swap.*` flags out of a command line.

    Returns:
        The configuration, and the arguments that are left, in order.

    Raises:
        ConfigError: for an unknown `--swap.*` flag (with the nearest known one) or a bad value.
    """
    known = [f"--swap.{spec.name}" for spec in _flag_fields()]
    own_flags = []
    for argument in argv:
        flag = argument.split("=", 1)[0]
        if not flag.startswith("--swap.") or flag in known:
            continue
        if flag.count(".") != 2 or flag.split(".")[1] not in METHODS:
            raise ConfigError(f"unknown flag {flag}; {_did_you_mean(flag, known)}")
        own_flags.append(flag)
    parser = _ConfigParser(add_help=False, allow_abbrev=False)
    add_swap_arguments(parser)
    for flag in sorted(set(own_flags)):
        parser.add_argument(flag, type=str)
    namespace, rest = parser.parse_known_args(argv)
    values = {name.removeprefix("swap."): value for name, value in vars(namespace).items()}
    options = {}
    for flag in own_flags:
        _, method, name = flag.split(".")
        if method != values["objective"]:
            raise ConfigError(
                f"{flag} belongs to {method}, but --swap.objective is {values['objective']}; leave it out"
            )
        options[name] = values.pop(f"{method}.{name}", options.get(name))
    values["close_template"] = values["close_template"].replace("\\n", "\n")
    return SwapConfig(**values, options=options), rest


def _flag_fields() -> list[dataclasses.Field]:
    return [spec for spec in dataclasses.fields(SwapConfig) if spec.name != "options"]


class _ConfigParser(argparse.ArgumentParser):
    def error(self, message: str) -> Any:
        raise ConfigError(f"{message.replace('argument ', '', 1)}; see --help for what each flag takes")


def _did_you_mean(word: str, known: Iterable[str]) -> str:
    nearest = difflib.get_close_matches(word, known, n=1)
    listing = "use one of: " + ", ".join(known)
    return f"did you mean {nearest[0]}? {listing}" if nearest else listing
