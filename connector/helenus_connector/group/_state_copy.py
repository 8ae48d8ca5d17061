"""A copy of a state that another worker may still write to: files of a checkpoint are added and removed, not changed.

    our own files → the last batch that is committed, C → offsets to C + 1, commits to C → the state up to version C + 1

Spark writes in the opposite order. So the copy is what a worker that was killed would have left behind: the state after
C, and where the batch after it ends, if that is known.
"""

from __future__ import annotations

import json
import os
import re
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path

from helenus_connector.control.checkpoint import latest_committed
from helenus_schemas.service import durable

_OFFSETS, _COMMITS, _STATE, _SHARED_FILES = "offsets", "commits", "state", "SSTs"
_NOT_COPIED = frozenset({"writers"})
"""A lock, which is of its own directory."""
_UNFINISHED = (".tmp", ".new")
_METADATA = "_metadata"
_SCHEMA_PATH = re.compile(r'"(file:)?[^"]*(/state/\d+/_stateSchema/[^"]+)"')
"""In Spark's metadata of an operator: it names its files of schemas by their whole paths."""
_BATCH = re.compile(r"\.?(\d+)(?:\.crc)?")
_VERSION = re.compile(r"\.?(\d+)(?:_[^.]*)?\.(?:changelog|zip|delta|snapshot)(?:\.crc)?")
_MOST_ATTEMPTS = 5
_MOST_NEW_BATCHES = 5
"""Spark removes what ten batches before needed (`minBatchesToRetain` of queries with state)."""


class Moving(Exception):
    """The state was written to so fast that no copy of it is whole."""


def copy_state(source: Path, target: Path, checkpoint: str) -> None:
    """Make `target`, which does not exist, a copy of the state in `source`, whose query's checkpoint is the directory
    `checkpoint` in it: by links where the file system has them. When it returns, all of it is on disk, or nothing is
    there. Raises Moving, and OSError.
    """
    unfinished = target.with_name(f".{target.name}.copy")
    for _ in range(_MOST_ATTEMPTS):
        shutil.rmtree(unfinished, ignore_errors=True)
        unfinished.mkdir(parents=True)
        if _copy(source, unfinished, Path(checkpoint)):
            name_schemas(unfinished / checkpoint, target / checkpoint)
            for directory, _, _ in os.walk(unfinished):
                durable.sync(Path(directory))
            unfinished.rename(target)
            durable.sync(target.parent)
            return
    shutil.rmtree(unfinished, ignore_errors=True)
    raise Moving


def _copy(source: Path, target: Path, checkpoint: Path) -> bool:
    """Copy the files of a state. Returns False if some of them vanished meanwhile."""
    spark = source / checkpoint
    try:
        # Before the last batch is asked for: what they say of a later one is not so yet.
        for path in list_own_files(source, checkpoint):
            _link(source / path, target / path)
        # Before the snapshots that share them: Spark removes a snapshot, and then what it alone needs.
        shared = set(_shared_files(source, checkpoint))
        for path in shared:
            _link(source / path, target / path)
        committed = latest_committed(spark)
        for path in list_batch_files(source, checkpoint, committed):
            if path not in shared:
                _link(source / path, target / path)
    except FileNotFoundError:
        return False
    return not is_moving(spark, committed)


def list_own_files(source: Path, checkpoint: Path) -> Iterator[Path]:
    """Yield the files of a state that are no batch's, as paths below `source`. Raises OSError."""
    return _wanted_files(source, Path(), lambda path: _part(path, checkpoint) is None)


def list_batch_files(source: Path, checkpoint: Path, committed: int) -> Iterator[Path]:
    """Yield Spark's files of the state after the batch `committed`, and of where the batch after it ends, as paths
    below `source`. Raises OSError.
    """
    for part in (_OFFSETS, _COMMITS, _STATE):
        yield from _wanted_files(source, checkpoint / part, lambda path: _is_wanted(path, checkpoint, committed))
    # A snapshot is there once all files are that it shares with others.
    yield from _shared_files(source, checkpoint)


def is_moving(spark: Path, committed: int) -> bool:
    """Return whether Spark may have removed files of the state after the batch `committed` by now."""
    return latest_committed(spark) - committed >= _MOST_NEW_BATCHES


def name_schemas(spark: Path, final: Path) -> None:
    """Have the metadata in a copy of a checkpoint name the files of the copy, which is to be `final`."""
    prefix = json.dumps(str(final))[1:-1]
    for directory in spark.glob(f"{_STATE}/*/{_METADATA}"):
        for path in [path for path in directory.rglob("*") if path.is_file()]:
            text = path.read_text()
            path.unlink()  # or the former leader's changes too, which is the same file
            path.write_text(_SCHEMA_PATH.sub(lambda match: f'"{match[1] or ""}{prefix}{match[2]}"', text))
            durable.sync(path)


def _shared_files(source: Path, checkpoint: Path) -> Iterator[Path]:
    """Yield the files that snapshots of the state share, as paths below `source`. Raises OSError."""
    return _wanted_files(source, checkpoint / _STATE, lambda path: _SHARED_FILES in path.parts)


def _wanted_files(source: Path, part: Path, is_wanted: Callable[[Path], bool]) -> Iterator[Path]:
    for path in _files(source, part):
        if path.name not in _NOT_COPIED and path.suffix not in _UNFINISHED and is_wanted(path):
            yield path


def _files(source: Path, part: Path) -> Iterator[Path]:
    """Yield the files below a part of the source, as paths below the source. Raises OSError if they can't be listed."""

    def refuse(error: OSError) -> None:
        raise error

    if (source / part).is_dir():
        for directory, _, names in os.walk(source / part, onerror=refuse):
            for name in names:
                yield Path(directory, name).relative_to(source)


def _part(path: Path, checkpoint: Path) -> str | None:
    """Return the part of Spark's checkpoint that a file is in, None for one that is no batch's."""
    part = path.relative_to(checkpoint).parts[0] if path.is_relative_to(checkpoint) else ""
    return part if part in (_OFFSETS, _COMMITS, _STATE) else None


def _is_wanted(path: Path, checkpoint: Path, committed: int) -> bool:
    """Return whether a file of Spark's is of the state after the batch `committed`, or of the batch that follows."""
    part = _part(path, checkpoint)
    if part == _STATE:
        if _METADATA in path.parts:
            return path.suffix != ".crc"  # it is of the paths before
        version = _VERSION.fullmatch(path.name)
        return _SHARED_FILES not in path.parts and (version is None or int(version[1]) <= committed + 1)
    batch = _BATCH.fullmatch(path.name)
    return batch is not None and int(batch[1]) <= committed + (part == _OFFSETS)


def _link(source: Path, target: Path) -> None:
    """Link a file, or copy it where the file system has no links."""
    target.parent.mkdir(parents=True, exist_ok=True)
    try:
        os.link(source, target, follow_symlinks=False)
    except FileNotFoundError:
        raise
    except OSError:
        shutil.copyfile(source, target)
        durable.sync(target)
