"""The MD5 cache: which Changes of one events partition are published and settled, and which nodes reported them.

One memory-mapped file per events partition, shared by the host's Python workers: Spark gives a worker no partition of
its own, and ends idle ones. A partition is in one task at a time, so there is no lock. The cache is bounded by entries
and age. It saves work and is never needed for correctness: what it forgot is read and published once more.

File: 64 node ids of 16 bytes, then slots of 32 bytes in sets of 8.
Slot: 16 bytes id | 8 bytes node bits | 4 bytes time of the last report, s | 4 bytes flags.
"""

from __future__ import annotations

import hashlib
import mmap
import os
import struct
import time
import uuid
from pathlib import Path
from typing import NamedTuple

PUBLISHED = 1
"""A record that shows the Change, or a later one of its key, is acknowledged."""
SETTLED = 2
"""The read behind that record is proven: copies of the Change can be dropped."""

_NODES = 64
_SET = 8
_SLOT = struct.Struct(">16sQII")
_SET_BYTES = _SET * _SLOT.size
_HEAD = _NODES * 16


class Entry(NamedTuple):
    """What is known of a Change: bits of the nodes that reported it, PUBLISHED and SETTLED."""

    nodes: int = 0
    flags: int = 0


_UNKNOWN = Entry()


def change_id(key: bytes, scope: int, digest: str) -> bytes:
    """16 bytes that name a Change within its events partition: one digest covers every row of a mutation."""
    return hashlib.blake2b(digest.encode() + bytes((scope,)) + key, digest_size=16).digest()


class ChangeCache:
    """The cache of one events partition, in `path`; at most `capacity` entries, none older than `expire_s` seconds."""

    def __init__(self, path: Path, capacity: int, expire_s: float) -> None:
        self._sets = max(1, capacity // _SET)
        self._expire = expire_s
        self._bits: dict[str, int] = {}
        size = _HEAD + self._sets * _SET * _SLOT.size
        file = os.open(path, os.O_RDWR | os.O_CREAT, 0o600)
        try:
            os.ftruncate(file, size)
            self._map = mmap.mmap(file, size)
        finally:
            os.close(file)

    def report(self, change: bytes, node: str) -> Entry:
        """Note that a node reported a Change; returns what is known of it now."""
        at, entry = self._find(change)
        entry = Entry(entry.nodes | self._bit(node), entry.flags)
        self._write(at, change, entry)
        return entry

    def look(self, change: bytes) -> Entry:
        """What is known of a Change; an empty Entry if nothing is."""
        return self._find(change)[1]

    def mark(self, change: bytes, flags: int) -> None:
        """Set flags of a Change: only after the flush of its record is acknowledged."""
        at, entry = self._find(change)
        self._write(at, change, Entry(entry.nodes, entry.flags | flags))

    def nodes(self, entry: Entry) -> set[str]:
        """The host ids of the nodes that reported a Change."""
        ids = (self._map[i * 16 : i * 16 + 16] for i in range(_NODES) if entry.nodes >> i & 1)
        return {str(uuid.UUID(bytes=i)) for i in ids}

    def close(self) -> None:
        self._map.close()

    def _find(self, change: bytes) -> tuple[int, Entry]:
        """The offset of a Change's slot, or of the slot it may take: a free one, else the oldest of its set."""
        start = _HEAD + int.from_bytes(change[:8], "big") % self._sets * _SET_BYTES
        at = self._map.find(change, start, start + _SET_BYTES)
        while at >= 0 and (at - start) % _SLOT.size:  # the bytes are there, and no slot begins with them
            at = self._map.find(change, at + 1, start + _SET_BYTES)
        if at >= 0:
            _, nodes, when, flags = _SLOT.unpack_from(self._map, at)
            return at, Entry(nodes, flags) if when >= time.time() - self._expire else _UNKNOWN
        times = [slot[2] for slot in _SLOT.iter_unpack(self._map[start : start + _SET_BYTES])]
        return start + times.index(min(times)) * _SLOT.size, _UNKNOWN

    def _write(self, at: int, change: bytes, entry: Entry) -> None:
        _SLOT.pack_into(self._map, at, change, entry.nodes, int(time.time()), entry.flags)

    def _bit(self, node: str) -> int:
        bit = self._bits.get(node)
        if bit is None:
            bit = self._bits[node] = self._take_bit(node)
        return bit

    def _take_bit(self, node: str) -> int:
        try:
            wanted = uuid.UUID(node).bytes
        except ValueError:
            return 0
        for i in range(_NODES):
            held = self._map[i * 16 : i * 16 + 16]
            if held == wanted:
                return 1 << i
            if held == bytes(16):
                self._map[i * 16 : i * 16 + 16] = wanted
                return 1 << i
        # More nodes than bits: the others are not counted, so their reports never prove a read too early.
        return 0
