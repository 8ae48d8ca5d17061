"""The slots of the MD5 cache: what is known of changes, in a map of memory, and what a batch says of them.

    slots.look(change) → Entry(nodes=0b011, flags=PUBLISHED)
    slots.hears(entry, reporter, segment, position) → False: a copy of a change that is done with

It runs as it is, and compiled by Cython with the types of `_slots.pxd`: the results are the same.
"""

from __future__ import annotations

import hashlib
import mmap
import struct
import time
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from helenus_connector.interfaces.admitted_change import AdmittedChange

COMPILED = not __file__.endswith(".py")
_compiled = COMPILED
SLOT = struct.Struct(">16sQII")
SET = 8
SLOT_BYTES = 32
SET_BYTES = SET * SLOT_BYTES
_SIZE = SLOT_BYTES  # in C
_SET_SIZE = SET_BYTES
_TIMES = struct.Struct(">" + "24xI4x" * SET)

PUBLISHED = 1
"""A record that shows the change, or a later one of its key, is acknowledged."""
CONFIRMED = 2
"""The read of that record confirms it: copies of the change can be dropped."""
BY_AGE = 4
"""It counts as confirmed since nothing spoke against it for long: a node that reports it later is heard."""
RELEASED = 8
"""Enough nodes reported it: it went on, and its copies do. Its key may not have been read since."""
_FLAGS = 0xFF  # of the four bytes of a slot; above them is how often the change came again
_MAX_REPEATS = 255
_FREE_REPEATS = 1
_MAX_PAUSE_S = 300.0
"""A key whose change comes again for ever is read every five minutes: then hardly any load comes of it, and a client
that does write the same bytes again and again has them published within this time.
"""
_EMPTY = hashlib.blake2b(digest_size=16)
_CONFIRMED, _BY_AGE = CONFIRMED, BY_AGE  # in C


def change_id(key: bytes, scope: bytes, digest: bytes) -> bytes:
    """16 bytes that name a change within its events partition: one digest covers every row of a mutation."""
    hashed = _EMPTY.copy()  # a new one takes longer
    hashed.update(digest + scope + key)
    return hashed.digest()


@dataclass
class CacheEntry:
    """What is known of a change: bits of the nodes that reported it, and flags; `repeats` counts how often a node
    logged it once more after it was published. `offset` is its slot's. `admitted` it was in this batch, if its copies
    are only to be counted.
    """

    nodes: int = 0
    flags: int = 0
    repeats: int = field(default=0, compare=False)
    offset: int = field(default=-1, compare=False)
    admitted: AdmittedChange | None = field(default=None, compare=False)


@dataclass
class Reporter:
    """A node that reports changes: its host id, the `bit` that it has, and at which `offset` it is in the cache's file,
    -1 if it is not. It had reported its log up to `segment` and `position` before this batch, and reports up to the
    `last_` ones in it, the greatest, if it `is_heard`.
    """

    name: bytes
    bit: int = 0
    offset: int = -1
    segment: int = -1
    position: int = -1
    last_segment: int = -1
    last_position: int = -1
    is_heard: bool = False

    def is_new(self, segment: int, position: int) -> bool:
        """Whether a place in the node's log is after all that it reported before this batch."""
        if self.offset < 0:
            return False
        return segment > self.segment or (segment == self.segment and position > self.position)

    def is_newest(self, segment: int, position: int) -> bool:
        """Whether a place in the node's log is after all that it has reported, in this batch too."""
        if segment < self.last_segment or (segment == self.last_segment and position <= self.last_position):
            return False
        return self.is_new(segment, position)

    def note(self, segment: int, position: int) -> None:
        """It reports this place; one before what it reported in this batch is read or sent again."""
        self.is_heard = True
        if segment > self.last_segment or (segment == self.last_segment and position > self.last_position):
            self.last_segment, self.last_position = segment, position


