"""Numbers that a caller holds in tensors, arrays or lists, as Python's own numbers.

A token in a tensor is never found in a set of ints, and nothing says so: every public entrance
reads its numbers with these functions. They raise ValueError for anything else.
"""

from collections.abc import Callable, Iterable
from typing import Any

KINDS = "a list, tensor or array with one dimension"


def plain_ints(name: str, values: Any) -> list[int]:
    """Whole numbers of at least 0, such as token ids."""
    return _each(plain_int, name, values)


def plain_floats(name: str, values: Any) -> list[float]:
    """Real numbers; a whole number stays one."""
    return _each(_plain_float, name, values)


def plain_flags(name: str, values: Any) -> list[bool]:
    """Truth values: bools, or 0 and 1."""
    return _each(plain_flag, name, values)


def plain_flag(name: str, value: Any) -> bool:
    """One truth value: a bool, or 0 or 1."""
    flag = _plain(value)
    if not isinstance(flag, bool | int | float) or flag not in (0, 1):
        raise ValueError(f"{name} is {flag!r}, neither right nor wrong: use True or False")
    return bool(flag)


def plain_int(name: str, value: Any) -> int:
    """One whole number of at least 0."""
    number = _plain(value)
    if type(number) is not int or number < 0:
        raise _wrong(name, number, "give whole numbers of at least 0")
    return number


def _plain_float(name: str, value: Any) -> float:
    number = _plain(value)
    if isinstance(number, bool) or not isinstance(number, int | float):
        raise _wrong(name, number, f"give numbers, as {KINDS}")
    return number


def _plain(value: Any) -> Any:
    """Take the numbers out of a tensor, an array or a number of NumPy; return others unchanged."""
    return value.tolist() if hasattr(value, "tolist") else value


def _each(read: Callable[[str, Any], Any], name: str, values: Any) -> list[Any]:
    """Read each value with `read`, which names the value by its place."""
    held = _plain(values)
    if isinstance(held, str | bytes) or not isinstance(held, Iterable):
        raise _wrong(name, held, f"give {KINDS}")
    numbers = []
    for place, value in enumerate(held):
        if isinstance(_plain(value), list | tuple):
            raise ValueError(f"{name} has several dimensions; give {KINDS}: that of one response")
        numbers.append(read(f"{name}[{place}]", value))
    return numbers


def _wrong(name: str, value: Any, remedy: str) -> ValueError:
    return ValueError(f"{name} is {value!r} ({type(value).__name__}); {remedy}")
