"""Where the bytes of segments come from: the interface of a source, and the one that the agent follows, a directory.

`segment.source=package.module:Class` names a class that implements `SegmentSource` for `helenus-agent resend`.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Protocol

from helenus_agent.commitlog.segment_name import index_path, parse_name


class SegmentBytes(Protocol):
    """A segment that is open: its bytes, at any offset. One thread at a time uses it."""

    def read(self, size: int, offset: int) -> bytes:
        """Return `size` bytes from `offset` on (both in bytes); fewer only where the segment ends before. OSError is
        raised where it can't be read.

        It is called for each look and each piece, of 4 bytes to 1 MiB, mostly in the order of the file.
        """
        ...

    def size(self) -> int:
        """Return how many bytes there are now: a segment that Cassandra writes to may grow."""
        ...

    def modified_s(self) -> float:
        """Return when it was written to last, in s since the epoch; 0 if that is not known."""
        ...

    def close(self) -> None:
        """Let go of it. Nothing else is called after that."""
        ...


class SegmentSource(Protocol):
    """A place that has segments, and is only read: nothing is moved, deleted or written there.

    `Class(config)` makes one, with the properties below `segment.source.config.`, references such as `${env:X}`
    replaced by what they stand for. That must not connect: `helenus-agent validate` makes one to see. One thread uses
    it. Segments are complete: whoever put them there will not change them.

    Errors: FileNotFoundError for a segment that is not there, another OSError for one that can't be read; any other
    exception counts as that too. They end the command, which can be repeated: what was sent before is sent again.
    Messages are shown and logged: they must have no secrets.
    """

    def list_segments(self) -> Sequence[Path]:
        """Return the paths of all segments, in any order. The last part of each is the name that Cassandra gave it,
        `CommitLog-7-1700000000000.log`; what is before that, the source decides. Called once.
        """
        ...

    def open_segment(self, path: Path) -> SegmentBytes:
        """Open one of those. Called once for each that is read, in the order of their ids; it is closed before the
        next one is opened.
        """
        ...

    def read_index(self, path: Path) -> str:
        """Return the text of a segment's index, `CommitLog-7-1700000000000_cdc.idx` of Cassandra's; empty if there is
        none. With it, a segment that ends too early is found to be damaged.
        """
        ...

    def close(self) -> None:
        """Let go of all connections. Nothing else is called after that."""
        ...


class SegmentSourceFactory(Protocol):
    """A class of sources."""

    def __call__(self, config: Mapping[str, str]) -> SegmentSource: ...


class LocalSegment:
    """A segment in a file of this machine. Raises OSError."""

    __slots__ = ("_descriptor",)

    def __init__(self, path: Path) -> None:
        self._descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)

    def read(self, size: int, offset: int) -> bytes:
        """Read as `SegmentBytes` says."""
        return os.pread(self._descriptor, size, offset)

    def size(self) -> int:
        """Return the file's size in bytes."""
        return os.fstat(self._descriptor).st_size

    def modified_s(self) -> float:
        """Return when the file was written to last, in s since the epoch."""
        return os.fstat(self._descriptor).st_mtime

    def close(self) -> None:
        """Close the file."""
        os.close(self._descriptor)


class DirectorySource:
    """A directory of this machine: cdc_raw, or one that `segment.transfer=archive` filled. Raises OSError."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory

    def list_segments(self) -> list[Path]:
        """Return the segments in it."""
        return [path for path in self._directory.iterdir() if parse_name(path.name)]

    def open_segment(self, path: Path) -> LocalSegment:
        """Open a segment, in whatever directory it is."""
        return LocalSegment(path)

    def read_index(self, path: Path) -> str:
        """Return the text of the index beside a segment, empty if there is none."""
        with contextlib.suppress(OSError, UnicodeDecodeError), open(index_path(path), encoding="ascii") as file:
            return file.read(64)
        return ""

    def close(self) -> None:
        """Do nothing: nothing is open."""


CDC_RAW = DirectorySource(Path())
"""What opens the segments that the agent follows: `segments.segment_queue` lists these itself, since it has to know
which of them the node still has.
"""


def parse_index(text: str) -> tuple[int, bool] | None:
    """Return what an index says: up to which position its segment is on disk, and whether it is complete.

    None for an empty one, or half of one: Cassandra rewrites it in place. After a crash it names the file's size
    instead, however far its sections go.
    """
    position, *lines = text[:64].split("\n")
    try:
        return (int(position), "COMPLETED" in lines) if len(position) <= 10 else None  # it is an int of Java's
    except ValueError:
        return None


def read_index(path: Path) -> tuple[int, bool] | None:
    """Return the index beside a segment of this machine, as `parse_index`; None if there is none."""
    return parse_index(CDC_RAW.read_index(path))
