"""A commit-log segment as a file: its name, header, index and sections. Versions 6 to 9, Cassandra 3.11 - 6.0.

    name    = CommitLog-<version>-<id>.log; very old ones leave the version out. Ids rise with time.
    header  = int version, long id, ushort length, `length` bytes of JSON, int crc over version, the id's low and high
              int, the length as int, the JSON (CommitLogDescriptor). The JSON says how it is compressed or encrypted.
    then sections, each a marker of int end, int crc over the id's low and high int and the marker's own offset, and
              its content up to `end`, where the next marker is (CommitLogSegment.writeSyncMarker). Nothing more: less
              than 8 bytes, or zeros. The content is entries; compressed: int length, one block that comes to so many
              bytes of entries (CompressedSegment.write). No entry spans sections.
    index   = `<name>_cdc.idx` next to it: a decimal position, then a line COMPLETED once nothing more will be written.
              It is there only if the segment holds changes of tables with CDC. Version 6 has none: its segments come
              to cdc_raw when they are complete, if they hold such changes.

All numbers big-endian. A position, here and in Cassandra, is the offset in the file as it would be uncompressed.
A plain segment has its full size from the start, zeros where nothing is written yet; Cassandra writes through a memory
map, so what a marker says is there at once, and a marker's two ints one after the other. A compressed one grows by a
section.
"""

from __future__ import annotations

import contextlib
import struct
import time
from collections import deque
from pathlib import Path
from typing import Literal, NamedTuple
from zlib import crc32

from helenus_agent.commitlog._compression import Decompress
from helenus_agent.commitlog.entries import ENTRY_OVERHEAD
from helenus_agent.commitlog.segment_header import Corrupt, Header, read_header
from helenus_agent.commitlog.segment_name import FIRST_INDEXED, parse_name
from helenus_agent.commitlog.segment_source import CDC_RAW, SegmentBytes, SegmentSource, parse_index
from helenus_schemas.errors import HelenusError, Kind

ReadMode = Literal["marker", "idx", "eager"]
"""What vouches for the bytes that are read: a sync marker; a marker and the index, so they are on the node's disk; a
marker, or after the last one an entry's own CRCs. See `helenus_agent.segments.segment_queue`."""

_MARKER = 8  # bytes of a sync marker
_EMPTY_MARKER = bytes(_MARKER)
_MAX_POSITION = (1 << 31) - 1  # positions are ints
_TORN_READ_S = 1.0  # s: a read may meet a half-written int, but not for long
_MAX_SECTIONS = 1000  # at which a look ends: some 200 bytes of memory each
_SIZE = 4  # bytes of an entry's size, with which it begins
_TAIL = 1 << 16  # bytes after the last marker that are read at once


def read_marker(data: bytes, id: int, offset: int) -> int | None:
    """Return the end of the section whose marker, `data`, is at `offset`; None if half written. Raises Corrupt."""
    end, crc = struct.unpack(">iI", data)
    if end and not crc:
        return None
    checked = struct.pack(">III", id & 0xFFFFFFFF, id >> 32 & 0xFFFFFFFF, offset)
    if crc != crc32(checked) or end < offset + _MARKER:
        raise Corrupt(f"a sync marker that is none: end {end}, crc {crc:08x}")
    return int(end)


class Section(NamedTuple):
    """A part of a segment that is there to be read, from `start` to `end`, and where its bytes are.

    All of its content begins at `base`, and is the file's `size` bytes from `file_offset`, or what they decompress
    to. A `live` one is what follows the last marker: it goes at least to `end`, and no marker vouches for it.
    """

    start: int
    end: int
    base: int
    file_offset: int
    size: int
    live: bool = False


