"""The console of a run: it shows the command's own lines, and a log has everything.

Stdout and stderr are redirected to a log, not to a pipe: printing never waits for us, a killed
process loses nothing, and its children print there too. A thread follows the log, and shows the
lines that begin with a mark.
"""

import os
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
_CLEAR_LINE = "\x1b[K"
MARK = "[swap]"
"""What each of the command's own lines begins with."""


def say(line: str) -> None:
    """Print one of the command's own lines, which the console shows and the log keeps."""
    # One write: between two, another thread's line could join this one.
    print(f"{MARK} {line}\n", end="", flush=True)


@contextmanager
def quiet_console(log: Path, mark: str, verbose_flag: str) -> Iterator[None]:
    """Append everything printed to `log`, and show only the lines that start with `mark`.

    Afterwards `print` reaches the console again; descriptors 1 and 2 stay on the log, because
    libraries complain while the process ends. Raises RunError for any other error than a SwapError;
    its traceback is in the log.
    """
    os.environ["RAY_COLOR_PREFIX"] = "0"  # the log should hold no colour codes
    log.parent.mkdir(parents=True, exist_ok=True)
    console = [os.dup(1), os.dup(2)]
    start = _print_into(log)
    done = threading.Event()
    arguments = (log, start, mark, console[0], done)
    thread = threading.Thread(target=_follow, args=arguments, daemon=True)
    thread.start()
    print(f"{mark} all other output goes to {log}; {verbose_flag} shows it here")
    try:
        yield
    except SwapError:
        raise
    except Exception as error:  # anything may end a training
        traceback.print_exc()
        cause = _wrapped(error)
        reason = f"{type(cause).__name__}: {first_line(cause)}"
        raise RunError(f"{reason}; the traceback is at the end of {log}") from error
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        done.set()
        thread.join()
        sys.stdout = os.fdopen(console[0], "w", buffering=1)
        sys.stderr = os.fdopen(console[1], "w", buffering=1)


def _print_into(log: Path) -> int:
    """Redirect stdout and stderr of this process to the end of a log; returns where that is.

    Raises RunError if the log cannot be written: on a full disk errors would be lost, too.
    """
    with open(log, "ab") as file:
        start = file.tell()
        try:
            os.posix_fallocate(file.fileno(), start, LEAST_SPACE)
            os.ftruncate(file.fileno(), start)
        except OSError as error:
            problem = f"{log} cannot be written ({error.strerror})"
            raise RunError(f"{problem}; make room, or use another folder") from error
        for stream, descriptor in ((sys.stdout, 1), (sys.stderr, 2)):
            stream.flush()
            os.dup2(file.fileno(), descriptor)
            stream.reconfigure(line_buffering=True)  # type: ignore[union-attr]
    return start


def _wrapped(error: BaseException) -> BaseException:
    """The error in an actor that Ray has wrapped, or the error itself."""
    while True:
        cause = getattr(error, "cause", None)
        if not isinstance(cause, Exception):
            return error
        error = cause


def _follow(log: Path, start: int, mark: str, console: int, done: threading.Event) -> None:
    """Show the lines with the mark that are written to a log after byte `start`."""
    screen = _Terminal() if os.isatty(console) else _Plain()
    rest = b""
    with open(log, "rb") as file:
        file.seek(start)
        while True:
            is_last = done.is_set()
            *lines, rest = (rest + file.read()).split(b"\n")
            shown = [own_text(line, mark) for line in lines]
            text = "".join(screen.line(each) for each in shown if each)
            bar = bar_text(rest, mark)
            if bar:
                text += screen.bar(bar)
            os.write(console, text.encode())
            if is_last:
                return
            done.wait(SECONDS)


class _Terminal:
    """A console on which a progress bar is drawn again in its place."""

    def line(self, text: str) -> str:
        return f"\r{_CLEAR_LINE}{text}\n"

    def bar(self, text: str) -> str:
        return f"\r{text}{_CLEAR_LINE}"


class _Plain:
    """A file or a pipe, which gets a line of a progress bar now and then."""

    def __init__(self) -> None:
        self._bar_at = time.monotonic()

    def line(self, text: str) -> str:
        return f"{text}\n"

    def bar(self, text: str) -> str:
        now = time.monotonic()
        if now - self._bar_at <= BAR_SECONDS:
            return ""
        self._bar_at = now
        return f"{text}\n"


def bar_text(rest: bytes, mark: str) -> str:
    """The text of a progress bar at a log's end; "" for a line whose end is still to be written."""
    return own_text(rest, mark) if b"\r" in rest else ""


def own_text(line: bytes, mark: str) -> str:
    """What a line of the log says from the mark on; "" for a line without the mark.

    In front of the mark stand the names that Ray and vLLM give their processes, or what another
    process had not ended, such as a progress bar. Of a bar only its last drawing counts, which
    follows the last carriage return. A mark in quotes is a line of source in a traceback.
    """
    drawn_last = line.rpartition(b"\r")[2].decode(errors="replace")
    before, found, after = drawn_last.rpartition(mark)
    is_quoted = before.endswith(("'", '"'))
    if not found or is_quoted:
        return ""
    text = mark + after
    is_cut_off = "%|" in text and not text.endswith("]")  # a bar whose line other output continues
    return "" if is_cut_off else text
