"""A commit-log segment as a file: its name, header, index and sync markers. Format: version 7, Cassandra 4.0 - 5.0.

    header = int version, long id, ushort length, `length` bytes of JSON, int crc over version, the id's low and high
             int, the length as int, the JSON (CommitLogDescriptor)
    then sections, each int end, int crc over the id's low and high int and the marker's own offset; entries up to
    `end`, where the next marker is (CommitLogSegment.writeSyncMarker). Nothing more: less than 8 bytes, or zeros.
    index  = beside it `<name>_cdc.idx`: a decimal offset; a second line COMPLETED once nothing more will be written.
             It is there only if the segment holds changes of tables with CDC.

All numbers big-endian. A segment has its full size from the start, zeros where nothing is written yet; Cassandra writes
through a memory map, so what a marker says is there at once, and a marker's two ints one after the other.
"""

from __future__ import annotations

import os
import re
import struct
import time
from collections import deque
from pathlib import Path
from zlib import crc32

_NAME = re.compile(r"CommitLog-(\d+)-(\d+)\.log")
_VERSIONS = (7,)
_MARKER = 8
_NOTHING = bytes(_MARKER)
# A read may meet a half-written int, but not for long.
_PATIENCE = 1.0


class Corrupt(Exception):
    """Bytes that are not in the format."""


def parse_name(name: str) -> tuple[int, int] | None:
    """The version and id of a segment's file name, None if it is no segment."""
    match = _NAME.fullmatch(name)
    return (int(match[1]), int(match[2])) if match else None


def index_path(path: Path) -> Path:
    """Where a segment's index is, if it has one."""
    return path.with_name(f"{path.stem}_cdc.idx")


def read_index(path: Path) -> tuple[int, bool] | None:
    """A segment's index: how far it is on disk, and whether it is complete. None if there is none, or half of one.

    Cassandra rewrites it in place, so an empty one is on its way; after a crash it names the file's size as offset.
    """
    try:
        lines = index_path(path).read_text("ascii").split("\n")
        return int(lines[0]), "COMPLETED" in lines[1:]
    except (OSError, ValueError):
        return None


def read_header(data: bytes, version: int, id: int) -> int | None:
    """The size of the header at the start of `data`; None if it isn't (wholly) written. Raises Corrupt."""
    if len(data) < 18:
        return None
    found, header_id, size = struct.unpack_from(">iqH", data)
    if found == 0 or len(data) < 18 + size:
        return None
    options = data[14 : 14 + size]
    crc = crc32(options, crc32(struct.pack(">iIII", found, header_id & 0xFFFFFFFF, header_id >> 32 & 0xFFFFFFFF, size)))
    if crc != struct.unpack_from(">I", data, 14 + size)[0]:
        return None
    if (found, header_id) != (version, id):
        raise Corrupt(f"the header of segment {header_id} of version {found}")
    if found not in _VERSIONS:
        raise Corrupt(f"a segment of version {found}: only {', '.join(map(str, _VERSIONS))} is read")
    if options != b"{}":
        raise Corrupt(f"a compressed or encrypted segment, which is not read yet: {options.decode(errors='replace')}")
    return 18 + len(options)


def read_marker(data: bytes, id: int, at: int) -> int | None:
    """The end of the section whose marker `data` is at the offset `at`; None if it is half written. Raises Corrupt."""
    end, crc = struct.unpack(">iI", data)
    if end and not crc:
        return None
    if crc != crc32(struct.pack(">III", id & 0xFFFFFFFF, id >> 32, at)) or end < at + _MARKER:
        raise Corrupt(f"a sync marker that is none: end {end}, crc {crc:08x}")
    return int(end)


