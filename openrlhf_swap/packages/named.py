"""Python objects that a flag names as `module:name`."""

from importlib import import_module
from typing import Any

from openrlhf_swap.errors import ConfigError, reader_errors


def import_named(path: str, what: str) -> Any:
    """What `module:name` names; raises ConfigError, which starts with `what`, when there is no such thing."""
    module, _, name = path.partition(":")
    with reader_errors(f"{what} is {path!r}, which cannot be imported ({{reason}}); use module:name", ConfigError):
        return getattr(import_module(module), name)
