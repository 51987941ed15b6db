"""Code that passes tests without solving them: it meets neither the checks nor what they expect."""

import pytest
from support.confined import confined

from openrlhf_swap.rewards.unit_tests import verify

ASSERTS = "assert add(1, 2) == 3\nassert add(2, 2) == 4\nassert add(5, 5) > 9"
CALLS = '[{"input": "1\\n2", "output": "3"}, {"input": "2\\n2", "output": "4"}]'
PROGRAM = '[{"input": "1 2", "output": "3"}]'
EQUAL = """
class Always:
    def __eq__(self, other): return True
    def __ne__(self, other): return False
    def __gt__(self, other): return True
    def __lt__(self, other): return True
    def __sub__(self, other): return 0
    def __bool__(self): return True
    def __contains__(self, other): return True
def add(a, b): return Always()
"""
SUBCLASS = """
class Always(int):
    def __eq__(self, other): return True
    def __gt__(self, other): return True
    __hash__ = int.__hash__
def add(a, b): return Always(0)
"""
FRAMES = """
import inspect, sys
def add(a, b):
    for frame in inspect.stack(0):
        for value in [*frame[0].f_locals.values(), *frame[0].f_globals.values()]:
            if value in (3, 4, [3], [3, 4]) or isinstance(value, list) and value and "assert" in str(value[0]):
                return int(str(value)[-1]) if not isinstance(value, list) else value
"""
GARBAGE = """
import gc
def add(a, b):
    for found in gc.get_objects():
        if isinstance(found, str) and "assert add" in found or isinstance(found, (list, dict)) and "tests" in found:
            return eval(str(found).rpartition("==")[2][:2])
"""
REPLACED = """
import builtins, json
builtins.exec = builtins.compile = builtins.eval = lambda *_: None
builtins.print = lambda *_, **__: None
json.dumps = lambda *_, **__: "true"
json.loads = lambda *_, **__: True
def isinstance(*_): return True
def abs(*_): return 0
def add(a, b): return True
"""
WRITES = """
import os
for number in range(3, 20):
    try: os.write(number, b"true\\n" * 3)
    except OSError: pass
def add(a, b): return 0
"""
LINK = """
import sys
def add(a, b):
    frame = sys._getframe()
    while not hasattr(frame.f_locals.get("self"), "send"):
        frame = frame.f_back
    link = frame.f_locals["self"]
    link.send("value", True)
    link.send("value", True)
    return 0
"""
ENDS = "import os, atexit\natexit.register(print, 'true')\nprint('true\\ntrue\\ntrue', flush=True)\nos._exit(0)"
FILES = """
import glob, sys, os
for path in [*glob.glob("/tmp/*"), *glob.glob("/proc/*/cmdline"), "/program.py", "/proc/self/cmdline"]:
    try: text = open(path).read()
    except OSError: continue
    _, found, rest = text.partition('"output": "')
    if found: print(rest.partition('"')[0])
"""
CHEATS = {
    "equal objects": EQUAL,
    "equal numbers": SUBCLASS,
    "frames": FRAMES,
    "the garbage collector": GARBAGE,
    "replaced functions": REPLACED,
    "the pipes": WRITES,
    "the connection": LINK,
    "an early end": ENDS,
    "files": FILES,
}


@confined
@pytest.mark.parametrize("tests", [ASSERTS, CALLS, PROGRAM])
@pytest.mark.parametrize("name", CHEATS)
def test_code_that_does_not_solve_passes_nothing(name, tests):
    metadata = {"fn_name": "add"} if tests is CALLS else {}
    verdict = verify("", tests, f"```python\n{CHEATS[name]}\n```", metadata)
    assert verdict.score == 0, verdict.why


SOLVES = {
    "values": ("def f(n): return {1, n}, [(n, None)], {'a': 1.5}", "assert f(2) == ({1, 2}, [(2, None)], {'a': 1.5})"),
    "a class": (
        "class Stack:\n    def __init__(self): self.kept = []\n    def push(self, x): self.kept.append(x)\n"
        "    def pop(self): return self.kept.pop()\n    def __len__(self): return len(self.kept)",
        "s = Stack()\ns.push(3)\ns.push(4)\nassert s.pop() == 4\nassert len(s) == 1 and s.kept == [3]",
    ),
    "equal objects of one class": (
        "from dataclasses import dataclass\n@dataclass\nclass P:\n    x: int",
        "assert P(1) == P(1)\nassert P(1) != P(2)\nassert P(1).x == 1",
    ),
    "a generator": (
        "def f(n):\n    yield from range(n)",
        "assert list(f(3)) == [0, 1, 2]\ng = f(1)\nassert next(g) == 0",
    ),
    "an exception": (
        "def f(n):\n    if n < 0: raise ValueError('no')\n    return n",
        "try:\n    f(-1)\n    raise AssertionError\nexcept ValueError:\n    pass\nassert f(1) == 1",
    ),
    "a function as argument": ("def f(g, n): return g(g(n))", "assert f(lambda x: x * 2, 3) == 12"),
    "subclasses of values": (
        "P = namedtuple('P', 'x y')\ndef f(s): return P(1, 2), Counter(s), OrderedDict(a=1)",
        "assert f('aab') == ((1, 2), {'a': 2, 'b': 1}, {'a': 1})\nfrom collections import Counter\n"
        "assert f('aab')[1] == Counter('aab')",
    ),
    "a name of Python's": ("def sum(a, b): return a + b", "assert sum(1, 2) == 3"),
    "a name of an import": ("def add(a, b): return a + b + 1", "assert add(1, 2) == 4"),
    "numbers of other libraries": (
        "import numpy as np, fractions\ndef f(n): return np.int64(n), np.arange(n), fractions.Fraction(1, n)",
        "from fractions import Fraction\nassert f(2) == (2, [0, 1], Fraction(1, 2))",
    ),
    "nearly": (
        "def f(): return 0.1 + 0.2",
        "import math\nassert abs(f() - 0.3) < 1e-9\nassert math.isclose(f(), 0.3)",
    ),
    "a comprehension": (
        "def f(n): return n * n",
        "assert [f(i) for i in range(4)] == [0, 1, 4, 9]\nassert all(f(i) >= i for i in range(3))",
    ),
    "a variable": ("count = 0\ndef f():\n    global count\n    count += 1", "f()\nf()\nassert count == 2"),
    "an argument that changes": ("def f(xs): xs.sort()\ndef g(xs): return sorted(xs)", "assert g([2, 1]) == [1, 2]"),
    "one that exits": ("def f(n):\n    if n: raise SystemExit\n    return 1", "assert f(0) == 1"),
}


@confined
@pytest.mark.parametrize("name", SOLVES)
def test_right_code_passes(name):
    code, tests = SOLVES[name]
    verdict = verify("", tests, f"```python\n{code}\n```", {})
    assert verdict.score == 1, verdict.why
