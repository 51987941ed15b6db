"""Train reasoning models with SWAP and other length objectives, and evaluate them: all commands under one name.

`python -m openrlhf_swap COMMAND` is the same as `openrlhf-swap COMMAND`. A command is imported when it is named: what
the others need does not have to be installed.
"""

from __future__ import annotations

import ast
import sys
from collections.abc import Sequence
from importlib import import_module
from importlib.util import find_spec

from openrlhf_swap import __version__
from openrlhf_swap.command import PROGRAM, did_you_mean, run_command
from openrlhf_swap.errors import ConfigError

COMMANDS = {
    "train": "openrlhf_swap.train",
    "plan": "openrlhf_swap.plan",
    "prepare": "openrlhf_swap.prepare",
    "reference": "openrlhf_swap.reference",
    "score": "openrlhf_swap.score",
    "merge": "openrlhf_swap.runs.merge",
    "gpu-check": "openrlhf_swap.gpu_check.__main__",
    "evaluate": "openrlhf_swap.evaluation.run",
    "forced": "openrlhf_swap.evaluation.forced",
    "report": "openrlhf_swap.evaluation.report",
    "figures": "openrlhf_swap.evaluation.figures",
    "traces": "openrlhf_swap.evaluation.traces",
    "page": "openrlhf_swap.evaluation.page.__main__",
}


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command that the first word names with the other words, and return its exit status."""
    return run_command(dispatch, argv)


def dispatch(argv: list[str]) -> int | None:
    """Run the command that the first word names with the other words.

    Raises:
        ConfigError: when it names none.
    """
    name = argv[0] if argv else None
    if name in ("-h", "--help"):
        print(_help())
        return 0
    if name == "--version":
        print(f"{PROGRAM} {__version__}")
        return 0
    if name not in COMMANDS:
        problem = "a command is missing" if name is None else f"{name} is not a command"
        raise ConfigError(f"{problem}; {did_you_mean(name or '', COMMANDS)}; --help explains them")
    sys.argv = [f"{PROGRAM} {name}", *argv[1:]]  # the command's help shows how it was called
    status: int | None = import_module(COMMANDS[name]).main(argv[1:])
    return status


def _help() -> str:
    width = max(map(len, COMMANDS)) + 2
    lines = [f"  {name:{width}}{_first_line(module)}" for name, module in COMMANDS.items()]
    usage = f"usage: {PROGRAM} COMMAND [flags of the command]\n       {PROGRAM} COMMAND --help"
    return "\n".join([usage, "", (__doc__ or "").partition("\n")[0], "", "commands:", *lines])


def _first_line(module: str) -> str:
    """The first line of a module's docstring, read without importing the module."""
    spec = find_spec(module)
    source = getattr(spec.loader, "get_source", lambda _: "")(module) if spec else ""
    return (ast.get_docstring(ast.parse(source)) or "").partition("\n")[0]


if __name__ == "__main__":
    sys.exit(main())
