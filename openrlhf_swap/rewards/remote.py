"""Runs inside the sandbox: a program in one process, and in another one the checks that call it.

What the program returns reaches the checks as built-in values, read by an unpickler that makes
nothing else, or as the number of an object that stays with the program. So the program meets
neither the checks nor what they expect, and no object of its own is ever equal to a value. This
file is sent as text: it imports the standard library alone.
"""

import builtins
import io
import json
import operator
import os
import pickle
import re
import signal
import sys
import types
from collections import deque
from contextlib import suppress
from datetime import date, datetime, time, timedelta, timezone
from decimal import Decimal
from fractions import Fraction
from multiprocessing.connection import Connection
from typing import Any

# Bytes of a message; what the program writes into the pipe itself begins with a larger number.
LONGEST = 2**27
# Both are set above this text: the pipes to write to the other process and to read from it, and the
# seconds of CPU time of each call in the program. Where the checks run there are none.
PIPES: tuple[int, ...] = globals().get("PIPES", ())
SECONDS: int = globals().get("SECONDS", 0)
CONNECTIONS: list[Any] = [*map(Connection, PIPES)]
KEPT: list[Any] = []  # the objects that the other process knows by their numbers
# Subclasses of the first ones are sent as these: a named tuple, a Counter, an IntEnum.
_ITERABLE = (tuple, list, set, frozenset)
_PLAIN: tuple[Any, ...] = (bool, int, float, complex, str, bytes, dict, *_ITERABLE)
_DATA = (*_PLAIN, type(None), range, bytearray)
_LIBRARY = (Fraction, Decimal, date, datetime, time, timedelta, timezone, deque)
# A comparison or a sum with a value of the checks would tell it to the program.
_BETWEEN_OBJECTS = "__eq__ __ne__ __lt__ __le__ __gt__ __ge__ __add__ __sub__ __mul__"
_OPERATORS = f"{_BETWEEN_OBJECTS} __index__ __getitem__ __setitem__ __delitem__ __abs__"
_FUNCTIONS = "__len__ __iter__ __next__ __str__ __repr__ __bool__ __float__"
_SPECIAL: dict[str, Any] = {
    name: getattr(operator, name, None) or getattr(builtins, name.strip("_"))
    for name in f"{_OPERATORS} {_FUNCTIONS}".split()
}
_SPECIAL["__call__"] = lambda function, *arguments, **named: function(*arguments, **named)


class Remote:
    """An object of the other process. It may equal objects of that process, and no value."""

    def __init__(self, number: int) -> None:
        self._number = number

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return _forward(name)(self)


class Kept:
    """What a Remote of the other process stands for."""

    def __new__(cls, number: int) -> Any:
        return KEPT[number]


_VALUES = {(kind.__module__, kind.__name__): kind for kind in (*_DATA, *_LIBRARY, Remote, Kept)}


class _Pickler(pickle.Pickler):
    """Keeps what is no value, and sends its number."""

    def reducer_override(self, value: Any) -> Any:
        kind = value if isinstance(value, type) else type(value)
        if isinstance(value, Remote):
            return Kept, (value._number,)
        if kind in _VALUES.values():
            return NotImplemented
        for plain in _PLAIN:
            if isinstance(value, plain):
                return plain, (list(value) if plain in _ITERABLE else plain(value),)
        if type(value).__module__ == "numpy" and hasattr(value, "tolist"):
            plain = value.tolist()
            return type(plain), (plain,)
        KEPT.append(value)
        return Remote, (len(KEPT) - 1,)


class _Unpickler(pickle.Unpickler):
    def find_class(self, module: str, name: str) -> Any:
        return _VALUES[module, name]


def send(kind: str, value: Any) -> None:
    buffer = io.BytesIO()
    _Pickler(buffer).dump((kind, value))
    CONNECTIONS[0].send_bytes(buffer.getbuffer())


def receive() -> Any:
    """The value of the next reply; calls that come before it are answered."""
    while True:
        message = CONNECTIONS[1].recv_bytes(LONGEST)
        kind, value = _Unpickler(io.BytesIO(message)).load()
        if kind == "value":
            return value
        if kind == "error":
            raise getattr(builtins, str(value), Exception)("in the program")
        _answer(*value)


def _answer(
    target: Any,
    name: str,
    arguments: Any,
    named: Any,
) -> None:
    try:
        if SECONDS:
            signal.setitimer(signal.ITIMER_PROF, SECONDS)
        elif name != "__call__":  # the program may call what it was given, and nothing else
            raise TypeError
        run = _SPECIAL.get(name, lambda target: getattr(target, name))
        send("value", run(target, *arguments, **named))
    except BaseException as error:  # noqa: BLE001 (code that we have not seen)
        send("error", type(error).__name__)


def _forward(name: str) -> Any:
    def forwarded(self: Remote, *arguments: Any, **named: Any) -> Any:
        if name in _BETWEEN_OBJECTS.split() and not isinstance(arguments[0], Remote):
            return NotImplemented
        send("call", (self, name, arguments, named))
        return receive()

    return forwarded


for _name in _SPECIAL:
    setattr(Remote, _name, _forward(_name))


def run_program(prelude: str) -> None:
    code = sys.stdin.read()
    os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
    module = types.ModuleType("solution")
    sys.modules["solution"] = module  # where a dataclass looks for its module
    space = vars(module)
    exec(prelude, space)
    before = dict(space)
    signal.setitimer(signal.ITIMER_PROF, SECONDS)
    exec(compile(code, "solution.py", "exec"), space)
    KEPT.append(space)
    defined = [name for name, value in space.items() if before.get(name, before) is not value]
    send("value", defined)
    receive()


class _Names(dict[str, Any]):
    """The checks' own names, then the program's, the modules', and those of a class Solution.

    The program's count also where they hide Python's own ones, if the checks use no other of them.
    """

    def __init__(self, imports: str, tests: str) -> None:
        super().__init__(__builtins__=builtins)
        self._modules: dict[str, Any] = {}
        exec(imports, self._modules)
        defined: set[str] = set(receive())
        own = {name for name in defined if not hasattr(builtins, name)}
        self._defined = own if own.intersection(re.findall(r"\w+", tests)) else defined

    def __missing__(self, name: str) -> Any:
        program: Any = Remote(0)
        if name in self._defined:
            return program[name]
        if name in self._modules or hasattr(builtins, name):
            return self._modules[name]  # a KeyError lets Python look for its own
        return getattr(program["Solution"](), name)


def run_checks(imports: str) -> None:
    """Run the tests that stand on the standard input; prints a line for each: whether it passed."""
    tests = json.load(sys.stdin)
    results = os.fdopen(os.dup(1), "w")
    os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
    names = _Names(imports, " ".join(tests))
    for test in tests:
        passed = False
        with suppress(BaseException):  # an assert, or code that we have not seen
            exec(compile(test, "tests.py", "exec"), names)
            passed = True
        print(passed, file=results, flush=True)
