"""The MD5 cache: which changes of one events partition are published and confirmed, and which nodes reported them.

One memory-mapped file per events partition, shared by the host's Python workers: Spark gives a worker no partition of
its own, and ends idle ones. A partition is in one task at a time, so there is no lock. The cache is bounded by entries
and age. It saves work and is never needed for correctness: what it forgot is read and published once more.

A node has a place in a table, by the order in which nodes were met, and of 64 bits the one of its place: where there
are more nodes, some share a bit, and count as one. So reports may count for too few nodes, never for too many.

A node's events come in the order of its log, but for those that are sent or read again. So a change that a
node reports again is another write, if it lies after all that this node reported before.

File: 15 bytes, the kinds of deletions it holds, and one that is 1 if cells with a TTL were written; 1,024 nodes of
16 bytes id, 8 bytes segment, 8 bytes position of the last report; then slots of 32 bytes in sets of 8.
Slot: 16 bytes id | 8 bytes node bits | 4 bytes time of the last report, s | 4 bytes flags; of a deletion
      16 bytes id | 8 bytes its time, µs | 4 bytes time of the report, s | 4 bytes the bits of its columns.
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
from pathlib import Path

from helenus_connector.config.run_directory import has_room, on_disk
from helenus_connector.gate._slots import SET, SET_BYTES, Slots
from helenus_connector.gate._slots import Entry as Entry
from helenus_schemas.event.change import Change
from helenus_schemas.event.own_format import Match, log_position

PUBLISHED = 1
"""A record that shows the change, or a later one of its key, is acknowledged."""
CONFIRMED = 2
"""The read of that record confirms it: copies of the change can be dropped."""

BY_AGE = 4
"""It counts as confirmed since nothing spoke against it for long: a node that reports it later is heard."""

RELEASED = 8
"""Enough nodes reported it: it went on, and its copies do. Its key may not have been read since."""

_NODES = 1024
_BITS = 64
_NODE = struct.Struct(">16sqq")
MAY = 8
"""Added to a kind of deletion: a change that may delete, but need not."""

_KINDS = 16
_EXPIRING = _KINDS - 1
_NO_KINDS = bytes(MAY)
_DELETION = struct.Struct(">16sqII")
_HEAD = _KINDS + _NODES * _NODE.size


def change_id(key: bytes, scope: bytes, digest: bytes) -> bytes:
    """16 bytes that name a change within its events partition: one digest covers every row of a mutation."""
    return hashlib.blake2b(digest + scope + key, digest_size=16).digest()


class ChangeCache(Slots):
    """The cache of one events partition, in `path`; at most `capacity` entries, none older than `expire_s` seconds.

    A batch `begin`s, and what it says is in the file when it has called `save`: one search and one write a change.
    `last` is what each node, by its host id, reported last in it.
    """

    def __init__(self, path: Path, capacity: int, expire_s: float) -> None:
        self._expire_s = expire_s
        self._places: dict[bytes, int] = {}
        self._bits: dict[bytes, int] = {}
        self._deletions: dict[bytes, tuple[int, int]] = {}
        self.last: dict[bytes, Match | Change] = {}
        size = _HEAD + max(1, capacity // SET) * SET_BYTES
        file = _opened(path, size)
        try:
            self._map = mmap.mmap(file, size)
        finally:
            os.close(file)
        super().__init__(self._map, _HEAD, expire_s)

    def begin(self) -> None:
        """Forget what was not saved: another process may have had the partition since."""
        self.forget()
        self._deletions.clear()
        self.last.clear()

    def clear(self) -> None:
        """Forget all changes, and what was deleted."""
        self.forget()
        self._deletions.clear()
        self._map[:_EXPIRING] = bytes(_EXPIRING)
        self._map[_HEAD:] = bytes(len(self._map) - _HEAD)

    def is_new(self, node: bytes, reported: tuple[int, int]) -> bool:
        """Whether a segment and position in a node's log are after all that it reported before this batch."""
        at = self._place(node)
        return at >= 0 and reported > _NODE.unpack_from(self._map, at)[1:]

    def note_expiry(self) -> None:
        """Note that cells with a TTL are written in the partition."""
        self._map[_EXPIRING] = 1

    @property
    def has_expiring(self) -> bool:
        """Whether cells with a TTL were written since the file is there."""
        return bool(self._map[_EXPIRING])

    @property
    def has_deletions(self) -> bool:
        """Whether any was noted, other than those that may be."""
        return self._map[:MAY] != _NO_KINDS

    def deletes(self, kind: int) -> bool:
        """Whether any of this kind was noted."""
        return bool(self._map[kind])

    def delete(self, kind: int, key: bytes, time_us: int, columns: int) -> None:
        """Note a deletion of a `kind`, 0 to 14, if it is newer than what is known of the key; with the bits of its
        `columns`.
        """
        known, new = self.deletion(kind, key), (time_us, columns)
        if known is None or new >= known:  # another node's report of it keeps it longer
            self._deletions[_deletion_id(kind, key)] = new
            self._map[kind] = 1

    def deletion(self, kind: int, key: bytes) -> tuple[int, int] | None:
        """The newest deletion of a `kind` that is known of a key: its time in µs, and the bits of its columns."""
        if not self._map[kind]:
            return None
        name = _deletion_id(kind, key)
        if (held := self._deletions.get(name)) is not None:
            return held
        at = self.slot(name)
        if at < 0:
            return None
        _, time_us, when, columns = _DELETION.unpack_from(self._map, at)
        return (time_us, columns) if when >= time.time() - self._expire_s else None

    def save(self) -> None:
        """Write what was said since `begin`. A set that is full loses what was reported longest ago."""
        self.keep()
        now = int(time.time())
        for name, (time_us, columns) in self._deletions.items():
            at = self.slot(name)
            _DELETION.pack_into(self._map, self.oldest(name) if at < 0 else at, name, time_us, now, columns)
        self._deletions.clear()
        # Last: what is not in the slots yet must not lie before it.
        for node, reported in self.last.items():
            last = log_position(reported)
            if self.is_new(node, last):
                at = self._place(node)
                _NODE.pack_into(self._map, at, self._map[at : at + 16], *last)
        self.last.clear()

    def nodes(self, entry: Entry) -> list[set[str]]:
        """The host ids of the nodes that reported a change; of those that share a bit, one did."""
        found: dict[int, set[str]] = {}
        for index in range(_NODES):
            held = self._map[(at := _KINDS + index * _NODE.size) : at + 16]
            if held == bytes(16):
                break
            if entry.nodes >> index % _BITS & 1:
                found.setdefault(index % _BITS, set()).add(str(uuid.UUID(bytes=held)))
        return list(found.values())

    def close(self) -> None:
        self.release()
        self._map.close()

    def bit(self, node: bytes) -> int:
        """The bit of a node, by its host id; 0 if it has none."""
        bit = self._bits.get(node)
        if bit is None:
            at = self._place(node)
            bit = self._bits[node] = 1 << (at - _KINDS) // _NODE.size % _BITS if at >= 0 else 0
        return bit

    def _place(self, node: bytes) -> int:
        """Where a node is in the table; -1 if it is no host id, or there is no room."""
        at = self._places.get(node)
        if at is None:
            at = self._places[node] = self._take_place(node)
        return at

    def _take_place(self, node: bytes) -> int:
        try:
            wanted = uuid.UUID(node.decode()).bytes
        except ValueError:
            return -1
        for at in range(_KINDS, _HEAD, _NODE.size):
            held = self._map[at : at + 16]
            if held == wanted:
                return at
            if held == bytes(16):
                _NODE.pack_into(self._map, at, wanted, -1, -1)
                return at
        return -1


