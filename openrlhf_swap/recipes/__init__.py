"""Flags in YAML files: recipes, which hold what an objective's authors set, and files of one's own for `--config`.

A file has a section `flags` (name without dashes: value; `true` and `false` for switches) and may have `origin` and
`cannot`, a list of what the authors do and this trainer cannot.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path
from typing import Any

from openrlhf_swap.command import did_you_mean
from openrlhf_swap.errors import ConfigError

FOLDER = Path(__file__).parent
CONFIG = "--config"
NAMES = tuple(sorted(path.stem for path in FOLDER.glob("*.yaml")))
_LINE = re.compile(r"  ([\w.]+): (.*?)(?:  # (.*))?")  # name, value, source


@dataclass(frozen=True)
class FlagFile:
    """The flags of a file.

    Attributes:
        name: a recipe's name, or the file's path.
        origin: where the values come from.
        flags: name without dashes -> the YAML value: text, a number, a list of these, or a bool for a switch.
        sources: name -> what the value is called at the origin.
        cannot: what the authors do and this trainer cannot.
    """

    name: str
    origin: str = ""
    flags: dict[str, Any] = field(default_factory=dict)
    sources: dict[str, str] = field(default_factory=dict)
    cannot: list[str] = field(default_factory=list)


def read_recipe(name: str) -> FlagFile:
    """A recipe by its name; raises ConfigError for an unknown one."""
    if name not in NAMES:
        raise ConfigError(f"--swap.recipe is {name!r}; {did_you_mean(name, NAMES)}")
    return read_file(FOLDER / f"{name}.yaml", name)


def read_file(path: Path, name: str = "") -> FlagFile:
    """The flags in a file.

    Raises:
        ConfigError: for a file that cannot be read or has no flags.
    """
    import yaml

    remedy = "give a YAML file with a section flags, such as the run.yaml of a run"
    try:
        text = path.read_text(encoding="utf-8")
        content = yaml.safe_load(text)
    except (OSError, ValueError, RecursionError, yaml.YAMLError) as error:
        reason = " ".join(str(error).split())
        raise ConfigError(f"{CONFIG} is {path}, which cannot be read ({reason}); {remedy}") from None
    flags = content.get("flags") if isinstance(content, dict) else None
    if not isinstance(flags, dict):
        raise ConfigError(f"{CONFIG} is {path}, which has no section flags; {remedy}")
    for flag, value in flags.items():
        if isinstance(value, dict):
            inner = next(iter(value), "name")
            raise ConfigError(f"{CONFIG} is {path}, whose {flag} holds other names; write {flag}.{inner} in one line")
    lines = filter(None, map(_LINE.fullmatch, text.splitlines()))
    sources = {line[1]: line[3] or "" for line in lines}
    given = {str(flag): value for flag, value in flags.items() if value is not None}
    return FlagFile(name or str(path), content.get("origin", str(path)), given, sources, content.get("cannot", []))


def as_words(flags: dict[str, Any]) -> list[str]:
    """Flags as the words of a command line; a switch that is off becomes `--no-NAME`."""
    words: list[str] = []
    for name, value in flags.items():
        if isinstance(value, bool):
            words.append(f"--{name}" if value else f"--no-{name}")
        else:
            words += [f"--{name}", *(map(str, value) if isinstance(value, list) else [str(value)])]
    return words


def expand_config(words: Sequence[str]) -> list[str]:
    """A command line with the flags of the file that `--config` names in front, where later words win over them.

    Switches that the file turns off are left out.

    Raises:
        ConfigError: for a file that cannot be read.
    """
    files = [word.partition("=")[2] for word in words if word.startswith(f"{CONFIG}=")]
    files += [after for word, after in pairwise(words) if word == CONFIG]
    pairs = zip(["", *words], words, strict=False)
    rest = [word for before, word in pairs if CONFIG not in (before, word) and not word.startswith(f"{CONFIG}=")]
    layers = (read_file(Path(file)).flags for file in files)
    flags = {name: value for layer in layers for name, value in layer.items() if value is not False}
    return [*as_words(flags), *rest]
