"""A row as its cells, merged by Cassandra's rules.

    UPDATE t USING TIMESTAMP 20 SET v = 1, then one that came late, USING TIMESTAMP 10 SET v = 2, w = 2
    → cells v = 1 at 20 and w = 2 at 10

The rules for two cells are in `_cell_rules`. A deletion deletes what has its write time or an older one
(DeletionTime.supersedes of Cassandra 5.0). Deleted cells are not stored: a late copy of one is hidden by the deletion.

Some of a row may come from a read of it (`_row_read`), which does not show all that a node stores: what it leaves open
is in doubt once an event contradicts it, and the row is read again. The same holds where Cassandra does not decide by
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
    ListElement,
    cell_purge_time,
    expired_purge_time,
    is_purgeable,
    list_element,
    next_purge_check,
    purge_time,
    supersedes,
    wins,
)
from helenus_schemas.event.cells import Cell, Cells, Deletion, Liveness, is_read_path

NO_PAGE = 0xFFFFFFFF
MUTATION_BYTES = 12
"""The first bytes of a mutation's digest, which name it in `recent_mutations`."""
_MAX_MUTATIONS = 4
"""Most copies come within so many mutations of the row. A later one is merged once more, and changes nothing."""


class MergeResult(NamedTuple):
    """The result of a merge: whether the row `changed`, and whether it is `in_doubt`, so that it is to be read.

    `is_unproven`: write times do not decide whether what was left out lives. Only a read decides, twice if need be.
    """

    changed: bool
    in_doubt: bool
    is_unproven: bool = False


_UNCHANGED, _CHANGED = MergeResult(False, False), MergeResult(True, False)
_IN_DOUBT, _UNPROVEN = MergeResult(False, True), MergeResult(False, False, True)


