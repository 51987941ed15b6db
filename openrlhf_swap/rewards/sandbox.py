"""Run code that a model wrote: limits on time, memory and files, no network, no signals to other processes.

The kernel enforces all of it, from before the program's first line: resource limits, and a seccomp filter. What this
does not protect from: the program reads every file that the user may read, writes wherever the user may write, and may
start processes of its own, which outlive it if they detach themselves. For code that nobody trusts at all, run the
training in a container without secrets.
"""

from __future__ import annotations

import ctypes
import errno
import os
import platform
import resource
import signal
import struct
import subprocess
import sys
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Literal, NamedTuple

_PDEATHSIG, _SECCOMP, _NO_NEW_PRIVILEGES = 1, 22, 38  # options of prctl
_FILTER_MODE = 2
_LOAD, _EQUAL, _AT_LEAST, _RETURN = 0x20, 0x15, 0x35, 0x06  # instructions of the filter
_ALLOW, _REFUSE, _KILL = 0x7FFF0000, 0x00050000 | errno.EPERM, 0x80000000
_NUMBER_AT, _MACHINE_AT = 0, 4  # offsets of a system call's number and machine
_X32 = 0x40000000  # numbers from here on are x86_64's second table
_MACHINES = {"x86_64": 0xC000003E, "aarch64": 0xC00000B7}
_REFUSED = {  # system call -> its number on x86_64 and aarch64
    "socket": (41, 198),
    "kill": (62, 129),
    "tkill": (200, 130),
    "ptrace": (101, 117),
    "process_vm_readv": (310, 270),
    "process_vm_writev": (311, 271),
    "pidfd_send_signal": (424, 424),
    "io_uring_setup": (425, 425),  # whose requests pass by the filter
}


@dataclass(frozen=True)
class Limits:
    """What one run may take: seconds of CPU and of wall time, bytes of address space and of each file."""

    cpu: int = 6
    wall: float = 12.0
    memory: int = 2 * 2**30
    file: int = 16 * 2**20


class Run(NamedTuple):
    """How a program ended, and what it printed."""

    status: Literal["ok", "failed", "timeout"]
    output: str


class _Program(ctypes.Structure):
    _fields_ = [("length", ctypes.c_ushort), ("instructions", ctypes.c_char_p)]


def is_available() -> bool:
    """Whether this machine's kernel can confine a program."""
    return sys.platform == "linux" and platform.machine() in _MACHINES


def run_python(program: str, given: str, limits: Limits) -> Run:
    """Run a Python program in a folder of its own, with a text on its standard input.

    Raises:
        OSError: where it cannot be confined; it is not run then.
    """
    if not is_available():
        raise OSError(f"{sys.platform} on {platform.machine()} cannot confine a program; use Linux on x86_64 or arm64")
    instructions = _filter(platform.machine())
    with TemporaryDirectory(prefix="openrlhf_swap_") as name:
        folder = Path(name)
        (folder / "program.py").write_text(program, encoding="utf-8", errors="replace")
        (folder / "input").write_text(given, encoding="utf-8", errors="replace")
        with open(folder / "input", "rb") as source, open(folder / "output", "wb") as target:
            process = subprocess.Popen(
                [sys.executable, "-I", "-B", "program.py"],
                stdin=source,
                stdout=target,
                stderr=subprocess.DEVNULL,
                cwd=folder,
                env={"HOME": name, "TMPDIR": name, "OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1"},
                start_new_session=True,
                preexec_fn=lambda: _confine(limits, instructions),
            )
            status = _wait(process, limits.wall)
        return Run(status, (folder / "output").read_text(encoding="utf-8", errors="replace"))


def _wait(process: subprocess.Popen[bytes], seconds: float) -> Literal["ok", "failed", "timeout"]:
    """How the process ended; nothing of its group is left afterwards."""
    try:
        status = process.wait(seconds)
    except subprocess.TimeoutExpired:
        return "timeout"
    finally:
        with suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()
    if status in (-signal.SIGXCPU, -signal.SIGKILL):
        return "timeout"
    return "ok" if status == 0 else "failed"


def _confine(limits: Limits, instructions: bytes) -> None:
    """Give up, in the new process and for good, what the program must not have."""
    resource.setrlimit(resource.RLIMIT_CPU, (limits.cpu, limits.cpu + 1))
    resource.setrlimit(resource.RLIMIT_AS, (limits.memory, limits.memory))
    resource.setrlimit(resource.RLIMIT_FSIZE, (limits.file, limits.file))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    resource.setrlimit(resource.RLIMIT_NOFILE, (64, 64))
    libc = ctypes.CDLL(None, use_errno=True)
    program = _Program(len(instructions) // 8, instructions)
    for words in (
        (_PDEATHSIG, signal.SIGKILL, 0, 0, 0),
        (_NO_NEW_PRIVILEGES, 1, 0, 0, 0),
        (_SECCOMP, _FILTER_MODE, ctypes.byref(program), 0, 0),
    ):
        if libc.prctl(*words) != 0:
            raise OSError(ctypes.get_errno(), "prctl")  # which Popen raises in the parent, too


def _filter(machine: str) -> bytes:
    """Instructions that refuse some system calls and allow the others, for the kernel's packet filter."""
    column = list(_MACHINES).index(machine)
    refused = [numbers[column] for numbers in _REFUSED.values()]
    checks = [(_EQUAL, 0, 0, number) for number in refused]
    left = len(checks)
    steps = [
        (_LOAD, 0, 0, _MACHINE_AT),
        (_EQUAL, 0, left + 4, _MACHINES[machine]),  # of another machine: kill
        (_LOAD, 0, 0, _NUMBER_AT),
        (_AT_LEAST, left + 2, 0, _X32),
        *((code, left - place, 0, number) for place, (code, _, _, number) in enumerate(checks)),
        (_RETURN, 0, 0, _ALLOW),
        (_RETURN, 0, 0, _REFUSE),
        (_RETURN, 0, 0, _KILL),
    ]
    return b"".join(struct.pack("HBBI", *step) for step in steps)
