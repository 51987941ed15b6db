"""OpenRLHF's command line without the import of OpenRLHF.

Its parser, and what its main makes of the parsed arguments, stand under `__main__` of
`openrlhf.cli.*`, after imports of many seconds. Only the lines that are needed run here.
"""

import ast
from contextlib import redirect_stdout
from datetime import datetime
from functools import cache
from importlib.util import find_spec
from io import StringIO
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from openrlhf_swap.command import Parser
from openrlhf_swap.errors import ConfigError
from openrlhf_swap.packages import versions

TRAIN = "train_ppo_ray"
FlagValues = dict[str, Any]
"""The values of flags, by name without dashes."""


def stock_parser(cli: str = TRAIN, parser: Parser | None = None) -> Parser:
    """The parser of a module of `openrlhf.cli`; its flags are added to `parser`, if one is given.

    Raises CompatibilityError for another version of OpenRLHF.
    """
    versions.check_version("openrlhf")
    filled = parser or Parser(f"openrlhf.cli.{cli}")
    names = {"argparse": SimpleNamespace(ArgumentParser=lambda: filled), "datetime": datetime}
    exec(_main_of(cli)[0], names)
    return filled


def nested(values: FlagValues) -> SimpleNamespace:
    """Parsed values as OpenRLHF nests them: `actor.adam.lr` becomes `args.actor.adam.lr`."""
    root = SimpleNamespace()
    for name, value in values.items():
        *groups, last = name.split(".")
        place = root
        for group in groups:
            place = vars(place).setdefault(group, SimpleNamespace())
        setattr(place, last, list(value) if isinstance(value, list) else value)
    return root


def complete(values: FlagValues) -> tuple[SimpleNamespace, str]:
    """Parsed values as OpenRLHF's main completes and nests them, and the text that it prints.

    Raises ConfigError with OpenRLHF's words for values that its main refuses.
    """
    args = nested(values)
    printed = StringIO()
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
    """The compiled halves of a CLI's main.

    The first builds the parser; the second follows the parsing, until the training is called.
    """
    spec = find_spec("openrlhf")
    assert spec is not None and spec.submodule_search_locations, "its version was checked"
    source = Path(spec.submodule_search_locations[0]) / "cli" / f"{cli}.py"
    module = ast.parse(source.read_text(encoding="utf-8"))
    main = next(node for node in module.body if isinstance(node, ast.If)).body
    texts = [ast.unparse(node) for node in main]
    parse = next(place for place, text in enumerate(texts) if "parse_args" in text)
    nest = next(place for place, text in enumerate(texts) if text.startswith("args = hierarchize"))
    train = texts.index("train(args)")
    first = ast.Module(main[:parse], [])
    second = ast.Module(main[nest + 1 : train], [])
    return compile(first, str(source), "exec"), compile(second, str(source), "exec")
