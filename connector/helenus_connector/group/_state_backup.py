"""A backup of a state on a file system that is no disk, such as an object store: of one leader, who alone writes there.

    files/N        what a file of the state had in it, once, under a number that no other file ever has
    manifests/N    which files the state is of, each with its number, size and checksum

A backup is complete when its manifest is there, which comes last; the newest one counts. So nothing is asked of a file
system but that it lists what was written. Nothing is written twice: a request that arrives late, as of a client that
gave up on it, replaces nothing. What no recent manifest names is removed later, as others may read it meanwhile.
"""

from __future__ import annotations

import contextlib
import json
import re
import shutil
import tempfile
import threading
import time
import zlib
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import FIRST_EXCEPTION, Executor, wait
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import Any

import structlog

from helenus_connector.control.checkpoint import latest_committed
from helenus_connector.group._hadoop_files import StateFiles, repeated
from helenus_connector.group._state_copy import is_moving, list_batch_files, list_own_files, name_schemas
from helenus_schemas.errors import HelenusError, Kind
from helenus_schemas.service import durable
from helenus_schemas.service.failpoints import reach

_log = structlog.get_logger(__name__)
_VERSION = 1
_FILES, _MANIFESTS = "files", "manifests"
_NUMBER = re.compile(r"\d{10}")
_MOST_ATTEMPTS = 5
_OBSOLETE_MANIFESTS = 10
"""So many newer manifests there are before what one alone names is removed. Who reads one is done by then, or begins
anew.
"""
_QUIET_S = 5.0
"""After so long without a batch the last one is saved as done."""
_NO_BATCH = -2
"""Nothing is saved: -1 is a state before its first batch."""
_BLOCK = 1 << 20


@dataclass(frozen=True)
class _FileVersion:
    """One content of a file of the state: Spark writes another one under the same name when it repeats a batch."""

    path: str
    inode: int
    modified_ns: int
    size: int

    @classmethod
    def read(cls, root: Path, path: Path) -> _FileVersion:
        status = (root / path).stat()
        return cls(path.as_posix(), status.st_ino, status.st_mtime_ns, status.st_size)


@dataclass(frozen=True)
class _Stored:
    """A file of a backup: its number, size in bytes and CRC-32."""

    number: int
    size: int
    crc32: int