class Segment:
    """One segment, followed from a position: `look` for what is written, then `read` and `advance` through it.

    `unread`: the sections, or what is left of them, that are there to be read. `complete`: set by the caller when its
    index says so. `indexed`: it holds changes of tables with CDC. `bad`: something in it could not be read. `since`: s
    since the epoch, since when the oldest of `unread` is known to wait. `looked`: the last look came to the end of what
    is written, and did not stop at as many sections as are held. `unlinked`: its file is the node's own, cdc_raw has
    none any more; nothing may be done to it but read it. `source` opens it, by its `path`.
    """

    def __init__(
        self,
        path: Path,
        position: int = 0,
        bad: bool = False,
        mode: ReadMode = "marker",
        source: SegmentSource = CDC_RAW,
    ) -> None:
        self._version, self.id = parse_name(path.name) or (0, 0)
        self.path = path
        self.bad = bad
        self.complete = self.indexed = self._version < FIRST_INDEXED
        self.looked = self.unlinked = False
        self.since = 0.0
        self.unread: deque[Section] = deque()
        self.mode = mode
        self._position = position
        self._header: Header | None = None
        self._marker = 0  # where the next marker is in the file
        self._end = 0  # the same as a position
        self._size = 0
        self._synced = 0
        self._broken = self._written = self._is_unmarked_read = False
        self._held_at = -1
        self._suspect: tuple[bytes, float] | None = None
        self._content: tuple[int, memoryview] | None = None
        self._source = source
        self._bytes: SegmentBytes | None = None

    @property
    def position(self) -> int:
        """Return the position up to which all is read."""
        return self.unread[0].start if self.unread else max(self._position, self._end)

    @property
    def version(self) -> int:
        """Return the version that its header says, or its name until that is read; 0 if neither does."""
        return self._header.version if self._header else self._version

    @property
    def live(self) -> bool:
        """True if no marker vouches for what `read` gives next."""
        return bool(self.unread) and self.unread[0].live

    @property
    def padded(self) -> bool:
        """True if what `read` gives next may end in zeros: Cassandra fills up a segment, not the sections before."""
        compressed = self._header is not None and self._header.decompress is not None
        return compressed or (bool(self.unread) and self.unread[0].end >= self._size)

    @property
    def remaining_bytes(self) -> int:
        """Return how many bytes there are after the last section that was found, at most."""
        index = self._read_index()
        return index[0] - self._end if index and index[0] > self._end else max(0, self._size - self._marker)

    @property
    def is_open(self) -> bool:
        """True while the file is held: then it can be read to its end even if someone deletes it."""
        return self._bytes is not None

    @property
    def started(self) -> bool:
        """True if it has a section."""
        return self._header is not None and self._header.size < self._marker

    @property
    def is_held(self) -> bool:
        """Return whether an entry waits for a marker to cover it, by `hold`."""
        return self._held_at > self._end

    @property
    def is_stable(self) -> bool:
        """False while a marker looks wrong that may be half written."""
        return self._broken or self._suspect is None

    def is_blank(self) -> bool:
        """Return whether it has only a header and markers of empty sections. Raises OSError, unless it is gone.

        A stopped node leaves the segment that it had prepared like this. Once the node's own name for it is gone,
        nothing will be written there.
        """
        if self._written:
            return False
        try:
            with contextlib.closing(self._source.open_segment(self.path)) as file:
                start = file.read(_TAIL, 0)
                if read_header(start, self._version, self.id) is None:
                    return False
                end = 18 + int.from_bytes(start[12:14], "big")
                while (marker := start[end : end + _MARKER]) != _EMPTY_MARKER and len(marker) == _MARKER:
                    if read_marker(marker, self.id, end) != end + _MARKER:
                        break
                    end += _MARKER
                self._written = any(start[end:]) or _has_bytes(file, len(start))
        except (FileNotFoundError, Corrupt):
            return False
        return not self._written

    def holds_bytes(self) -> bool:
        """True unless it is blank, or nothing but zeros. Raises HelenusError(CDC_DIRECTORY)."""
        try:
            if self.is_blank():
                return False
            with contextlib.closing(self._source.open_segment(self.path)) as file:
                return _has_bytes(file, 0)
        except FileNotFoundError:
            return False
        except OSError as error:
            raise HelenusError(Kind.CDC_DIRECTORY, f"cannot read: {error.strerror}", str(self.path)) from None

    def look(self) -> bool:
        """Find what is written and may be read; True if there is something to read.

        Raises Corrupt, once, where the chain breaks: nothing after that can be found. Raises OSError.
        """
        if self._broken:
            return bool(self.unread)
        if self._bytes is None and self.looked and not self._may_read(self._end + 1):
            return bool(self.unread)  # not worth opening it again
        self._open()
        if self.unread and self.unread[0].live:
            self.unread.clear()  # a marker may be there by now
        try:
            if self._header is None and not self._read_header():
                return False
            while len(self.unread) < _MAX_SECTIONS and (section := self._next_section()):
                self._marker = section.file_offset + section.size
                self._end = section.end
                if section.start < section.end:
                    self._add_section(section)
            if self.mode == "eager" and not self.unread and (tail := self._find_tail()):
                self._add_section(tail)
        except Corrupt:
            self._broken = self.bad = True
            raise
        finally:
            self.looked = len(self.unread) < _MAX_SECTIONS
        return bool(self.unread)

    def has_news(self) -> bool:
        """Return whether a look may find more than the last one: something follows what that found. Raises OSError."""
        file = self._bytes
        if file is None or not self.is_stable:
            return True
        if self.mode == "eager" and self._position > self._marker + _MARKER:
            # Entries that were read ahead of it follow the last marker: news are that marker, or one more entry.
            return any(file.read(_MARKER, self._marker)) or any(file.read(_SIZE, self._position))
        return any(file.read(_MARKER + 8, self._marker))

    def read(self, max_bytes: int) -> tuple[bytes, int, bool]:
        """Read at most so many bytes of the first section of `unread`, their position, and whether they reach its end.

        Raises OSError, and Corrupt if the section can't be read.
        """
        section, file = self.unread[0], self._open()
        start = section.start
        if section.live:
            return file.read(max(_TAIL, section.end - start), start), start, False
        if self._header is not None and self._header.decompress is not None:
            offset = start - section.base
            data = bytes(self._decompressed(section, self._header.decompress)[offset : offset + max_bytes])
        else:
            data = file.read(min(max_bytes, section.end - start), section.file_offset + start - section.base)
        if not data:
            raise Corrupt(f"the file ends at {start}, within a section that ends at {section.end}")
        return data, start, start + len(data) == section.end

    def advance(self, position: int) -> None:
        """Note that all before `position`, in the first section of `unread`, is read."""
        section = self.unread.popleft()
        if section.live:
            self._position = position
        elif position < section.end:
            self.unread.appendleft(section._replace(start=position))
        else:
            self._content = None

    def hold(self, position: int) -> None:
        """Advance to `position`, in a live section, and read on from there once a marker covers it."""
        self.advance(position)
        self._held_at = position

    def read_unmarked(self) -> tuple[bytes, int, int]:
        """Read what follows the last marker of a segment that is complete and read: its node crashed, and has not
        replayed that. Returns, once, entries that may be sent; a position beyond each of the segment's (readers of
        events take those of before for duplicates); and how many bytes were read before for certain. If it is `eager`,
        whoever read the others may have been killed before that was saved. Raises OSError.
        """
        if self._is_unmarked_read or self._header is None or self._broken or not self.complete:
            return b"", 0, 0
        self._is_unmarked_read = True
        start, was_open = self._end + _MARKER, self.is_open
        read_bytes, size = max(0, self._position - start), 0
        is_eager = self.mode == "eager" and self.started and self._header.decompress is None
        if not read_bytes and not is_eager:
            return b"", 0, 0
        try:
            self._open()
        except FileNotFoundError:
            return b"", 0, read_bytes
        while is_eager and (entry_bytes := self._measure_entry(start + size)):
            size += entry_bytes
        data = self._open().read(max(read_bytes, size), start)
        if not was_open:
            self.close()
        return data, max(self._size, self._position) + start, read_bytes

    def skip(self) -> None:
        """Skip the first section of `unread`."""
        self.unread.popleft()
        self._content = None

    def rewind(self, position: int) -> None:
        """Go back: `look` finds again all after `position`."""
        self.unread.clear()
        self._position = position
        self._is_unmarked_read = False
        self._broken = False  # what is before the break is read again, and then the break is found again
        self._suspect = None
        self._marker = self._end = self._header.size if self._header else 0
        self._content = None
        self.looked = False

    def close(self) -> None:
        """Let go of the file; `look` opens it again."""
        self._content = None
        if self._bytes is not None:
            self._bytes.close()
            self._bytes = None

    def _open(self) -> SegmentBytes:
        if self._bytes is None:
            self._bytes = self._source.open_segment(self.path)
        return self._bytes

    def _read_index(self) -> tuple[int, bool] | None:
        return parse_index(self._source.read_index(self.path))

    def _add_section(self, section: Section) -> None:
        if not self.unread:
            self.since = time.time() if self.looked else min(time.time(), self._open().modified_s())
        self.unread.append(section)

    def _read_header(self) -> bool:
        self._size = self._open().size()
        self._header = read_header(self._open().read(65536 + 18, 0), self._version, self.id)
        if self._header is None:
            if self.complete:
                raise Corrupt("no header")
            return False
        self._marker = self._end = self._header.size
        return True

    def _next_section(self) -> Section | None:
        """Return the section after the last one that was found, None if it isn't there or may not be read yet."""
        data = self._open().read(_MARKER + 4, self._marker)
        try:
            if data[:_MARKER] == _EMPTY_MARKER or len(data) < _MARKER:
                section = None
                if self.complete:
                    self._check_end()
            else:
                section = self._parse_section(data)
        except Corrupt:
            # One that this very read has torn looks different the next time.
            if self._suspect is None or self._suspect[0] != data:
                self._suspect = (data, time.monotonic())
            elif time.monotonic() - self._suspect[1] > _TORN_READ_S:
                raise
            return None
        self._suspect = None
        return section if section and self._may_read(section.end) else None

    def _parse_section(self, data: bytes) -> Section | None:
        end = read_marker(data[:_MARKER], self.id, self._marker)
        if end is None:
            if self.complete:
                raise Corrupt("a sync marker without crc")
            return None
        assert self._header is not None
        compressed = self._header.decompress
        if end > self._size:
            self._size = self._open().size()
        if end > self._size:
            if compressed and not self.complete:
                return None  # it is being written
            raise Corrupt(f"a section that ends at {end} in a file of {self._size} bytes")
        file_offset, base = self._marker + _MARKER, self._end + _MARKER
        if not compressed:
            return Section(min(max(base, self._position), end), end, base, file_offset, end - file_offset)
        length = int.from_bytes(data[_MARKER:], "big", signed=True)
        if end < file_offset + 4 or not 0 <= length <= _MAX_POSITION - base:
            raise Corrupt(f"a section of {end - file_offset} bytes that come to {length}")
        last = base + length
        section = Section(min(max(base, self._position), last), last, base, file_offset, end - file_offset)
        if not length:
            self._decompressed(section, compressed)
        return section

    def _may_read(self, end: int) -> bool:
        if self.mode != "idx" or self.complete or self.unlinked or end <= self._synced:
            return True
        if index := self._read_index():
            self._synced = _MAX_POSITION if index[1] else index[0]
        return end <= self._synced

    def _find_tail(self) -> Section | None:
        """Return what follows the last marker, if its first entry is there as a whole.

        Only a segment that has a section: the entries of older segments are marked by then, and read before.
        """
        if self.complete or not self.started or not self.is_stable:
            return None
        if self._header is None or self._header.decompress is not None:
            return None
        start = max(self._end + _MARKER, self._position)
        if start == self._held_at:
            return None
        size = self._measure_entry(start)
        return Section(start, start + size, start, start, size, live=True) if size else None

    def _measure_entry(self, start: int) -> int:
        """Return how many bytes the entry has that begins there, 0 if it is not there as a whole."""
        head = self._open().read(8, start)
        size, crc = struct.unpack(">iI", head) if len(head) == 8 else (0, 0)
        if size <= 0 or crc != crc32(head[:4]):
            return 0
        body = self._open().read(size + 4, start + 8)
        if len(body) < size + 4 or crc32(body[:size], crc) != int.from_bytes(body[size:], "big"):
            return 0
        return int(size) + ENTRY_OVERHEAD

    def _check_end(self) -> None:
        """Raise Corrupt if the sections end before the index says; not if a restarted node wrote that index."""
        index = self._read_index()
        if index is None or index[0] <= self._end:
            return
        self._size = self._open().size()
        if index[0] != self._size:
            raise Corrupt(f"the sync markers end at {self._end}, but the index says {index[0]}")

    def _decompressed(self, section: Section, decompress: Decompress) -> memoryview:
        if self._content is None or self._content[0] != section.file_offset:
            block = self._open().read(section.size, section.file_offset)
            try:
                self._content = (section.file_offset, decompress(block[4:], section.end - section.base))
            except ValueError as error:
                raise Corrupt(f"{error}; {section.end - section.start} bytes are not read") from None
        return self._content[1]


def _has_bytes(file: SegmentBytes, offset: int) -> bool:
    """Return whether something but zeros follows an offset."""
    while piece := file.read(_TAIL, offset):
        if any(piece):
            return True
        offset += len(piece)
    return False
