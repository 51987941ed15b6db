"""OpenRLHF's command line without importing OpenRLHF: its parser, and what its main makes of the
parsed arguments.

Both stand under `__main__` of `openrlhf.cli.*`, after imports of many seconds; only the lines that
are needed run.
"""

import ast
from collections.abc import Mapping
from contextlib import redirect_stdout
from datetime import datetime
from functools import cache, reduce
from importlib.util import find_spec
from io import StringIO
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from openrlhf_swap.command import Parser
from openrlhf_swap.errors import ConfigError
from openrlhf_swap.packages import versions

TRAIN = "train_ppo_ray"


def stock_parser(cli: str = TRAIN) -> Parser:
    """A new parser of a module of `openrlhf.cli`; raises CompatibilityError for another version of
    OpenRLHF.
    """
    versions.check_version("openrlhf")
    parser = Parser("openrlhf-swap train")
    names = {"argparse": SimpleNamespace(ArgumentParser=lambda: parser), "datetime": datetime}
    exec(_main_of(cli)[0], names)
    return parser


def nested(values: Mapping[str, Any]) -> SimpleNamespace:
    """Parsed values as OpenRLHF nests them: `actor.adam.lr` becomes `args.actor.adam.lr`."""
    root = SimpleNamespace()
    for name, value in values.items():
        *groups, last = name.split(".")
        place = reduce(
            lambda space, group: space.__dict__.setdefault(group, SimpleNamespace()), groups, root
        )
        setattr(place, last, list(value) if isinstance(value, list) else value)
    return root


def complete(values: Mapping[str, Any]) -> tuple[SimpleNamespace, str]:
    """Parsed values as OpenRLHF's main completes them, nested, and what it prints; ConfigError with
    its words.
    """
    args, printed = nested(values), StringIO()
    try:
        with redirect_stdout(printed):
            exec(_main_of(TRAIN)[1], {"args": args})
    except AssertionError as error:
        raise ConfigError(f"OpenRLHF refuses these flags: {error}") from None
    except ZeroDivisionError:
        raise ConfigError(
            "--rollout.micro_batch_size, or a size of --ds, is 0; use at least 1"
        ) from None
    return args, printed.getvalue()


@cache
def _main_of(cli: str) -> tuple[Any, Any]:
    """The compiled halves of a CLI's main: what builds the parser, and what follows until the
    training is called.
    """
    spec = find_spec("openrlhf")
    assert spec is not None and spec.submodule_search_locations, "its version was checked"
    source = Path(spec.submodule_search_locations[0]) / "cli" / f"{cli}.py"
    main = next(
        node
        for node in ast.parse(source.read_text(encoding="utf-8")).body
        if isinstance(node, ast.If)
    ).body
    texts = [ast.unparse(node) for node in main]
    parse = next(index for index, text in enumerate(texts) if "parse_args" in text)
    hierarchize = next(
        index for index, text in enumerate(texts) if text.startswith("args = hierarchize")
    )
    first, second = (
        ast.Module(half, [])
        for half in (main[:parse], main[hierarchize + 1 : texts.index("train(args)")])
    )
    return compile(first, str(source), "exec"), compile(second, str(source), "exec")
