"""Run code that a model wrote: limits on time, memory and files, no network, no signals to other processes.

The kernel enforces all of it, from before the program's first line: resource limits, a seccomp filter, and Landlock
where the kernel has it, which closes the memory and the environment of other processes. What this does not protect
from: the program reads every file that the user may read, writes wherever the user may write, and may start processes
of its own, which outlive it if they detach themselves. For code that nobody trusts at all, run the training in a
container without secrets.
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
from typing import Any, Literal, NamedTuple

_PDEATHSIG, _DUMPABLE, _SECCOMP, _DROP_CAPABILITY, _NO_NEW_PRIVILEGES = 1, 4, 22, 24, 38  # options of prctl
_CAPABILITIES, _DAC_OVERRIDE = 64, 1  # more than there are; what lets root read another user's files
_FILTER_MODE = 2
_LOAD, _EQUAL, _AT_LEAST, _RETURN = 0x20, 0x15, 0x35, 0x06  # instructions of the filter
_ALLOW, _REFUSE, _KILL = 0x7FFF0000, 0x00050000 | errno.EPERM, 0x80000000
_NUMBER_AT, _MACHINE_AT, _ARGUMENTS_AT = 0, 4, 16  # offsets in what the filter sees of a system call
_X32 = 0x40000000  # numbers from here on are x86_64's second table
_MACHINES = {"x86_64": 0xC000003E, "aarch64": 0xC00000B7}
_REFUSED = {  # system call -> its number on x86_64 and aarch64
    "socket": (41, 198),
    "kill": (62, 129),
    "tkill": (200, 130),
    "rt_sigqueueinfo": (129, 138),
    "rt_tgsigqueueinfo": (297, 240),
    "ptrace": (101, 117),
    "process_vm_readv": (310, 270),
    "process_vm_writev": (311, 271),
    "pidfd_send_signal": (424, 424),
    "pidfd_getfd": (438, 438),
    "io_uring_setup": (425, 425),  # whose requests pass by the filter
}
_TGKILL, _PRLIMIT = (234, 131), (302, 261)  # for the process itself: `abort` needs one, `setrlimit` the other
_OWNERS = (  # fcntl and ioctl with these name a process that gets a signal, of any number, when a file is ready
    ((72, 25), (8, 15)),  # F_SETOWN, F_SETOWN_EX
    ((16, 29), (0x8901, 0x8902)),  # FIOSETOWN, SIOCSPGRP
)
_CREATE_RULESET, _RESTRICT_SELF = 444, 446  # Landlock's system calls, on every machine
_RULES = (struct.pack("QQ", 0, 2**1), struct.pack("Q", 2**11))  # no TCP connection; before Linux 6.7, no block device

_Step = tuple[int, int, int, int]
"""An instruction of the filter: what it does, how many steps to skip where it holds and where not, and a number."""


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
        OSError, subprocess.SubprocessError: where it cannot be confined; it is not run then.
    """
    if not is_available():
        raise OSError(f"{sys.platform} on {platform.machine()} cannot confine a program; use Linux on x86_64 or arm64")
    machine = platform.machine()
    with TemporaryDirectory(prefix="openrlhf_swap_") as name:
        folder = Path(name)
        (folder / "program.py").write_text(program, encoding="utf-8", errors="replace")
        (folder / "input").write_text(given, encoding="utf-8", errors="replace")
        # What is called output afterwards may be a link, or a pipe that never ends: only this file is read.
        with open(folder / "input", "rb") as source, open(folder / "output", "w+b") as target:
            process = subprocess.Popen(
                [sys.executable, "-I", "-B", "program.py"],
                stdin=source,
                stdout=target,
                stderr=subprocess.DEVNULL,
                cwd=folder,
                env={"HOME": name, "TMPDIR": name, "OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1"},
                start_new_session=True,
                preexec_fn=lambda: _confine(limits, machine),
            )
            status = _wait(process, limits.wall)
            target.seek(0)
            output = target.read(limits.file)
    return Run(status, output.decode(errors="replace"))


