"""The MD5 cache: which Changes of one events partition are published and settled, and which nodes reported them.

One memory-mapped file per events partition, shared by the host's Python workers: Spark gives a worker no partition of
its own, and ends idle ones. A partition is in one task at a time, so there is no lock. The cache is bounded by entries
and age. It saves work and is never needed for correctness: what it forgot is read and published once more.

File: 64 node ids of 16 bytes, then slots of 32 bytes in sets of 8.
Slot: 16 bytes id | 8 bytes node bits | 4 bytes time of the last report, s | 4 bytes flags.
"""

from __future__ import annotations

import errno
import hashlib
import mmap
import os
import struct
import time
import uuid
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from helenus_connector.directory import has_room, on_disk

PUBLISHED = 1
"""A record that shows the Change, or a later one of its key, is acknowledged."""
SETTLED = 2
"""The read behind that record is proven: copies of the Change can be dropped."""

_NODES = 64
_SET = 8
_SLOT = struct.Struct(">16sQII")
_TIMES = struct.Struct(">" + "24xI4x" * _SET)
_SET_BYTES = _SET * _SLOT.size
_HEAD = _NODES * 16


@dataclass(slots=True)
class Entry:
    """What is known of a Change: bits of the nodes that reported it, PUBLISHED and SETTLED. `at` is its slot's."""

    nodes: int = 0
    flags: int = 0
    at: int = field(default=-1, compare=False)


def change_id(key: bytes, scope: bytes, digest: bytes) -> bytes:
    """16 bytes that name a Change within its events partition: one digest covers every row of a mutation."""
    return hashlib.blake2b(digest + scope + key, digest_size=16).digest()


class ChangeCache:
    """The cache of one events partition, in `path`; at most `capacity` entries, none older than `expire_s` seconds.

    A batch `begin`s, and what it says is in the file when it has called `save`: one search and one write a Change.
    """

    def __init__(self, path: Path, capacity: int, expire_s: float) -> None:
        self._sets = max(1, capacity // _SET)
        self._expire = expire_s
        self._bits: dict[bytes, int] = {}
        self._held: dict[bytes, Entry] = {}
        size = _HEAD + self._sets * _SET * _SLOT.size
        file = _opened(path, size)
        try:
            self._map = mmap.mmap(file, size)
        finally:
            os.close(file)

    def begin(self) -> None:
        """Forget what was not saved: another process may have had the partition since."""
        self._held.clear()

    def look(self, change: bytes) -> Entry:
        """What is known of a Change; an empty Entry if nothing is."""
        return self._held.get(change) or self._find(change)

    def report(self, change: bytes, entry: Entry, node: bytes) -> None:
        """Note that a node reported a Change, in the entry that `look` gave."""
        entry.nodes |= self.bit(node)
        self._held[change] = entry

    def mark(self, change: bytes, flags: int) -> None:
        """Set flags of a Change, unless it is forgotten: only after the flush of its record is acknowledged."""
        entry = self.look(change)
        if entry.at < 0 and change not in self._held:
            return
        entry.flags |= flags
        self._held[change] = entry

    def clear(self) -> None:
        """Forget all Changes."""
        self._held.clear()
        self._map[_HEAD:] = bytes(len(self._map) - _HEAD)

    def save(self) -> None:
        """Write what was said since `begin`. A set that is full loses what was reported longest ago."""
        now = int(time.time())
        for change, entry in self._held.items():
            at = entry.at
            if at < 0 or self._map[at : at + 16] != change:
                start = self._start(change)
                times = _TIMES.unpack_from(self._map, start)
                at = start + times.index(min(times)) * _SLOT.size
            _SLOT.pack_into(self._map, at, change, entry.nodes, now, entry.flags)
        self._held.clear()

    def nodes(self, entry: Entry) -> set[str]:
        """The host ids of the nodes that reported a Change."""
        ids = (self._map[i * 16 : i * 16 + 16] for i in range(_NODES) if entry.nodes >> i & 1)
        return {str(uuid.UUID(bytes=i)) for i in ids}

    def close(self) -> None:
        self._map.close()

    def _start(self, change: bytes) -> int:
        return _HEAD + int.from_bytes(change[:8], "big") % self._sets * _SET_BYTES

    def _find(self, change: bytes) -> Entry:
        start = self._start(change)
        at = self._map.find(change, start, start + _SET_BYTES)
        while at >= 0 and (at - start) % _SLOT.size:  # the bytes are there, and no slot begins with them
            at = self._map.find(change, at + 1, start + _SET_BYTES)
        if at < 0:
            return Entry()
        _, nodes, when, flags = _SLOT.unpack_from(self._map, at)
        return Entry(nodes, flags, at) if when >= time.time() - self._expire else Entry(at=at)

    def bit(self, node: bytes) -> int:
        """The bit of a node, by its host id; 0 if it has none."""
        bit = self._bits.get(node)
        if bit is None:
            bit = self._bits[node] = self._take_bit(node)
        return bit

    def _take_bit(self, node: bytes) -> int:
        try:
            wanted = uuid.UUID(node.decode()).bytes
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


def prune(directory: Path, tables: Mapping[str, int]) -> None:
    """Remove the caches of other tables from the directory of a group, and those of earlier epochs: `tables` has the
    epoch by events topic. A process that still uses one has it until it closes it.
    """
    for path in directory.glob("*/*.cache"):
        topic, _, _ = path.name.rpartition("-")
        if tables.get(topic) != int(path.parent.name):
            path.resolve().unlink(missing_ok=True)
            path.unlink(missing_ok=True)


def _opened(path: Path, size: int) -> int:
    """The file, open, of at least `size` bytes. Where there is no room for it, it lies on disk, and a link here."""
    try:
        return _filled(on_disk(path) if path.is_symlink() else path, size)
    except OSError as error:
        if error.errno != errno.ENOSPC:
            raise
    moved = on_disk(path)
    file = _filled(moved, size)
    path.unlink()
    path.symlink_to(moved)
    return file


def _filled(path: Path, size: int) -> int:
    """The file, open, with room for all of it: to store where the file system has none would end the process."""
    file = os.open(path, os.O_RDWR | os.O_CREAT, 0o600)
    try:
        if os.fstat(file).st_size < size:
            if not has_room(file, size):
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(path))
            _fill(file, size)
    except BaseException:
        os.close(file)
        raise
    return file


def _fill(file: int, size: int) -> None:
    try:
        os.posix_fallocate(file, 0, size)
    except AttributeError:  # macOS has none
        os.ftruncate(file, size)
    except OSError as error:
        if error.errno not in (errno.EINVAL, errno.EOPNOTSUPP):  # of a file system that has none
            raise
        os.ftruncate(file, size)
