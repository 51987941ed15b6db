"""OpenRLHF's command line, without importing OpenRLHF."""

from __future__ import annotations

import ast
import difflib
from collections.abc import Sequence
from datetime import datetime
from functools import cache, reduce
from importlib.util import find_spec
from itertools import takewhile
from pathlib import Path
from types import SimpleNamespace

from openrlhf_swap.command import Parser
from openrlhf_swap.errors import ConfigError
from openrlhf_swap.packages import versions


def parse_arguments(argv: Sequence[str], cli: str = "train_ppo_ray") -> SimpleNamespace:
    """The arguments of a module of `openrlhf.cli`, nested as it nests them: `--actor.adam.lr` is `args.actor.adam.lr`.

    What the module fills in afterwards, from other flags, is left to it.

    Raises:
        CompatibilityError: for another version of OpenRLHF.
        ConfigError: for an unknown flag (with the nearest known one) or a bad value.
    """
    versions.check_version("openrlhf")
    parser = stock_parser(cli)
    namespace, unknown = parser.parse_known_args(argv)
    if unknown:
        nearest = difflib.get_close_matches(unknown[0].partition("=")[0], parser._option_string_actions, n=1)
        remedy = f"did you mean {nearest[0]}?" if nearest else f"{parser.prog} --help lists all flags"
        raise ConfigError(f"unrecognized arguments: {' '.join(unknown)}; {remedy}")
    nested = SimpleNamespace()
    for name, value in vars(namespace).items():
        *groups, last = name.split(".")
        place = reduce(lambda space, group: space.__dict__.setdefault(group, SimpleNamespace()), groups, nested)
        setattr(place, last, value)
    return nested


@cache
def stock_parser(cli: str = "train_ppo_ray") -> Parser:
    """Its parser, which stands under `__main__` behind imports of many seconds: only the lines that build it run."""
    spec = find_spec("openrlhf")
    assert spec is not None and spec.submodule_search_locations, "its version was found"
    source = Path(spec.submodule_search_locations[0]) / "cli" / f"{cli}.py"
    main = next(node for node in ast.parse(source.read_text(encoding="utf-8")).body if isinstance(node, ast.If))
    lines = takewhile(lambda node: "parse_args" not in ast.unparse(node), main.body)
    parser = Parser("openrlhf-swap train")
    names = {"argparse": SimpleNamespace(ArgumentParser=lambda: parser), "datetime": datetime}
    exec(compile(ast.Module(list(lines), []), str(source), "exec"), names)
    return parser