class StateBackup:
    """The backup of the state in the local directory `source`, whose query's checkpoint is in `checkpoint` there, below
    `directory` of a file system. `pool` is for requests side by side.

    Any thread may call its methods. They raise HelenusError BATCH_FAILED.
    """

    def __init__(self, files: StateFiles, directory: str, source: Path, checkpoint: str, pool: Executor) -> None:
        self.directory = directory
        self._files = files
        self._source = source
        self._checkpoint = Path(checkpoint)
        self._pool = pool
        self._lock = threading.Lock()
        self._stored: dict[_FileVersion, _Stored] = {}
        self._next_number = 0
        self._manifest = -1
        self._unnamed: list[str] = []  # written in part perhaps, or named by manifests of before alone
        self._obsolete: deque[list[str]] = deque()
        self._saved_batch = _NO_BATCH
        self._saved_at = time.monotonic()

    def forget(self) -> None:
        """Note that another state is in the local directory from now on: all its files are to be stored."""
        with self._lock:
            self._unnamed += [self._name(stored) for stored in self._stored.values()]
            self._stored.clear()
            self._saved_batch = _NO_BATCH

    def save(self) -> None:
        """Save the state as it is. When this returns, `restore` finds all that was there before the call."""
        with self._lock, repeated():
            for _ in range(_MOST_ATTEMPTS):
                if self._save():
                    return
        problem = "the state changes so fast that it can't be saved"
        raise HelenusError(Kind.BATCH_FAILED, problem, str(self._source))

    def save_if_quiet(self) -> None:
        """Save the state if its last batch was done a while ago, and is not saved as done. Called often; errors are
        logged alone: the next batch saves before it publishes.
        """
        if time.monotonic() - self._saved_at < _QUIET_S or self._lock.locked():
            return
        self._saved_at = time.monotonic()
        if latest_committed(self._source / self._checkpoint) > self._saved_batch:
            self.save_or_log()

    def save_or_log(self) -> None:
        """Save the state; log why that is not possible."""
        try:
            self.save()
        except HelenusError as error:
            does = "the next batch tries it again; a leader that takes over now repeats the last one"
            _log.warning("state.not_saved", reason=str(error), does=does)

    def _save(self) -> bool:
        """Save the state. Return False if files of it vanished, or were written, meanwhile."""
        spark = self._source / self._checkpoint
        try:
            # 1. Our own files before the last batch is asked for: what they say of a later one is not so yet.
            versions = self._store(_without_checksums(list_own_files(self._source, self._checkpoint)))
            committed = latest_committed(spark)
            self._check_progress(committed)
            # 2. Spark's, which are added and removed.
            paths = _without_checksums(list_batch_files(self._source, self._checkpoint, committed))
            versions += self._store(paths)
        except FileNotFoundError:
            return False
        if any(version not in self._stored for version in versions) or is_moving(spark, committed):
            return False
        # 3. The manifest, which makes it a backup.
        entries = {version.path: self._stored[version] for version in versions}
        number = self._take_number()
        name = self._manifest_name(number)
        self._unnamed.append(name)  # a request that fails may arrive all the same
        text = json.dumps({path: [s.number, s.size, s.crc32] for path, s in entries.items()})
        with tempfile.TemporaryDirectory(dir=self._source.parent, prefix=".manifest-") as scratch:
            file = Path(scratch, "manifest")
            file.write_text(durable.sealed(text, _VERSION))
            reach("state.before-manifest")
            self._files.upload(file, name)
        reach("state.saved")
        self._unnamed.remove(name)
        self._saved_batch, self._saved_at = committed, time.monotonic()
        self._note_obsolete(number, frozenset(versions))
        return True

    def _check_progress(self, committed: int) -> None:
        """Raise HelenusError if somebody removed the state from the disk: what is left of it replaces no backup."""
        if committed < self._saved_batch:
            problem = f"the state on this worker's disk is gone, or older than its backup in {self.directory}"
            advice = "see who removed files there; remove the rest of this directory, and it comes from the backup"
            raise HelenusError(Kind.BATCH_FAILED, problem, str(self._source), advice)

    def _store(self, paths: Iterable[Path]) -> list[_FileVersion]:
        """Store those files that are not stored yet; return all. One that is written meanwhile is not."""
        versions = [_FileVersion.read(self._source, path) for path in paths]
        new = {version: self._take_number() for version in versions if version not in self._stored}
        _call_all(self._pool, self._upload, list(new.items()))
        return versions

    def _upload(self, version: _FileVersion, number: int) -> None:
        file = self._source / version.path
        stored = _Stored(number, version.size, _crc32(file))
        is_whole = False
        try:
            self._files.upload(file, self._name(stored))
            is_whole = _FileVersion.read(self._source, Path(version.path)) == version
        finally:
            if is_whole:
                self._stored[version] = stored
            else:
                self._unnamed.append(self._name(stored))

    def _note_obsolete(self, manifest: int, versions: frozenset[_FileVersion]) -> None:
        """Note what the new manifest does not name, and remove what was so a while ago."""
        dropped = [version for version in self._stored if version not in versions]
        obsolete = [*self._unnamed, *(self._name(self._stored.pop(version)) for version in dropped)]
        if self._manifest >= 0:
            obsolete.append(self._manifest_name(self._manifest))
        self._unnamed, self._manifest = [], manifest
        self._obsolete.append(obsolete)
        while len(self._obsolete) > _OBSOLETE_MANIFESTS:
            for name in self._obsolete.popleft():
                self._pool.submit(self._remove, name)

    def _remove(self, name: str) -> None:
        with contextlib.suppress(HelenusError, FileNotFoundError):  # it goes with the directory, by the next leader
            self._files.remove(name)

    def _take_number(self) -> int:
        self._next_number += 1
        return self._next_number

    def _name(self, stored: _Stored) -> str:
        return f"{self.directory}/{_FILES}/{stored.number:010d}"

    def _manifest_name(self, number: int) -> str:
        return f"{self.directory}/{_MANIFESTS}/{number:010d}"


def has_backup(files: StateFiles, directory: str) -> bool:
    """Return whether there is a backup below `directory`. Raises as `StateFiles`."""
    return bool(_numbers(files, directory))


