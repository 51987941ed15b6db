"""Names of files, models and data sets among OpenRLHF's arguments, and what OpenRLHF splits in them."""

import os
from pathlib import Path

from openrlhf_swap.flags.configuration import Configuration

DATA_SETS = ("data.prompt_dataset", "eval.dataset")
WRITTEN = ("ckpt.path", "ckpt.output_dir", "logger.tensorboard_dir")
SEPARATORS = ",@"  # between data sets, and between a data set and a folder in it
PATTERNS = "*?["  # by which a path stands for several


def find_special(path: Path | str, characters: str = SEPARATORS + PATTERNS) -> str | None:
    """The first of these characters in a path, or None."""
    return next((character for character in str(path) if character in characters), None)


def use_whole_paths(configuration: Configuration) -> Configuration:
    """The configuration with whole paths for what is on this machine: Ray's actors may run in another folder."""
    values = configuration.values
    changes = {name: str(Path(values[name]).absolute()) for name in WRITTEN if values[name]}
    changes["actor.model_name_or_path"] = _whole(values["actor.model_name_or_path"])
    files = ("reward.remote_url", "train.agent_func_path")
    for name, whole in (*((name, _whole) for name in files), *((name, _whole_data_set) for name in DATA_SETS)):
        if values[name]:
            changes[name] = ",".join(whole(source.strip()) for source in values[name].split(","))
    return configuration.replace_flags(changes)


def _whole(name: str) -> str:
    return str(Path(name).absolute()) if os.path.exists(name) else name


def _whole_data_set(name: str) -> str:
    """The same for `DATA_SET@FOLDER`; a path that OpenRLHF would split stays as it is."""
    place, at, inside = name.partition("@")
    whole = _whole(place)
    return name if find_special(whole, SEPARATORS) else whole + at + inside
