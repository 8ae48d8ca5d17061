"""A row as its cells and deletions, and what becomes of it with time: `_cell_merge` merges mutations into it.

    cell v = 1, expires 60      no longer shown from 60 on, and purged gc_grace_seconds later

Some of a row may come from a read of it (`_row_read`), which does not show all that a node stores. So its liveness may
be a guess, and it may be due to be read again.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field

from helenus_connector.state.rows._cell_rules import (
    NEVER,
    cell_purge_time,
    expired_purge_time,
    is_purgeable,
    next_purge_check,
    purge_time,
)
from helenus_schemas.event.cells import Cell, Deletion, Liveness

NO_PAGE = 0xFFFFFFFF
MUTATION_BYTES = 12
"""The first bytes of a mutation's digest, which name it in `recent_mutations`."""
_MAX_MUTATIONS = 4
"""Most copies come within so many mutations of the row, and each costs twelve stored bytes. A later copy is merged once
more, and changes nothing.
"""


@dataclass(slots=True)
class CellRow:
    """The cells of one row, or of a partition's static columns. `recent_mutations` are the digests of the mutations
    that were merged last, `page` is the partition's page that lists the row. `scheduled_at`: the time at which it is in
    the calendar, s since the epoch, 0 if it is not.

    The other fields come from reads. `liveness_bound`: the liveness is a guess, and the row itself was written by then,
    µs; None: its liveness is known. `implied_deletion`: cells up to its write time that are not here were not there
    when the row was read. `reread_at`: when the row is to be read again, s since the epoch, 0: it is not. A read from
    then on is the last word. `proven_up_to`: the topic partition's disturbances when a read, or the log from the row's
    first event on, showed the row as it is.

    Loops over `cells` take a cell's fields by index, as names cost a third more: 1 is its write time, 2 its value, None
    of a tombstone, and 5 when it expires.
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
    proven_up_to: int = 0

    def is_empty(self) -> bool:
        """Return whether the row has nothing to store."""
        return not (
            self.cells or self.liveness or self.deletion or self.deletions or self.implied_deletion or self.reread_at
        )

    def remember_mutation(self, mutation: bytes) -> None:
        """Remember a mutation's digest, and forget the oldest."""
        self.recent_mutations = (mutation + self.recent_mutations)[: MUTATION_BYTES * _MAX_MUTATIONS]

    def forget_mutations(self) -> None:
        """Forget the mutations that were merged last, as something of them is deleted, or ended: one that comes again,
        with its old write time, is no copy once its tombstone may have been purged.
        """
        self.recent_mutations = b""

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

    def absent_to(self) -> int:
        """Return up to which write time cells that are not here were not there when the row was read."""
        return NEVER if self.implied_deletion is None else self.implied_deletion.write_time

    def may_be_late_copy(self, write_time: int) -> bool:
        """Return whether a cell or deletion of this write time may be a late copy of one that a read showed to be gone:
        it was written before the read, or at the very time of the newest of these, which may be in the future.
        """
        gone = self.implied_deletion
        if gone is None or write_time > gone.write_time:
            return False
        return write_time == gone.write_time or write_time <= gone.deleted_at * 1_000_000

    def is_deletion_unproven(self, write_time: int, horizon: int, column: str | None = None) -> bool:
        """Return whether a deletion of this write time, of the row or of a column, deletes something that may live in
        Cassandra: it may be a late copy of one that was purged, and forgotten here up to `horizon`.
        """
        if write_time > horizon and not self.may_be_late_copy(write_time):
            return False
        if column is None and self.liveness is not None and self.liveness.write_time <= write_time:
            return True
        cells = self.cells.values()
        return any(cell[1] <= write_time and cell[2] is not None and column in (None, cell[0]) for cell in cells)

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
        """Remove all, but for the page that lists the row, its time in the calendar, and up to where it is proven."""
        self.liveness = self.deletion = self.liveness_bound = self.implied_deletion = None
        self.deletions, self.cells, self.recent_mutations, self.reread_at = {}, {}, b"", 0

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
        """Return whether the row is to be read now: as planned, or as it lives by a guess alone from now on."""
        return 0 < self.reread_at <= now or (self.is_guess(now) and not self.is_guess(last_checked_at))

    def drop_expired_guess(self, now: int) -> bool:
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
            self.forget_mutations()
            return True
        return False

    def drop_shadowed_cells(self, name: str, floor: int) -> None:
        """Remove a column's cells that are not newer than its deletion."""
        shadowed_cells = [key for key, cell in self.cells.items() if key[0] == name and cell[1] <= floor]
        for cell_key in shadowed_cells:
            del self.cells[cell_key]
        if shadowed_cells:
            self.forget_mutations()

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

    def next_due(self, now: int, gc_grace: int, purge_clock: int) -> int:
        """Return when the row is to be looked at again, s since the epoch; 0: never. `purge_clock` as of
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
        times += [next_purge_check(time, now, purge_clock) for time in purge_times]
        return max(1, min(times)) if times else 0
