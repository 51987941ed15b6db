"""Numbers that a caller holds in tensors, arrays or lists, as Python's own numbers.

A token in a tensor is never found in a set of ints, and nothing says so: every public entrance
reads its numbers with these functions. They raise ValueError for anything else.
"""

from collections.abc import Iterable
from typing import Any

KINDS = "a list, tensor or array with one dimension"


def plain_ints(name: str, values: Any) -> list[int]:
    """Whole numbers, such as token ids."""
    numbers = _plain_list(name, values)
    ints = []
    for place, number in enumerate(numbers):
        ints.append(plain_int(f"{name}[{place}]", number))
    return ints


def plain_floats(name: str, values: Any) -> list[float]:
    """Real numbers; a whole number stays one."""
    numbers = _plain_list(name, values)
    for place, number in enumerate(numbers):
        if isinstance(number, bool) or not isinstance(number, int | float):
            raise _wrong(f"{name}[{place}]", number, f"give numbers, as {KINDS}")
    return numbers


def plain_flags(name: str, values: Any) -> list[bool]:
    """Truth values: bools, or 0 and 1."""
    flags = _plain_list(name, values)
    return [plain_flag(f"{name}[{place}]", flag) for place, flag in enumerate(flags)]


def plain_flag(name: str, value: Any) -> bool:
    """One truth value: a bool, or 0 or 1."""
    flag = _plain(value)
    if not isinstance(flag, bool | int | float) or flag not in (0, 1):
        raise ValueError(f"{name} is {flag!r}, neither right nor wrong: use True or False")
    return bool(flag)


def plain_int(name: str, value: Any) -> int:
    """One whole number."""
    number = _plain(value)
    if isinstance(number, bool) or not isinstance(number, int):
        raise _wrong(name, number, "give whole numbers")
    return number


def _plain(value: Any) -> Any:
    """What a tensor, an array or a number of NumPy holds; anything else as it is."""
    return value.tolist() if hasattr(value, "tolist") else value


def _plain_list(name: str, values: Any) -> list[Any]:
    held = _plain(values)
    if isinstance(held, str | bytes) or not isinstance(held, Iterable):
        raise _wrong(name, held, f"give {KINDS}")
    numbers = [_plain(each) for each in held]
    if any(isinstance(number, list | tuple) for number in numbers):
        raise ValueError(f"{name} has several dimensions; give {KINDS}: that of one response")
    return numbers


def _wrong(
    name: str,
    value: Any,
    remedy: str,
) -> ValueError:
    return ValueError(f"{name} is {value!r} ({type(value).__name__}); {remedy}")
