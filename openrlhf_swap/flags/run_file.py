"""The settings of a whole run as a file that starts it again: `run.yaml` in the output folder, for `--config`."""

from __future__ import annotations

from argparse import Action
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from openrlhf_swap.config import FlagSettings, RunConfig, SwapConfig, short_name
from openrlhf_swap.files import write_text
from openrlhf_swap.flags.defaults import REWARD_FILE, in_folder
from openrlhf_swap.flags.paths import PATHS, whole_paths
from openrlhf_swap.flags.stock import stock_parser
from openrlhf_swap.flags.swap import KINDS

NAME = "run.yaml"
SECRET = "logger.wandb.key"
EXPANDED = "recipe"  # its flags stand in the file one by one
ORIGIN = """\
# All settings of a run: openrlhf-swap train --config {path}
# Flags on the command line win over it; a new run needs another --swap.output_dir, and another folder for each --ckpt
# and --logger flag that names one below.
"""


def write_run_file(folder: Path, argv: Sequence[str], config: SwapConfig, run: RunConfig) -> None:
    """Write the file: every setting of ours, and the flags of OpenRLHF that are given or have a default of ours.

    Folders of OpenRLHF where our defaults put them are left out: they follow --swap.output_dir.

    Args:
        folder: the output folder.
        argv: OpenRLHF's flags, our defaults included.
        config: the objective's settings.
        run: the run's.
    """
    import yaml

    flags = {**_ours(config), **_ours(run), **_stock(argv, folder)}
    content = {"origin": f"the run in {folder}", "flags": flags, "cannot": []}
    text = yaml.safe_dump(content, sort_keys=False, allow_unicode=True, width=1000)
    write_text(folder / NAME, ORIGIN.format(path=folder / NAME) + text)


def _ours(settings: FlagSettings) -> dict[str, Any]:
    """Our settings by flag without the dashes; a switch that is off is left out."""
    assert type(settings) in KINDS
    values = {name: getattr(settings, name) for name in settings.declared() if name != EXPANDED}
    flags = {f"swap.{name}": value for name, value in values.items() if value is not False}
    if isinstance(settings, SwapConfig):
        flags |= {f"swap.{short_name(settings.objective)}.{name}": text for name, text in settings.options.items()}
    return flags


def _stock(argv: Sequence[str], folder: Path) -> dict[str, Any]:
    """OpenRLHF's flags as given or set by us, less the tracker's key, our reward function and folders in `folder`."""
    parser, defaults = stock_parser(), in_folder(folder)
    values, named = vars(parser.parse_args(list(argv))), {word.partition("=")[0] for word in argv}
    flags = {}
    for action in parser._actions:
        value = values.get(action.dest)
        # Also one with OpenRLHF's default: ours may be another.
        if not named & set(action.option_strings) or action.dest == SECRET or value in (None, str(REWARD_FILE)):
            continue
        if defaults.get(f"--{action.dest}") == value:
            continue
        plain = _plain(action, value)
        whole = whole_paths(action.dest, plain) if action.dest in PATHS else plain
        flags[action.option_strings[0].removeprefix("--")] = whole
    return flags


def _plain(action: Action, value: Any) -> Any:
    if action.nargs == 0:
        return True
    return [str(one) for one in value] if isinstance(value, list) else str(value)
