"""The state of one of Cassandra's partitions besides its rows: its deletions as a whole, and the list of its rows.

Rows are listed in the order in which they came, 64 to a page. The page that is not full lies in the partition's own
value; full ones are values of their own. A row has the number of its page, and is removed from it when nothing of the
row is stored.

Bytes of a partition, version 2, big-endian: u8 version; u32 next page; u64 scheduled at; u8 has a deletion, [i64 write
time, u64 deleted at]; u32 n, n ranges; u32 first page; the open page. A range is its deletion and two bounds: u8 0
none, 1 exclusive, 2 inclusive, [u8 n, n × (u32 size, bytes)]. Version 1 has no first page: it is 0.
A page, alone after a u8 version, which is 1: keys, each after its u32 size.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from struct import Struct

from helenus_connector.cassandra_rows.clustering_bounds import Covers, Within
from helenus_connector.interfaces.image import Bounds
from helenus_connector.state.rows._cell_rules import NEVER, next_purge_check, purge_time
from helenus_connector.state.store.packing import pack_items, unpack_items
from helenus_connector.state.store.versions import UnknownVersion
from helenus_schemas.event.cells import Deletion
from helenus_schemas.event.change import Bound

PAGE_SIZE = 64
"""Keys to a page: a partition of a few rows, as most are, is one value in the store."""
_VERSION = 2
_PAGE_VERSION = 1
_HEAD = Struct(">BIQB")
_DELETION = Struct(">qQ")
_COUNT = Struct(">I")


@dataclass(slots=True)
class PartitionState:
    """The deletions and pages of a partition of Cassandra's. Its full pages are those from `first_page` up to
    `next_page`, not included; `open_keys` are the keys of the page `next_page`, which is not full. `scheduled_at` as a
    row's.
    """

    deletion: Deletion | None = None
    ranges: dict[Bounds, Deletion] = field(default_factory=dict)
    next_page: int = 0
    open_keys: list[bytes] = field(default_factory=list)
    scheduled_at: int = 0
    first_page: int = 0

    def is_empty(self) -> bool:
        """Return whether the partition has nothing to store."""
        return not (self.deletion or self.ranges or self.first_page < self.next_page or self.open_keys)

    def deletion_floor(self, clustering: Sequence[bytes | None] | None, covers: Covers, soft_before: int = -1) -> int:
        """Return up to which write time deletions delete a row with these `clustering` values; NEVER if none does. None
        stands for the static columns, which ranges do not delete. Deletions up to `soft_before`, s since the epoch, do
        not count.
        """
        floor = NEVER
        if self.deletion is not None and self.deletion.deleted_at > soft_before:
            floor = self.deletion.write_time
        if clustering is not None:
            for bounds, deletion in self.ranges.items():
                if deletion.write_time > floor and deletion.deleted_at > soft_before and covers(clustering, bounds):
                    floor = deletion.write_time
        return floor

    def lift_deletions(self, clustering: Sequence[bytes | None] | None, covers: Covers, write_time: int) -> int:
        """Remove the deletions that would hide a cell of this write time, which a read found. Return the newest write
        time of those, NEVER if there are none.
        """
        lifted_times = [NEVER]
        if self.deletion is not None and self.deletion.write_time >= write_time:
            lifted_times.append(self.deletion.write_time)
            self.deletion = None
        for bounds, deletion in list(self.ranges.items() if clustering is not None else ()):
            if deletion.write_time >= write_time and covers(clustering or (), bounds):
                lifted_times.append(deletion.write_time)
                del self.ranges[bounds]
        return max(lifted_times)

    def newest_deletion_time(self) -> int:
        """Return the newest write time of the deletions; NEVER if there are none."""
        return max((d.write_time for d in self._deletions()), default=NEVER)

    def _deletions(self) -> list[Deletion]:
        return [*self.ranges.values(), *filter(None, [self.deletion])]

    def add_deletion(self, deletion: Deletion, bounds: Bounds | None, is_within: Within) -> bool:
        """Add a deletion of all, or of what is within bounds, and remove those it covers. Return False if it is here
        already, or covered by a newer one.
        """
        if self.deletion is not None and deletion <= self.deletion:
            return False
        if bounds is None:
            self.deletion = deletion
            self.drop_shadowed_ranges(deletion.write_time)
            return True
        if self.deletion is not None and deletion.write_time <= self.deletion.write_time:
            return False
        if any(
            existing >= deletion and is_within(bounds, range_bounds) for range_bounds, existing in self.ranges.items()
        ):
            return False
        covered = [
            range_bounds for range_bounds, d in self.ranges.items() if d <= deletion and is_within(range_bounds, bounds)
        ]
        for range_bounds in covered:
            del self.ranges[range_bounds]
        self.ranges[bounds] = deletion
        return True

    def drop_shadowed_ranges(self, floor: int) -> None:
        """Remove ranges that a newer deletion covers."""
        self.ranges = {bounds: d for bounds, d in self.ranges.items() if d.write_time > floor}

    def purge(self, now: int, gc_grace: int) -> int:
        """Remove deletions that are older than gc_grace. Return the newest write time of these, NEVER if there are
        none.
        """
        purged_times = [deletion.write_time for deletion in self._deletions() if purge_time(deletion, gc_grace) <= now]
        if self.deletion is not None and purge_time(self.deletion, gc_grace) <= now:
            self.deletion = None
        self.ranges = {
            bounds: deletion for bounds, deletion in self.ranges.items() if purge_time(deletion, gc_grace) > now
        }
        return max(purged_times, default=NEVER)

    def next_due(self, now: int, gc_grace: int, purge_clock: int) -> int:
        """Return when a deletion can be purged next, s since the epoch; 0: never. `purge_clock` as of
        `next_purge_check`.
        """
        times = [purge_time(d, gc_grace) for d in self._deletions()]
        return max(1, min(next_purge_check(time, now, purge_clock) for time in times)) if times else 0

    def dumps(self) -> bytes:
        """Return the partition's bytes."""
        parts = [_HEAD.pack(_VERSION, self.next_page, self.scheduled_at, self.deletion is not None)]
        if self.deletion is not None:
            parts.append(_DELETION.pack(*self.deletion))
        parts.append(_COUNT.pack(len(self.ranges)))
        for bounds, deletion in self.ranges.items():
            parts.append(_DELETION.pack(*deletion))
            for bound in bounds:
                parts.append(b"\0" if bound is None else bytes((1 + bound.inclusive, len(bound.values))))
                parts.append(pack_items(bound.values) if bound else b"")
        parts.append(_COUNT.pack(self.first_page))
        return b"".join((*parts, pack_items(self.open_keys)))

    @classmethod
    def loads(cls, data: bytes) -> PartitionState:
        """Parse a partition's bytes. Raises ValueError for those of another version."""
        version, next_page, scheduled_at, is_deleted = _HEAD.unpack_from(data)
        check_version(version)
        partition, offset = cls(next_page=next_page, scheduled_at=scheduled_at), _HEAD.size
        if is_deleted:
            partition.deletion = Deletion(*_DELETION.unpack_from(data, offset))
            offset += _DELETION.size
        (count,) = _COUNT.unpack_from(data, offset)
        offset += 4
        for _ in range(count):
            deletion = Deletion(*_DELETION.unpack_from(data, offset))
            start, offset = _read_bound(data, offset + _DELETION.size)
            end, offset = _read_bound(data, offset)
            partition.ranges[start, end] = deletion
        if version > 1:
            (partition.first_page,) = _COUNT.unpack_from(data, offset)
            offset += 4
        partition.open_keys = unpack_items(data, offset)
        return partition


def page_bytes(keys: Sequence[bytes]) -> bytes:
    """Return the bytes of a full page."""
    return bytes((_PAGE_VERSION,)) + pack_items(keys)


def keys_of(page: bytes | None) -> list[bytes]:
    """Return the keys of a full page; none of one that is gone."""
    if page is None:
        return []
    check_version(page[0], _PAGE_VERSION)
    return unpack_items(page, 1)


def check_version(version: int, newest: int = _VERSION) -> None:
    """Raise ValueError for a version that is newer than the newest one here."""
    if version not in range(1, newest + 1):
        raise UnknownVersion("a partition", version, newest)


def _read_bound(data: bytes, offset: int) -> tuple[Bound | None, int]:
    kind = data[offset]
    if not kind:
        return None, offset + 1
    count, offset = data[offset + 1], offset + 2
    values = []
    for _ in range(count):
        (size,) = _COUNT.unpack_from(data, offset)
        values.append(data[offset + 4 : offset + 4 + size])
        offset += 4 + size
    return Bound(kind == 2, tuple(values)), offset
