"""The MD5 cache: which changes of one events partition are published and confirmed, and which nodes reported them.

One memory-mapped file per events partition, shared by the host's Python workers: Spark gives a worker no partition of
its own, and ends idle ones. A partition is in one task at a time, so there is no lock. The cache is bounded by entries
and age. It saves work and is never needed for correctness: what it forgot is read and published once more.

It begins small, and grows when an eighth of its slots is taken by changes that are not too old: with a thousand
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
_MAX_REPORTERS = 1000  # of which those without a place are remembered
_NODE = struct.Struct(">16sqq")
MAY = 8
"""Added to a kind of deletion: a change that may delete, but need not."""

_KINDS = 16
_EXPIRING = _KINDS - 1
_NO_KINDS = bytes(MAY)
_DELETED = [b"%d deleted" % kind for kind in range(_KINDS)]
_DELETION = struct.Struct(">16sqII")
_NO_HOST = bytes(16)
_COUNTS = struct.Struct(">Q")
_FIRST_NODE = _KINDS + _COUNTS.size
_HEAD = _FIRST_NODE + _NODES * _NODE.size
_REPORT_TIME = struct.Struct(">24xI4x")
_MIN_SETS = 128
"""Sets of a new cache: 32 kB."""
_SLOTS_PER_CHANGE = 8
"""Times as many slots as changes: then one of a million changes, as reckoned, finds its set of eight full. With half as
many slots it was eighty, as measured, and each of these may be published twice.
"""


class ChangeCache(Slots):
    """The cache of one events partition, in `path`; at most `capacity` entries, none older than `expire_s` seconds.

    A batch `begin`s, and what it says is in the file when it has called `save`: one search and one write a change.
    """

    def __init__(self, path: Path, capacity: int, expire_s: float) -> None:
        self._path = path
        self._max_sets = max(1, capacity // SET)
        self._expire_s = expire_s
        self._reporters: dict[bytes, Reporter] = {}  # of this batch
        self._node_offsets: dict[bytes, int] = {}
        self._hosts_by_bit: dict[int, set[str]] = {}
        self._hosts_read = 0  # of the table of nodes
        self._deletions: dict[bytes, tuple[int, int]] = {}
        self._map, self._file = self._map_file(min(_MIN_SETS, self._max_sets))
        super().__init__(self._map, _HEAD, expire_s)

    def begin(self) -> None:
        """Forget what was not saved: another process may have had the partition since."""
        self.forget()
        self._deletions.clear()
        self._reporters.clear()  # most of a large cluster's nodes report nothing in a batch
        try:
            has_grown = _identity(self._path.stat()) != self._file
        except FileNotFoundError:
            self._max_sets = 0  # the table is gone: no other file is made
            return
        if has_grown:
            self._remap(1)

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
        """Return whether cells with a TTL were written since the file exists."""
        return bool(self._map[_EXPIRING])

    @property
    def has_deletions(self) -> bool:
        """Return whether any certain deletion was noted."""
        return self._map[:MAY] != _NO_KINDS

    def deletes(self, kind: int) -> bool:
        """Return whether a deletion of this kind was noted."""
        return bool(self._map[kind])

    def delete(self, kind: int, key: bytes, time_us: int, columns: int) -> None:
        """Note a deletion of a `kind`, 0 to 14, if it is newer than what is known of the key; with the bits of its
        `columns`.
        """
        name, new = _deletion_id(kind, key), (time_us, columns)
        previous = self._cached_deletion(name) if self._map[kind] else None
        if previous is None or new >= previous:  # another node's report of it keeps it longer
            self._deletions[name] = new
            self._map[kind] = 1

    def deletion(self, kind: int, key: bytes) -> tuple[int, int] | None:
        """Return the newest known deletion of a `kind` of a key: its time in µs, and the bits of its columns."""
        return self._cached_deletion(_deletion_id(kind, key)) if self._map[kind] else None

    def _cached_deletion(self, name: bytes) -> tuple[int, int] | None:
        if (unsaved := self._deletions.get(name)) is not None:
            return unsaved
        offset = self.slot(name)
        if offset < 0:
            return None
        _, time_us, reported_s, columns = _DELETION.unpack_from(self._map, offset)
        return (time_us, columns) if reported_s >= time.time() - self._expire_s else None

    def save(self) -> None:
        """Write all reports and marks since `begin`. A full set loses the change that was reported longest ago."""
        now = int(time.time())
        self._make_room(now)
        self.keep()
        for name, (time_us, columns) in self._deletions.items():
            offset = self.slot(name)
            _DELETION.pack_into(self._map, self.oldest(name) if offset < 0 else offset, name, time_us, now, columns)
        self._deletions.clear()
        # Last: what is not in the slots yet must not lie before it.
        for reporter in self._reporters.values():
            if reporter.is_heard and reporter.is_new(reporter.last_segment, reporter.last_position):
                host = self._map[reporter.offset : reporter.offset + 16]
                _NODE.pack_into(self._map, reporter.offset, host, reporter.last_segment, reporter.last_position)
                self._read(reporter)

    def nodes(self, entry: CacheEntry) -> list[set[str]]:
        """Return the host ids of the nodes that reported a change, in groups that share a bit: at least one of each
        did.
        """
        self._read_hosts()
        bits, groups = entry.nodes, []
        while bits:
            bit = bits & -bits
            if (hosts := self._hosts_by_bit.get(bit)) is not None:
                groups.append(hosts)
            bits ^= bit
        return groups

    def _read_hosts(self) -> None:
        """Read the nodes that were added to the table, by their bits."""
        while self._hosts_read < _NODES:
            offset = _FIRST_NODE + self._hosts_read * _NODE.size
            host = self._map[offset : offset + 16]
            if host == _NO_HOST:
                return
            self._hosts_by_bit.setdefault(1 << self._hosts_read % _BITS, set()).add(str(uuid.UUID(bytes=host)))
            self._hosts_read += 1

    def close(self) -> None:
        self.release()
        self._map.close()

    def _map_file(self, sets: int) -> tuple[mmap.mmap, tuple[int, int]]:
        """Map the file with at least `sets` sets, and return the map and the file's identity."""
        file = opened(self._path, _HEAD + sets * SET_BYTES)
        try:
            status = os.fstat(file)
            return mmap.mmap(file, status.st_size), _identity(status)
        finally:
            os.close(file)

    def _remap(self, sets: int) -> None:
        new_map, self._file = self._map_file(sets)
        self._node_offsets.clear()  # it may be another file
        self._hosts_by_bit.clear()
        self._hosts_read = 0
        self.release()
        self._map.close()
        self._map = new_map
        self.use(new_map)

    def _make_room(self, now: int) -> None:
        """Grow, if the changes would fill more than an eighth of the slots."""
        size = len(self._map) - _HEAD
        sets = size // SET_BYTES
        written = len(self._changed_entries) + len(self._deletions)
        if sets >= self._max_sets or not written:
            return
        slots_taken = _COUNTS.unpack_from(self._map, _KINDS)[0] + written
        if slots_taken * _SLOTS_PER_CHANGE > sets * SET:
            oldest = now - self._expire_s
            live = sum(reported_s >= oldest for (reported_s,) in _REPORT_TIME.iter_unpack(self._map[_HEAD:]))
            slots_taken = (
                live + len(self._deletions) + sum(entry.offset < 0 for entry in self._changed_entries.values())
            )
            while sets < self._max_sets and slots_taken * _SLOTS_PER_CHANGE > sets * SET:
                sets = min(sets * 2, self._max_sets)
            if sets * SET_BYTES > size:
                self._grow(sets, oldest)
        _COUNTS.pack_into(self._map, _KINDS, slots_taken)

    def _grow(self, sets: int, oldest: float) -> None:
        """Grow to `sets` sets and move the slots that are not older than `oldest`: each has another offset then."""
        head, slots = self._map[:_HEAD], self._map[_HEAD:]
        try:
            self._remap(sets)
        except OSError as error:
            if error.errno != errno.ENOSPC:
                raise
            self._max_sets = len(slots) // SET_BYTES  # it stays as it is
            return
        self._map[:_HEAD] = head
        self._map[_HEAD:] = bytes(len(self._map) - _HEAD)
        newest: dict[bytes, tuple[int, bytes]] = {}
        for offset, (reported_s,) in zip(
            range(0, len(slots), SLOT_BYTES), _REPORT_TIME.iter_unpack(slots), strict=True
        ):
            name = slots[offset : offset + 16]
            if reported_s >= oldest and reported_s > newest.get(name, (0,))[0]:
                newest[name] = reported_s, slots[offset : offset + SLOT_BYTES]
        for name, (_, slot) in newest.items():
            offset = self.oldest(name)
            self._map[offset : offset + SLOT_BYTES] = slot

    def reporter(self, node: bytes) -> Reporter:
        """Return the reporter of a host id, for this batch. It has no bit if the id is invalid, or the table of nodes
        full.
        """
        reporter = self._reporters.get(node)
        if reporter is None:
            offset = self._node_offset(node)
            bit = 1 << (offset - _FIRST_NODE) // _NODE.size % _BITS if offset >= 0 else 0
            reporter = Reporter(node, bit, offset)
            self._read(reporter)
            if offset >= 0 or len(self._reporters) < _MAX_REPORTERS:  # anybody's event may name another
                self._reporters[node] = reporter
        return reporter

    def _read(self, reporter: Reporter) -> None:
        """Read from the file what a node reported last."""
        reporter.is_heard = False
        if reporter.offset >= 0:
            _, reporter.segment, reporter.position = _NODE.unpack_from(self._map, reporter.offset)

    def _node_offset(self, node: bytes) -> int:
        offset = self._node_offsets.get(node)
        if offset is None:
            offset = self._find_or_add_node(node)
            if offset >= 0:
                self._node_offsets[node] = offset
        return offset

    def _find_or_add_node(self, node: bytes) -> int:
        try:
            host = uuid.UUID(node.decode())
        except ValueError:
            return -1
        if str(host).encode() != node:  # Python takes more forms of a UUID than agents write
            return -1
        host_bytes = host.bytes
        for offset in range(_FIRST_NODE, _HEAD, _NODE.size):
            host_there = self._map[offset : offset + 16]
            if host_there == host_bytes:
                return offset
            if host_there == _NO_HOST:
                _NODE.pack_into(self._map, offset, host_bytes, -1, -1)
                return offset
        return -1


class Caches:
    """The caches of one table in one process, one for each of its events partitions, in `directory`."""

    def __init__(self, directory: Path, capacity: int, expire_s: float) -> None:
        self._directory = directory
        self._capacity = capacity
        self._expire_s = expire_s
        self._caches: dict[tuple[str, int], ChangeCache] = {}

    def cache_for(self, topic: str, partition: int) -> ChangeCache:
        """Return the cache of an events partition."""
        cache = self._caches.get((topic, partition))
        if cache is None:
            path = self._directory / f"{topic}-{partition}.cache"
            cache = self._caches[topic, partition] = ChangeCache(path, self._capacity, self._expire_s)
        return cache

    @property
    def has_expiring(self) -> bool:
        """Return whether cells with a TTL were written in any of the partitions opened so far."""
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
        """Close the files."""
        for cache in self._caches.values():
            cache.close()
        self._caches.clear()


def _identity(status: os.stat_result) -> tuple[int, int]:
    return status.st_ino, status.st_size


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
