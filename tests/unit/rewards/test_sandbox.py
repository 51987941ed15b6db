"""The sandbox: what code of a model cannot do, and what it still can."""

import ctypes
import json
import os
import platform
import signal
import subprocess
import sys

import pytest

from openrlhf_swap.rewards import sandbox

LANDLOCK = sandbox.is_available() and ctypes.CDLL(None).syscall(444, None, 0, 1) > 0  # its version
confined = pytest.mark.skipif(not sandbox.is_available(), reason="needs Linux on x86_64 or arm64")

QUEUE = {"x86_64": 297, "aarch64": 240}.get(platform.machine(), 0)  # rt_tgsigqueueinfo
LIBC = "import ctypes, fcntl, os\nlibc = ctypes.CDLL(None)\n"
ME = os.getpid()  # a signal 0 does nothing, but says whether another one could be sent
HOSTILE = {
    "the network": "import socket\nsocket.socket(socket.AF_INET, socket.SOCK_STREAM)",
    "another process": f"import os\nos.kill({ME}, 9)",
    "another process's thread": LIBC + f"assert libc.tgkill({ME}, {ME}, 0) == 0",
    "another process's queue": LIBC + f"assert libc.sigqueue({ME}, 0, None) == 0",
    "a thread's queue": LIBC + f"assert libc.syscall({QUEUE}, {ME}, {ME}, 0, (ctypes.c_int * 32)(0, 0, -1)) == 0",
    "a file's owner": LIBC + f"fcntl.fcntl(os.pipe()[0], fcntl.F_SETOWN, {ME})",
    "a file's owner by F_SETOWN_EX": LIBC + f"fcntl.fcntl(os.pipe()[0], 15, bytes((ctypes.c_int * 2)(1, {ME})))",
    "a socket's owner": LIBC
    + "pair = (ctypes.c_int * 2)()\nlibc.socketpair(1, 1, 0, pair)\n"
    + f"fcntl.ioctl(pair[0], 0x8901, bytes(ctypes.c_int({ME})))",
    "another process's limits": f"import resource\nresource.prlimit({ME}, resource.RLIMIT_CORE)",
    "memory": "x = bytearray(3 * 2**30)",
    "a large file": "open('x', 'wb').write(bytes(2**25))",
    "the rights of root": "import re\nrights = re.search(r'CapEff:\\s+(\\w+)', open('/proc/self/status').read())[1]\n"
    "assert int(rights, 16) & ~2",  # but for those on files
    "an environment variable": "import os\nos.environ['VIRTUAL_ENV']",
}


@confined
@pytest.mark.parametrize("what", HOSTILE)
def test_code_is_confined(what):
    found = sandbox.run_python(HOSTILE[what], "", sandbox.Limits())
    assert found.status in ("failed", "timeout")


@pytest.mark.skipif(not LANDLOCK, reason="this kernel has no Landlock")
@pytest.mark.parametrize("name", ["environ", "maps", "mem", "fd/0"])
def test_other_processes_are_closed(name):
    assert sandbox.run_python(f"open('/proc/{ME}/{name}', 'rb')", "", sandbox.Limits()).status == "failed"


FOLDERS = "os.mkdir('a')\nopen('a/x', 'w').write('moved')\nshutil.move('a/x', 'x')\nprint(open('x').read())"
ALLOWED = {
    "its input": ("print(input())", "hello"),
    "its own environment": ("print('HOME' in open('/proc/self/environ').read())", "True"),
    "its own open files": ("import os\nprint(len(os.listdir('/proc/self/fd')) > 2)", "True"),
    "its own limits": (
        "import resource as r\nr.setrlimit(r.RLIMIT_CORE, (0, 0))\nprint(r.getrlimit(r.RLIMIT_CORE))",
        "(0, 0)",
    ),
    "its own signals": (
        "import signal\nsignal.signal(10, lambda number, frame: print(number))\nsignal.raise_signal(10)",
        "10",
    ),
    "other programs": ("import subprocess, sys\nsubprocess.run([sys.executable, '-c', 'print(3)'])", "3"),
    "other folders": ("import os, shutil\n" + FOLDERS, "moved"),
}


@confined
@pytest.mark.parametrize("what", ALLOWED)
def test_code_may_use(what):
    program, printed = ALLOWED[what]
    assert sandbox.run_python(program, "hello", sandbox.Limits()) == ("ok", printed + "\n")


@pytest.fixture
def alarm():
    """A test that waits for a minute fails."""

    def give_up(number, frame):
        raise TimeoutError

    before = signal.signal(signal.SIGALRM, give_up)
    signal.alarm(60)
    yield
    signal.alarm(0)
    signal.signal(signal.SIGALRM, before)


@confined
@pytest.mark.parametrize("replace", ["os.mkfifo('output')", "os.symlink('input', 'output')", "os.mkdir('output')"])
def test_only_what_a_program_prints_is_its_output(alarm, replace):
    program = f"import os\nprint('printed', flush=True)\nos.remove('output')\n{replace}"
    assert sandbox.run_python(program, "given", sandbox.Limits()) == ("ok", "printed\n")


@confined
def test_the_process_that_runs_unit_tests_is_closed():
    """Also where the kernel has no Landlock."""
    program = (
        "import ctypes\nfrom openrlhf_swap.rewards import worker\n"
        "worker._own = lambda verifier: lambda request: ctypes.CDLL(None).prctl(3, 0, 0, 0, 0)\n"  # PR_GET_DUMPABLE
        "worker.serve(2**32, 10.0, 'unit_tests')\n"
    )
    ended = subprocess.run([sys.executable, "-c", program], input="[]\n", capture_output=True, text=True, check=True)
    ready, answer = map(json.loads, ended.stdout.splitlines())
    assert (ready, answer[0]) == ("ready", 0)


def test_where_code_cannot_be_confined_it_is_not_run(monkeypatch):
    monkeypatch.setattr(sandbox.platform, "machine", lambda: "riscv64")
    with pytest.raises(OSError, match="on riscv64 cannot confine a program"):
        sandbox.run_python("print(1)", "", sandbox.Limits())
