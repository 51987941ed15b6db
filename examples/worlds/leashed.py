"""Run a command, and end it and all its descendants when the process that started it ends, however that happens.

    python examples/worlds/leashed.py COMMAND ...

Otherwise a killed quickstart would leave a training running unseen, which the next start would collide with. A signal
to the command alone is not enough: DeepSpeed's launcher passes none on.
"""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import time
from types import FrameType

import psutil


def main() -> None:
    starter = os.getppid()

    def end(number: int = 0, frame: FrameType | None = None) -> None:
        for process in psutil.Process().children(recursive=True):
            with contextlib.suppress(psutil.NoSuchProcess):  # it has just ended
                process.terminate()
        sys.exit(128 + signal.SIGTERM)

    signal.signal(signal.SIGTERM, end)
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the command receives Ctrl-C itself, and decides
    command = subprocess.Popen(sys.argv[1:], preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL))
    while command.poll() is None:
        if os.getppid() != starter:
            end()
        time.sleep(0.5)
    sys.exit(command.returncode if command.returncode >= 0 else 128 - command.returncode)


if __name__ == "__main__":
    main()
