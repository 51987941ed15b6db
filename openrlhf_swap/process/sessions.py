"""Processes that end with all that they started."""

import os
import signal
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

STOPPED = 128 + signal.SIGTERM  # the exit status of a process that SIGTERM ended


@contextmanager
def ended_by_sigterm() -> Iterator[None]:
    """Make SIGTERM raise SystemExit, so that `finally` ends what runs and writes what is known."""
    before = signal.signal(signal.SIGTERM, lambda *_: sys.exit(STOPPED))
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)


def start_session(command: Sequence[str], **options: Any) -> subprocess.Popen[bytes]:
    """Start a process that leads a session of its own; `end_session` kills all of it."""
    return subprocess.Popen(command, start_new_session=True, **options)


def end_session(process: subprocess.Popen[bytes]) -> int:
    """Kill a process of `start_session` with all that it started; returns its exit status."""
    for entry in Path("/proc").glob("[0-9]*"):
        with suppress(ProcessLookupError, PermissionError):
            if os.getsid(int(entry.name)) == process.pid:
                os.kill(int(entry.name), signal.SIGKILL)
    process.kill()
    return process.wait()
