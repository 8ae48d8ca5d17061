"""The directory of a run on one host, in memory where there is such a place: caches, schema ids and plans lie there.

The driver makes it; where executors run on other hosts, their first task makes it there by the same name. Its users
hold a lock on it; a directory without a lock was left by a killed run. Large files that do not fit are on disk, in a
directory of the same name.
"""

from __future__ import annotations

import errno
import fcntl
import os
import shutil
import tempfile
from pathlib import Path

import structlog

_log = structlog.get_logger(__name__)
_PREFIX = "helenus-run-"
_MEMORY = Path("/dev/shm")
_SPARE_BYTES = 16 << 20  # of a run's small files: plans and the like, which are written again and again
_locks: dict[Path, int] = {}


def make() -> Path:
    """A new directory, for this user alone. Removes what other runs left behind."""
    disk = Path(tempfile.gettempdir())
    for place in {_MEMORY, disk}:
        _clean(place)
    root = _MEMORY if os.access(_MEMORY, os.W_OK) and has_room(_MEMORY, 0) else disk
    return use(Path(tempfile.mkdtemp(prefix=_PREFIX, dir=root)))


def has_room(place: Path | int, size: int) -> bool:
    """Whether the file system of a directory, or of an open file, has room for these bytes and a run's small files."""
    about = os.statvfs(place)
    return about.f_bavail * about.f_frsize >= size + _SPARE_BYTES


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


def on_disk(file: Path) -> Path:
    """The place on disk for a file that the directory in use has no room for. Raises OSError if it exists already."""
    disk = Path(tempfile.gettempdir())
    directory = next((held for held in _locks if held in file.parents), None)
    if directory is None or directory.parent == disk:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(file))
    other = disk / directory.name
    if other not in _locks:
        advice = f"give {_MEMORY} more room, or set a lower cache.max.capacity"
        _log.warning("cache.on_disk", directory=str(other), advice=advice)
    moved = use(other) / file.relative_to(directory)
    moved.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    return moved


def replace(file: Path, content: bytes) -> None:
    """Write a file of a run, for this user alone. A reader finds the old content or the new; a crash may lose both."""
    new = file.with_name(f"{file.name}.new")
    with open(os.open(new, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), "wb") as out:
        out.write(content)
    new.replace(file)


def remove(directory: Path) -> None:
    """Remove a directory, and its files on disk."""
    for place in {directory, Path(tempfile.gettempdir()) / directory.name}:
        shutil.rmtree(place, ignore_errors=True)


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
