"""A row as its cells, merged by Cassandra's rules, and its bytes in a store.

    UPDATE t USING TIMESTAMP 20 SET v = 1, then one that came late, USING TIMESTAMP 10 SET v = 2, w = 2
    → cells v = 1 at 20 and w = 2 at 10

Of two cells the one with the higher write time stays; at equal times a tombstone before one with a TTL, that before one
without, of two of a kind the one that ends later, then the larger value (Cells.resolveRegular, LivenessInfo.supersedes,
DeletionTime.supersedes of Cassandra 5.0). A deletion takes what is of its write time or older. What a deletion took is
not kept: a late copy of it meets the deletion.

Some of a row may come from a read of it (`reads`), which does not show all that a node keeps: what it leaves open is
in doubt once an event speaks against it, and the row is read again.

Bytes of a row, version 2, big-endian; lengths and counts are u32 but where it says u16:

    row    = u8 version; u8 n, n × 12 bytes of mutations merged last; u32 page; u64 armed; u8 flags
             [1] liveness: i64 write time, u32 ttl, u64 expires (0, 0: none)
             [2] deletion: i64 write time, u64 deleted at
             [4] i64 bound of a guessed liveness; [8] deletion that reads imply; [16] u64 to be read again at
             n, n × (u16 name, deletion) of whole columns; n, n × cell
    cell   = u8 flags: 1 path, 2 tombstone, 4 expires; i64 write time; u16 name; [1] path; [2] u64 deleted at;
             [4] u32 ttl, u64 expires; [not 2] value

Version 1 is the same without what the flags 4, 8 and 16 stand for.
"""

from __future__ import annotations

from collections.abc import Mapping
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, field
from struct import Struct
from typing import NamedTuple

from helenus_schemas.event.cells import Cell, Cells, Deletion, Liveness, is_read_path

VERSION = 2
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
_TIME = Struct(">q")
_NAME = Struct(">H")
_LATER_S = 3600

Element = tuple[int, bytes | None, bool]


def element(cell: Cell) -> Element:
    """What an element of a list is known by where a read left out its path: write time, value, whether it expires."""
    return cell.write_time, cell.value, cell.expires is not None


def when_purged(when: int, now: int, purged_to: int) -> int:
    """When what is older than gc_grace from a time on can be let go. That is counted up to `purged_to`, which is before
    `now` in a backlog; then it is looked at again once that may have caught up, or in an hour.
    """
    return when if when > now else now + min(max(1, when - purged_to), _LATER_S)


class Merge(NamedTuple):
    """What merging did: whether the row `changed`, and whether it is `in_doubt`, so that it is to be read."""

    changed: bool
    in_doubt: bool