def restore(files: StateFiles, directory: str, target: Path, checkpoint: str, pool: Executor) -> bool:
    """Make `target`, which does not exist, the state that the newest backup below `directory` has. Returns False if
    there is none. Raises OSError; HelenusError as `StateFiles`, and STATE for a backup that is damaged.
    """
    unfinished = target.with_name(f".{target.name}.copy")
    missing = FileNotFoundError()
    for _ in range(_MOST_ATTEMPTS):
        shutil.rmtree(unfinished, ignore_errors=True)
        unfinished.mkdir(parents=True, mode=0o700)
        try:
            entries = _newest_manifest(files, directory, unfinished)
            if entries is None:
                shutil.rmtree(unfinished)
                return False
            for parent in {unfinished / PurePosixPath(path).parent for path in entries}:
                parent.mkdir(parents=True, exist_ok=True)
            downloads = [(files, directory, unfinished / path, stored) for path, stored in entries.items()]
            _call_all(pool, _download, downloads)
        except FileNotFoundError as error:  # its leader still writes, and has removed what is obsolete
            missing = error
            continue
        name_schemas(unfinished / checkpoint, target / checkpoint)
        unfinished.rename(target)
        return True
    shutil.rmtree(unfinished, ignore_errors=True)
    advice = "let no rule of the bucket remove files; to begin the state anew, remove the directory of this backup"
    problem = "a file of a state's backup is gone"
    raise HelenusError(Kind.BATCH_FAILED, problem, missing.filename or directory, advice)


def _download(files: StateFiles, directory: str, target: Path, stored: _Stored) -> None:
    name = f"{directory}/{_FILES}/{stored.number:010d}"
    files.download(name, target)
    if target.stat().st_size != stored.size or _crc32(target) != stored.crc32:
        problem = "a file of a state's backup is damaged: it has another size or checksum than its manifest says"
        advice = "restore it from a copy of yours; or remove the backup's directory, and the state begins anew"
        raise HelenusError(Kind.STATE, problem, name, advice)


def _newest_manifest(files: StateFiles, directory: str, scratch: Path) -> dict[str, _Stored] | None:
    """Return the files by their paths, of the newest manifest that is whole; None if there is none. One that is not
    was being written when its leader ended, which then published nothing of it.
    """
    for number in sorted(_numbers(files, directory), reverse=True):
        file, name = scratch / ".manifest", f"{directory}/{_MANIFESTS}/{number:010d}"
        files.download(name, file)
        try:
            return _parse(durable.load(file, _VERSION))
        except durable.Damaged as error:
            _log.warning("state.manifest_damaged", file=name, reason=str(error), does="the one before it is taken")
        finally:
            file.unlink()
    return None


def _parse(content: Any) -> dict[str, _Stored]:
    """Return the files of a manifest. Raises Damaged for one that names a place outside of the state."""
    try:
        entries = {str(path): _Stored(*map(int, stored)) for path, stored in content.items()}
    except (AttributeError, TypeError, ValueError):
        raise durable.Damaged("it is no manifest") from None
    for path in entries:
        parts = PurePosixPath(path).parts
        if not parts or parts[0].startswith("/") or ".." in parts or "\0" in path:
            raise durable.Damaged("it names a file outside of the state")
    return entries


def _numbers(files: StateFiles, directory: str) -> list[int]:
    return [int(name) for name in files.list_names(f"{directory}/{_MANIFESTS}") if _NUMBER.fullmatch(name)]


def _without_checksums(paths: Iterable[Path]) -> Iterator[Path]:
    """Leave out Hadoop's files of checksums: what restores a file checks one of ours."""
    return (path for path in paths if path.suffix != ".crc")


def _call_all(pool: Executor, function: Callable[..., object], arguments: Sequence[tuple[Any, ...]]) -> None:
    """Call a function with each of these, side by side. Raises the first error; no call runs any more then, and those
    that had not begun are left out.
    """
    calls = [pool.submit(function, *values) for values in arguments]
    _, others = wait(calls, return_when=FIRST_EXCEPTION)
    for call in others:
        call.cancel()
    wait(calls)
    for call in calls:
        if not call.cancelled():
            call.result()


def _crc32(file: Path) -> int:
    checksum = 0
    with file.open("rb") as content:
        while block := content.read(_BLOCK):
            checksum = zlib.crc32(block, checksum)
    return checksum
