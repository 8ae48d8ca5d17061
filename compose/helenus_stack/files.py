"""Where the stack keeps what it shares between directories, and how processes take turns."""

from __future__ import annotations

import fcntl
import os
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from helenus_stack.progress import Progress


def cache_directory() -> Path:
    """The user's cache: `$XDG_CACHE_HOME/helenus` or `~/.cache/helenus`."""
    base = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    return Path(base) / "helenus"


@contextmanager
def exclusive(path: Path, progress: Progress, busy: str) -> Iterator[None]:
    """Holds the lock file `path`, waiting for another holder and reporting `busy` meanwhile.

    The kernel frees the lock when its holder dies, however it dies.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    with open(path, "w") as file:
        while not try_lock(file.fileno()):
            progress.waiting(busy)
            time.sleep(0.1)
        yield


def try_lock(descriptor: int) -> bool:
    """Takes the lock of an open file, if nobody has it; it is held until the file is closed."""
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def write_atomically(path: Path, text: str, mode: int = 0o644) -> None:
    """Replaces a file as a whole: a reader sees the old text or the new."""
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = path.with_name(f".{path.name}.{os.getpid()}")
    temporary.touch(mode)
    temporary.write_text(text)
    temporary.replace(path)
