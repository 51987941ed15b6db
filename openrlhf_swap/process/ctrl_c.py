"""A Ctrl-C that waits, because in the middle of an import it may get lost or abort the process."""

import signal
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def ctrl_c_after() -> Iterator[None]:
    """Hold back a Ctrl-C, but not a second one, until the block has ended.

    If the block fails after a Ctrl-C, KeyboardInterrupt is raised in place of its error: a terminal
    sends the signal to the block's child processes, too, and their end may be the error. Only the
    main thread may enter. A handler holds it, because a mask holds in one thread only: the
    signal would go to another thread, and raise here all the same.
    """
    came: list[int] = []

    def hold(number: int, _: object) -> None:
        if came:
            signal.signal(number, before)
            signal.raise_signal(number)
        came.append(number)

    before = signal.signal(signal.SIGINT, hold)
    try:
        yield
    except Exception as error:  # any error of the block may be a child's end
        if came:
            raise KeyboardInterrupt from error
        raise
    finally:
        signal.signal(signal.SIGINT, before)
    if came:
        signal.raise_signal(signal.SIGINT)
