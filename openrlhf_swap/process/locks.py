"""Locks on folders and files: two runs in one place would overwrite each other's files."""

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
            _lock(folder / LOCK, f"{flag} is {folders[flag]}", held)
        yield


def is_locked(folder: Path) -> bool:
    """Whether a run under way holds the lock on a folder."""
    from filelock import FileLock, Timeout

    lock = folder / LOCK
    if not lock.exists():
        return False
    with suppress(OSError):  # there are no locks here, or no rights
        try:
            FileLock(lock, timeout=0, fallback_to_soft=False).acquire().lock.release()
        except Timeout:
            return True
    return False


@contextmanager
def locked_file(flag: str, file: Path) -> Iterator[None]:
    """Hold a lock beside a file that a command continues; otherwise as `locked`."""
    with ExitStack() as held:
        _lock(file.with_name(f"{file.name}.lock"), f"{flag} is {file}", held)
        yield


def _lock(lock: Path, named: str, held: ExitStack) -> None:
    """Lock a file in a folder, which is made, until `held` is closed.

    `named` begins the message of a refusal.
    """
    from filelock import FileLock, Timeout

    folder = lock.parent
    created = [path for path in (folder, *folder.parents) if not path.exists()]
    folder.mkdir(parents=True, exist_ok=True)
    try:
        held.enter_context(FileLock(lock, timeout=0, fallback_to_soft=False))
    except Timeout:
        raise ConfigError(
            f"{named}, where another run is under way ({lock.name}); wait until it has ended, or "
            "use another place"
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
