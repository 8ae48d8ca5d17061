"""Where a segment goes: `segment.transfer` for a fully processed one, a directory for one that can't be read.

delete                Cassandra may use its space again
archive               it is moved to segment.archive.dir
package.module:Name   a function of yours, or a class, of which one is made without arguments and then called
"""

from __future__ import annotations

import errno
import filecmp
import inspect
import os
import shutil
from collections.abc import Callable
from pathlib import Path

import structlog

from helenus_agent.commitlog.segment_name import index_path
from helenus_schemas.errors import HelenusError, Kind
from helenus_schemas.service.durable import sync
from helenus_schemas.service.failpoints import reach
from helenus_schemas.settings.named_class import import_named

_log = structlog.get_logger(__name__)

Transfer = Callable[[Path], object]
"""Takes a segment out of cdc_raw, its index `<name>_cdc.idx` too: complete, and all its changes are acknowledged.

It runs in the agent's only thread: a slow one delays the events. It may be called again for the same segment,
after a crash or an error, and files may be gone already. A HelenusError that it raises does what its kind says, any
other exception counts as TRANSFER_FAILED: the agent goes on and calls it again later. To leave the segment in cdc_raw,
where it counts against the node's cdc_total_space, is a failure too.
"""


def transfer_of(name: str, archive: Path | None) -> Transfer:
    """Return the transfer of this name. Raises HelenusError(CONFIG)."""
    if name == "delete":
        return delete
    if name == "archive":
        assert archive is not None
        if archive.exists() and not archive.is_dir():
            raise HelenusError(Kind.CONFIG, "segment.archive.dir is not a directory", str(archive))
        return lambda path: _archive(path, archive)
    return _load_transfer(name)


def delete(path: Path) -> None:
    """Delete it: Cassandra may use its space again. Raises HelenusError(CDC_DIRECTORY)."""
    try:
        # The segment first: it is what takes the space. Cassandra cares for neither any more.
        path.unlink(missing_ok=True)
        index_path(path).unlink(missing_ok=True)
    except OSError as error:
        raise HelenusError(Kind.CDC_DIRECTORY, f"cannot delete the segment: {error.strerror}", str(path)) from None


def move(path: Path, directory: Path) -> Path:
    """Move it into a directory, also one on another file system; return its new path.

    Killed at any point, it is whole in one of the two places, and a second call ends the work. One that is in neither
    was deleted by somebody else: then nothing is at the new path. Raises HelenusError: TRANSFER_FAILED where it can't
    be put there, CDC_DIRECTORY where it can't be taken away.
    """
    target = directory / path.name
    try:
        directory.mkdir(parents=True, exist_ok=True)
        if path.exists():
            _link_or_copy(path, target)
        if index_path(path).exists():
            _copy(index_path(path), index_path(target))
        sync(directory)
    except OSError as error:
        raise HelenusError(Kind.TRANSFER_FAILED, f"cannot move the segment: {error.strerror}", str(target)) from None
    reach("transfer.after-copy")
    delete(path)
    return target


def _archive(path: Path, directory: Path) -> None:
    target = move(path, directory)
    if not target.exists():
        # It was held open and read to its end, so its changes are published; but no copy of it is left.
        advice = "something else deletes segments in cdc_raw: another agent, or the node with cdc_block_writes: false"
        _log.error("segment.not_archived", path=str(path), advice=advice)


def _load_transfer(name: str) -> Transfer:
    try:
        target = import_named(name)
        transfer = target() if inspect.isclass(target) else target
    except Exception as error:  # whatever a class raises when one is made of it
        raise HelenusError(Kind.CONFIG, f"segment.transfer: {error}", name) from None
    if not callable(transfer):
        raise HelenusError(Kind.CONFIG, "segment.transfer: it can't be called with a segment's path", name)

    def run_transfer(path: Path) -> None:
        try:
            transfer(path)
        except HelenusError:
            raise
        except Exception as error:
            message = f"{name} failed: {type(error).__name__}: {error}"
            raise HelenusError(Kind.TRANSFER_FAILED, message, str(path)) from error
        if path.exists():
            raise HelenusError(Kind.TRANSFER_FAILED, f"{name} left it in cdc_raw", str(path))

    return run_transfer


def _link_or_copy(source: Path, target: Path) -> None:
    if target.exists():
        # From before a crash, and whole: both ways to make it are atomic. Or it is another node's.
        if not filecmp.cmp(source, target, shallow=False):
            raise FileExistsError(errno.EEXIST, "another segment of this name is there")
        return
    try:
        os.link(source, target)
    except OSError:
        # Another file system, or one without links.
        _copy(source, target)


def _copy(source: Path, target: Path) -> None:
    part = target.with_name(target.name + ".part")
    shutil.copyfile(source, part)
    shutil.copymode(source, part)  # as Cassandra made it: a link has that too
    with open(part, "rb") as file:
        os.fsync(file.fileno())
    part.replace(target)
