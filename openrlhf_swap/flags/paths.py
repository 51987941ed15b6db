"""Names of files, models and data sets on OpenRLHF's command line: their whole paths, and what OpenRLHF splits."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from operator import attrgetter
from pathlib import Path
from types import SimpleNamespace

from openrlhf_swap.flags.stock import parse_arguments

DATA_SETS = ("data.prompt_dataset", "eval.dataset")
LISTS = (*DATA_SETS, "reward.remote_url")  # names between commas
PATHS = ("actor.model_name_or_path", *LISTS)
SEPARATORS = ",@"  # between data sets, and between a data set and a folder in it
PATTERNS = "*?["  # by which a path stands for several


def special_in(path: Path | str, characters: str = SEPARATORS + PATTERNS) -> str | None:
    """The first of these characters in a path; None without one."""
    return next((character for character in str(path) if character in characters), None)


def refused_names(args: SimpleNamespace) -> Iterator[str]:
    """Data sets that are here, under names that OpenRLHF would split."""
    for flag in DATA_SETS:
        names = attrgetter(flag)(args) or ""
        for name in dict.fromkeys(map(str.strip, (names, *names.split(",")))):
            if (character := special_in(name, SEPARATORS)) and os.path.exists(name):
                yield (
                    f"--{flag} is {name}, whose name OpenRLHF splits at {character!r}: rename it, or link to it under "
                    "another name"
                )


def with_whole_paths(argv: Sequence[str]) -> list[str]:
    """A command line with the whole paths of what is here: Ray's actors may run in another folder than the command."""
    args, words = parse_arguments(argv), list(argv)
    for flag in PATHS:
        names = attrgetter(flag)(args)
        if names and (whole := whole_paths(flag, names)) != names:
            words.append(f"--{flag}={whole}")
    return words


def whole_paths(flag: str, names: str) -> str:
    """What a flag of PATHS names: files and folders by their whole paths, hub ids and addresses as they are."""
    if flag not in LISTS:
        return _whole(names)
    of_one = _whole_source if flag in DATA_SETS else _whole
    return ",".join(of_one(name.strip()) for name in names.split(","))


def _whole(name: str) -> str:
    return str(Path(name).absolute()) if os.path.exists(name) else name


def _whole_source(name: str) -> str:
    """Of a data set, behind which a folder in it may stand; as it is where OpenRLHF would split the whole path."""
    place, at, inside = name.partition("@")
    whole = _whole(place)
    return name if special_in(whole, SEPARATORS) else whole + at + inside
