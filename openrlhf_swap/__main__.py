"""Train reasoning models with SWAP and other length objectives, and evaluate them.

`python -m openrlhf_swap COMMAND` is the same as `openrlhf-swap COMMAND`. A command is imported when
it is named: what the others need does not have to be installed.
"""

import ast
import os
import sys
from collections.abc import Sequence
from importlib import import_module
from importlib.util import find_spec
from typing import cast

from openrlhf_swap import __version__
from openrlhf_swap.command import PROGRAM, did_you_mean, run_command
from openrlhf_swap.errors import ConfigError

# Words after `openrlhf-swap` -> the module whose `main` takes the flags. Commands may share a first
# word.
COMMANDS = {
    "quickstart": "openrlhf_swap.quickstart.run",
    "check": "openrlhf_swap.check",
    "train": "openrlhf_swap.train",
    "plan": "openrlhf_swap.plan",
    "prepare": "openrlhf_swap.prepare",
    "reference": "openrlhf_swap.reference",
    "score": "openrlhf_swap.score",
    "eval run": "openrlhf_swap.evaluation.run",
    "eval report": "openrlhf_swap.evaluation.report",
    "eval figures": "openrlhf_swap.evaluation.figures",
    "eval page": "openrlhf_swap.evaluation.page",
    "eval traces": "openrlhf_swap.evaluation.traces",
    "eval select": "openrlhf_swap.evaluation.selection",
}


def main(argv: Sequence[str] | None = None) -> int:
    if "" not in sys.path and os.getcwd() not in sys.path:
        sys.path.append(os.getcwd())  # where `python -m` finds the module of module:name, too
    return run_command(dispatch, argv)


def dispatch(argv: list[str]) -> int | None:
    """Run the command that the first one or two words name.

    Raises ConfigError when they name none.
    """
    for count in (1, 2):
        module = COMMANDS.get(" ".join(argv[:count]))
        if module:
            return cast("int | None", import_module(module).main(argv[count:]))
    group = [name for name in COMMANDS if argv and name.startswith(f"{argv[0]} ")]
    name = " ".join(argv[: 2 if group else 1])
    if name == "--version":
        print(f"{PROGRAM} {__version__}")
    elif name.endswith(("-h", "--help")):
        _print_help(group or list(COMMANDS))
    else:
        problem = f"{name} is not a command" if name else "a command is missing"
        raise ConfigError(f"{problem}; {did_you_mean(name, COMMANDS)}; --help explains them")
    return 0


def _print_help(commands: Sequence[str]) -> None:
    print(f"usage: {PROGRAM} COMMAND [flags of the command]\n       {PROGRAM} COMMAND --help\n")
    print((__doc__ or "").partition("\n")[0], "\n\ncommands:", sep="")
    width = max(map(len, commands)) + 2
    for name in commands:
        print(f"  {name:{width}}{_first_line(COMMANDS[name])}")


def _first_line(module: str) -> str:
    """The first line of a module's docstring, read without importing the module."""
    spec = find_spec(module)
    source = getattr(spec.loader, "get_source", lambda _: "")(module) if spec else ""
    return (ast.get_docstring(ast.parse(source)) or "").partition("\n")[0]


if __name__ == "__main__":
    sys.exit(main())
