"""A Ctrl-C that waits, and other signals that stop a command as a Ctrl-C does.

In the middle of an import a Ctrl-C may get lost or abort the process.
"""

import signal
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from openrlhf_swap.errors import StoppedBySignal
from openrlhf_swap.process.console import say

STOPPING = (signal.SIGTERM, signal.SIGHUP)
WARNING = signal.SIGUSR1  # that a cluster sends before a job's time limit, where it is asked to
_warned: list[int] = []  # what came; the loop looks here after each step


@contextmanager
def ctrl_c_after() -> Iterator[None]:
    """Hold back a Ctrl-C, but not a second one, until the block has ended.

    So it is with a signal that `stopped_like_ctrl_c` handles. If the block fails after one,
    KeyboardInterrupt is raised in place of its error: a terminal sends the signal to the block's
    child processes, too, and their end may be the error. Only the main thread may enter. A handler
    holds the signal, because a mask holds in one thread only: the signal would go to another
    thread, and raise here all the same.
    """
    came: list[int] = []
    before: dict[int, Any] = {}

    def hold(number: int, _: object) -> None:
        if came:
            signal.signal(number, before[number])
            signal.raise_signal(number)
        came.append(number)

    for held in (signal.SIGINT, *STOPPING):
        handler = signal.getsignal(held)
        if callable(handler):  # it is not ignored, and does not end the process
            before[held] = handler
            signal.signal(held, hold)
    try:
        yield
    except Exception as error:  # any error of the block may be a child's end
        if came:
            raise KeyboardInterrupt from error
        raise
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
    if came:
        signal.raise_signal(came[0])


@contextmanager
def saving_at_warning() -> Iterator[None]:
    """Note a `WARNING` that comes during the block; the loop then asks `end_if_warned`.

    A signal that is handled already stays so. Only the main thread may enter.
    """

    def note(number: int, _: object) -> None:
        _warned.append(number)
        say("SIGUSR1: the run saves after this step and ends")

    if signal.getsignal(WARNING) != signal.SIG_DFL:
        yield
        return
    signal.signal(WARNING, note)
    try:
        yield
    finally:
        signal.signal(WARNING, signal.SIG_DFL)
        _warned.clear()


def is_warned() -> bool:
    """Whether the run is to save after this step and to end."""
    return bool(_warned)


def end_if_warned() -> None:
    """Raise StoppedBySignal if a `WARNING` has come; call it after a checkpoint."""
    if is_warned():
        raise StoppedBySignal(WARNING)


@contextmanager
def stopped_like_ctrl_c() -> Iterator[None]:
    """Let SIGTERM and SIGHUP stop the block as Ctrl-C does, but raise StoppedBySignal then.

    A signal that is ignored stays so: `nohup` ignores SIGHUP. Only the main thread may enter.
    """
    came: list[int] = []

    def stop(number: int, _: object) -> None:
        came.append(number)
        raise KeyboardInterrupt

    handled = [number for number in STOPPING if signal.getsignal(number) == signal.SIG_DFL]
    for number in handled:
        signal.signal(number, stop)
    try:
        yield
    except KeyboardInterrupt as error:
        if came:  # Ray makes a plain KeyboardInterrupt of what a handler raises
            raise StoppedBySignal(came[0]) from error
        raise
    finally:
        for number in handled:
            signal.signal(number, signal.SIG_DFL)