def close_to_others() -> None:
    """Close this process's memory and environment to programs run here, also where the kernel has no Landlock."""
    if is_available() and ctypes.CDLL(None).prctl(_DUMPABLE, 0, 0, 0, 0) != 0:
        raise OSError("prctl does not take PR_SET_DUMPABLE")


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


def _confine(limits: Limits, machine: str) -> None:
    """Give up, in the new process and for good, what the program must not have."""
    libc = ctypes.CDLL(None, use_errno=True)
    instructions = _filter(machine, os.getpid())
    program = _Program(len(instructions) // 8, instructions)
    _control(libc, _PDEATHSIG, signal.SIGKILL)
    _control(libc, _NO_NEW_PRIVILEGES, 1)
    for number in set(range(_CAPABILITIES)) - {_DAC_OVERRIDE}:  # Python may be in another user's folder
        libc.prctl(_DROP_CAPABILITY, number, 0, 0, 0)  # fails for other users than root, who have none
    _close_others(libc)
    resource.setrlimit(resource.RLIMIT_CPU, (limits.cpu, limits.cpu + 1))
    resource.setrlimit(resource.RLIMIT_AS, (limits.memory, limits.memory))
    resource.setrlimit(resource.RLIMIT_FSIZE, (limits.file, limits.file))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    resource.setrlimit(resource.RLIMIT_NOFILE, (64, 64))
    _control(libc, _SECCOMP, _FILTER_MODE, ctypes.byref(program))


def _control(libc: ctypes.CDLL, *words: Any) -> None:
    if libc.prctl(*words, *[0] * (5 - len(words))) != 0:
        raise OSError(ctypes.get_errno(), "prctl")  # for which Popen raises a SubprocessError in the parent


def _close_others(libc: ctypes.CDLL) -> None:
    """Close the memory, the environment and the open files of other processes, which /proc opens to the same user.

    Landlock does this to whatever process it restricts at all, so it is given a right to take that no program needs.
    With rules on files, the second ones, it also lets no file be renamed into another folder. A kernel without
    Landlock leaves other processes open.
    """
    for rules in _RULES:
        ruleset = libc.syscall(_CREATE_RULESET, rules, ctypes.c_size_t(len(rules)), 0)
        if ruleset >= 0:
            if libc.syscall(_RESTRICT_SELF, ruleset, 0) != 0:
                raise OSError(ctypes.get_errno(), "landlock_restrict_self")
            os.close(ruleset)
            return


def _filter(machine: str, process: int) -> bytes:
    """Instructions for the kernel's packet filter: what a process with this id, on this machine, may not call."""
    column = list(_MACHINES).index(machine)
    steps: list[_Step] = [
        (_LOAD, 0, 0, _MACHINE_AT),
        (_EQUAL, 1, 0, _MACHINES[machine]),
        (_RETURN, 0, 0, _KILL),
        (_LOAD, 0, 0, _NUMBER_AT),
        (_AT_LEAST, 0, 1, _X32),
        (_RETURN, 0, 0, _REFUSE),
    ]
    for numbers in _REFUSED.values():
        steps += [(_EQUAL, 0, 1, numbers[column]), (_RETURN, 0, 0, _REFUSE)]
    steps += _by_argument(_TGKILL[column], 0, {process: _ALLOW}, _REFUSE)
    steps += _by_argument(_PRLIMIT[column], 0, {0: _ALLOW}, _REFUSE)
    for numbers, commands in _OWNERS:
        steps += _by_argument(numbers[column], 1, dict.fromkeys(commands, _REFUSE), _ALLOW)
    steps.append((_RETURN, 0, 0, _ALLOW))
    return b"".join(struct.pack("HBBI", *step) for step in steps)


def _by_argument(number: int, argument: int, answers: dict[int, int], otherwise: int) -> list[_Step]:
    """Steps that answer a system call by one of its arguments, of which the kernel, too, takes the lower 32 bits."""
    steps: list[_Step] = [(_LOAD, 0, 0, _ARGUMENTS_AT + 8 * argument)]
    for value, answer in answers.items():
        steps += [(_EQUAL, 0, 1, value), (_RETURN, 0, 0, answer)]
    steps.append((_RETURN, 0, 0, otherwise))
    return [(_EQUAL, 0, len(steps), number), *steps]