class Caches:
    """The caches of one table in one process, one for each of its events partitions, in `directory`."""

    def __init__(self, directory: Path, capacity: int, expire_s: float) -> None:
        self._directory = directory
        self._capacity = capacity
        self._expire_s = expire_s
        self._caches: dict[tuple[str, int], ChangeCache] = {}

    def of(self, topic: str, partition: int) -> ChangeCache:
        """The cache of an events partition."""
        cache = self._caches.get((topic, partition))
        if cache is None:
            path = self._directory / f"{topic}-{partition}.cache"
            cache = self._caches[topic, partition] = ChangeCache(path, self._capacity, self._expire_s)
        return cache

    @property
    def has_expiring(self) -> bool:
        """Whether cells with a TTL were written in any of them, as far as is known."""
        return any(cache.has_expiring for cache in self._caches.values())

    def begin(self) -> None:
        """Forget what was not saved."""
        for cache in self._caches.values():
            cache.begin()

    def save(self) -> None:
        """Write what was said since `begin`."""
        for cache in self._caches.values():
            cache.save()

    def close(self) -> None:
        """Let go of the files."""
        for cache in self._caches.values():
            cache.close()
        self._caches.clear()


def _deletion_id(kind: int, key: bytes) -> bytes:
    return hashlib.blake2b(b"%d deleted" % kind + key, digest_size=16).digest()


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
