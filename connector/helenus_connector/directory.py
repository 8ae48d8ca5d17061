"""The directory of a run on one host, in memory where there is such a place: caches, schema ids and plans lie there.

The driver makes it; where executors run on other hosts, their first task makes it there by the same name. Whoever uses
it holds a lock on it, so that what a killed run left can be told from what is in use.
"""

from __future__ import annotations

import fcntl
import os
import shutil
import tempfile
from pathlib import Path

_PREFIX = "helenus-"
_locks: dict[Path, int] = {}


def make() -> Path:
    """A new directory, for this user alone. Removes what other runs left behind."""
    base = Path("/dev/shm")
    root = base if os.access(base, os.W_OK) else Path(tempfile.gettempdir())
    _clean(root)
    return use(Path(tempfile.mkdtemp(prefix=_PREFIX, dir=root)))


def use(directory: Path) -> Path:
    """The same directory, made if it is not there, and locked for the life of this process."""
    if not directory.exists():
        if directory.parent.is_dir():
            _clean(directory.parent)
        directory.mkdir(mode=0o700, parents=True, exist_ok=True)
        _locks.pop(directory, None)
    if directory not in _locks:
        _locks[directory] = os.open(directory / "lock", os.O_RDWR | os.O_CREAT, 0o600)
        fcntl.flock(_locks[directory], fcntl.LOCK_SH)
    return directory


def _clean(root: Path) -> None:
    for left in root.glob(f"{_PREFIX}*"):
        try:
            if left.stat().st_uid != os.getuid():
                continue
            lock = os.open(left / "lock", os.O_RDWR)
        except OSError:
            continue
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            shutil.rmtree(left, ignore_errors=True)
        except OSError:
            pass  # it is in use
        finally:
            os.close(lock)
