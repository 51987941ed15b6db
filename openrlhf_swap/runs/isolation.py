"""What keeps a run to itself: a lock on its folders, and a Ray that other users of the machine cannot use.

Two runs in a folder would write into each other's metrics and delete each other's checkpoints. Without a token, Ray
runs code for whoever can reach its ports, which includes every user of the machine. Its session folder, with logs and
sockets, has mode 0777, so it is put into a folder that only its owner may enter.
"""

import errno
import os
import secrets
import shutil
import sys
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path

from openrlhf_swap.errors import ConfigError

FOLDER = "RAY_TMPDIR"
LOCK = "run.lock"


@contextmanager
def private_ray() -> Iterator[None]:
    """Close a Ray that this process or its children start to other users. Enter before Ray is imported.

    What the environment already says about the token or the folder stays. With RAY_ADDRESS nothing is changed: that
    cluster has its own token, or none. The folder is deleted when the block ends without an error; after one, its logs
    may be of use. Raises ConfigError if Ray is imported without a token.
    """
    if "RAY_ADDRESS" in os.environ:
        yield
        return
    if "RAY_AUTH_MODE" not in os.environ and "ray" in sys.modules:
        raise ConfigError("RAY_AUTH_MODE is not set, and Ray, which reads it once, is imported; set it to token first")
    os.environ.setdefault("RAY_AUTH_MODE", "token")
    os.environ.setdefault("RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER", "0")  # listen on 127.0.0.1 only, on Linux too
    if not os.environ.keys() & {"RAY_AUTH_TOKEN", "RAY_AUTH_TOKEN_PATH"}:
        os.environ["RAY_AUTH_TOKEN"] = secrets.token_hex(32)
    if FOLDER in os.environ:
        yield
        return
    # Not below TMPDIR, which is often long. mkdtemp makes it with mode 0700.
    folder, before = Path(tempfile.mkdtemp(prefix="ray_", dir="/tmp")), os.environ.get("TMPDIR")
    os.environ |= {FOLDER: str(folder), "TMPDIR": str(folder)}  # where vLLM leaves sockets and files behind
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
    """Hold a lock on each folder. The kernel drops it with the process, so a killed run blocks nobody.

    The folders, by the flags that name them, are created, and removed if nothing was written there. Raises ConfigError
    when another run holds one of them.
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
                print(f"[swap] the file system of {folders[flag]} has no locks; start no second run there")
        yield


def _clean_up(lock: Path, created: list[Path]) -> None:
    """Remove a lock that is held, and the new folders, the innermost first, that hold nothing now."""
    lock.unlink(missing_ok=True)
    with suppress(OSError):
        for folder in created:
            folder.rmdir()
