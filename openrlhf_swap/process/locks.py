"""Locks on a run's folders: two runs in one folder would overwrite each other's files."""

import errno
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path

from openrlhf_swap.errors import ConfigError

LOCK = "run.lock"
_NO_LOCKS = (errno.ENOLCK, errno.EOPNOTSUPP, errno.ENOSYS)


@contextmanager
def locked(folders: Mapping[str, Path]) -> Iterator[None]:
    """Hold a lock on each folder, by the flag that names it; the kernel drops it with the process.

    New folders are removed if nothing was written there. Raises ConfigError when another run holds
    one of them.
    """
    flags = {folder.resolve(): flag for flag, folder in folders.items()}
    with ExitStack() as held:
        for folder, flag in flags.items():
            _lock(folder, f"{flag} is {folders[flag]}", held)
        yield


def _lock(folder: Path, named: str, held: ExitStack) -> None:
    """Make and lock one folder until `held` is closed; `named` begins the message of a refusal."""
    from filelock import FileLock, Timeout

    created = [path for path in (folder, *folder.parents) if not path.exists()]
    folder.mkdir(parents=True, exist_ok=True)
    lock = folder / LOCK
    try:
        held.enter_context(FileLock(lock, timeout=0, fallback_to_soft=False))
    except Timeout:
        raise ConfigError(
            f"{named}, where another run is under way ({LOCK}); wait until it has ended, or "
            "use another folder"
        ) from None
    except OSError as error:
        if error.errno not in _NO_LOCKS:
            raise
        print(f"[swap] the file system of {folder} has no locks; start no second run there")
    else:
        held.callback(_clean_up, lock, created)


def _clean_up(lock: Path, created: list[Path]) -> None:
    """Remove a lock that is held, and the new folders that hold nothing now, innermost first."""
    lock.unlink(missing_ok=True)
    with suppress(OSError):
        for folder in created:
            folder.rmdir()
