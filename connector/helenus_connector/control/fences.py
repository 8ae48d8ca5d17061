"""Locks that keep two writers from one data topic: one on `checkpoint.dir`, and fences between the starts of a query.

Both are file locks of the operating system: the kernel releases them when their process ends, however that happens.
Where the file system has no locks, the worker warns and goes on.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
import socket
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from pathlib import Path

import structlog

from helenus_schemas.errors import HelenusError, Kind
from helenus_schemas.service.ownership import check_directory, open_lock

_log = structlog.get_logger(__name__)
_NO_LOCKS = {errno.ENOLCK, errno.ENOSYS, errno.EOPNOTSUPP}
_NOT_SHARED = (FileNotFoundError, NotADirectoryError, PermissionError)
"""Of an executor that has no `checkpoint.dir`, or runs as somebody else."""
_LOCK = "worker.lock"
_FENCE = "writers"
_RETRY_S = 0.2
_LOG_EVERY_S = 10.0


@contextlib.contextmanager
def owned(
    directory: Path,
    waits: Callable[[], bool],
    stopping: Callable[[], bool] = lambda: False,
    stand_by: Callable[[Callable[[], str]], AbstractContextManager[object]] = contextlib.nullcontext,
) -> Iterator[bool]:
    """Lock `checkpoint.dir` for this process. While `waits` is true, wait for another process that has it: within
    `stand_by`, which is called with a function that returns for whom.

    Yields False, without the lock, if it is `stopping` before. Raises HelenusError: STATE, which names the owner, or
    CONFIG if other users may change the directory.
    """
    check_directory(directory, "checkpoint.dir")
    try:
        directory.mkdir(mode=0o700, parents=True, exist_ok=True)
        lock = open_lock(directory / _LOCK)
    except OSError as error:
        problem = f"cannot write to checkpoint.dir: {error.strerror}"
        raise HelenusError(Kind.STATE, problem, error.filename or str(directory)) from None
    try:
        if not _await_lock(lock, directory, waits, stopping, stand_by):
            yield False
            return
        since = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())
        owner_text = f"host {socket.gethostname()}, process {os.getpid()}, since {since}\n"
        with contextlib.suppress(OSError):  # for example a full disk: only the lock counts
            os.ftruncate(lock, 0)
            os.pwrite(lock, owner_text.encode(), 0)
        yield True
    finally:
        os.close(lock)


def _await_lock(
    lock: int,
    directory: Path,
    waits: Callable[[], bool],
    stopping: Callable[[], bool],
    stand_by: Callable[[Callable[[], str]], AbstractContextManager[object]],
) -> bool:
    """Take the lock, as `owned`; returns False if it is `stopping` before."""

    def reason() -> str:
        return f"another worker has checkpoint.dir: {_read_owner(lock)}"

    with contextlib.ExitStack() as standing_by:
        is_first = True
        while not _try_lock(lock, directory):
            if stopping():
                return False
            if not waits():
                problem = f"another worker has this checkpoint.dir: {_read_owner(lock)}"
                advice = "stop it, give this one its own, or have it stand by with standby.timeout.ms=-1"
                raise HelenusError(Kind.STATE, problem, str(directory), f"two would undo each other's order: {advice}")
            if is_first:
                is_first = False
                _log.info("worker.standby", reason=reason())
                standing_by.enter_context(stand_by(reason))
            time.sleep(_RETRY_S)
        if not is_first:
            _log.info("worker.took_over", directory=str(directory))
    return True


def owner(directory: Path) -> str | None:
    """Return which process has `checkpoint.dir` now, by its lock; None if it is free."""
    try:
        lock = os.open(directory / _LOCK, os.O_RDONLY)
    except OSError:
        return None
    try:
        fcntl.flock(lock, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return _read_owner(lock)
    except OSError:
        return None
    finally:
        os.close(lock)
    return None


def _read_owner(lock: int) -> str:
    return os.pread(lock, 1000, 0).decode(errors="replace").strip() or "unknown"


def _try_lock(lock: int, directory: Path) -> bool:
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    except OSError as error:
        if error.errno not in _NO_LOCKS:
            raise HelenusError(Kind.STATE, f"cannot lock checkpoint.dir: {error.strerror}", str(directory)) from None
        advice = "run one worker at a time on it: nothing else keeps a second one away"
        _log.warning("checkpoint.not_locked", directory=str(directory), reason=error.strerror, advice=advice)
    return True


def fence_all(directory: Path, stopping: Callable[[], bool]) -> None:
    """Call `fence` for all queries that ever ran in `checkpoint.dir`: their connectors may be in others now."""
    for fence_file in directory.glob(f"*/{_FENCE}"):
        fence(fence_file.parent, stopping)


def fence(checkpoint: Path, stopping: Callable[[], bool]) -> int | None:
    """Wait until no task of an earlier start of this query runs, and let none of them begin later.

    Returns the number of this start, with which its tasks `enter`; None if it is `stopping` before. Raises
    HelenusError(STATE).
    """
    try:
        checkpoint.mkdir(parents=True, exist_ok=True)
        fence_lock = open_lock(checkpoint / _FENCE)
    except OSError as error:
        raise HelenusError(Kind.STATE, f"cannot write to checkpoint.dir: {error.strerror}", str(checkpoint)) from None
    try:
        started = logged = time.monotonic()
        while not _try_lock(fence_lock, checkpoint):
            if stopping():
                return None
            if (now := time.monotonic()) - logged > _LOG_EVERY_S:
                logged = now
                _log.warning("query.waiting", reason="tasks of its last start still run", for_s=round(now - started))
            time.sleep(_RETRY_S)
        start = _read_start(fence_lock) + 1
        os.pwrite(fence_lock, f"{start:<20}".encode(), 0)
        return start
    except OSError as error:
        raise HelenusError(Kind.STATE, f"cannot write a file: {error.strerror}", str(checkpoint / _FENCE)) from None
    finally:
        os.close(fence_lock)


@contextlib.contextmanager
def enter(checkpoint: Path, start: int) -> Iterator[None]:
    """Run as a task of this start of a query. Without effect where executors don't share `checkpoint.dir`.

    Raises HelenusError(BATCH_FAILED) if the query has been started again since, or if nobody can tell.
    """
    try:
        handle = os.open(checkpoint / _FENCE, os.O_RDONLY)
    except _NOT_SHARED:
        yield
        return
    except OSError as error:  # as of too many open files
        problem = f"cannot tell whether the query of this task was started again: {error.strerror}"
        raise HelenusError(Kind.BATCH_FAILED, problem, str(checkpoint / _FENCE)) from None
    try:
        with contextlib.suppress(OSError):
            fcntl.flock(handle, fcntl.LOCK_SH)
        if _read_start(handle) != start:
            raise HelenusError(Kind.BATCH_FAILED, "the query of this task was started again", str(checkpoint))
        yield
    finally:
        os.close(handle)


def _read_start(handle: int) -> int:
    text = os.pread(handle, 20, 0).strip()
    return int(text) if text.isdigit() else 0
