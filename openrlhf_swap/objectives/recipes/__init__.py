"""Recipes: the flags of a run in a YAML file. Those that come with the package hold what an objective's authors set.

`--swap.recipe NAME` puts a recipe's flags in front of the command line, behind the package's own defaults, and
`--config FILE` a file of one's own behind that: what the command line says wins, then what the file says. `--no-FLAG`
takes a switch out of both. A file has a section `flags`, and may have `origin` and `cannot`.
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
CONFIG = "--config"
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
        off: switches that are false, as `--no-FLAG`.
    """

    name: str
    origin: str
    flags: dict[str, list[str]]
    sources: dict[str, str]
    cannot: list[str]
    off: list[str]


def read_recipe(name: str) -> Recipe:
    """A recipe by its name; raises ConfigError for an unknown one."""
    if name not in NAMES:
        raise ConfigError(f"{FLAG} is {name!r}; {did_you_mean(name, NAMES)}")
    return read_file(FOLDER / f"{name}.yaml", name)


def read_file(path: Path, name: str) -> Recipe:
    """The recipe in a file.

    Raises:
        ConfigError: for a file that cannot be read, or has no flags.
    """
    import yaml

    remedy = "give a YAML file with a section flags, such as the run.yaml of a run"
    try:
        text = path.read_text(encoding="utf-8")
        content = yaml.safe_load(text)
    except (OSError, UnicodeDecodeError, yaml.YAMLError) as error:
        reason = " ".join(str(error).split())
        raise ConfigError(f"{CONFIG} is {path}, which cannot be read ({reason}); {remedy}") from None
    flags = content.get("flags") if isinstance(content, dict) else None
    if not isinstance(flags, dict):
        raise ConfigError(f"{CONFIG} is {path}, which has no section flags; {remedy}")
    lines = filter(None, map(_LINE.fullmatch, text.splitlines()))
    sources = {f"--{line[1]}": line[3] or "" for line in lines}
    on = {flag: value for flag, value in flags.items() if value is not None and value is not False}
    words = {f"--{flag}": _words(path, flag, value) for flag, value in on.items()}
    off = [f"--no-{flag}" for flag, value in flags.items() if value is False]
    return Recipe(name, content.get("origin", str(path)), words, sources, content.get("cannot", []), off)


def with_recipe(given: Sequence[str]) -> list[str]:
    """A command line with the flags of the file and the recipe that it names in front.

    Raises:
        ConfigError: for an unknown recipe, a file that cannot be read, and for `--no-FLAG` of what is not a switch of
            theirs.
    """
    file = named_file(given)
    told = without_file(given)
    if file is not None:
        told = [*_words_of(file, told), *told]
    recipe = named_recipe(told)
    layers = [layer for layer in (recipe, file) if layer is not None]
    if not layers:
        return told
    refused = {word for word in given if word.startswith("--no-")}
    for word in sorted(refused):
        if not any(layer.flags.get(f"--{word[5:]}") == [] for layer in layers):
            flags = {flag: words for layer in layers for flag, words in layer.flags.items()}
            switches = ", ".join(f"--no-{flag[2:]}" for flag, words in flags.items() if not words)
            names = " and ".join(layer.name for layer in layers)
            raise ConfigError(f"{word} is not a switch of the recipe {names}; it has: {switches or 'none'}")
    words = [] if recipe is None else _words_of(recipe, [*told, *_switched_off(given)])
    return [*words, *(word for word in told if word not in refused)]


def with_file(given: Sequence[str]) -> list[str]:
    """A command line with the flags of the file that it names in front; raises ConfigError for one that is none."""
    file = named_file(given)
    told = without_file(given)
    return told if file is None else [*_words_of(file, told), *told]


def without_file(given: Sequence[str]) -> list[str]:
    """A command line without `--config` and its value."""
    pairs = zip(["", *given], given, strict=False)
    return [word for before, word in pairs if CONFIG not in (before, word) and not word.startswith(f"{CONFIG}=")]


def named_file(given: Sequence[str]) -> Recipe | None:
    """The recipe in the file that a command line names; the last one counts."""
    path = _last_value(given, CONFIG)
    return None if path is None else read_file(Path(path), path)


def _switched_off(given: Sequence[str]) -> list[str]:
    """`--no-FLAG` for each switch that is false in the file that a command line names: a recipe's is out as well."""
    file = named_file(given)
    return [] if file is None else file.off


def _words_of(recipe: Recipe, given: Sequence[str]) -> list[str]:
    return [word for flag in kept_flags(recipe, given) for word in (flag, *recipe.flags[flag])]


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
    name = _last_value(given, FLAG)
    return None if not name else read_recipe(name)


def _last_value(given: Sequence[str], wanted: str) -> str | None:
    found = None
    for word, after in zip(given, [*given[1:], ""], strict=False):
        flag, equals, value = word.partition("=")
        if flag == wanted:
            found = value if equals else after
    return found


def describe(recipe: Recipe, given: Sequence[str]) -> list[str]:
    """What a recipe sets on a command line, each value with its source, and what cannot be done here."""
    kept = kept_flags(recipe, [*with_file(given), *_switched_off(given)])
    lines = [f"recipe {recipe.name}, after {recipe.origin}:"]
    for flag, words in recipe.flags.items():
        note = "" if flag in kept else " (the command line wins)"
        source = recipe.sources[flag]
        lines.append(f"  {' '.join((flag, *words))}{note}" + (f"  # {source}" if source else ""))
    return lines + [f"  not here: {what}" for what in recipe.cannot]


def _words(path: Path, flag: str, value: object) -> list[str]:
    """A YAML value as the words behind a flag; raises ConfigError for a section of its own."""
    if value is True:
        return []
    if isinstance(value, dict):
        example = next(iter(value), "name")
        raise ConfigError(f"{CONFIG} is {path}, whose {flag} holds other names; write {flag}.{example} in one line")
    return [str(word) for word in value] if isinstance(value, list) else [str(value)]
