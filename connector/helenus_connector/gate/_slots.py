"""The slots of the MD5 cache: what is known of changes, in a map of memory, and what a batch says of them.

    slots.look(change) → Entry(nodes=0b011, flags=PUBLISHED)

It runs as it is, and compiled by Cython with the types of `_slots.pxd`: the results are the same.
"""

from __future__ import annotations

import mmap
import struct
import time
from collections.abc import Iterable
from dataclasses import dataclass, field

COMPILED = not __file__.endswith(".py")
_compiled = COMPILED
SLOT = struct.Struct(">16sQII")
SET = 8
SLOT_BYTES = 32
SET_BYTES = SET * SLOT_BYTES
_SIZE = SLOT_BYTES  # in C
_SET_SIZE = SET_BYTES
_TIMES = struct.Struct(">" + "24xI4x" * SET)


@dataclass
class Entry:
    """What is known of a change: bits of the nodes that reported it, and flags. `at` is its slot's."""

    nodes: int = 0
    flags: int = 0
    at: int = field(default=-1, compare=False)


class Slots:
    """Sets of slots in `data` from `head` on. What is older than `expire_s` counts as forgotten.

    A batch begins with `forget`, and what it says is in the map when it has called `keep`: one search and one write a
    change.
    """

    def __init__(self, data: bytearray | mmap.mmap, head: int, expire_s: float) -> None:
        self._head = head
        self._expire = expire_s
        self._held: dict[bytes, Entry] = {}
        self.use(data)

    def use(self, data: bytearray | mmap.mmap) -> None:
        """Go on with other data, where the same names may have other slots."""
        self._data = data
        self._view = memoryview(data)
        self._sets = (len(data) - self._head) // SET_BYTES

    def look(self, change: bytes) -> Entry:
        """What is known of a change; an empty Entry if nothing is."""
        held = self._held.get(change)
        return self._find(change) if held is None else held

    def report(self, change: bytes, entry: Entry, bit: int) -> None:
        """Note that the node of this bit reported a change, in the entry that `look` gave."""
        entry.nodes |= bit
        self._held[change] = entry

    def mark(self, changes: Iterable[bytes], flags: int) -> None:
        """Set flags of changes, unless they are forgotten: only after the flush of their records is acknowledged."""
        for change in changes:
            entry = self._held.get(change)
            if entry is None:
                entry = self._find(change)
                if entry.at < 0:
                    continue
                self._held[change] = entry
            entry.flags |= flags

    def forget(self) -> None:
        """Forget what was not kept."""
        self._held.clear()

    def keep(self) -> None:
        """Write what was said. A set that is full loses what was reported longest ago."""
        now = int(time.time())
        for change, entry in self._held.items():
            at = entry.at
            if at >= 0 and not self._is_at(change, at):
                at = self.slot(change)
            if at < 0:
                at = self.oldest(change)
            self._write(at, change, entry, now)
        self._held.clear()

    def slot(self, name: bytes) -> int:
        """Where the slot of a name is; -1 if it has none."""
        start = self._start(name)
        if _compiled:
            for at in range(start, start + _SET_SIZE, _SIZE):
                if self._is_at(name, at):
                    return at
            return -1
        end = start + SET_BYTES
        at = self._data.find(name, start, end)
        while at >= 0 and (at - start) % SLOT_BYTES:  # the bytes are there, and no slot begins with them
            at = self._data.find(name, at + 1, end)
        return at

    def oldest(self, name: bytes) -> int:
        """Where in its set a new name is to be written."""
        start = self._start(name)
        if _compiled:
            best, least = start, self._number(start + 24, 4)
            for at in range(start + _SIZE, start + _SET_SIZE, _SIZE):
                time_s = self._number(at + 24, 4)
                if time_s < least:
                    best, least = at, time_s
            return best
        times = _TIMES.unpack_from(self._data, start)
        return start + times.index(min(times)) * SLOT_BYTES

    def release(self) -> None:
        """Let go of the map."""
        self._view = memoryview(bytearray())

    def _find(self, change: bytes) -> Entry:
        at = self.slot(change)
        if at < 0:
            return Entry()
        if _compiled:
            nodes, when, flags = self._number(at + 16, 8), self._number(at + 24, 4), self._number(at + 28, 4)
        else:
            _, nodes, when, flags = SLOT.unpack_from(self._data, at)
        return Entry(nodes, flags, at) if when >= time.time() - self._expire else Entry(at=at)

    def _start(self, name: bytes) -> int:
        if _compiled:
            number = 0
            for i in range(8):
                number = number << 8 | name[i]
            return self._head + number % self._sets * _SET_SIZE
        return self._head + int.from_bytes(name[:8], "big") % self._sets * SET_BYTES

    def _is_at(self, name: bytes, at: int) -> bool:
        if _compiled:
            for i in range(16):  # noqa: SIM110 # a loop of C
                if self._view[at + i] != name[i]:
                    return False
            return True
        return self._data[at : at + 16] == name

    def _number(self, at: int, size: int) -> int:
        number = 0
        for i in range(size):
            number = number << 8 | self._view[at + i]
        return number

    def _write(self, at: int, change: bytes, entry: Entry, now: int) -> None:
        if not _compiled:
            SLOT.pack_into(self._data, at, change, entry.nodes, now, entry.flags)
            return
        nodes, flags = entry.nodes, entry.flags
        for i in range(16):
            self._view[at + i] = change[i]
        for i in range(8):
            self._view[at + 16 + i] = nodes >> (56 - 8 * i) & 0xFF
        for i in range(4):
            self._view[at + 24 + i] = now >> (24 - 8 * i) & 0xFF
            self._view[at + 28 + i] = flags >> (24 - 8 * i) & 0xFF
