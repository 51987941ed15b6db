"""Recipes: every flag that an objective's authors set, one YAML file each.

`--swap.recipe NAME` puts a recipe's flags in front of the command line, behind the package's own defaults: what the
command line says wins. `--no-FLAG` takes a switch out of a recipe.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from openrlhf_swap.command import did_you_mean
from openrlhf_swap.errors import ConfigError

FOLDER = Path(__file__).parent
FLAG = "--swap.recipe"
NAMES = tuple(sorted(path.stem for path in FOLDER.glob("*.yaml")))
# Of two flags for one thing OpenRLHF takes the second, even when the first alone is given.
INSTEAD = {"--actor.eps_clip_low_high": "--actor.eps_clip"}
_LINE = re.compile(r"  ([\w.]+): (.*?)(?:  # (.*))?")  # name, value, source


@dataclass(frozen=True)
class Recipe:
    """A recipe's flags.

    Attributes:
        name: of its file.
        origin: where the values come from.
        flags: by name, with the dashes, the words behind the flag; none for a switch.
        sources: by flag, what the value is called at the origin.
        cannot: what the authors do and this trainer cannot.
    """

    name: str
    origin: str
    flags: dict[str, list[str]]
    sources: dict[str, str]
    cannot: list[str]


def read_recipe(name: str) -> Recipe:
    """A recipe by its name; raises ConfigError for an unknown one."""
    if name not in NAMES:
        raise ConfigError(f"{FLAG} is {name!r}; {did_you_mean(name, NAMES)}")
    import yaml

    text = (FOLDER / f"{name}.yaml").read_text(encoding="utf-8")
    content = yaml.safe_load(text)
    lines = filter(None, map(_LINE.fullmatch, text.splitlines()))
    sources = {f"--{line[1]}": line[3] or "" for line in lines}
    flags = {f"--{flag}": _words(value) for flag, value in content["flags"].items()}
    return Recipe(name, content["origin"], flags, sources, content["cannot"])


def with_recipe(given: Sequence[str]) -> list[str]:
    """A command line with the flags of the recipe that it names in front.

    Raises:
        ConfigError: for an unknown recipe, and for `--no-FLAG` of what is no switch of the recipe.
    """
    recipe = named_recipe(given)
    if recipe is None:
        return list(given)
    refused = {word for word in given if word.startswith("--no-")}
    for word in sorted(refused):
        if recipe.flags.get(f"--{word[5:]}") != []:
            switches = ", ".join(f"--no-{flag[2:]}" for flag, words in recipe.flags.items() if not words)
            raise ConfigError(f"{word} is no switch of the recipe {recipe.name}; it has: {switches or 'none'}")
    words = [word for flag in kept_flags(recipe, given) for word in (flag, *recipe.flags[flag])]
    return [*words, *(word for word in given if word not in refused)]


def kept_flags(recipe: Recipe, given: Sequence[str]) -> list[str]:
    """Those that the command line neither sets nor takes out."""
    told = {word.partition("=")[0] for word in given}
    return [
        flag
        for flag in recipe.flags
        if flag not in told and INSTEAD.get(flag) not in told and f"--no-{flag[2:]}" not in told
    ]


def named_recipe(given: Sequence[str]) -> Recipe | None:
    """The recipe that a command line names; the last one counts."""
    name = None
    for word, after in zip(given, [*given[1:], ""], strict=False):
        flag, equals, value = word.partition("=")
        if flag == FLAG:
            name = value if equals else after
    return None if name is None else read_recipe(name)


def describe(recipe: Recipe, given: Sequence[str]) -> list[str]:
    """What a recipe sets on a command line, each value with its source, and what cannot be done here."""
    kept = kept_flags(recipe, given)
    lines = [f"recipe {recipe.name}, after {recipe.origin}:"]
    for flag, words in recipe.flags.items():
        note = "" if flag in kept else " (the command line wins)"
        source = recipe.sources[flag]
        lines.append(f"  {' '.join((flag, *words))}{note}" + (f"  # {source}" if source else ""))
    return lines + [f"  not here: {what}" for what in recipe.cannot]


def _words(value: object) -> list[str]:
    """A YAML value as the words behind a flag."""
    if value is True:
        return []
    return [str(word) for word in value] if isinstance(value, list) else [str(value)]
