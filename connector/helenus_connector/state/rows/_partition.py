"""What is kept of a partition besides its rows: what was deleted of it as a whole, and which rows it has.

Rows are listed in the order in which they came, 64 to a page. The page that is not full lies in the partition's own
value; full ones are values of their own. A row knows its page, and is taken out of it when nothing of it is kept.

Bytes of a partition, version 2, big-endian: u8 version; u32 pages; u64 armed; u8 has a deletion, [i64 write time,
u64 deleted at]; u32 n, n ranges; u32 first page; the open page. A range is its deletion and two bounds: u8 0 none, 1
exclusive, 2 inclusive, [u8 n, n × (u32 size, bytes)]. In version 1 the first page is 0, and not said.
A page, alone after a u8 version, which is 1: keys, each after its u32 size.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from struct import Struct
from typing import Any

from helenus_connector.interfaces.image import Bounds
from helenus_connector.state.rows._cell_rules import NEVER, purge_time, when_purged
from helenus_connector.state.store.packing import pack_items, unpack_items
from helenus_schemas.cql.order import order
from helenus_schemas.cql.table import Table
from helenus_schemas.event.cells import Deletion
from helenus_schemas.event.change import Bound

PAGE = 64
_VERSION = 2
_OF_PAGE = 1
_HEAD = Struct(">BIQB")
_DELETION = Struct(">qQ")
_COUNT = Struct(">I")

Covers = Callable[[Sequence[bytes | None], Bounds], bool]
"""Whether a row's clustering values lie within bounds."""
Within = Callable[[Bounds, Bounds], bool]
"""Whether the first bounds lie within the others, as far as that can be said without a row."""


@dataclass(slots=True)
class PartitionState:
    """Full pages are those from `first` up to `pages`, `open` are the keys of the next. `armed` as a row's."""

    deletion: Deletion | None = None
    ranges: dict[Bounds, Deletion] = field(default_factory=dict)
    pages: int = 0
    open: list[bytes] = field(default_factory=list)
    armed: int = 0
    first: int = 0

    def is_empty(self) -> bool:
        """Whether nothing is to be kept."""
        return not (self.deletion or self.ranges or self.first < self.pages or self.open)

    def floor(self, clustering: Sequence[bytes | None] | None, covers: Covers, soft_before: int = -1) -> int:
        """The newest write time that is deleted of a row; of the static columns, which have no clustering values.
        Deletions of before `soft_before`, s since the epoch, do not count.
        """
        floor = NEVER
        if self.deletion is not None and self.deletion.deleted_at > soft_before:
            floor = self.deletion.write_time
        if clustering is not None:
            for bounds, deletion in self.ranges.items():
                if deletion.write_time > floor and deletion.deleted_at > soft_before and covers(clustering, bounds):
                    floor = deletion.write_time
        return floor

    def lift(self, clustering: Sequence[bytes | None] | None, covers: Covers, write_time: int) -> int:
        """Let go of the deletions that would hide a cell of this write time, which a read showed; the newest write time
        of those, NEVER if there are none.
        """
        lifted = [NEVER]
        if self.deletion is not None and self.deletion.write_time >= write_time:
            lifted.append(self.deletion.write_time)
            self.deletion = None
        for bounds, deletion in list(self.ranges.items() if clustering is not None else ()):
            if deletion.write_time >= write_time and covers(clustering or (), bounds):
                lifted.append(deletion.write_time)
                del self.ranges[bounds]
        return max(lifted)

    def newest_deletion(self) -> int:
        """The newest write time of the deletions; NEVER if there are none."""
        return max((d.write_time for d in self._deletions()), default=NEVER)

    def _deletions(self) -> list[Deletion]:
        return [*self.ranges.values(), *filter(None, [self.deletion])]

    def delete(self, deletion: Deletion, bounds: Bounds | None, is_within: Within) -> bool:
        """Note a deletion of all, or of what is within bounds, and let go of those it covers. False if it is known, or
        covered by a newer one.
        """
        if self.deletion is not None and deletion <= self.deletion:
            return False
        if bounds is None:
            self.deletion = deletion
            self.shadow(deletion.write_time)
            return True
        if self.deletion is not None and deletion.write_time <= self.deletion.write_time:
            return False
        if any(known >= deletion and is_within(bounds, of) for of, known in self.ranges.items()):
            return False
        covered = [of for of, d in self.ranges.items() if d <= deletion and is_within(of, bounds)]
        for of in covered:
            del self.ranges[of]
        self.ranges[bounds] = deletion
        return True

    def shadow(self, floor: int) -> None:
        """Let go of ranges that a newer deletion covers."""
        self.ranges = {bounds: d for bounds, d in self.ranges.items() if d.write_time > floor}

    def purge(self, now: int, gc_grace: int) -> int:
        """Let go of deletions that are older than gc_grace; the newest write time of these, NEVER if there are none."""
        purged = [d.write_time for d in self._deletions() if purge_time(d, gc_grace) <= now]
        if self.deletion is not None and purge_time(self.deletion, gc_grace) <= now:
            self.deletion = None
        self.ranges = {bounds: d for bounds, d in self.ranges.items() if purge_time(d, gc_grace) > now}
        return max(purged, default=NEVER)

    def next_due(self, now: int, gc_grace: int, purged_to: int) -> int:
        """When there is something to be purged, s since the epoch; 0: never. `purged_to` as of `when_purged`."""
        times = [purge_time(d, gc_grace) for d in self._deletions()]
        return max(1, min(when_purged(when, now, purged_to) for when in times)) if times else 0

    def dumps(self) -> bytes:
        """The partition's bytes."""
        parts = [_HEAD.pack(_VERSION, self.pages, self.armed, self.deletion is not None)]
        if self.deletion is not None:
            parts.append(_DELETION.pack(*self.deletion))
        parts.append(_COUNT.pack(len(self.ranges)))
        for bounds, deletion in self.ranges.items():
            parts.append(_DELETION.pack(*deletion))
            for bound in bounds:
                parts.append(b"\0" if bound is None else bytes((1 + bound.inclusive, len(bound.values))))
                parts.append(pack_items(bound.values) if bound else b"")
        parts.append(_COUNT.pack(self.first))
        return b"".join((*parts, pack_items(self.open)))

    @classmethod
    def loads(cls, data: bytes) -> PartitionState:
        """A partition of its bytes. Raises ValueError for those of another version."""
        version, pages, armed, is_deleted = _HEAD.unpack_from(data)
        check_version(version)
        found, at = cls(pages=pages, armed=armed), _HEAD.size
        if is_deleted:
            found.deletion = Deletion(*_DELETION.unpack_from(data, at))
            at += _DELETION.size
        (count,) = _COUNT.unpack_from(data, at)
        at += 4
        for _ in range(count):
            deletion = Deletion(*_DELETION.unpack_from(data, at))
            start, at = _bound(data, at + _DELETION.size)
            end, at = _bound(data, at)
            found.ranges[start, end] = deletion
        if version > 1:
            (found.first,) = _COUNT.unpack_from(data, at)
            at += 4
        found.open = unpack_items(data, at)
        return found


