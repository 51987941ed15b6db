"""Flags in YAML files: recipes, which hold what an objective's authors set, and a user's own files
for `--config`.

A file has a section `flags` (name without dashes: value; `true` and `false` for switches);
`FlagFile` has the rest.
"""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path
from typing import Any

import yaml

from openrlhf_swap.command import did_you_mean
from openrlhf_swap.errors import ConfigError

FOLDER = Path(__file__).parent
CONFIG = "--config"
NAMES = tuple(sorted(path.stem for path in FOLDER.glob("*.yaml")))
_LINE = re.compile(r"  ([\w.]+): (.*?)(?:  # (.*))?")  # name, value, source


@dataclass(frozen=True)
class FlagFile:
    """The flags of a file, by name without dashes: text, a number, a list of these, or a bool for a
    switch.
    """

    name: str  # a recipe's, or the file's path
    origin: str = ""  # where the values come from
    flags: dict[str, Any] = field(default_factory=dict)
    sources: dict[str, str] = field(
        default_factory=dict
    )  # by flag: what the value is called at the origin
    prompt: str = ""  # how the authors ask, as a command that prepares the data so
    cannot: list[str] = field(default_factory=list)  # what the authors do and this trainer cannot


def read_recipe(name: str) -> FlagFile:
    """A recipe by its name; raises ConfigError for an unknown one."""
    if name not in NAMES:
        raise ConfigError(f"--swap.recipe is {name!r}; {did_you_mean(name, NAMES)}")
    return read_file(FOLDER / f"{name}.yaml", name)


def read_file(path: Path, name: str = "") -> FlagFile:
    """The flags in a file; raises ConfigError for a file that cannot be read or has no flags."""
    remedy = "give a YAML file with a section flags, such as the run.yaml of a run"
    try:
        text = path.read_text(encoding="utf-8")
        content = yaml.load(text, _StrictLoader)
    except (OSError, ValueError, RecursionError, yaml.YAMLError) as error:
        reason = " ".join(str(error).split())
        raise ConfigError(
            f"{CONFIG} is {path}, which cannot be read ({reason}); {remedy}"
        ) from None
    flags = content.get("flags") if isinstance(content, dict) else None
    if not isinstance(flags, dict):
        raise ConfigError(f"{CONFIG} is {path}, which has no section flags; {remedy}")
    for flag, value in flags.items():
        if isinstance(value, dict):
            inner = next(iter(value), "name")
            raise ConfigError(
                f"{CONFIG} is {path}, whose {flag} holds other names; write {flag}.{inner} in one line"
            )
    sources = {line[1]: line[3] or "" for line in map(_LINE.fullmatch, text.splitlines()) if line}
    given = {str(flag): value for flag, value in flags.items() if value is not None}
    said = {key: content[key] for key in ("prompt", "cannot") if key in content}
    return FlagFile(name or str(path), content.get("origin", str(path)), given, sources, **said)


class _StrictLoader(yaml.SafeLoader):  # type: ignore[misc]  # yaml has no types
    """Refuses what would be read as something else, or for minutes."""

    def compose_node(self, parent: Any, index: Any) -> Any:
        if self.check_event(yaml.AliasEvent):
            raise ValueError(
                f"line {self.peek_event().start_mark.line + 1}: an alias; write the value itself"
            )
        return super().compose_node(parent, index)

    def construct_mapping(self, node: Any, deep: bool = False) -> Any:
        names = [name.value for name, _ in node.value]
        if twice := next((name for name in names if names.count(name) > 1), None):
            raise ValueError(f"{twice} stands in it twice")
        return super().construct_mapping(node, deep)

    def construct_yaml_int(self, node: Any) -> int:
        if not re.fullmatch(r"[-+]?(?:0|[1-9][\d_]{0,17})", node.value):
            line = node.start_mark.line + 1
            raise ValueError(
                f"line {line}: {node.value[:20]} is no plain number; put a text in quotes"
            )
        return int(node.value.replace("_", ""))


_StrictLoader.add_constructor("tag:yaml.org,2002:int", _StrictLoader.construct_yaml_int)


def as_words(flags: Mapping[str, Any]) -> list[str]:
    """Flags as the words of a command line; a switch that is off becomes `--no-NAME`."""
    words: list[str] = []
    for name, value in flags.items():
        if isinstance(value, bool):
            words.append(f"--{name}" if value else f"--no-{name}")
        elif isinstance(value, list):
            words += [f"--{name}", *map(str, value)]
        else:
            words.append(f"--{name}={value}")
    return words


def read_config(words: Sequence[str]) -> tuple[dict[str, Any], list[str]]:
    """The flags of the files that `--config` names, later files winning, and the words without it."""
    flags, rest, left = dict[str, Any](), list[str](), iter(words)
    for word in left:
        name, _, value = word.partition("=")
        if name == CONFIG:
            flags = layered(flags, read_file(Path(value or next(left, ""))).flags)
        else:
            rest.append(word)
    return flags, rest


def layered(below: Mapping[str, Any], above: Mapping[str, Any]) -> dict[str, Any]:
    """Two layers of flags; a single clip also replaces a pair below it, which OpenRLHF would take."""
    replaced = {"actor.eps_clip_low_high"} if "actor.eps_clip" in above else {}
    return {name: value for name, value in below.items() if name not in replaced} | dict(above)


def find_value(words: Sequence[str], flag: str) -> str | None:
    """The last value that a command line gives a flag, as `FLAG VALUE` or as `FLAG=VALUE`."""
    values = [word.partition("=")[2] for word in words if word.startswith(f"{flag}=")]
    values += [after for word, after in pairwise(words) if word == flag]
    return values[-1] if values else None


def expand_config(words: Sequence[str]) -> list[str]:
    """A command line with the flags of `--config` in front, where later words win; without switches
    that are off.
    """
    flags, rest = read_config(words)
    return [*as_words({name: value for name, value in flags.items() if value is not False}), *rest]
