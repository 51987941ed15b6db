"""What Ray is told before it starts on this machine: to ask for a token, and to keep its files to their owner.

Without a token, Ray runs code for whoever can reach its ports, which includes every user of the machine. Its session
folder, with logs and sockets, has mode 0777, so it is put into a folder that only its owner may enter.
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

FOLDER = "RAY_TMPDIR"


@contextmanager
def private_ray() -> Iterator[None]:
    """Close a Ray that this process or its children start to other users. Enter before Ray is imported.

    What the environment already says about the token or the folder stays. With RAY_ADDRESS nothing is changed: that
    cluster has its own token, or none. The folder is deleted when the block ends without an error; after one, its logs
    may be of use.

    Raises:
        ConfigError: if Ray is imported without a token.
    """
    if "RAY_ADDRESS" in os.environ:
        yield
        return
    if "RAY_AUTH_MODE" not in os.environ and "ray" in sys.modules:
        raise ConfigError(
            "RAY_AUTH_MODE is not set, and Ray, which reads it once, is imported already; set it to token before"
        )
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
