"""Replacing an attribute of a module, a class or a single object: for good, or for the length of a block."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from openrlhf_swap.packages.versions import check_version

_ABSENT = object()


def replace(owner: Any, name: str, value: Any, package: str | None = None) -> Callable[[], None]:
    """Set `owner.name` to `value`, and return what restores the original.

    Args:
        owner: a module, a class or an object.
        name: of the attribute.
        value: its replacement.
        package: whose version in `VERSIONS` the replacement is written for; None where any will do.

    Raises:
        CompatibilityError: when another version of the package is installed.
    """
    if package is not None:
        check_version(package)
    original = vars(owner).get(name, _ABSENT)  # an inherited one stays where it is
    setattr(owner, name, value)

    def restore() -> None:
        if original is _ABSENT:
            delattr(owner, name)
        else:
            setattr(owner, name, original)

    return restore


@contextmanager
def replaced(owner: Any, name: str, value: Any, package: str | None = None) -> Iterator[None]:
    restore = replace(owner, name, value, package)
    try:
        yield
    finally:
        restore()
