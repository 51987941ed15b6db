"""Say why a run ends whose Ray has lost its GCS, the process that holds a cluster's state.

Ray then ends the driver itself, from C++: no exception reaches Python, and a signal's handler is not run while
`ray.get` waits. So a thread watches the process, and ends the driver first.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress

import psutil

NAME = "gcs_server"
SECONDS = 0.5  # between two looks


@contextmanager
def gcs_watched(on_death: Callable[[int], object]) -> Iterator[None]:
    """Meanwhile, call `on_death` with the process id when a GCS that this process started ends.

    It is called in another thread, and Ray leaves it RAY_gcs_rpc_server_reconnect_timeout_s. Leave the block before
    `ray.shutdown`. A cluster that was joined has its GCS elsewhere, and is not watched.
    """
    done = threading.Event()

    def watch() -> None:
        found: psutil.Process | None = None
        while not done.wait(SECONDS):
            found = found or _started_here()
            if found and not _is_alive(found):
                on_death(found.pid)
                return

    threading.Thread(target=watch, daemon=True, name="gcs watch").start()
    try:
        yield
    finally:
        done.set()


def _started_here() -> psutil.Process | None:
    with suppress(psutil.Error):  # a child that has just ended
        return next((child for child in psutil.Process().children() if child.name() == NAME), None)
    return None


def _is_alive(process: psutil.Process) -> bool:
    with suppress(psutil.NoSuchProcess):
        return process.is_running() and process.status() != psutil.STATUS_ZOMBIE
    return False
