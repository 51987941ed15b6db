"""What all commands share: a parser with errors of one line, and the entry that prints them."""

import argparse
import difflib
import os
import signal
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryFile
from typing import NoReturn

from openrlhf_swap.errors import SETUP, ConfigError, StoppedBySignal, SwapError

PROGRAM = "openrlhf-swap"  # the console command, see `__main__`
ADAPTERS = "adapter_config.json"  # what a folder of LoRA adapters holds
EXTRAS = {  # package -> the extra of pyproject.toml that installs it
    **dict.fromkeys(("huggingface_hub", "torch", "transformers"), "core"),
    **dict.fromkeys(("latex2sympy2_extended", "math_verify"), "grading"),
    "datasets": "data",
    "latex2mathml": "pages",
}


class Parser(argparse.ArgumentParser):
    """A parser that raises ConfigError instead of printing its usage and exiting."""

    help_flag = "--help"  # of the help that has every flag

    def __init__(self, command: str, description: str | None = None) -> None:
        kind = argparse.RawDescriptionHelpFormatter
        super().__init__(command, description=description, formatter_class=kind, allow_abbrev=False)

    def error(self, message: str) -> NoReturn:
        reason = message.replace("argument ", "", 1)
        raise ConfigError(f"{reason}; see {self.prog} {self.help_flag} for what each flag takes")


def run_command(
    command: Callable[[list[str]], int | None], argv: Sequence[str] | None = None
) -> int:
    """Run a command with its arguments, the process's own by default, and return its exit status.

    After a SwapError or a missing package it is 2, after Ctrl-C 130, after a signal that a command
    handles 128 and its number; each of these is printed as one line.
    """
    try:
        status = command(list(sys.argv[1:] if argv is None else argv)) or 0
        sys.stdout.flush()
        return status
    except BrokenPipeError:  # the reader has closed the pipe, as `head` does
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 1
    except StoppedBySignal as error:
        print(f"error: stopped by {signal.Signals(error.number).name}{error}", file=sys.stderr)
        return 128 + error.number
    except KeyboardInterrupt as error:
        print(f"error: stopped by Ctrl-C{error}", file=sys.stderr)
        return 130  # as shells do for what SIGINT ended
    except SwapError as error:
        print(f"error: {error}", file=sys.stderr)
    except ModuleNotFoundError as error:
        package = (error.name or "openrlhf_swap").partition(".")[0]
        if package == "openrlhf_swap":
            raise
        remedy = SETUP
        if package in EXTRAS:
            remedy = (
                f"pip install '.[{EXTRAS[package]}]' in a checkout, or with the path of the wheel "
                "in place of the dot"
            )
        print(f"error: {package} is not installed; remedy: {remedy}", file=sys.stderr)
    return 2


@contextmanager
def flags_called(names: Mapping[str, str]) -> Iterator[None]:
    """Make errors name a command's own flags; `names` maps the training's flags to them."""
    try:
        yield
    except SwapError as error:
        message = str(error)
        for flag, own in names.items():
            message = message.replace(flag, own)
        raise type(error)(message) from error


def did_you_mean(word: str, known: Iterable[str]) -> str:
    """A remedy for an unknown name: the nearest known one, and a list of all."""
    names = list(known)
    nearest = difflib.get_close_matches(word, names, n=1)
    listing = "use one of: " + ", ".join(names)
    return f"did you mean {nearest[0]}? {listing}" if nearest else listing


def counted(number: int, thing: str) -> str:
    """A number with its noun: "1 sample", "1,200 samples"."""
    return f"{number:,} {thing}{'s' * (number != 1)}"


def check_writable(flag: str, folder: Path) -> None:
    """Raise ConfigError for a folder that cannot be created or written to; creates nothing."""
    existing = next(path for path in (folder, *folder.absolute().parents) if path.exists())
    try:
        TemporaryFile(dir=existing).close()
    except OSError as error:
        raise ConfigError(
            f"{flag} is {folder}, which cannot be written to ({error.strerror}); use another"
        ) from error
