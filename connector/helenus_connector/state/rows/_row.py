"""A row as its cells, merged by Cassandra's rules, and its bytes in a store.

    UPDATE t USING TIMESTAMP 20 SET v = 1, then one that came late, USING TIMESTAMP 10 SET v = 2, w = 2
    → cells v = 1 at 20 and w = 2 at 10

Of two cells the one with the higher write time stays; at equal times a tombstone before one with a TTL, that before one
without, of two of a kind the one that ends later, then the larger value (Cells.resolveRegular, LivenessInfo.supersedes,
DeletionTime.supersedes of Cassandra 5.0). A deletion takes what is of its write time or older. What a deletion took is
not kept: a late copy of it meets the deletion.

Some of a row may come from a read of it (`reads`), which does not show all that a node keeps: what it leaves open is
in doubt once an event speaks against it, and the row is read again. The same holds where Cassandra does not decide by
write times: a tombstone that may have been purged hides nothing for sure (`Doubts`).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, field
from typing import NamedTuple

from helenus_connector.state.rows._cell_rules import (
    NEVER,
    NO_DOUBTS,
    Doubts,
    Element,
    cell_purged_at,
    element,
    is_over,
    purge_time,
    purged_at,
    supersedes,
    when_purged,
    wins,
)
from helenus_schemas.event.cells import Cell, Cells, Deletion, Liveness, is_read_path

NO_PAGE = 0xFFFFFFFF
SEEN = 12
"""Bytes that name a mutation in `seen`."""
_MOST_SEEN = 4


class MergeResult(NamedTuple):
    """What merging did: whether the row `changed`, and whether it is `in_doubt`, so that it is to be read.

    `is_unproven`: write times do not decide whether what was left out lives, so a read alone says it, twice if need be.
    """

    changed: bool
    in_doubt: bool
    is_unproven: bool = False


@dataclass(slots=True)
class CellRow:
    """The cells of one row, or of a partition's static columns. `seen` names the mutations that were merged last,
    `page` is where the partition lists it, `armed` for when it is in the calendar, s since the epoch, 0 if it is not.

    Of reads: `bound` says that the liveness is a guess, and by when the row itself was written, µs; None: it is known.
    `unseen`: cells up to this write time that are not here were not there when the row was read. `read_at`: when the
    row is to be read again, s since the epoch, 0: it is not. A read from then on is the last word. `proven`: the
    partition's disturbances when a read, or the log from the row's first event on, showed the row as it is.
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
    proven: int = 0

    def is_empty(self) -> bool:
        """Whether nothing is left to be kept."""
        return not (self.cells or self.liveness or self.deletion or self.deletions or self.unseen or self.read_at)

    def saw(self, mutation: bytes) -> None:
        """Remember a mutation, and forget the oldest."""
        self.seen = (mutation + self.seen)[: SEEN * _MOST_SEEN]

    def merge(
        self,
        said: Cells,
        floor: int,
        dropped_at: Mapping[str, int],
        lists: AbstractSet[str] = frozenset(),
        doubts: Doubts = NO_DOUBTS,
    ) -> MergeResult:
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
        firmly_gone = self._firmly_gone(floor, doubts)
        unseen = NEVER if self.unseen is None else self.unseen.write_time
        liveness, is_unproven = said.liveness, False
        if liveness is not None and liveness.write_time > gone:
            if self.liveness is None and liveness.write_time <= unseen:
                in_doubt = True
            elif self.liveness is None or self._replaces(liveness, self.liveness):
                if liveness.write_time <= doubts.horizon:
                    is_unproven = True
                else:
                    self.liveness, self.bound = liveness, None
                    changed = True
        elif liveness is not None and liveness.write_time > firmly_gone:
            is_unproven = True
        for name, whole in said.deletions.items():
            other = self.deletions.get(name)
            if whole.write_time > max(gone, dropped_at.get(name, NEVER)) and (other is None or whole > other):
                self.deletions[name] = whole
                self._shadow_column(name, whole.write_time)
                changed = True
        merged = self._merge_cells(said, (gone, firmly_gone), dropped_at, lists, doubts)
        return MergeResult(changed or merged.changed, in_doubt or merged.in_doubt, is_unproven or merged.is_unproven)

    def _merge_cells(
        self,
        said: Cells,
        floors: tuple[int, int],
        dropped_at: Mapping[str, int],
        lists: AbstractSet[str],
        doubts: Doubts,
    ) -> MergeResult:
        """Merge a mutation's cells. `floors`: up to which write time they are gone, and gone for sure."""
        changed = in_doubt = is_unproven = False
        gone, firmly_gone = floors
        unseen = NEVER if self.unseen is None else self.unseen.write_time
        cells, deletions, horizon = self.cells, self.deletions, doubts.horizon
        from_reads = self._from_reads(said, lists) if lists else {}
        for cell in said.cells:
            time = cell[1]
            if time <= gone:
                is_unproven |= time > firmly_gone and cell[2] is not None
                continue
            name = cell[0]
            if dropped_at and time <= dropped_at.get(name, NEVER):
                continue
            path = cell[3]
            if path is not None and name in deletions and time <= deletions[name].write_time:
                is_unproven |= deletions[name].deleted_at <= doubts.soft_before and cell[2] is not None
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
                # What is there may have been written after a newer deletion, which took this cell, was purged.
                if time <= horizon and cell[2] is not None:
                    is_unproven = True
                    continue
                cells[place] = cell
                changed = True
            elif there != cell and cell[2] is not None and doubts.is_soft(there):
                is_unproven = True
        return MergeResult(changed, in_doubt, is_unproven)

    def _firmly_gone(self, floor: int, doubts: Doubts) -> int:
        """Up to which write time a deletion that can't have been purged takes all."""
        firm = floor if doubts.firm_floor is None else doubts.firm_floor
        if self.deletion is None or self.deletion.deleted_at <= doubts.soft_before:
            return firm
        return max(firm, self.deletion.write_time)

    def lift(self, cells: Iterable[Cell]) -> int:
        """Let go of this row's deletions that would hide cells which a read showed; the newest write time of those,
        NEVER if there are none.
        """
        newest = NEVER
        for cell in cells:
            if self.deletion is not None and cell.write_time <= self.deletion.write_time:
                newest = max(newest, self.deletion.write_time)
                self.deletion = None
            whole = None if cell.path is None else self.deletions.get(cell.column)
            if whole is not None and cell.write_time <= whole.write_time:
                newest = max(newest, whole.write_time)
                del self.deletions[cell.column]
        return newest

    def hides(self, cell: Cell, floor: int) -> bool:
        """Return whether a deletion of this row, or of a scope around it up to `floor`, hides a cell."""
        times = [floor] if self.deletion is None else [floor, self.deletion.write_time]
        if cell.path is not None and cell.column in self.deletions:
            times.append(self.deletions[cell.column].write_time)
        return cell.write_time <= max(times)

    def newest(self) -> int:
        """The newest write time of anything that is kept of the row; NEVER if nothing is."""
        times = [cell[1] for cell in self.cells.values()]
        times += [whole.write_time for whole in self.deletions.values()]
        times += [one.write_time for one in (self.liveness, self.deletion) if one is not None]
        return max(times, default=NEVER)

    def newest_deletion(self, now: int) -> int:
        """The newest write time of what deletes something of the row, tombstones of cells and expired ones included."""
        times = [cell[1] for cell in self.cells.values() if cell[2] is None or (cell[5] or now + 1) <= now]
        times += [whole.write_time for whole in self.deletions.values()]
        times += [one.write_time for one in (self.deletion, self.unseen) if one is not None]
        return max(times, default=NEVER)

    def clear(self) -> None:
        """Let go of all, but for where the row is listed, and for when it is in the calendar."""
        self.liveness = self.deletion = self.bound = self.unseen = None
        self.deletions, self.cells, self.seen, self.read_at = {}, {}, b"", 0

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
        if changed or gone or old:
            # The same statement once more, with its write time of then, is no copy: the deletion may be purged by then.
            self.seen = b""
            return True
        return False

    def _shadow_column(self, name: str, floor: int) -> None:
        for place in [p for p, cell in self.cells.items() if p[0] == name and cell[1] <= floor]:
            del self.cells[place]

    def purge(self, now: int, gc_grace: int) -> int:
        """Let go of tombstones, and of what expired, once it is older than gc_grace; the newest write time of these,
        NEVER if there are none.
        """
        purged = [NEVER]
        if self.deletion is not None and is_over(self.deletion, now, gc_grace):
            purged.append(self.deletion.write_time)
            self.deletion = None
        if self.unseen is not None and is_over(self.unseen, now, gc_grace):
            purged.append(self.unseen.write_time)
            self.unseen = None
        row = self.liveness
        if row is not None and row.expires is not None and purged_at(row.expires, row.ttl, gc_grace) <= now:
            purged.append(row.write_time)
            self.liveness = self.bound = None
        over = [name for name, whole in self.deletions.items() if is_over(whole, now, gc_grace)]
        purged += [self.deletions.pop(name).write_time for name in over]
        for place, cell in list(self.cells.items()):
            ends = cell_purged_at(cell, gc_grace)
            if ends is not None and ends <= now:
                purged.append(cell.write_time)
                del self.cells[place]
        return max(purged)

    def next_due(self, now: int, gc_grace: int, purged_to: int) -> int:
        """When the row is to be looked at again, s since the epoch; 0: never. `purged_to` as of `when_purged`."""
        times: list[int] = []
        purged: list[int] = []
        if self.deletion is not None:
            purged.append(purge_time(self.deletion, gc_grace))
        if self.liveness is not None and self.liveness.expires is not None:
            expires = self.liveness.expires
            if expires > now:
                times.append(expires)
            else:
                purged.append(purged_at(expires, self.liveness.ttl, gc_grace))
        purged += [purge_time(whole, gc_grace) for whole in self.deletions.values()]
        if self.unseen is not None:
            purged.append(purge_time(self.unseen, gc_grace))
        if self.read_at > now:
            times.append(self.read_at)
        for cell in self.cells.values():
            if cell[5] is not None and cell[5] > now:
                times.append(cell[5])
            elif cell[5] is not None or cell[2] is None:
                purged.append(cell_purged_at(cell, gc_grace) or 0)
        times += [when_purged(when, now, purged_to) for when in purged]
        return max(1, min(times)) if times else 0
