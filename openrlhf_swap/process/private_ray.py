"""A Ray that no other user of the machine can use.

Without a token, Ray runs code for whoever can reach its ports. Its session folder, with logs and
sockets, has mode 0777, so it is put into a folder that only its owner may enter.
"""

import os
import secrets
import shutil
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from openrlhf_swap.errors import ConfigError

RAY_FOLDER = "RAY_TMPDIR"
PLACE = Path("/tmp")
OWNER = "owner.lock"  # in each folder; the command that made it holds it
NEW_SECONDS = 10  # in which a folder's owner may not hold its lock yet
# A variable by which Ray listens on 127.0.0.1 only. Ray reads it when it is imported, on Linux too.
LOOPBACK_ONLY = {"RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER": "0"}


@contextmanager
def private_ray() -> Iterator[None]:
    """Close a Ray that this process or its children start to other users.

    Enter before Ray is imported; raises ConfigError if it is imported without a token. What the
    environment says about the token or the folder stays, and with RAY_ADDRESS everything.
    """
    if "RAY_ADDRESS" in os.environ:
        yield
        return
    _ask_for_a_token()
    if RAY_FOLDER in os.environ:
        yield
        return
    with _private_folder():
        yield


def _ask_for_a_token() -> None:
    if "RAY_AUTH_MODE" not in os.environ and "ray" in sys.modules:
        raise ConfigError(
            "RAY_AUTH_MODE is not set, and Ray, which reads it once, is imported; "
            "set it to token first"
        )
    for name, value in {"RAY_AUTH_MODE": "token", **LOOPBACK_ONLY}.items():
        os.environ.setdefault(name, value)
    if not os.environ.keys() & {"RAY_AUTH_TOKEN", "RAY_AUTH_TOKEN_PATH"}:
        os.environ["RAY_AUTH_TOKEN"] = secrets.token_hex(32)


def delete_left_folders(place: Path) -> None:
    """Delete the folders that dead runs of this user left; the kernel dropped their locks."""
    from filelock import FileLock, Timeout

    for owner in place.glob(f"ray_*/{OWNER}"):
        with suppress(OSError, Timeout):
            status = owner.stat()
            is_new = time.time() - status.st_mtime < NEW_SECONDS
            if is_new or status.st_uid != os.getuid():
                continue
            with FileLock(owner, timeout=0):
                shutil.rmtree(owner.parent, ignore_errors=True)


@contextmanager
def _private_folder() -> Iterator[None]:
    """Give Ray, and vLLM's sockets and files, a folder of mode 0700; after an error it stays.

    It is not below TMPDIR, which is often long: the kernel takes short names of sockets only. The
    next start deletes it.
    """
    from filelock import FileLock

    delete_left_folders(PLACE)
    folder = Path(tempfile.mkdtemp(prefix="ray_", dir=PLACE))
    lock = FileLock(folder / OWNER)
    lock.acquire()
    before = os.environ.get("TMPDIR")
    os.environ[RAY_FOLDER] = str(folder)
    os.environ["TMPDIR"] = str(folder)
    try:
        yield
        shutil.rmtree(folder, ignore_errors=True)
    finally:
        lock.release()
        del os.environ[RAY_FOLDER]
        del os.environ["TMPDIR"]
        if before is not None:
            os.environ["TMPDIR"] = before
        with suppress(OSError):  # there are logs of Ray in it
            folder.rmdir()
