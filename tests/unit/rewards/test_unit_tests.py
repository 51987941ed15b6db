"""What code of a model cannot do, and what it still can; it never meets the checks."""

import os
import platform
import socket
import subprocess
import sys
import time
from pathlib import Path

import pytest
from psutil import process_iter as processes
from support.confined import confined
from support.paths import ROOT
from support.scripts import make_tool

from openrlhf_swap.errors import ConfigError
from openrlhf_swap.rewards import unit_tests
from openrlhf_swap.rewards.unit_tests import verify

ME = os.getpid()  # a signal 0 does nothing, but says whether another one could be sent
PYTHON_AT_HOME = {
    Path(folder).relative_to(Path.home()).parts[0]
    for folder in (sys.prefix, sys.base_prefix)
    if Path(folder).is_relative_to(Path.home())
} | {None}
QUEUE = {"x86_64": 297, "aarch64": 240}.get(platform.machine(), 0)  # rt_tgsigqueueinfo
LIBC = "import ctypes, fcntl, os\nlibc = ctypes.CDLL(None)\n"
PAIR = LIBC + "pair = (ctypes.c_int * 2)()\nlibc.socketpair(1, 1, 0, pair)\n"
IN_HOME = f"import os\nassert set(os.listdir({str(Path.home())!r})) - {PYTHON_AT_HOME}"
OTHER_HOST = f"import socket\nassert socket.gethostname() == {'x' + socket.gethostname()!r}"
TO_THREAD = f"libc.syscall({QUEUE}, {ME}, {ME}, 0, (ctypes.c_int * 32)(0, 0, -1))"
READ_ONLY = ["/", "/dev", "/usr/lib", f"{sys.prefix}/lib", f"{sys.base_prefix}/lib", "/var/tmp"]
HOSTILE = {
    "another process": f"import os\nos.kill({ME}, 0)",
    "another process's queue": LIBC + f"assert libc.sigqueue({ME}, 0, None) == 0",
    "another process's thread": LIBC + f"assert libc.tgkill({ME}, {ME}, 0) == 0",
    "a thread's queue": LIBC + f"assert {TO_THREAD} == 0",
    "an owner": LIBC + f"fcntl.fcntl(os.pipe()[0], 15, bytes((ctypes.c_int * 2)(1, {ME})))",
    "a socket's owner": PAIR + f"fcntl.ioctl(pair[0], 0x8901, bytes(ctypes.c_int({ME})))",
    "a file's owner": LIBC + f"fcntl.fcntl(os.pipe()[0], fcntl.F_SETOWN, {ME})",
    "another process's limits": f"import resource\nresource.prlimit({ME}, resource.RLIMIT_CORE)",
    "memory": "x = bytearray(3 * 2**30)",
    "its limits": "import resource\nresource.setrlimit(resource.RLIMIT_AS, (2**40, 2**40))",
    "a large file": "open('x', 'wb').write(bytes(2**25))",
    "large output": "print('x' * 2**25)",
    "many files": "for number in range(9):\n    open(str(number), 'wb').write(bytes(2**23))",
    "the rights of root": "import os\nos.chroot('.')",
    "a mount": LIBC + "assert libc.mount(b'none', b'/tmp', b'tmpfs', 0, None) == 0",
    "an environment variable": "import os\nos.environ['VIRTUAL_ENV']",
    "the home folder": IN_HOME,
    "the checkout": f"open({str(ROOT / 'README.md')!r})",
    "the host's name": OTHER_HOST,
}
HOSTILE |= {name: f"open('/proc/{ME}/{name}', 'rb')" for name in ("environ", "maps", "mem", "fd/0")}
HOSTILE |= {folder: f"open({folder + '/written'!r}, 'w')" for folder in READ_ONLY}


@confined
@pytest.mark.parametrize("what", HOSTILE)
def test_code_is_confined(what):
    assert unit_tests.run_python(HOSTILE[what]).status in ("failed", "timeout")


@confined
def test_code_writes_into_no_checkout():
    """Not even into one below /tmp, where the code has a folder of its own of that name."""
    written = ROOT / "written_by_code"
    unit_tests.run_python(f"open({str(written)!r}, 'w').write('x')")
    assert not written.exists()


@confined
@pytest.mark.parametrize("family", [socket.AF_INET, socket.AF_UNIX])
def test_code_has_no_network(family):
    with socket.socket(family) as server:
        server.bind(("127.0.0.1", 0) if family == socket.AF_INET else f"\0openrlhf_swap_{ME}")
        server.listen()
        connect = f"import socket\nsocket.socket({int(family)}).connect({server.getsockname()!r})"
        subprocess.run([sys.executable, "-c", connect], check=True)
        assert unit_tests.run_python(connect).status == "failed"


@confined
@pytest.mark.parametrize("program", ["", "time.sleep(60)"])
def test_no_process_outlives_the_program(program):
    mark = f"time.sleep(60)  # of {ME}"
    start = f"import subprocess, sys, time\nstart = [sys.executable, '-c', 'import time; {mark}']\n"
    start += f"subprocess.Popen(start, start_new_session=True)\n{program}"
    unit_tests.run_python(start, wall=1)
    # A killed process takes its time to go; these would stay for a minute.
    deadline = time.monotonic() + 10
    while any(mark in " ".join(one.info["cmdline"] or []) for one in processes(["cmdline"])):
        assert time.monotonic() < deadline
        time.sleep(0.05)


