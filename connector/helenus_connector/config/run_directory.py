"""The directory of a run on one host, in memory where there is such a place: caches, schema ids and plans lie there.

The driver makes it; where executors run on other hosts, their first task makes it there by the same name. Its users
hold a lock on it; a directory without a lock was left by a killed run. Large files that do not fit are on disk, in a
directory of the same name.

All of that lies where other users may make directories too. So none is used that is not this user's alone, and no link
is followed: a name that others can see, they can take first.
"""

from __future__ import annotations

import atexit
import errno
import fcntl
import os
import shutil
import stat
import tempfile
from pathlib import Path

import structlog

from helenus_schemas.errors import HelenusError, Kind
from helenus_schemas.service.ownership import make_private

_log = structlog.get_logger(__name__)
_PREFIX = "helenus-run-"
_MEMORY = Path("/dev/shm")
_SHORT_PATH = Path("/tmp")
_LONGEST_PATH = 60  # bytes: with the name of a socket, a UUID, it has to be below 104, which is macOS's limit
_SPARE_BYTES = 16 << 20  # of a run's small files: plans and the like, which are written again and again
_locks: dict[Path, int] = {}
_overflowing: set[Path] = set()


def make() -> Path:
    """Make a new directory, for this user alone. Removes what other runs left behind."""
    disk = Path(tempfile.gettempdir())
    for root in {_MEMORY, disk, _SHORT_PATH}:
        _remove_leftovers(root)
    root = _MEMORY if os.access(_MEMORY, os.W_OK) and has_room(_MEMORY, 0) else disk
    return use(Path(tempfile.mkdtemp(prefix=_PREFIX, dir=root)))


def socket_directory(directory: Path) -> Path:
    """Return the run's directory, or one for this process's sockets where its path is too long for theirs."""
    if len(os.fsencode(directory)) <= _LONGEST_PATH:
        return directory
    short = use(Path(tempfile.mkdtemp(prefix=_PREFIX, dir=_SHORT_PATH)))
    atexit.register(shutil.rmtree, short, ignore_errors=True)
    return short


def has_room(path: Path | int, size: int) -> bool:
    """Return whether the file system of a directory, or of an open file, has room for these bytes and a run's small
    files.
    """
    space = os.statvfs(path)
    return space.f_bavail * space.f_frsize >= size + _SPARE_BYTES


def use(directory: Path) -> Path:
    """Make the directory if it does not exist, lock it for the life of this process, and return it.

    Raises HelenusError(STATE) if it is not this user's alone.
    """
    if directory in _locks and directory.exists():
        return directory
    if not directory.exists() and directory.parent.is_dir():
        _remove_leftovers(directory.parent)
    try:
        directory.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        make_private(directory)
        _locks[directory] = os.open(directory / "lock", os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW, 0o600)
    except OSError as error:
        advice = "find out who made it, remove it, and start the worker again"
        raise HelenusError(Kind.STATE, f"cannot use a directory: {error.strerror}", str(directory), advice) from None
    fcntl.flock(_locks[directory], fcntl.LOCK_SH)
    if directory.parent == _MEMORY and directory.name.startswith(_PREFIX):
        # Before others see the name, and take it.
        use(_disk_directory(directory))
    return directory


def on_disk(file: Path) -> Path:
    """Return the path on disk for a file that the directory in use has no room for. Raises OSError if it exists
    already.
    """
    directory = next((locked for locked in _locks if locked in file.parents), None)
    if directory is None or directory == _disk_directory(directory):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(file))
    if directory not in _overflowing:
        _overflowing.add(directory)
        advice = f"give {_MEMORY} more room, or set a lower cache.max.capacity"
        _log.warning("cache.on_disk", directory=str(_disk_directory(directory)), advice=advice)
    moved = use(_disk_directory(directory)) / file.relative_to(directory)
    moved.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    return moved


def _disk_directory(directory: Path) -> Path:
    return Path(tempfile.gettempdir()) / directory.name


def replace(file: Path, content: bytes) -> None:
    """Write a file of a run, for this user alone. A reader finds the old content or the new; a crash may lose both."""
    new = file.with_name(f"{file.name}.new")
    with open(os.open(new, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_NOFOLLOW, 0o600), "wb") as out:
        out.write(content)
    new.replace(file)


def remove(directory: Path) -> None:
    """Remove a directory, and its files on disk."""
    for path in {directory, _disk_directory(directory)}:
        shutil.rmtree(path, ignore_errors=True)


def _remove_leftovers(root: Path) -> None:
    for leftover in root.glob(f"{_PREFIX}*"):
        try:
            status = leftover.lstat()
            if status.st_uid != os.geteuid() or not stat.S_ISDIR(status.st_mode):
                continue
            lock = os.open(leftover / "lock", os.O_RDWR | os.O_NOFOLLOW)
        except OSError:
            continue
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            shutil.rmtree(leftover, ignore_errors=True)
        except OSError:
            pass  # it is in use
        finally:
            os.close(lock)
