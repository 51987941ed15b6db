"""A Ray that no other user of the machine can use.

Without a token, Ray runs code for whoever can reach its ports. Its session folder, with logs and
sockets, has mode 0777, so it is put into a folder that only its owner may enter.
"""

import os
import secrets
import shutil
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from openrlhf_swap.errors import ConfigError

RAY_FOLDER = "RAY_TMPDIR"
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


@contextmanager
def _private_folder() -> Iterator[None]:
    """Give Ray, and vLLM's sockets and files, a folder of mode 0700; after an error it stays.

    It is not below TMPDIR, which is often long: the kernel takes short names of sockets only.
    """
    folder = Path(tempfile.mkdtemp(prefix="ray_", dir="/tmp"))
    before = os.environ.get("TMPDIR")
    os.environ[RAY_FOLDER] = str(folder)
    os.environ["TMPDIR"] = str(folder)
    try:
        yield
        shutil.rmtree(folder, ignore_errors=True)
    finally:
        del os.environ[RAY_FOLDER]
        del os.environ["TMPDIR"]
        if before is not None:
            os.environ["TMPDIR"] = before
        with suppress(OSError):  # there are logs of Ray in it
            folder.rmdir()