class Slots:
    """Sets of slots in `data` from `head` on. What is older than `expire_s` counts as forgotten.

    A batch begins with `forget`, and what it says is in the map when it has called `keep`: one search and one write a
    change.
    """

    def __init__(self, data: bytearray | mmap.mmap, head: int, expire_s: float) -> None:
        self._head = head
        self._expire = expire_s
        self._changed_entries: dict[bytes, CacheEntry] = {}
        self.use(data)

    def use(self, data: bytearray | mmap.mmap) -> None:
        """Go on with other data, where the same names may have other slots."""
        self._data = data
        self._view = memoryview(data)
        self._sets = (len(data) - self._head) // SET_BYTES

    def look(self, change: bytes) -> CacheEntry:
        """What is known of a change; an empty CacheEntry if nothing is."""
        cached = self._changed_entries.get(change)
        return self._find(change) if cached is None else cached

    def hears(self, entry: CacheEntry, reporter: Reporter, segment: int, position: int) -> bool:
        """Whether a change goes on that a node reports, as its place in the log is `segment` and `position`. Not one
        that is confirmed: this is a copy.
        """
        has_reported = entry.nodes & reporter.bit != 0
        is_rewrite = has_reported and reporter.is_newest(segment, position)
        if is_rewrite or not has_reported:
            reporter.note(segment, position)  # what is sent again lies before
        if is_rewrite and entry.flags:
            # Not sent again, but written again, with the very same bytes: what is known is of the write before.
            entry.nodes = entry.flags = 0
            entry.repeats = min(entry.repeats + 1, _MAX_REPEATS)
        elif entry.flags & _CONFIRMED:
            if has_reported or not entry.flags & _BY_AGE:
                return False
            entry.flags &= ~(_CONFIRMED | _BY_AGE)  # until its key is read, also if this batch is done again
        return True

    def pause(self, entry: CacheEntry) -> float:
        """For how many seconds the key of a change is not to be read, since the change came again and again: 0 the
        first time, then 2, 4, 8 … up to five minutes.

        A client may write the same bytes twice. A node logs them without end where each read of the key has them
        written to it by read repair, and a tombstone, which is past its grace and not compacted, hides them at once.
        """
        if entry.repeats <= _FREE_REPEATS:
            return 0.0
        # What a slot forgets meanwhile would be new each time.
        return min(2.0 ** min(entry.repeats - _FREE_REPEATS, 16), _MAX_PAUSE_S, self._expire / 2)

    def report(self, change: bytes, entry: CacheEntry, bit: int) -> None:
        """Note that the node of this bit reported a change, in the entry that `look` gave."""
        entry.nodes |= bit
        self._changed_entries[change] = entry

    def mark(self, changes: Iterable[bytes], flags: int) -> None:
        """Set flags of changes, unless they are forgotten: only after the flush of their records is acknowledged."""
        for change in changes:
            entry = self._changed_entries.get(change)
            if entry is None:
                entry = self._find(change)
                if entry.offset < 0:
                    continue
                self._changed_entries[change] = entry
            entry.flags |= flags

    def forget(self) -> None:
        """Forget what was not kept."""
        self._changed_entries.clear()

    def keep(self) -> None:
        """Write what was said. A set that is full loses what was reported longest ago."""
        now = int(time.time())
        for change, entry in self._changed_entries.items():
            offset = entry.offset
            if offset >= 0 and not self._is_slot_of(change, offset):
                offset = self.slot(change)
            if offset < 0:
                offset = self.oldest(change)
            self._write(offset, change, entry, now)
        self._changed_entries.clear()

    def slot(self, name: bytes) -> int:
        """Where the slot of a name is; -1 if it has none."""
        start = self._start(name)
        if _compiled:
            for offset in range(start, start + _SET_SIZE, _SIZE):
                if self._is_slot_of(name, offset):
                    return offset
            return -1
        end = start + SET_BYTES
        offset = self._data.find(name, start, end)
        while offset >= 0 and (offset - start) % SLOT_BYTES:  # the bytes are there, and no slot begins with them
            offset = self._data.find(name, offset + 1, end)
        return offset

    def oldest(self, name: bytes) -> int:
        """Where in its set a new name is to be written."""
        start = self._start(name)
        if _compiled:
            best, least = start, self._number(start + 24, 4)
            for offset in range(start + _SIZE, start + _SET_SIZE, _SIZE):
                time_s = self._number(offset + 24, 4)
                if time_s < least:
                    best, least = offset, time_s
            return best
        times = _TIMES.unpack_from(self._data, start)
        return start + times.index(min(times)) * SLOT_BYTES

    def release(self) -> None:
        """Let go of the map."""
        self._view = memoryview(bytearray())

    def _find(self, change: bytes) -> CacheEntry:
        offset = self.slot(change)
        if offset < 0:
            return CacheEntry()
        if _compiled:
            nodes, when, flags = (
                self._number(offset + 16, 8),
                self._number(offset + 24, 4),
                self._number(offset + 28, 4),
            )
        else:
            _, nodes, when, flags = SLOT.unpack_from(self._data, offset)
        if when < time.time() - self._expire:
            return CacheEntry(offset=offset)
        return CacheEntry(nodes, flags & _FLAGS, flags >> 8, offset)

    def _start(self, name: bytes) -> int:
        if _compiled:
            number = 0
            for i in range(8):
                number = number << 8 | name[i]
            return self._head + number % self._sets * _SET_SIZE
        return self._head + int.from_bytes(name[:8], "big") % self._sets * SET_BYTES

    def _is_slot_of(self, name: bytes, offset: int) -> bool:
        if _compiled:
            for i in range(16):  # noqa: SIM110 # a loop of C
                if self._view[offset + i] != name[i]:
                    return False
            return True
        return self._data[offset : offset + 16] == name

    def _number(self, offset: int, size: int) -> int:
        number = 0
        for i in range(size):
            number = number << 8 | self._view[offset + i]
        return number

    def _write(self, offset: int, change: bytes, entry: CacheEntry, now: int) -> None:
        if not _compiled:
            SLOT.pack_into(self._data, offset, change, entry.nodes, now, entry.flags | entry.repeats << 8)
            return
        nodes, flags = entry.nodes, entry.flags | entry.repeats << 8
        for i in range(16):
            self._view[offset + i] = change[i]
        for i in range(8):
            self._view[offset + 16 + i] = nodes >> (56 - 8 * i) & 0xFF
        for i in range(4):
            self._view[offset + 24 + i] = now >> (24 - 8 * i) & 0xFF
            self._view[offset + 28 + i] = flags >> (24 - 8 * i) & 0xFF