def page_bytes(keys: Sequence[bytes]) -> bytes:
    """A full page's bytes."""
    return bytes((_OF_PAGE,)) + pack_items(keys)


def keys_of(page: bytes | None) -> list[bytes]:
    """The keys of a full page; none of one that is gone."""
    if page is None:
        return []
    check_version(page[0], _OF_PAGE)
    return unpack_items(page, 1)


def check_version(version: int, known: int = _VERSION) -> None:
    """Raise ValueError for a version that is not known here."""
    if version not in range(1, known + 1):
        raise ValueError(f"a partition of version {version} in the state, where {known} is known")


def covering(table: Table) -> tuple[Covers, Within]:
    """Compares by the table's order of clustering values: a row with bounds, and bounds with others."""
    columns = [(order(column.type), column.reversed) for column in table.clustering]

    def is_past(clustering: Sequence[bytes | None], bound: Bound | None, is_start: bool) -> bool:
        if bound is None:
            return True
        for (key, is_reversed), value, end in zip(columns, clustering, bound.values, strict=False):
            one: Any = key(value)
            other: Any = key(end)
            if one != other:
                return bool(one > other) == (is_start != is_reversed)
        return bound.inclusive

    def covers(clustering: Sequence[bytes | None], bounds: Bounds) -> bool:
        return is_past(clustering, bounds[0], True) and is_past(clustering, bounds[1], False)

    def is_no_further(one: Bound | None, other: Bound | None, is_start: bool) -> bool:
        if one is None or other is None or one == other:
            return other is None or one == other
        # A bound of fewer values is before or after all rows that begin with them.
        return len(one.values) >= len(other.values) and is_past(one.values, other, is_start)

    def is_within(one: Bounds, other: Bounds) -> bool:
        return is_no_further(one[0], other[0], True) and is_no_further(one[1], other[1], False)

    return covers, is_within


def _bound(data: bytes, at: int) -> tuple[Bound | None, int]:
    kind = data[at]
    if not kind:
        return None, at + 1
    count, at = data[at + 1], at + 2
    values = []
    for _ in range(count):
        (size,) = _COUNT.unpack_from(data, at)
        values.append(data[at + 4 : at + 4 + size])
        at += 4 + size
    return Bound(kind == 2, tuple(values)), at
