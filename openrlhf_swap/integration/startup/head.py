"""A watch over Ray's head: without it Ray ends this process, with a text that nobody reads."""

import os
import signal
import socket
import threading
import time
from typing import Any

import ray

LOOK_SECONDS = 1.0  # between two looks
ANSWER_SECONDS = 20.0  # within which a head has to take a connection
INTERRUPT = signal.SIGUSR2  # SIGINT may be ignored, as in a job that a script starts with `&`


def connect(address: str) -> None:
    """Connect to HOST:PORT and hang up; raises OSError or OverflowError if nothing answers."""
    host, _, port = address.rpartition(":")
    socket.create_connection((host.strip("[]"), int(port)), ANSWER_SECONDS).close()


class Head:
    """The head of the Ray that a run has started or joined: its global control service.

    Attributes:
        address: its HOST:PORT; empty while Ray starts.
        is_lost: whether the watch has found it gone.
    """

    def __init__(self) -> None:
        self.address = ""
        self.is_lost = False
        self._closed = threading.Event()

    def watch(self, patience: float) -> None:
        """Raise KeyboardInterrupt in the main thread once the head is silent for so many seconds.

        Only the main thread may call this method.
        """
        self.address = ray.get_runtime_context().gcs_address
        signal.signal(INTERRUPT, _interrupt)
        threading.Thread(target=self._watch, args=[patience], name="head", daemon=True).start()

    def answers(self) -> bool:
        """Whether it takes a connection. While it has no address, the answer is yes."""
        if not self.address:
            return True
        try:
            connect(self.address)
        except (ConnectionError, TimeoutError):
            return False
        except OSError:  # such as too many open files, which says nothing about the head
            return True
        return True

    def close(self) -> None:
        """End the watch."""
        self._closed.set()

    def _watch(self, patience: float) -> None:
        heard = time.monotonic()
        while not self._closed.wait(LOOK_SECONDS):
            if self.answers():
                heard = time.monotonic()
            elif time.monotonic() - heard > patience:
                self.is_lost = True
                # While the main thread waits for Ray, it looks for real signals only.
                os.kill(os.getpid(), INTERRUPT)
                return


def _interrupt(*_: Any) -> None:
    raise KeyboardInterrupt
