"""The MD5 cache: which changes of one events partition are published and confirmed, and which nodes reported them.

One memory-mapped file per events partition, shared by the host's Python workers: Spark gives a worker no partition of
its own, and ends idle ones. A partition is in one task at a time, so there is no lock. The cache is bounded by entries
and age. It saves work and is never needed for correctness: what it forgot is read and published once more.

It begins small, and grows when a quarter of its slots is taken by changes that are not too old: with a thousand
tables most partitions have few. Who has it mapped sees by its size that it grew. A process that is killed meanwhile
leaves a cache that forgot some changes.

A node has a place in a table, by the order in which nodes were met, and of 64 bits the one of its place: where there
are more nodes, some share a bit, and count as one. So reports may count for too few nodes, never for too many.

A node's events come in the order of its log, but for those that are sent or read again. So a change that a
node reports again is another write, if it lies after all that this node reported before.

File: 15 bytes, the kinds of deletions it holds, and one that is 1 if cells with a TTL were written; 8 bytes, how many
slots were written since they were counted, and how many were taken then; 1,024 nodes of 16 bytes id, 8 bytes segment, 8
bytes position of the last report; then slots of 32 bytes in sets of 8.
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

from helenus_connector.gate._cache_file import opened
from helenus_connector.gate._slots import BY_AGE as BY_AGE
from helenus_connector.gate._slots import CONFIRMED as CONFIRMED
from helenus_connector.gate._slots import PUBLISHED as PUBLISHED
from helenus_connector.gate._slots import RELEASED as RELEASED
from helenus_connector.gate._slots import SET, SET_BYTES, SLOT_BYTES, Slots
from helenus_connector.gate._slots import CacheEntry as CacheEntry
from helenus_connector.gate._slots import Reporter as Reporter
from helenus_connector.gate._slots import change_id as change_id

_NODES = 1024
_BITS = 64
_MOST_REPORTERS = 1000  # of which those without a place are remembered
_NODE = struct.Struct(">16sqq")
MAY = 8
"""Added to a kind of deletion: a change that may delete, but need not."""

_KINDS = 16
_EXPIRING = _KINDS - 1
_NO_KINDS = bytes(MAY)
_DELETED = [b"%d deleted" % kind for kind in range(_KINDS)]
_DELETION = struct.Struct(">16sqII")
_TAKEN = struct.Struct(">Q")
_FIRST_NODE = _KINDS + _TAKEN.size
_HEAD = _FIRST_NODE + _NODES * _NODE.size
_WHEN = struct.Struct(">24xI4x")
_FEWEST = 128
"""Sets of a new cache: 32 kB."""
_SPARE = 4
"""Times as many slots as changes: sets of eight are then hardly ever full."""


class ChangeCache(Slots):
    """The cache of one events partition, in `path`; at most `capacity` entries, none older than `expire_s` seconds.

    A batch `begin`s, and what it says is in the file when it has called `save`: one search and one write a change.
    """

    def __init__(self, path: Path, capacity: int, expire_s: float) -> None:
        self._path = path
        self._most = max(1, capacity // SET)
        self._expire_s = expire_s
        self._reporters: dict[bytes, Reporter] = {}
        self._deletions: dict[bytes, tuple[int, int]] = {}
        self._map, self._file = self._mapped(min(_FEWEST, self._most))
        super().__init__(self._map, _HEAD, expire_s)

    def begin(self) -> None:
        """Forget what was not saved: another process may have had the partition since."""
        self.forget()
        self._deletions.clear()
        try:
            has_grown = _identity(self._path.stat()) != self._file
        except FileNotFoundError:
            self._most = 0  # the table is gone: no other file is made
            return
        if has_grown:
            self._remap(1)
        for reporter in self._reporters.values():
            self._read(reporter)

    def clear(self) -> None:
        """Forget all changes, and what was deleted."""
        self.forget()
        self._deletions.clear()
        self._map[:_EXPIRING] = bytes(_EXPIRING)
        self._map[_HEAD:] = bytes(len(self._map) - _HEAD)

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
        name, new = _deletion_id(kind, key), (time_us, columns)
        known = self._known(name) if self._map[kind] else None
        if known is None or new >= known:  # another node's report of it keeps it longer
            self._deletions[name] = new
            self._map[kind] = 1

    def deletion(self, kind: int, key: bytes) -> tuple[int, int] | None:
        """The newest deletion of a `kind` that is known of a key: its time in µs, and the bits of its columns."""
        return self._known(_deletion_id(kind, key)) if self._map[kind] else None

    def _known(self, name: bytes) -> tuple[int, int] | None:
        if (held := self._deletions.get(name)) is not None:
            return held
        at = self.slot(name)
        if at < 0:
            return None
        _, time_us, when, columns = _DELETION.unpack_from(self._map, at)
        return (time_us, columns) if when >= time.time() - self._expire_s else None

    def save(self) -> None:
        """Write what was said since `begin`. A set that is full loses what was reported longest ago."""
        now = int(time.time())
        self._make_room(now)
        self.keep()
        for name, (time_us, columns) in self._deletions.items():
            at = self.slot(name)
            _DELETION.pack_into(self._map, self.oldest(name) if at < 0 else at, name, time_us, now, columns)
        self._deletions.clear()
        # Last: what is not in the slots yet must not lie before it.
        for one in self._reporters.values():
            if one.is_heard and one.is_new(one.last_segment, one.last_position):
                held = self._map[one.at : one.at + 16]
                _NODE.pack_into(self._map, one.at, held, one.last_segment, one.last_position)
                self._read(one)

    def nodes(self, entry: CacheEntry) -> list[set[str]]:
        """The host ids of the nodes that reported a change; of those that share a bit, one did."""
        found: dict[int, set[str]] = {}
        for index in range(_NODES):
            held = self._map[(at := _FIRST_NODE + index * _NODE.size) : at + 16]
            if held == bytes(16):
                break
            if entry.nodes >> index % _BITS & 1:
                found.setdefault(index % _BITS, set()).add(str(uuid.UUID(bytes=held)))
        return list(found.values())

    def close(self) -> None:
        self.release()
        self._map.close()

    def _mapped(self, sets: int) -> tuple[mmap.mmap, tuple[int, int]]:
        """The file's map, with at least so many sets, and the file's identity."""
        file = opened(self._path, _HEAD + sets * SET_BYTES)
        try:
            about = os.fstat(file)
            return mmap.mmap(file, about.st_size), _identity(about)
        finally:
            os.close(file)

    def _remap(self, sets: int) -> None:
        found, self._file = self._mapped(sets)
        self.release()
        self._map.close()
        self._map = found
        self.use(found)

    def _make_room(self, now: int) -> None:
        """Grow, if what is to be written would take more than a quarter of the slots."""
        size = len(self._map) - _HEAD
        sets = size // SET_BYTES
        written = len(self._held) + len(self._deletions)
        if sets >= self._most or not written:
            return
        taken = _TAKEN.unpack_from(self._map, _KINDS)[0] + written
        if taken * _SPARE > sets * SET:
            oldest = now - self._expire_s
            live = sum(when >= oldest for (when,) in _WHEN.iter_unpack(self._map[_HEAD:]))
            taken = live + len(self._deletions) + sum(entry.at < 0 for entry in self._held.values())
            while sets < self._most and taken * _SPARE > sets * SET:
                sets = min(sets * 2, self._most)
            if sets * SET_BYTES > size:
                self._grow(sets, oldest)
        _TAKEN.pack_into(self._map, _KINDS, taken)

    def _grow(self, sets: int, oldest: float) -> None:
        """Have so many sets, with the slots that are not older: each has another place then."""
        head, slots = self._map[:_HEAD], self._map[_HEAD:]
        try:
            self._remap(sets)
        except OSError as error:
            if error.errno != errno.ENOSPC:
                raise
            self._most = len(slots) // SET_BYTES  # it stays as it is
            return
        self._map[:_HEAD] = head
        self._map[_HEAD:] = bytes(len(self._map) - _HEAD)
        kept: dict[bytes, tuple[int, bytes]] = {}
        for at, (when,) in zip(range(0, len(slots), SLOT_BYTES), _WHEN.iter_unpack(slots), strict=True):
            name = slots[at : at + 16]
            if when >= oldest and when > kept.get(name, (0,))[0]:
                kept[name] = when, slots[at : at + SLOT_BYTES]
        for name, (_, slot) in kept.items():
            at = self.oldest(name)
            self._map[at : at + SLOT_BYTES] = slot

    def reporter(self, node: bytes) -> Reporter:
        """A node, by its host id. It has no bit if that is no host id, or there is no room."""
        reporter = self._reporters.get(node)
        if reporter is None:
            at = self._take_place(node)
            bit = 1 << (at - _FIRST_NODE) // _NODE.size % _BITS if at >= 0 else 0
            reporter = Reporter(node, bit, at)
            self._read(reporter)
            if at >= 0 or len(self._reporters) < _MOST_REPORTERS:  # anybody's event may name another
                self._reporters[node] = reporter
        return reporter

    def _read(self, reporter: Reporter) -> None:
        """Take what the file says that a node reported last."""
        reporter.is_heard = False
        if reporter.at >= 0:
            _, reporter.segment, reporter.position = _NODE.unpack_from(self._map, reporter.at)

    def _take_place(self, node: bytes) -> int:
        try:
            host = uuid.UUID(node.decode())
        except ValueError:
            return -1
        if str(host).encode() != node:  # Python takes more forms of a UUID than agents write
            return -1
        wanted = host.bytes
        for at in range(_FIRST_NODE, _HEAD, _NODE.size):
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


def _identity(about: os.stat_result) -> tuple[int, int]:
    return about.st_ino, about.st_size


def _deletion_id(kind: int, key: bytes) -> bytes:
    return hashlib.blake2b(_DELETED[kind] + key, digest_size=16).digest()


def prune(directory: Path, tables: Mapping[str, int]) -> None:
    """Remove the caches of other tables from the directory of a group, and those of earlier epochs: `tables` has the
    epoch by events topic. A process that still uses one has it until it closes it.
    """
    for path in directory.glob("*/*.cache"):
        topic, _, _ = path.name.rpartition("-")
        if tables.get(topic) != int(path.parent.name):
            path.resolve().unlink(missing_ok=True)
            path.unlink(missing_ok=True)
