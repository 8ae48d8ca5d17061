"""A row as its cells, merged by Cassandra's rules, and its bytes in a store.

    UPDATE t USING TIMESTAMP 20 SET v = 1, then one that came late, USING TIMESTAMP 10 SET v = 2, w = 2
    → cells v = 1 at 20 and w = 2 at 10

Of two cells the one with the higher write time stays; at equal times a tombstone before one with a TTL, that before one
without, of two of a kind the one that ends later, then the larger value (Cells.resolveRegular, LivenessInfo.supersedes,
DeletionTime.supersedes of Cassandra 5.0). A deletion takes what is of its write time or older. What a deletion took is
not kept: a late copy of it meets the deletion.

Bytes of a row, version 1, big-endian; lengths and counts are u32 but where it says u16:

    row    = u8 version; u8 n, n × 12 bytes of mutations merged last; u32 page; u64 armed; u8 flags
             [1] liveness: i64 write time, u32 ttl, u64 expires (0, 0: none)
             [2] deletion: i64 write time, u64 deleted at
             n, n × (u16 name, deletion) of whole columns; n, n × cell
    cell   = u8 flags: 1 path, 2 tombstone, 4 expires; i64 write time; u16 name; [1] path; [2] u64 deleted at;
             [4] u32 ttl, u64 expires; [not 2] value
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from struct import Struct

from helenus_schemas.event.cells import Cell, Cells, Deletion, Liveness

VERSION = 1
NEVER = -(1 << 63)
"""A write time before all others."""
NO_PAGE = 0xFFFFFFFF
SEEN = 12
"""Bytes that name a mutation in `seen`."""
_MOST_SEEN = 4
_new = tuple.__new__
_HEAD = Struct(">IQB")
_LIVENESS = Struct(">qIQ")
_DELETION = Struct(">qQ")
_COUNT = Struct(">I")
_CELL = Struct(">BqH")
_ENDS = Struct(">IQ")
_SECONDS = Struct(">Q")
_NAME = Struct(">H")


@dataclass(slots=True)
class Row:
    """The cells of one row, or of a partition's static columns. `seen` names the mutations that were merged last,
    `page` is where the partition lists it, `armed` for when it is in the calendar, s since the epoch, 0 if it is not.
    """

    liveness: Liveness | None = None
    deletion: Deletion | None = None
    deletions: dict[str, Deletion] = field(default_factory=dict)
    cells: dict[tuple[str, bytes | None], Cell] = field(default_factory=dict)
    seen: bytes = b""
    page: int = NO_PAGE
    armed: int = 0

    def is_empty(self) -> bool:
        """Whether nothing is left to be kept."""
        return not (self.cells or self.liveness or self.deletion or self.deletions)

    def saw(self, mutation: bytes) -> None:
        """Remember a mutation, and forget the oldest."""
        self.seen = (mutation + self.seen)[: SEEN * _MOST_SEEN]

    def merge(self, said: Cells, floor: int, dropped_at: Mapping[str, int]) -> bool:
        """Merge what a mutation says. False if that changes nothing. `floor` is the newest write time that a deletion
        of the partition or of a range took; `dropped_at` is when columns of these names were dropped, µs.
        """
        changed = False
        deletion, known = said.deletion, self.deletion
        if deletion is not None and deletion.write_time > floor and (known is None or deletion > known):
            self.deletion = deletion
            self.shadow(deletion.write_time, keeps_deletion=True)
            changed = True
        gone = floor if self.deletion is None else max(floor, self.deletion.write_time)
        liveness = said.liveness
        is_newer = liveness is not None and liveness.write_time > gone
        if liveness is not None and is_newer and (self.liveness is None or _supersedes(liveness, self.liveness)):
            self.liveness = liveness
            changed = True
        for name, whole in said.deletions.items():
            other = self.deletions.get(name)
            if whole.write_time > max(gone, dropped_at.get(name, NEVER)) and (other is None or whole > other):
                self.deletions[name] = whole
                self._shadow_column(name, whole.write_time)
                changed = True
        cells, deletions = self.cells, self.deletions
        for cell in said.cells:
            time = cell[1]
            if time <= gone:
                continue
            name = cell[0]
            if dropped_at and time <= dropped_at.get(name, NEVER):
                continue
            path = cell[3]
            if path is not None and name in deletions and time <= deletions[name].write_time:
                continue
            place = name, path
            there = cells.get(place)
            if there is None or (there != cell and _wins(cell, there)):
                cells[place] = cell
                changed = True
        return changed

    def shadow(self, floor: int, keeps_deletion: bool = False) -> bool:
        """Let go of all that is not newer than a deletion. False if there is nothing such."""
        changed = False
        if not keeps_deletion and self.deletion is not None and self.deletion.write_time <= floor:
            self.deletion = None
            changed = True
        if self.liveness is not None and self.liveness.write_time <= floor:
            self.liveness = None
            changed = True
        gone = [name for name, whole in self.deletions.items() if whole.write_time <= floor]
        for name in gone:
            del self.deletions[name]
        old = [place for place, cell in self.cells.items() if cell[1] <= floor]
        for place in old:
            del self.cells[place]
        return changed or bool(gone or old)

    def _shadow_column(self, name: str, floor: int) -> None:
        for place in [p for p, cell in self.cells.items() if p[0] == name and cell[1] <= floor]:
            del self.cells[place]

    def purge(self, now: int, gc_grace: int) -> None:
        """Let go of tombstones, and of what expired, once it is older than gc_grace."""
        if self.deletion is not None and self.deletion.deleted_at + gc_grace <= now:
            self.deletion = None
        row = self.liveness
        if row is not None and row.expires is not None and _purged_at(row.expires, row.ttl, gc_grace) <= now:
            self.liveness = None
        for name in [name for name, whole in self.deletions.items() if whole.deleted_at + gc_grace <= now]:
            del self.deletions[name]
        for place, cell in list(self.cells.items()):
            ends = _cell_purged_at(cell, gc_grace)
            if ends is not None and ends <= now:
                del self.cells[place]

    def next_due(self, now: int, gc_grace: int) -> int:
        """When the row is to be looked at again, s since the epoch; 0: never by itself."""
        times: list[int] = []
        if self.deletion is not None:
            times.append(self.deletion.deleted_at + gc_grace)
        if self.liveness is not None and self.liveness.expires is not None:
            expires = self.liveness.expires
            times.append(expires if expires > now else _purged_at(expires, self.liveness.ttl, gc_grace))
        times += [whole.deleted_at + gc_grace for whole in self.deletions.values()]
        for cell in self.cells.values():
            if cell[5] is not None and cell[5] > now:
                times.append(cell[5])
            elif cell[5] is not None or cell[2] is None:
                times.append(_cell_purged_at(cell, gc_grace) or 0)
        return max(1, min(times)) if times else 0

    def dumps(self) -> bytes:
        """The row's bytes."""
        flags = (1 if self.liveness else 0) | (2 if self.deletion else 0)
        parts = [bytes((VERSION, len(self.seen) // SEEN)), self.seen, _HEAD.pack(self.page, self.armed, flags)]
        if self.liveness:
            parts.append(_LIVENESS.pack(self.liveness.write_time, self.liveness.ttl or 0, self.liveness.expires or 0))
        if self.deletion:
            parts.append(_DELETION.pack(*self.deletion))
        parts.append(_COUNT.pack(len(self.deletions)))
        for name, whole in self.deletions.items():
            text = name.encode()
            parts += (_NAME.pack(len(text)), text, _DELETION.pack(*whole))
        parts.append(_COUNT.pack(len(self.cells)))
        add, count, pack = parts.append, _COUNT.pack, _CELL.pack
        for name, time, value, path, ttl, expires, deleted_at in self.cells.values():
            text = name.encode()
            add(pack((path is not None) | (value is None) << 1 | (expires is not None) << 2, time, len(text)))
            add(text)
            if path is not None:
                add(count(len(path)))
                add(path)
            if value is None:
                add(_SECONDS.pack(deleted_at or 0))
                continue
            if expires is not None:
                add(_ENDS.pack(ttl or 0, expires))
            add(count(len(value)))
            add(value)
        return b"".join(parts)

    @classmethod
    def loads(cls, data: bytes) -> Row:
        """A row of its bytes. Raises ValueError for those of a version that is not known here."""
        if data[0] != VERSION:
            raise ValueError(
                f"a row of version {data[0]} in the state, where {VERSION} is known: go back to what wrote it"
            )
        at = 2 + data[1] * SEEN
        row = cls(seen=data[2:at])
        row.page, row.armed, flags = _HEAD.unpack_from(data, at)
        at += _HEAD.size
        if flags & 1:
            time, ttl, expires = _LIVENESS.unpack_from(data, at)
            at += _LIVENESS.size
            row.liveness = Liveness(time, ttl, expires) if expires else Liveness(time)
        if flags & 2:
            row.deletion = Deletion(*_DELETION.unpack_from(data, at))
            at += _DELETION.size
        (count,) = _COUNT.unpack_from(data, at)
        at += 4
        for _ in range(count):
            end = at + 2 + _NAME.unpack_from(data, at)[0]
            row.deletions[data[at + 2 : end].decode()] = Deletion(*_DELETION.unpack_from(data, end))
            at = end + _DELETION.size
        (count,) = _COUNT.unpack_from(data, at)
        at += 4
        cells, unpack, length = row.cells, _CELL.unpack_from, _COUNT.unpack_from
        for _ in range(count):
            flags, time, size = unpack(data, at)
            at += 11
            name = data[at : at + size].decode()
            at += size
            path = value = ttl = expires = deleted_at = None
            if flags & 1:
                end = at + 4 + length(data, at)[0]
                path = data[at + 4 : end]
                at = end
            if flags & 2:
                (deleted_at,) = _SECONDS.unpack_from(data, at)
                at += 8
            else:
                if flags & 4:
                    ttl, expires = _ENDS.unpack_from(data, at)
                    at += 12
                end = at + 4 + length(data, at)[0]
                value = data[at + 4 : end]
                at = end
            cells[name, path] = _new(Cell, (name, time, value, path, ttl, expires, deleted_at))
        if at != len(data):
            raise ValueError(f"a row in the state has {len(data) - at} bytes too many: its checkpoint is damaged")
        return row


def has_seen(data: bytes, mutation: bytes) -> bool:
    """Whether a row of these bytes has merged a mutation, as far as it remembers."""
    return data.find(mutation, 2, 2 + data[1] * SEEN) >= 0


def _purged_at(expires: int, ttl: int | None, gc_grace: int) -> int:
    """An expired cell becomes a tombstone of the time when it was written."""
    return max(expires, expires - (ttl or 0) + gc_grace)


def _cell_purged_at(cell: Cell, gc_grace: int) -> int | None:
    if cell.value is None:
        return (cell.deleted_at or 0) + gc_grace
    return None if cell.expires is None else _purged_at(cell.expires, cell.ttl, gc_grace)


def _supersedes(a: Liveness, b: Liveness) -> bool:
    """LivenessInfo.supersedes."""
    if a.write_time != b.write_time:
        return a.write_time > b.write_time
    if a.expires is not None and b.expires is not None:
        return a.expires > b.expires
    return a.expires is not None and b.expires is None


def _wins(a: Cell, b: Cell) -> bool:
    """Whether a cell is to take another one's place: Cells.resolveRegular."""
    if a.write_time != b.write_time:
        return a.write_time > b.write_time
    a_ends = a.deleted_at if a.value is None else a.expires
    b_ends = b.deleted_at if b.value is None else b.expires
    if (a_ends is None) != (b_ends is None):
        return a_ends is not None
    if (a.value is None) != (b.value is None):
        return a.value is None
    if a_ends is not None and b_ends is not None and a_ends != b_ends:
        return a_ends > b_ends
    return (a.value or b"") > (b.value or b"")
