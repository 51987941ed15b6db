"""Other packages: objects that a flag names, torch's build, and attributes that are replaced at run
time.
"""

import runpy
from functools import cache
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from openrlhf_swap.errors import ConfigError, reader_errors


def import_named(path: str, what: str) -> Any:
    """What `module:name` names; raises ConfigError, which starts with `what`, when there is no such
    thing.
    """
    module, _, name = path.partition(":")
    with reader_errors(
        f"{what} is {path!r}, which cannot be imported ({{reason}}); use module:name", ConfigError
    ):
        return getattr(import_module(module), name)


@cache
def is_cpu_build() -> bool:
    """True when torch was built without an accelerator. Read from torch's files, because its import
    takes a second.

    The build decides, not `torch.cuda.is_available()`: on a GPU cluster Ray hides the devices from
    actors that asked for none, and those must not be patched.
    """
    spec = find_spec("torch")
    if spec is None or spec.origin is None:
        raise ModuleNotFoundError("No module named 'torch'", name="torch")
    build = runpy.run_path(str(Path(spec.origin).with_name("version.py")))
    return build["cuda"] is None and build["hip"] is None
