"""One run to a folder: two would write into each other's metrics and delete each other's checkpoints."""

import errno
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path

from openrlhf_swap.errors import ConfigError

LOCK = "run.lock"


@contextmanager
def locked(folders: Mapping[str, Path]) -> Iterator[None]:
    """Hold a lock on each folder. The kernel drops it with the process, so a killed run blocks nobody.

    Args:
        folders: by the flags that name them; they are created, and removed if nothing was written there.

    Raises:
        ConfigError: when another run holds one of them.
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