@dataclass(slots=True)
class CellRow:
    """The cells of one row, or of a partition's static columns. `recent_mutations` are the digests of the mutations
    that were merged last, `page` is the partition's page that lists the row. `scheduled_at`: the time at which it is in
    the calendar, s since the epoch, 0 if it is not.

    The other fields come from reads. `liveness_bound`: the liveness is a guess, and the row itself was written by then,
    µs; None: its liveness is known. `implied_deletion`: cells up to its write time that are not here were not there
    when the row was read. `reread_at`: when the row is to be read again, s since the epoch, 0: it is not. A read from
    then on is the last word. `proven_disturbances`: the partition's disturbances when a read, or the log from the row's
    first event on, showed the row as it is.
    """

    liveness: Liveness | None = None
    deletion: Deletion | None = None
    deletions: dict[str, Deletion] = field(default_factory=dict)
    cells: dict[tuple[str, bytes | None], Cell] = field(default_factory=dict)
    recent_mutations: bytes = b""
    page: int = NO_PAGE
    scheduled_at: int = 0
    liveness_bound: int | None = None
    implied_deletion: Deletion | None = None
    reread_at: int = 0
    proven_disturbances: int = 0

    def is_empty(self) -> bool:
        """Return whether the row has nothing to store."""
        return not (
            self.cells or self.liveness or self.deletion or self.deletions or self.implied_deletion or self.reread_at
        )

    def remember_mutation(self, mutation: bytes) -> None:
        """Remember a mutation's digest, and forget the oldest."""
        self.recent_mutations = (mutation + self.recent_mutations)[: MUTATION_BYTES * _MAX_MUTATIONS]

    def merge(
        self,
        update: Cells,
        floor: int,
        dropped_at: Mapping[str, int],
        lists: AbstractSet[str] = frozenset(),
        doubts: Doubts = NO_DOUBTS,
    ) -> MergeResult:
        """Merge a mutation's update of the row. `floor` is the newest write time that a deletion of the partition or of
        a range deletes; `dropped_at` is when columns of these names were dropped, µs; `lists` are the columns that are
        unfrozen lists. What is in doubt is left out, but for a deletion.
        """
        deletion = _UNCHANGED if update.deletion is None else self._merge_deletion(update.deletion, floor)
        deleted_to = floor if self.deletion is None else max(floor, self.deletion.write_time)
        floors = deleted_to, self._firmly_deleted_to(floor, doubts)
        liveness = _UNCHANGED if update.liveness is None else self._merge_liveness(update.liveness, floors, doubts)
        has_deleted_columns = self._merge_column_deletions(update.deletions, deleted_to, dropped_at)
        changed, in_doubt, is_unproven = self._merge_cells(update, floors, dropped_at, lists, doubts)
        return MergeResult(
            changed or deletion.changed or liveness.changed or has_deleted_columns,
            in_doubt or deletion.in_doubt or liveness.in_doubt,
            is_unproven or liveness.is_unproven,
        )

    def _merge_deletion(self, deletion: Deletion, floor: int) -> MergeResult:
        """Merge a deletion of the row: it removes all that is not newer."""
        if deletion.write_time <= floor or (self.deletion is not None and deletion <= self.deletion):
            return _UNCHANGED
        self.deletion = deletion
        in_doubt = self.is_liveness_in_doubt(deletion.write_time)
        self.drop_shadowed(deletion.write_time, keeps_deletion=True)
        return MergeResult(True, in_doubt)

    def _merge_liveness(self, liveness: Liveness, floors: tuple[int, int], doubts: Doubts) -> MergeResult:
        """Merge when the row itself was written. `floors` as in `_merge_cells`."""
        deleted_to, firmly_deleted_to = floors
        if liveness.write_time <= deleted_to:
            return _UNPROVEN if liveness.write_time > firmly_deleted_to else _UNCHANGED
        if self.liveness is None and liveness.write_time <= self._absent_to():
            return _IN_DOUBT
        if self.liveness is not None and not self._replaces_liveness(liveness, self.liveness):
            return _UNCHANGED
        if liveness.write_time <= doubts.horizon:
            return _UNPROVEN
        self.liveness, self.liveness_bound = liveness, None
        return _CHANGED

    def _merge_column_deletions(
        self, deletions: Mapping[str, Deletion], deleted_to: int, dropped_at: Mapping[str, int]
    ) -> bool:
        """Merge deletions of whole columns of many cells. Return whether that changes the row."""
        changed = False
        for name, deletion in deletions.items():
            previous = self.deletions.get(name)
            is_newer = previous is None or deletion > previous
            if is_newer and deletion.write_time > max(deleted_to, dropped_at.get(name, NEVER)):
                self.deletions[name] = deletion
                self._drop_shadowed_cells(name, deletion.write_time)
                changed = True
        return changed

    def _merge_cells(
        self,
        update: Cells,
        floors: tuple[int, int],
        dropped_at: Mapping[str, int],
        lists: AbstractSet[str],
        doubts: Doubts,
    ) -> MergeResult:
        """Merge a mutation's cells. `floors`: up to which write time they are deleted, and deleted for sure."""
        changed = in_doubt = is_unproven = False
        deleted_to, firmly_deleted_to = floors
        absent_to = self._absent_to()
        cells, deletions, horizon = self.cells, self.deletions, doubts.horizon
        read_elements = self._read_elements(update, lists) if lists else {}
        for cell in update.cells:
            name, time, value, path, _, _, _ = cell
            if time <= deleted_to:
                is_unproven |= time > firmly_deleted_to and value is not None
                continue
            if dropped_at and time <= dropped_at.get(name, NEVER):
                continue
            if path is not None and name in deletions and time <= deletions[name].write_time:
                is_unproven |= deletions[name].deleted_at <= doubts.soft_before and value is not None
                continue
            current = cells.get((name, path))
            if current is None and (name in read_elements or (time <= absent_to and value is not None)):
                # Which element this is, or whether it was there and is gone, only another read shows.
                in_doubt |= not _remove_element(read_elements.get(name), cell)
                continue
            # The common case, without a call: a new cell that no unknown deletion can hide.
            if current is None and time > horizon:
                cells[name, path] = cell
                changed = True
                continue
            result = self._put_cell(cell, current, doubts)
            changed |= result is _CHANGED
            is_unproven |= result is _UNPROVEN
        return MergeResult(changed, in_doubt, is_unproven)

    def _put_cell(self, cell: Cell, current: Cell | None, doubts: Doubts) -> MergeResult:
        """Put a cell in the current one's place, if it wins."""
        if cell == current:
            return _UNCHANGED
        is_live = cell[2] is not None
        if current is None or wins(cell, current):
            # The current one may have been written after a newer deletion, which took this cell, was purged.
            if is_live and cell[1] <= doubts.horizon:
                return _UNPROVEN
            self.cells[cell[0], cell[3]] = cell
            return _CHANGED
        return _UNPROVEN if is_live and doubts.is_soft(current) else _UNCHANGED

    def _absent_to(self) -> int:
        """Return up to which write time cells that are not here were not there when the row was read."""
        return NEVER if self.implied_deletion is None else self.implied_deletion.write_time

    def _firmly_deleted_to(self, floor: int, doubts: Doubts) -> int:
        """Return up to which write time a deletion that can't have been purged deletes all."""
        firm = floor if doubts.firm_floor is None else doubts.firm_floor
        if self.deletion is None or self.deletion.deleted_at <= doubts.soft_before:
            return firm
        return max(firm, self.deletion.write_time)

    def lift_deletions(self, cells: Iterable[Cell]) -> int:
        """Remove this row's deletions that would hide cells which a read found. Return the newest write time of those,
        NEVER if there are none.
        """
        newest = NEVER
        for cell in cells:
            if self.deletion is not None and cell.write_time <= self.deletion.write_time:
                newest = max(newest, self.deletion.write_time)
                self.deletion = None
            column_deletion = None if cell.path is None else self.deletions.get(cell.column)
            if column_deletion is not None and cell.write_time <= column_deletion.write_time:
                newest = max(newest, column_deletion.write_time)
                del self.deletions[cell.column]
        return newest

    def hides(self, cell: Cell, floor: int) -> bool:
        """Return whether a deletion of this row, or of a scope around it up to `floor`, hides a cell."""
        times = [floor] if self.deletion is None else [floor, self.deletion.write_time]
        if cell.path is not None and cell.column in self.deletions:
            times.append(self.deletions[cell.column].write_time)
        return cell.write_time <= max(times)

    def newest_write_time(self) -> int:
        """Return the newest write time of anything in the row; NEVER if there is nothing."""
        times = [cell[1] for cell in self.cells.values()]
        times += [deletion.write_time for deletion in self.deletions.values()]
        times += [part.write_time for part in (self.liveness, self.deletion) if part is not None]
        return max(times, default=NEVER)

    def newest_deletion_time(self, now: int) -> int:
        """Return the newest write time of what deletes something of the row, with tombstones of cells and expired
        cells.
        """
        times = [cell[1] for cell in self.cells.values() if cell[2] is None or (cell[5] or now + 1) <= now]
        times += [deletion.write_time for deletion in self.deletions.values()]
        times += [deletion.write_time for deletion in (self.deletion, self.implied_deletion) if deletion is not None]
        return max(times, default=NEVER)

    def clear(self) -> None:
        """Remove all, but for the page that lists the row, and its time in the calendar."""
        self.liveness = self.deletion = self.liveness_bound = self.implied_deletion = None
        self.deletions, self.cells, self.recent_mutations, self.reread_at = {}, {}, b"", 0

    def _replaces_liveness(self, liveness: Liveness, guess: Liveness) -> bool:
        """Return whether a liveness replaces this row's, which may be a guess."""
        if self.liveness_bound is None:
            return supersedes(liveness, guess)
        # Cells that were written later, or had expired by the bound, say nothing of when the row itself was written.
        bound_s = self.liveness_bound // 1_000_000
        cells = [c for c in self.cells.values() if c.value is not None and c.write_time <= guess.write_time]
        return all(c.write_time <= liveness.write_time for c in cells if c.expires is None or c.expires > bound_s)

    def _read_elements(self, update: Cells, lists: AbstractSet[str]) -> dict[str, list[ListElement]]:
        """Return the elements that a read found, of those lists that an update names."""
        elements: dict[str, list[ListElement]] = {}
        for name in lists & update.columns.keys():
            for (column, path), cell in self.cells.items():
                if column == name and is_read_path(path):
                    elements.setdefault(name, []).append(list_element(cell))
        return elements

    def is_liveness_in_doubt(self, floor: int) -> bool:
        """Return whether a deletion of this write time may have deleted the row itself: its own write time is
        a guess.
        """
        return self.liveness_bound is not None and floor < self.liveness_bound

    def is_guess(self, now: int) -> bool:
        """Return whether the row lives at a time, s since the epoch, by a guessed liveness alone."""
        if self.liveness_bound is None or self.liveness is None:
            return False
        if self.liveness.expires is not None and self.liveness.expires <= now:
            return False
        cells = self.cells.values()
        return not any(cell[2] is not None and (cell[5] is None or cell[5] > now) for cell in cells)

    def needs_read(self, last_checked_at: int, now: int) -> bool:
        """Return whether the row is to be read now: as planned, or since it lives, or ended, by a guess from now on.
        Remove a guessed liveness that has expired.
        """
        return (
            self.end_guess(now)
            or 0 < self.reread_at <= now
            or (self.is_guess(now) and not self.is_guess(last_checked_at))
        )

    def end_guess(self, now: int) -> bool:
        """Remove a guessed liveness that has expired; the row is gone until a read finds it. Return whether it had."""
        if self.liveness_bound is None or self.liveness is None or (self.liveness.expires or now + 1) > now:
            return False
        self.liveness = self.liveness_bound = None
        return True

    def drop_shadowed(self, floor: int, keeps_deletion: bool = False) -> bool:
        """Remove all that is not newer than a deletion. Return whether there was any."""
        changed = False
        if not keeps_deletion and self.deletion is not None and self.deletion.write_time <= floor:
            self.deletion = None
            changed = True
        if self.liveness is not None and self.liveness.write_time <= floor:
            self.liveness = self.liveness_bound = None
            changed = True
        shadowed_columns = [name for name, deletion in self.deletions.items() if deletion.write_time <= floor]
        for name in shadowed_columns:
            del self.deletions[name]
        shadowed_cells = [cell_key for cell_key, cell in self.cells.items() if cell[1] <= floor]
        for cell_key in shadowed_cells:
            del self.cells[cell_key]
        if changed or shadowed_columns or shadowed_cells:
            # The same statement repeated later, with its old write time, is no copy: the deletion may have been purged.
            self.recent_mutations = b""
            return True
        return False

    def _drop_shadowed_cells(self, name: str, floor: int) -> None:
        for cell_key in [key for key, cell in self.cells.items() if key[0] == name and cell[1] <= floor]:
            del self.cells[cell_key]

    def purge(self, now: int, gc_grace: int) -> int:
        """Remove tombstones, and what expired, that are older than gc_grace. Return the newest write time of these,
        NEVER if there are none.
        """
        purged = [NEVER]
        if self.deletion is not None and is_purgeable(self.deletion, now, gc_grace):
            purged.append(self.deletion.write_time)
            self.deletion = None
        if self.implied_deletion is not None and is_purgeable(self.implied_deletion, now, gc_grace):
            purged.append(self.implied_deletion.write_time)
            self.implied_deletion = None
        liveness = self.liveness
        if (
            liveness is not None
            and liveness.expires is not None
            and expired_purge_time(liveness.expires, liveness.ttl, gc_grace) <= now
        ):
            purged.append(liveness.write_time)
            self.liveness = self.liveness_bound = None
        purgeable = [name for name, deletion in self.deletions.items() if is_purgeable(deletion, now, gc_grace)]
        purged += [self.deletions.pop(name).write_time for name in purgeable]
        for cell_key, cell in list(self.cells.items()):
            purge_at = cell_purge_time(cell, gc_grace)
            if purge_at is not None and purge_at <= now:
                purged.append(cell.write_time)
                del self.cells[cell_key]
        return max(purged)

    def next_due(self, now: int, gc_grace: int, purged_to: int) -> int:
        """Return when the row is to be looked at again, s since the epoch; 0: never. `purged_to` as of
        `next_purge_check`.
        """
        times: list[int] = []
        purge_times: list[int] = []
        if self.deletion is not None:
            purge_times.append(purge_time(self.deletion, gc_grace))
        if self.liveness is not None and self.liveness.expires is not None:
            expires = self.liveness.expires
            if expires > now:
                times.append(expires)
            else:
                purge_times.append(expired_purge_time(expires, self.liveness.ttl, gc_grace))
        purge_times += [purge_time(deletion, gc_grace) for deletion in self.deletions.values()]
        if self.implied_deletion is not None:
            purge_times.append(purge_time(self.implied_deletion, gc_grace))
        if self.reread_at > now:
            times.append(self.reread_at)
        for cell in self.cells.values():
            if cell[5] is not None and cell[5] > now:
                times.append(cell[5])
            elif cell[5] is not None or cell[2] is None:
                purge_times.append(cell_purge_time(cell, gc_grace) or 0)
        times += [next_purge_check(time, now, purged_to) for time in purge_times]
        return max(1, min(times)) if times else 0


def _remove_element(elements: list[ListElement] | None, cell: Cell) -> bool:
    """Remove a cell from the list elements that a read found. Return whether it was among them."""
    if elements is None or list_element(cell) not in elements:
        return False
    elements.remove(list_element(cell))
    return True
