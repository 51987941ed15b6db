"""What a command says on the console: its own lines, and nothing of the libraries', which goes into a log file.

Both outputs of the process are put on the file itself, not on a pipe: whoever prints never waits for us, a process
that is killed loses nothing, and its children print there too. A thread follows the file and shows the lines that
start with the command's mark, those of Ray's actors among them: Ray prints what they say in this process.
"""

from __future__ import annotations

import os
import re
import sys
import threading
import time
import traceback
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from openrlhf_swap.errors import CrashedRunError, SwapError, first_line

SECONDS = 0.2  # from look to look
BAR_SECONDS = 60  # from line to line of a progress bar, where no terminal can move it
_OF_AN_ACTOR = re.compile(r"^\(\w+ pid=\d+(, ip=[^)]*)?\) ")


@contextmanager
def quiet_console(log: Path, mark: str, verbose_flag: str) -> Iterator[None]:
    """Meanwhile the console shows the lines that start with `mark`; everything that is printed goes into `log`.

    Afterwards `print` reaches the console again. Descriptors 1 and 2 stay on the log: libraries complain while the
    process ends.

    Args:
        log: appended to; its folder is made.
        mark: such as "[swap]".
        verbose_flag: what to give to have everything on the console.

    Raises:
        CrashedRunError: for an error that is not one of ours, whose traceback is in the log.
    """
    os.environ["RAY_COLOR_PREFIX"] = "0"  # a log is read without a terminal
    log.parent.mkdir(parents=True, exist_ok=True)
    console = [os.dup(1), os.dup(2)]
    with open(log, "ab") as file:
        start = file.tell()
        _put_outputs_on(file.fileno())
    done = threading.Event()
    thread = threading.Thread(target=_follow, args=(log, start, mark, console[0], done), daemon=True)
    thread.start()
    print(f"{mark} all other output goes to {log}; {verbose_flag} shows it here")
    try:
        yield
    except SwapError:
        raise
    except Exception as error:  # of no common kind: whatever ends a training
        traceback.print_exc()
        cause = error
        while isinstance(inner := getattr(cause, "cause", None), Exception):  # under Ray's
            cause = inner
        raise CrashedRunError(
            f"{type(cause).__name__}: {first_line(cause)}; the end of {log} has all of it"
        ) from error
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        done.set()
        thread.join()
        sys.stdout, sys.stderr = (os.fdopen(number, "w", buffering=1) for number in console)


def _put_outputs_on(number: int) -> None:
    """Both outputs of this process and of those that it starts; a line is there as soon as it ends."""
    for stream, descriptor in ((sys.stdout, 1), (sys.stderr, 2)):
        stream.flush()
        os.dup2(number, descriptor)
        stream.reconfigure(line_buffering=True)  # type: ignore[union-attr]


def _follow(log: Path, start: int, mark: str, console: int, done: threading.Event) -> None:
    """Show what is written to a log after byte `start`, as far as it has the mark."""
    moves, bar_at, rest = os.isatty(console), time.monotonic(), b""
    with open(log, "rb") as file:
        file.seek(start)
        while True:
            last = done.is_set()
            *lines, rest = (rest + file.read()).split(b"\n")
            shown = [own for line in lines if (own := _own(line, mark))]
            text = "".join(("\r\x1b[K" if moves else "") + line + "\n" for line in shown)
            if bar := _own(rest, mark):
                if moves:
                    text += f"\r{bar}\x1b[K"
                elif time.monotonic() - bar_at > BAR_SECONDS:
                    text, bar_at = text + bar + "\n", time.monotonic()
            os.write(console, text.encode())
            if last:
                return
            done.wait(SECONDS)


def _own(line: bytes, mark: str) -> str:
    """What a line shows after the last return of a progress bar, without the prefix of an actor; "" without a mark."""
    text = _OF_AN_ACTOR.sub("", line.rpartition(b"\r")[2].decode(errors="replace"))
    foreign_end = "%|" in text and not text.endswith("]")  # a bar whose line somebody else went on with
    return text if text.startswith(mark) and not foreign_end else ""
