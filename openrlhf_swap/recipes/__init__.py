"""Flags in YAML files: recipes, which hold what authors set, and a user's own for `--config`.

A file has a section `flags` (name without dashes: value; `true` and `false` for switches);
`FlagFile` has the rest.
"""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import yaml

from openrlhf_swap.command import did_you_mean
from openrlhf_swap.errors import ConfigError

FOLDER = Path(__file__).parent
CONFIG = "--config"
NAMES = tuple(sorted(path.stem for path in FOLDER.glob("*.yaml")))
_LINE = re.compile(r"  (?P<name>[\w.]+): .*?(?:  # (?P<source>.*))?")


@dataclass(frozen=True)
class FlagFile:
    """The flags of a file, by name without dashes.

    Attributes:
        name: a recipe's, or the file's path.
        origin: where the values come from.
        flags: text, a number, a list of these, or a bool for a switch.
        sources: by flag, what the value is called at the origin.
        prompt: how the authors ask, as a command that prepares the data so.
        cannot: what the authors do and this trainer cannot.
    """

    name: str
    origin: str = ""
    flags: dict[str, Any] = field(default_factory=dict)
    sources: dict[str, str] = field(default_factory=dict)
    prompt: str = ""
    cannot: list[str] = field(default_factory=list)


def read_recipe(name: str) -> FlagFile:
    """A recipe by its name; raises ConfigError for an unknown one."""
    if name not in NAMES:
        raise ConfigError(f"--swap.recipe is {name!r}; {did_you_mean(name, NAMES)}")
    return read_file(FOLDER / f"{name}.yaml", name)


def read_file(path: Path, name: str = "") -> FlagFile:
    """The flags in a file; raises ConfigError for a file that cannot be read or has no flags."""
    text, content = _load(path)
    flags = _flags_of(content, path)
    lines = [_LINE.fullmatch(line) for line in text.splitlines()]
    sources = {line["name"]: line["source"] or "" for line in lines if line}
    said = {key: content[key] for key in ("prompt", "cannot") if key in content}
    origin = content.get("origin", str(path))
    return FlagFile(name or str(path), origin, flags, sources, **said)


def _load(path: Path) -> tuple[str, Any]:
    """The text of a YAML file and its content."""
    try:
        text = path.read_text(encoding="utf-8")
        return text, yaml.safe_load(text)
    except (OSError, ValueError, yaml.YAMLError) as error:
        reason = " ".join(str(error).split())
        raise _refused(path, f"cannot be read ({reason})") from None


def _flags_of(content: Any, path: Path) -> dict[str, Any]:
    flags = content.get("flags") if isinstance(content, dict) else None
    if not isinstance(flags, dict):
        raise _refused(path, "has no section flags")
    for flag, value in flags.items():
        if isinstance(value, dict):
            inner = next(iter(value), "name")
            raise ConfigError(
                f"{CONFIG} is {path}, whose {flag} holds other names; "
                f"write {flag}.{inner} in one line"
            )
    return {str(flag): value for flag, value in flags.items() if value is not None}


def _refused(path: Path, fault: str) -> ConfigError:
    remedy = "give a YAML file with a section flags, such as the run.yaml of a run"
    return ConfigError(f"{CONFIG} is {path}, which {fault}; {remedy}")


def as_words(flags: Mapping[str, Any]) -> list[str]:
    """Flags as the words of a command line; a switch that is off becomes `--no-NAME`."""
    words: list[str] = []
    for name, value in flags.items():
        if value is True:
            words.append(f"--{name}")
        elif value is False:
            words.append(f"--no-{name}")
        elif isinstance(value, list):
            words += [f"--{name}", *map(str, value)]
        else:
            words.append(f"--{name}={value}")
    return words


def read_config(words: Sequence[str]) -> tuple[dict[str, Any], list[str]]:
    """The flags of the files that `--config` names, and the words without it; later files win."""
    flags: dict[str, Any] = {}
    rest: list[str] = []
    left = iter(words)
    for word in left:
        name, _, value = word.partition("=")
        if name == CONFIG:
            path = Path(value or next(left, ""))
            flags = layered(flags, read_file(path).flags)
        else:
            rest.append(word)
    return flags, rest


def layered(below: Mapping[str, Any], above: Mapping[str, Any]) -> dict[str, Any]:
    """Two layers of flags, of which the upper one wins.

    A single clip above also removes a pair of clips below, which OpenRLHF would prefer.
    """
    flags = {**below, **above}
    if "actor.eps_clip" in above and "actor.eps_clip_low_high" not in above:
        flags.pop("actor.eps_clip_low_high", None)
    return flags


def find_value(words: Sequence[str], flag: str) -> str | None:
    """The last value that a command line gives a flag, as `FLAG VALUE` or as `FLAG=VALUE`."""
    found = None
    for place, word in enumerate(words):
        if word.startswith(f"{flag}="):
            found = word.partition("=")[2]
        elif word == flag and place + 1 < len(words):
            found = words[place + 1]
    return found


def expand_config(words: Sequence[str]) -> list[str]:
    """A command line with the flags of `--config` in front, where later words win.

    Switches that are off are left out.
    """
    flags, rest = read_config(words)
    given = {name: value for name, value in flags.items() if value is not False}
    return [*as_words(given), *rest]