LIMITS = (
    "import resource as r\nr.setrlimit(r.RLIMIT_CORE, (0, 0))\nprint(r.getrlimit(r.RLIMIT_CORE))"
)
SIGNALS = (
    "import signal as s\ns.signal(10, lambda number, frame: print(number))\ns.raise_signal(10)"
)
LOCKS = """
import multiprocessing as m
child = m.Process(target=m.Lock().acquire)
child.start()
child.join()
print(child.exitcode)
"""
FOLDERS = """
import os, shutil
os.mkdir('a')
open('a/x', 'w').write('moved')
print(open(shutil.move('a/x', 'x')).read())
"""
PROGRAMS = "import subprocess, sys\nsubprocess.run([sys.executable, '-c', 'print(3)'])"
ALLOWED = {
    "its input": ("print(input())", "hello"),
    "its own limits": (LIMITS, "(0, 0)"),
    "its own signals": (SIGNALS, "10"),
    "other programs": (PROGRAMS, "3"),
    "processes with locks": (LOCKS, "0"),
    "installed packages": ("import numpy\nprint(numpy.arange(3).sum())", "3"),
    "other folders": (FOLDERS, "moved"),
}


@confined
@pytest.mark.parametrize("what", ALLOWED)
def test_code_may_use(what):
    program, printed = ALLOWED[what]
    assert unit_tests.run_python(program, "hello") == ("ok", printed + "\n")


def test_where_code_cannot_be_confined_it_is_not_run(monkeypatch, tmp_path):
    broken = make_tool(tmp_path / "bwrap", "echo 'bwrap: No permissions' >&2; exit 1")
    for programs, reason in (([], "none is installed"), ([str(broken)], "bwrap: No permissions")):
        unit_tests.find_bwrap.cache_clear()
        with monkeypatch.context() as patch:
            patch.setattr(unit_tests, "_installed", lambda programs=programs: iter(programs))
            with pytest.raises(ConfigError, match=reason):
                unit_tests.verify("p", "assert True", "a response without code", {})
    unit_tests.find_bwrap.cache_clear()


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
            if isinstance(value, list) and (value in ([3], [3, 4]) or "assert" in str(value[:1])):
                return value
            if value in (3, 4):
                return int(str(value)[-1])
"""
GARBAGE = """
import gc
def add(a, b):
    for found in gc.get_objects():
        kinds = {str: "assert add", list: "tests", dict: "tests"}
        if type(found) in kinds and kinds[type(found)] in found:
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
ENDS = r"""
import os, atexit
atexit.register(print, "true")
print("true\ntrue\ntrue", flush=True)
os._exit(0)
"""
FILES = """
import glob, sys, os
patterns = ("/tmp/*", "/proc/*/cmdline", "/program.py", "/proc/self/cmdline")
for path in [found for pattern in patterns for found in glob.glob(pattern)]:
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


STACK = """
class Stack:
    def __init__(self): self.kept = []
    def push(self, x): self.kept.append(x)
    def pop(self): return self.kept.pop()
    def __len__(self): return len(self.kept)
"""
PUSHES = "s = Stack()\ns.push(3)\ns.push(4)\nassert s.pop() == 4\n"
NUMBERS = """
import numpy as np, fractions
def f(n): return np.int64(n), np.arange(n), fractions.Fraction(1, n)
"""
FAILS = "try:\n    f(-1)\n    raise AssertionError\nexcept ValueError:\n    pass\nassert f(1) == 1"
COUNTS = "from collections import Counter\nassert f('aab')[1] == Counter('aab')"
VALUES = "assert f(2) == ({1, 2}, [(2, None)], {'a': 1.5})"
POINT = "from dataclasses import dataclass\n@dataclass\nclass P:\n    x: int"
POINTS = "assert P(1) == P(1)\nassert P(1) != P(2)\nassert P(1).x == 1"
NEXT = "assert list(f(3)) == [0, 1, 2]\ng = f(1)\nassert next(g) == 0"
RAISES = "def f(n):\n    if n < 0: raise ValueError('no')\n    return n"
OTHERS = "from fractions import Fraction\nassert f(2) == (2, [0, 1], Fraction(1, 2))"
NEARLY = "import math\nassert abs(f() - 0.3) < 1e-9\nassert math.isclose(f(), 0.3)"
COUNT = "count = 0\ndef f():\n    global count\n    count += 1"
EXITS = "def f(n):\n    if n: raise SystemExit\n    return 1"
SOLVES = {
    "values": ("def f(n): return {1, n}, [(n, None)], {'a': 1.5}", VALUES),
    "a class": (STACK, PUSHES + "assert len(s) == 1 and s.kept == [3]"),
    "equal objects of one class": (POINT, POINTS),
    "a generator": ("def f(n):\n    yield from range(n)", NEXT),
    "an exception": (RAISES, FAILS),
    "a function as argument": ("def f(g, n): return g(g(n))", "assert f(lambda x: x * 2, 3) == 12"),
    "subclasses of values": ("def f(s): return OrderedDict(a=1), Counter(s)", COUNTS),
    "a name of Python's": ("def sum(a, b): return a + b", "assert sum(1, 2) == 3"),
    "a name of an import": ("def add(a, b): return a + b + 1", "assert add(1, 2) == 4"),
    "numbers of other libraries": (NUMBERS, OTHERS),
    "nearly": ("def f(): return 0.1 + 0.2", NEARLY),
    "a variable": (COUNT, "f()\nf()\nassert count == 2"),
    "one that exits": (EXITS, "assert f(0) == 1"),
}


@confined
@pytest.mark.parametrize("name", SOLVES)
def test_right_code_passes(name):
    code, tests = SOLVES[name]
    verdict = verify("", tests, f"```python\n{code}\n```", {})
    assert verdict.score == 1, verdict.why
