"""Show only a command's own lines on the console; the output of libraries goes to a log file.

Stdout and stderr of the process are redirected to the file itself, not to a pipe: printing never waits for us, a
killed process loses nothing, and its children print there too. A thread follows the file and shows the lines that
start with the command's mark, including those of Ray's actors, whose output Ray prints in this process.
"""

import os
import re
import sys
import threading
import time
import traceback
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from openrlhf_swap.errors import RunError, SwapError, first_line

SECONDS = 0.2  # between two reads of the log
BAR_SECONDS = 60  # between two lines of a progress bar, where no terminal can redraw it
LEAST_SPACE = 2**20  # bytes that the log must find free
_OF_AN_ACTOR = re.compile(r"^\(\w+ pid=\d+(, ip=[^)]*)?\) ")


@contextmanager
def quiet_console(log: Path, mark: str, verbose_flag: str) -> Iterator[None]:
    """Send everything printed to `log`, and show on the console only the lines that start with `mark`.

    The log is appended to; `mark` is such as "[swap]"; `verbose_flag` is the flag that shows everything here.
    Afterwards `print` reaches the console again. Descriptors 1 and 2 stay on the log, because libraries complain while
    the process ends. Raises RunError for any other error than a SwapError; its traceback is in the log.
    """
    os.environ["RAY_COLOR_PREFIX"] = "0"  # the log should hold no colour codes
    log.parent.mkdir(parents=True, exist_ok=True)
    console = [os.dup(1), os.dup(2)]
    with open(log, "ab") as file:
        start = file.tell()
        _check_space(log, file.fileno(), start)
        _redirect_outputs(file.fileno())
    done = threading.Event()
    thread = threading.Thread(target=_follow, args=(log, start, mark, console[0], done), daemon=True)
    thread.start()
    print(f"{mark} all other output goes to {log}; {verbose_flag} shows it here")
    try:
        yield
    except SwapError:
        raise
    except Exception as error:  # anything may end a training
        traceback.print_exc()
        cause = error
        while isinstance(inner := getattr(cause, "cause", None), Exception):  # wrapped by Ray
            cause = inner
        raise RunError(f"{type(cause).__name__}: {first_line(cause)}; the traceback is at the end of {log}") from error
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        done.set()
        thread.join()
        sys.stdout, sys.stderr = (os.fdopen(number, "w", buffering=1) for number in console)


def _check_space(log: Path, descriptor: int, start: int) -> None:
    """Raise RunError on a full disk, on which everything printed from now on would be lost, errors too."""
    try:
        os.posix_fallocate(descriptor, start, LEAST_SPACE)
        os.ftruncate(descriptor, start)
    except OSError as error:
        raise RunError(f"{log} cannot be written ({error.strerror}); make room, or use another folder") from error


def _redirect_outputs(number: int) -> None:
    """Redirect stdout and stderr of this process and its children; each line is written as soon as it ends."""
    for stream, descriptor in ((sys.stdout, 1), (sys.stderr, 2)):
        stream.flush()
        os.dup2(number, descriptor)
        stream.reconfigure(line_buffering=True)  # type: ignore[union-attr]


def _follow(log: Path, start: int, mark: str, console: int, done: threading.Event) -> None:
    """Show the lines with the mark that are written to a log after byte `start`."""
    is_terminal, bar_at, rest = os.isatty(console), time.monotonic(), b""
    with open(log, "rb") as file:
        file.seek(start)
        while True:
            last = done.is_set()
            *lines, rest = (rest + file.read()).split(b"\n")
            shown = [own for line in lines if (own := _own(line, mark))]
            text = "".join(("\r\x1b[K" if is_terminal else "") + line + "\n" for line in shown)
            if bar := _own(rest, mark):
                if is_terminal:
                    text += f"\r{bar}\x1b[K"
                elif time.monotonic() - bar_at > BAR_SECONDS:
                    text, bar_at = text + bar + "\n", time.monotonic()
            os.write(console, text.encode())
            if last:
                return
            done.wait(SECONDS)


def _own(line: bytes, mark: str) -> str:
    """The text after a progress bar's last carriage return, without an actor's prefix; "" if it lacks the mark."""
    text = _OF_AN_ACTOR.sub("", line.rpartition(b"\r")[2].decode(errors="replace"))
    foreign_end = "%|" in text and not text.endswith("]")  # a bar whose line other output continues
    return text if text.startswith(mark) and not foreign_end else ""
