"""Other packages: objects that a flag names, torch's build, and attributes that we replace."""

import runpy
from functools import cache
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from openrlhf_swap.errors import ConfigError, reader_errors


def import_named(path: str, what: str) -> Any:
    """Import the object that `module:name` names.

    Raises ConfigError, whose message starts with `what`, when there is no such object.
    """
    module, _, name = path.partition(":")
    refusal = f"{what} is {path!r}, which cannot be imported ({{reason}}); use module:name"
    if module.startswith("openrlhf_swap."):
        import_module(module)  # of a package that our own module lacks, `run_command` tells
    with reader_errors(refusal, ConfigError):
        return getattr(import_module(module), name)


@cache
def is_cpu_build() -> bool:
    """True when torch was built without an accelerator.

    torch's files are read, because its import takes a second. The build decides, not
    `torch.cuda.is_available()`: on a GPU cluster Ray hides the devices from actors that asked for
    none, and these processes must not be patched.
    """
    spec = find_spec("torch")
    if spec is None or spec.origin is None:
        raise ModuleNotFoundError("No module named 'torch'", name="torch")
    build = runpy.run_path(str(Path(spec.origin).with_name("version.py")))
    return build["cuda"] is None and build["hip"] is None