@dataclass(slots=True)
class Row:
    """The cells of one row, or of a partition's static columns. `seen` names the mutations that were merged last,
    `page` is where the partition lists it, `armed` for when it is in the calendar, s since the epoch, 0 if it is not.

    Of reads: `bound` says that the liveness is a guess, and by when the row itself was written, µs; None: it is known.
    `unseen`: cells up to this write time that are not here were not there when the row was read. `read_at`: when the
    row is to be read again, s since the epoch, 0: it is not. A read from then on is the last word.
    """

    liveness: Liveness | None = None
    deletion: Deletion | None = None
    deletions: dict[str, Deletion] = field(default_factory=dict)
    cells: dict[tuple[str, bytes | None], Cell] = field(default_factory=dict)
    seen: bytes = b""
    page: int = NO_PAGE
    armed: int = 0
    bound: int | None = None
    unseen: Deletion | None = None
    read_at: int = 0

    def is_empty(self) -> bool:
        """Whether nothing is left to be kept."""
        return not (self.cells or self.liveness or self.deletion or self.deletions or self.unseen or self.read_at)

    def saw(self, mutation: bytes) -> None:
        """Remember a mutation, and forget the oldest."""
        self.seen = (mutation + self.seen)[: SEEN * _MOST_SEEN]

    def merge(
        self, said: Cells, floor: int, dropped_at: Mapping[str, int], lists: AbstractSet[str] = frozenset()
    ) -> Merge:
        """Merge what a mutation says. `floor` is the newest write time that a deletion of the partition or of a range
        took; `dropped_at` is when columns of these names were dropped, µs; `lists` are the columns that are unfrozen
        lists. What is in doubt is left out, but for a deletion.
        """
        changed = in_doubt = False
        deletion, known = said.deletion, self.deletion
        if deletion is not None and deletion.write_time > floor and (known is None or deletion > known):
            self.deletion = deletion
            in_doubt = self.doubts(deletion.write_time)
            self.shadow(deletion.write_time, keeps_deletion=True)
            changed = True
        gone = floor if self.deletion is None else max(floor, self.deletion.write_time)
        unseen = NEVER if self.unseen is None else self.unseen.write_time
        liveness = said.liveness
        if liveness is not None and liveness.write_time > gone:
            if self.liveness is None and liveness.write_time <= unseen:
                in_doubt = True
            elif self.liveness is None or self._replaces(liveness, self.liveness):
                self.liveness, self.bound = liveness, None
                changed = True
        for name, whole in said.deletions.items():
            other = self.deletions.get(name)
            if whole.write_time > max(gone, dropped_at.get(name, NEVER)) and (other is None or whole > other):
                self.deletions[name] = whole
                self._shadow_column(name, whole.write_time)
                changed = True
        cells, deletions = self.cells, self.deletions
        from_reads = self._from_reads(said, lists) if lists else {}
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
            if there is None:
                if name in from_reads:
                    # Which element this is, or whether it was there and is gone, only another read shows.
                    if element(cell) in from_reads[name]:
                        from_reads[name].remove(element(cell))
                    else:
                        in_doubt = True
                    continue
                if time <= unseen and cell[2] is not None:
                    in_doubt = True
                    continue
            if there is None or (there != cell and wins(cell, there)):
                cells[place] = cell
                changed = True
        return Merge(changed, in_doubt)

    def _replaces(self, liveness: Liveness, known: Liveness) -> bool:
        if self.bound is None:
            return supersedes(liveness, known)
        # Of what it was guessed from: what was written since, or had ended by then, was not written together with it.
        ended = self.bound // 1_000_000
        cells = [c for c in self.cells.values() if c.value is not None and c.write_time <= known.write_time]
        return all(c.write_time <= liveness.write_time for c in cells if c.expires is None or c.expires > ended)

    def _from_reads(self, said: Cells, lists: AbstractSet[str]) -> dict[str, list[Element]]:
        """Of the lists that a mutation is about, those whose elements come from a read."""
        found: dict[str, list[Element]] = {}
        for name in lists & said.columns.keys():
            for (column, path), cell in self.cells.items():
                if column == name and is_read_path(path):
                    found.setdefault(name, []).append(element(cell))
        return found

    def doubts(self, floor: int) -> bool:
        """Whether a deletion of this time may have taken the row itself, or not: its own write time is a guess."""
        return self.bound is not None and floor < self.bound

    def is_guess(self, now: int) -> bool:
        """Whether the row lives, at a time, by a guessed liveness alone."""
        if self.bound is None or self.liveness is None:
            return False
        if self.liveness.expires is not None and self.liveness.expires <= now:
            return False
        cells = self.cells.values()
        return not any(cell[2] is not None and (cell[5] is None or cell[5] > now) for cell in cells)

    def is_to_be_read(self, before: int, now: int) -> bool:
        """Whether it is time to read the row: as was planned, or since it lives, or ended, by a guess from now on."""
        return self.ended(now) or 0 < self.read_at <= now or (self.is_guess(now) and not self.is_guess(before))

    def ended(self, now: int) -> bool:
        """Whether the row itself ended by a guess. It is gone until a read shows it."""
        if self.bound is None or self.liveness is None or (self.liveness.expires or now + 1) > now:
            return False
        self.liveness = self.bound = None
        return True

    def shadow(self, floor: int, keeps_deletion: bool = False) -> bool:
        """Let go of all that is not newer than a deletion. False if there is nothing such."""
        changed = False
        if not keeps_deletion and self.deletion is not None and self.deletion.write_time <= floor:
            self.deletion = None
            changed = True
        if self.liveness is not None and self.liveness.write_time <= floor:
            self.liveness = self.bound = None
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
        if self.unseen is not None and self.unseen.deleted_at + gc_grace <= now:
            self.unseen = None
        row = self.liveness
        if row is not None and row.expires is not None and _purged_at(row.expires, row.ttl, gc_grace) <= now:
            self.liveness = self.bound = None
        for name in [name for name, whole in self.deletions.items() if whole.deleted_at + gc_grace <= now]:
            del self.deletions[name]
        for place, cell in list(self.cells.items()):
            ends = _cell_purged_at(cell, gc_grace)
            if ends is not None and ends <= now:
                del self.cells[place]

    def next_due(self, now: int, gc_grace: int, purged_to: int) -> int:
        """When the row is to be looked at again, s since the epoch; 0: never. `purged_to` as of `when_purged`."""
        times: list[int] = []
        purged: list[int] = []
        if self.deletion is not None:
            purged.append(self.deletion.deleted_at + gc_grace)
        if self.liveness is not None and self.liveness.expires is not None:
            expires = self.liveness.expires
            if expires > now:
                times.append(expires)
            else:
                purged.append(_purged_at(expires, self.liveness.ttl, gc_grace))
        purged += [whole.deleted_at + gc_grace for whole in self.deletions.values()]
        if self.unseen is not None:
            purged.append(self.unseen.deleted_at + gc_grace)
        if self.read_at > now:
            times.append(self.read_at)
        for cell in self.cells.values():
            if cell[5] is not None and cell[5] > now:
                times.append(cell[5])
            elif cell[5] is not None or cell[2] is None:
                purged.append(_cell_purged_at(cell, gc_grace) or 0)
        times += [when_purged(when, now, purged_to) for when in purged]
        return max(1, min(times)) if times else 0

    def dumps(self) -> bytes:
        """The row's bytes."""
        flags = (1 if self.liveness else 0) | (2 if self.deletion else 0)
        flags |= (self.bound is not None) << 2 | (self.unseen is not None) << 3 | (self.read_at > 0) << 4
        parts = [bytes((VERSION, len(self.seen) // SEEN)), self.seen, _HEAD.pack(self.page, self.armed, flags)]
        if self.liveness:
            parts.append(_LIVENESS.pack(self.liveness.write_time, self.liveness.ttl or 0, self.liveness.expires or 0))
        if self.deletion:
            parts.append(_DELETION.pack(*self.deletion))
        if self.bound is not None:
            parts.append(_TIME.pack(self.bound))
        if self.unseen is not None:
            parts.append(_DELETION.pack(*self.unseen))
        if self.read_at:
            parts.append(_SECONDS.pack(self.read_at))
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
        if data[0] not in (1, VERSION):
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
        if flags & 4:
            (row.bound,) = _TIME.unpack_from(data, at)
            at += _TIME.size
        if flags & 8:
            row.unseen = Deletion(*_DELETION.unpack_from(data, at))
            at += _DELETION.size
        if flags & 16:
            (row.read_at,) = _SECONDS.unpack_from(data, at)
            at += _SECONDS.size
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


def supersedes(a: Liveness, b: Liveness) -> bool:
    """LivenessInfo.supersedes."""
    if a.write_time != b.write_time:
        return a.write_time > b.write_time
    if a.expires is not None and b.expires is not None:
        return a.expires > b.expires
    return a.expires is not None and b.expires is None


def wins(a: Cell, b: Cell) -> bool:
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
