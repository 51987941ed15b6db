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
from datetime import date, datetime, time, timedelta, timezone
from decimal import Decimal
from fractions import Fraction
from multiprocessing.connection import Connection
from typing import Any

# Bytes of a message; what the program writes into the pipe itself begins with a larger number.
LONGEST = 2**27
# The sandbox sets it: to write to the other end, and to read.
PIPES: tuple[int, ...] = globals().get("PIPES", ())
# Subclasses of the first ones are sent as these: a named tuple, a Counter, an IntEnum.
_ITERABLE = (tuple, list, set, frozenset)
_PLAIN: tuple[Any, ...] = (bool, int, float, complex, str, bytes, dict, *_ITERABLE)
_DATA: tuple[Any, ...] = (*_PLAIN, type(None), range, bytearray)
_LIBRARY: tuple[type, ...] = (Fraction, Decimal, date, datetime, time, timedelta, timezone, deque)
_VALUES = {(kind.__module__, kind.__name__): kind for kind in (*_DATA, *_LIBRARY)}
# A comparison or a sum with a value of the checks would tell it to the program.
_BETWEEN_OBJECTS = "__eq__ __ne__ __lt__ __le__ __gt__ __ge__ __add__ __sub__ __mul__"
_OPERATORS = f"{_BETWEEN_OBJECTS} __index__ __getitem__ __setitem__ __delitem__"
_FUNCTIONS = (len, iter, next, str, repr, bool, float, abs)
_SPECIAL: dict[str, Any] = {
    "__call__": lambda function, *arguments, **named: function(*arguments, **named),
    **{name: getattr(operator, name) for name in _OPERATORS.split()},
    **{f"__{kind.__name__}__": kind for kind in _FUNCTIONS},
}


class _Pickler(pickle.Pickler):
    """Keeps what is no value, and sends its number."""

    link: "Link"

    def persistent_id(self, value: Any) -> Any:
        if isinstance(value, Remote):
            return ["yours", value._number]
        kind = value if isinstance(value, type) else type(value)
        if kind in _VALUES.values() or isinstance(value, _DATA) or _is_numpy(value):
            return None
        self.link.kept.append(value)
        return ["mine", len(self.link.kept) - 1]

    def reducer_override(self, value: Any) -> Any:
        for kind in _PLAIN:
            if isinstance(value, kind) and type(value) is not kind:
                return kind, (list(value) if kind in _ITERABLE else kind(value),)
        if _is_numpy(value):
            plain = value.tolist()
            return type(plain), (plain,)
        return NotImplemented


def _is_numpy(value: Any) -> bool:
    return type(value).__module__ == "numpy" and hasattr(value, "tolist")


class _Unpickler(pickle.Unpickler):
    link: "Link"

    def find_class(self, module: str, name: str) -> Any:
        return _VALUES[module, name]

    def persistent_load(self, reference: Any) -> Any:
        owner, number = reference
        if owner == "yours":
            return self.link.kept[number]
        return Remote(self.link, number)


class Link:
    """Both ends of a connection call each other's objects, also during a call."""

    def __init__(self, seconds: float = 0.0) -> None:
        self.kept: list[Any] = []
        self._seconds = seconds  # of CPU time for each call; the process ends with them
        self._out = Connection(PIPES[0], readable=False)
        self._in = Connection(PIPES[1], writable=False)

    def send(self, kind: str, value: Any) -> None:
        buffer = io.BytesIO()
        pickler = _Pickler(buffer)
        pickler.link = self
        pickler.dump((kind, value))
        self._out.send_bytes(buffer.getbuffer())

    def receive(self) -> Any:
        """The value of the next reply; calls that come before it are answered."""
        while True:
            unpickler = _Unpickler(io.BytesIO(self._in.recv_bytes(LONGEST)))
            unpickler.link = self
            kind, value = unpickler.load()
            if kind == "value":
                return value
            if kind == "error":
                error = getattr(builtins, str(value), Exception)
                is_error = isinstance(error, type) and issubclass(error, Exception)
                raise (error if is_error else Exception)("in the program")
            self._answer(*value)

    def call(self, *request: Any) -> Any:
        self.send("call", request)
        return self.receive()

    def _answer(
        self,
        target: Any,
        name: str,
        arguments: Any,
        named: Any,
    ) -> None:
        try:
            if self._seconds:
                signal.setitimer(signal.ITIMER_PROF, self._seconds)
            elif name != "__call__":  # the program may call what it was given, and nothing else
                raise TypeError
            run = _SPECIAL.get(name, lambda target: getattr(target, name))
            self.send("value", run(target, *arguments, **named))
        except BaseException as error:  # noqa: BLE001 (code that we have not seen)
            self.send("error", type(error).__name__)


class Remote:
    """An object of the other process. It may equal objects of that process, and no value."""

    def __init__(self, link: Link, number: int) -> None:
        self._link = link
        self._number = number

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return self._link.call(self, name, (), {})


def _forward(name: str) -> Any:
    def forwarded(self: Remote, *arguments: Any, **named: Any) -> Any:
        if name in _BETWEEN_OBJECTS and not isinstance(arguments[0], Remote):
            return NotImplemented
        return self._link.call(self, name, arguments, named)

    return forwarded


for _name in _SPECIAL:
    setattr(Remote, _name, _forward(_name))


def run_program(prelude: str) -> None:
    given = json.load(sys.stdin)
    sys.stdout = open(os.devnull, "w")  # noqa: SIM115
    os.dup2(sys.stdout.fileno(), 1)
    module = types.ModuleType("solution")
    sys.modules["solution"] = module  # where a dataclass looks for its module
    space = vars(module)
    exec(prelude, space)
    before = dict(space)
    link = Link(given["seconds"])
    signal.setitimer(signal.ITIMER_PROF, given["seconds"])
    exec(compile(given["code"], "solution.py", "exec"), space)
    link.kept.append(space)
    defined = [name for name, value in space.items() if before.get(name, before) is not value]
    link.send("value", defined)
    link.receive()


class _Names(dict[str, Any]):
    """The checks' own names, then the program's, then the modules'.

    The program's count also where they hide Python's own ones, if the checks use no other of them.
    """

    def __init__(
        self,
        link: Link,
        modules: dict[str, Any],
        tests: str,
    ) -> None:
        super().__init__(__builtins__=builtins)
        defined: set[str] = set(link.receive())
        own = {name for name in defined if not hasattr(builtins, name)}
        self._program: Any = Remote(link, 0)
        self._modules = modules
        self.defined = own if own.intersection(re.findall(r"\w+", tests)) else defined

    def __missing__(self, name: str) -> Any:
        return (self._program if name in self.defined else self._modules)[name]


def run_checks(imports: str) -> None:
    """Run the tests that stand on the standard input; prints a line for each: whether it passed."""
    tests = json.load(sys.stdin)
    results = os.fdopen(os.dup(1), "w")
    os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
    modules: dict[str, Any] = {}
    exec(imports, modules)
    names = _Names(Link(), modules, json.dumps(tests))
    for test in tests:
        try:
            passed = _passes(test, names)
        except BaseException:  # noqa: BLE001 (an assert, or code that we have not seen)
            passed = False
        print(json.dumps(passed), file=results, flush=True)


def _passes(test: Any, names: _Names) -> bool:
    if isinstance(test, str):
        exec(compile(test, "tests.py", "exec"), names)
        return True
    name, arguments, expected = test
    solution = "Solution" in names.defined
    function = getattr(names["Solution"](), name) if solution else names[name]
    return bool(json.loads(json.dumps(function(*arguments))) == expected)
