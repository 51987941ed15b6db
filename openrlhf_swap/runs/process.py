"""The process of a run: its console, its Ctrl-C, the lock on its folders, and a Ray that nobody
else can use.

Stdout and stderr are redirected to a log, not to a pipe: printing never waits for us, a killed
process loses nothing, and its children print there too. A thread follows the log, and shows the
command's own lines.

Without a token, Ray runs code for whoever can reach its ports, and its session folder, with logs
and sockets, has mode 0777, so it is put into a folder that only its owner may enter.
"""

import errno
import os
import re
import secrets
import shutil
import signal
import sys
import tempfile
import threading
import time
import traceback
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path

from openrlhf_swap.errors import ConfigError, RunError, SwapError, first_line

SECONDS = 0.2  # between two reads of the log
BAR_SECONDS = 60  # between two lines of a progress bar, where no terminal can redraw it
LEAST_SPACE = 2**20  # bytes that the log must find free
# Ray puts an actor's name in front of its lines, and vLLM its engine's: "(SwapRolloutActor pid=5)
# (EngineCore pid=6) ".
_OF_AN_ACTOR = re.compile(r"^(\(\w+ pid=\d+[^)]*\) )+")
FOLDER = "RAY_TMPDIR"
LOCK = "run.lock"


@contextmanager
def quiet_console(log: Path, mark: str, verbose_flag: str) -> Iterator[None]:
    """Append everything printed to `log`, and show on the console only the lines that start with
    `mark`.

    Afterwards `print` reaches the console again; descriptors 1 and 2 stay on the log, because
    libraries complain while the process ends. Raises RunError for any other error than a SwapError;
    its traceback is in the log.
    """
    os.environ["RAY_COLOR_PREFIX"] = "0"  # the log should hold no colour codes
    log.parent.mkdir(parents=True, exist_ok=True)
    console = [os.dup(1), os.dup(2)]
    with open(log, "ab") as file:
        start = file.tell()
        try:  # on a full disk everything printed from now on would be lost, errors too
            os.posix_fallocate(file.fileno(), start, LEAST_SPACE)
            os.ftruncate(file.fileno(), start)
        except OSError as error:
            problem = f"{log} cannot be written ({error.strerror})"
            raise RunError(f"{problem}; make room, or use another folder") from error
        for stream, descriptor in ((sys.stdout, 1), (sys.stderr, 2)):
            stream.flush()
            os.dup2(file.fileno(), descriptor)
            stream.reconfigure(line_buffering=True)  # type: ignore[union-attr]
    done = threading.Event()
    thread = threading.Thread(
        target=_follow, args=(log, start, mark, console[0], done), daemon=True
    )
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
        raise RunError(
            f"{type(cause).__name__}: {first_line(cause)}; the traceback is at the end of {log}"
        ) from error
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        done.set()
        thread.join()
        sys.stdout, sys.stderr = (os.fdopen(number, "w", buffering=1) for number in console)


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
    """The text after a progress bar's last carriage return, without the prefixes of actors; "" if
    it lacks the mark.
    """
    text = _OF_AN_ACTOR.sub("", line.rpartition(b"\r")[2].decode(errors="replace"))
    foreign_end = "%|" in text and not text.endswith("]")  # a bar whose line other output continues
    return text if text.startswith(mark) and not foreign_end else ""


@contextmanager
def ctrl_c_after() -> Iterator[None]:
    """Hold back a Ctrl-C, but not a second one, until the block has ended. Only the main thread may
    enter.

    A handler, because a mask holds in one thread only: the signal would go to another, and raise
    here all the same.
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
    finally:
        signal.signal(signal.SIGINT, before)
    if came:
        signal.raise_signal(signal.SIGINT)


@contextmanager
def private_ray() -> Iterator[None]:
    """Close a Ray that this process or its children start to other users. Enter before Ray is
    imported.

    What the environment says about the token or the folder stays, and with RAY_ADDRESS everything.
    After an error the folder stays, for its logs. Raises ConfigError if Ray is imported without a
    token.
    """
    if "RAY_ADDRESS" in os.environ:
        yield
        return
    if "RAY_AUTH_MODE" not in os.environ and "ray" in sys.modules:
        raise ConfigError(
            "RAY_AUTH_MODE is not set, and Ray, which reads it once, is imported; set it to token first"
        )
    os.environ.setdefault("RAY_AUTH_MODE", "token")
    os.environ.setdefault(
        "RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER", "0"
    )  # listen on 127.0.0.1 only, on Linux too
    if not os.environ.keys() & {"RAY_AUTH_TOKEN", "RAY_AUTH_TOKEN_PATH"}:
        os.environ["RAY_AUTH_TOKEN"] = secrets.token_hex(32)
    if FOLDER in os.environ:
        yield
        return
    # Not below TMPDIR, which is often long. mkdtemp makes it with mode 0700.
    folder, before = Path(tempfile.mkdtemp(prefix="ray_", dir="/tmp")), os.environ.get("TMPDIR")
    os.environ |= {
        FOLDER: str(folder),
        "TMPDIR": str(folder),
    }  # where vLLM leaves sockets and files behind
    try:
        yield
        shutil.rmtree(folder, ignore_errors=True)
    finally:
        del os.environ[FOLDER], os.environ["TMPDIR"]
        os.environ |= {"TMPDIR": before} if before else {}
        with suppress(OSError):  # there are logs of Ray in it
            folder.rmdir()


@contextmanager
def locked(folders: Mapping[str, Path]) -> Iterator[None]:
    """Hold a lock on each folder, by the flag that names it; the kernel drops it with the process.

    New folders are removed if nothing was written there. Raises ConfigError when another run holds
    one of them.
    """
    from filelock import FileLock, Timeout

    with ExitStack() as held:
        for folder, flag in {folder.resolve(): flag for flag, folder in folders.items()}.items():
            created = [path for path in (folder, *folder.parents) if not path.exists()]
            folder.mkdir(parents=True, exist_ok=True)
            try:
                held.enter_context(FileLock(folder / LOCK, timeout=0, fallback_to_soft=False))
                held.callback(_clean_up, folder / LOCK, created)
            except Timeout:
                raise ConfigError(
                    f"{flag} is {folders[flag]}, where another run is under way ({LOCK}); wait until it has ended, or "
                    "use another folder"
                ) from None
            except OSError as error:
                if error.errno not in (errno.ENOLCK, errno.EOPNOTSUPP, errno.ENOSYS):
                    raise
                print(
                    f"[swap] the file system of {folders[flag]} has no locks; start no second run there"
                )
        yield


def _clean_up(lock: Path, created: list[Path]) -> None:
    """Remove a lock that is held, and the new folders, the innermost first, that hold nothing now."""
    lock.unlink(missing_ok=True)
    with suppress(OSError):
        for folder in created:
            folder.rmdir()