class Segment:
    """One segment, followed from an offset: `look` for what is written, then `read` and `advance` through it.

    `unread`: the parts of sections that are there to be read. `complete`: set by who has seen its index say so.
    `indexed`: it has an index. `bad`: something in it could not be read. `since`: s since the epoch, since when the
    oldest of `unread` is known to wait.
    """

    def __init__(self, path: Path, position: int = 0, bad: bool = False) -> None:
        version, self.id = parse_name(path.name) or (0, 0)
        self.path = path
        self.bad = bad
        self.complete = False
        self.indexed = False
        self.looked = False
        self.since = 0.0
        self.unread: deque[tuple[int, int]] = deque()
        self._version = version
        self._position = position
        self._first = 0
        self._marker = 0
        self._size = 0
        self._broken = False
        self._doubt: tuple[bytes, float] | None = None
        self._fd = -1

    @property
    def position(self) -> int:
        """The offset up to which all is read."""
        return self.unread[0][0] if self.unread else max(self._position, self._marker)

    @property
    def is_open(self) -> bool:
        """True while the file is held: then it can be read to its end even if someone deletes it."""
        return self._fd >= 0

    @property
    def started(self) -> bool:
        """True if it has a section."""
        return self._first < self._marker

    @property
    def settled(self) -> bool:
        """False while a marker looks wrong that may be half written."""
        return self._broken or self._doubt is None

    def look(self) -> bool:
        """Follow the markers as far as they are written; True if there is something to read.

        Raises Corrupt, once, where the chain breaks: nothing behind that can be found. Raises OSError.
        """
        if self._broken:
            return bool(self.unread)
        self._open()
        try:
            if not self._marker and not self._read_header():
                return False
            found = False
            while not self._broken:
                data = os.pread(self._fd, _MARKER, self._marker)
                if data == _NOTHING or len(data) < _MARKER:
                    break
                end = self._read_section(data)
                if end is None:
                    break
                start = max(self._marker + _MARKER, self._position)
                self._marker = end
                if start < end:
                    if not self.unread:
                        self.since = time.time() if self.looked else min(time.time(), os.fstat(self._fd).st_mtime)
                    self.unread.append((start, end))
                    found = True
        except Corrupt:
            self._broken = self.bad = True
            raise
        finally:
            self.looked = True
        return found or bool(self.unread)

    def read(self, most: int) -> tuple[bytes, int, bool]:
        """At most so many bytes of the first section of `unread`, their offset, and whether they reach its end."""
        self._open()
        start, end = self.unread[0]
        data = os.pread(self._fd, min(most, end - start), start)
        if not data:
            raise Corrupt(f"the file ends at {start}, within a section that ends at {end}")
        return data, start, start + len(data) == end

    def advance(self, position: int) -> None:
        """All before `position`, in the first section of `unread`, is read."""
        _, end = self.unread.popleft()
        if position < end:
            self.unread.appendleft((position, end))

    def skip(self) -> None:
        """Leave the first section of `unread`."""
        self.unread.popleft()

    def rewind(self, position: int) -> None:
        """Go back: `look` finds again all behind `position`."""
        self.unread.clear()
        self._position = position
        self._marker = self._first
        self.looked = False

    def close(self) -> None:
        """Let go of the file; `look` opens it again."""
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1

    def _open(self) -> None:
        if self._fd < 0:
            self._fd = os.open(self.path, os.O_RDONLY | os.O_CLOEXEC)

    def _read_header(self) -> bool:
        size = read_header(os.pread(self._fd, 65536 + 18, 0), self._version, self.id)
        if size is None:
            if self.complete:
                raise Corrupt("no header")
            return False
        self._size = os.fstat(self._fd).st_size
        self._first = self._marker = size
        return True

    def _read_section(self, data: bytes) -> int | None:
        try:
            end = read_marker(data, self.id, self._marker)
            if end is None and self.complete:
                raise Corrupt("a sync marker without crc")
            if end is not None and end > self._size:
                raise Corrupt(f"a section that ends at {end} in a file of {self._size} bytes")
        except Corrupt:
            # One that this very read has torn looks different the next time.
            if self._doubt is None or self._doubt[0] != data:
                self._doubt = (data, time.monotonic())
            elif time.monotonic() - self._doubt[1] > _PATIENCE:
                raise
            return None
        self._doubt = None
        return end
