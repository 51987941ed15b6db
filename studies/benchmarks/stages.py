"""Parts of a trial that nobody watches: each has a limit, and all that it started ends with it."""

from __future__ import annotations

import subprocess
from collections.abc import Mapping, Sequence
from pathlib import Path

from openrlhf_swap.process.sessions import end_session, start_session


def run_stage(
    command: Sequence[str], log: Path, limit: float, environment: Mapping[str, str] | None = None
) -> str | None:
    """Run a command for at most `limit` seconds, with its output in `log`.

    Returns None, or why it did not succeed. Whatever it started ends with it, also if this process
    is interrupted.
    """
    with log.open("ab") as output:
        process = start_session(command, stdout=output, stderr=subprocess.STDOUT, env=environment)
        try:
            status = process.wait(limit)
        except subprocess.TimeoutExpired:
            return f"cut off after {limit:.0f} s; see {log}"
        finally:
            end_session(process)
    return f"ended with status {status}; see {log}" if status else None
