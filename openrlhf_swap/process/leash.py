"""Run a command, and end it and all its descendants when the process that started it ends.

    python -m openrlhf_swap.process.leash COMMAND ...

Otherwise a killed quickstart or sweep would leave a training running unseen, which the next start
would collide with. A signal to the command alone is not enough: DeepSpeed's launcher passes none
on.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from contextlib import suppress
from typing import Any

import psutil

from openrlhf_swap.command import run_command
from openrlhf_swap.errors import ConfigError

POLL_SECONDS = 0.5


def main(argv: list[str]) -> int:
    """Run the command; returns its exit status, 128 and the signal's number after a signal.

    Raises:
        ConfigError: when there is no such program.
    """
    starter = os.getppid()
    signal.signal(signal.SIGTERM, _end)
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the command receives Ctrl-C itself, and decides
    try:
        running = subprocess.Popen(
            argv, preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL)
        )
    except OSError as error:
        raise ConfigError(
            f"{argv[0]} cannot be started ({error.strerror}); check its name and PATH"
        ) from None
    while os.getppid() == starter:
        with suppress(subprocess.TimeoutExpired):
            status = running.wait(timeout=POLL_SECONDS)
            return status if status >= 0 else 128 - status
    _end()
    return 1


def _end(*_: Any) -> None:
    for process in psutil.Process().children(recursive=True):
        with suppress(psutil.NoSuchProcess):  # it has just ended
            process.terminate()
    sys.exit(128 + signal.SIGTERM)


if __name__ == "__main__":
    sys.exit(run_command(main))
