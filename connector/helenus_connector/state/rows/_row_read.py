"""Merges the result of a read into the stored row: `state=rows`.

    stored v = 1, l = [a, b] · the read found v = 1, l = [b] → b alone, and a is not there up to its write time

A read shows live cells, with write times and TTLs, and merges as events do. But it does not show all:
- A cell that it does not show, or shows an older one of, may be deleted, or not visible yet, as the event of a write
  may come before the write can be read. So only what the event that had the row read deleted is removed. The row is
  read once more, and that read, `settle.min.age.ms` later, is the last word unless an event came in between.
- Lists have no paths. A list that differs from the stored one replaces it as a whole, with `read_path`s, and is read
  again with each event that changes it, until it is written as a whole.
- When the row itself was written is not shown. The write time of the newest cell is taken instead, until an event
  contradicts it, or no cell is left: then the row is read again.

The last word overrides the state: what it does not show is gone, and a deletion that would hide what it shows was
purged, or dropped by a TRUNCATE. Which read is the last word depends on the times of batches alone, the one in which it
was requested and the one for which it was planned, so no two clocks are compared.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from collections.abc import Set as AbstractSet
from typing import NamedTuple

from helenus_connector.state.rows._cell_merge import merge_update
from helenus_connector.state.rows._cell_rules import NEVER, clamp_time, estimate_deletion, list_element, wins
from helenus_connector.state.rows._row import CellRow
from helenus_schemas.cql.order import order
from helenus_schemas.cql.types import CqlType
from helenus_schemas.event.cells import Cell, Cells, Deletion, Liveness, is_read_path, read_path
from helenus_schemas.event.change import Change, Effect, Origin, Scope, column_bit

_timeuuid_order = order(CqlType("timeuuid"))
CellKey = tuple[str, bytes | None]
"""The column and the path of a cell."""

_TTL_ROUNDING_S = 2
"""By so much a time that is counted from a TTL may be off, s: a read rounds the remaining TTL down to seconds, and so
is the time of the read that it is added to.
"""


class RowRead(NamedTuple):
    """The result of a read, as its event has it: `cells` that live, at the time `read_at_us`, µs by the clock of the
    node. `requested_at_s` is the time of the batch that requested the read, s: it was not made before. `deleted_to`:
    the write time of the event that had the row read, if it deleted something, and which columns (`effect`).
    `disturbances`: those of the partition when the read was requested.
    """

    cells: Cells
    read_at_us: int
    requested_at_s: int
    deleted_to: int | None
    effect: int
    disturbances: int = 0

    @classmethod
    def from_change(cls, change: Change, cells: Cells) -> RowRead:
        """Make it from a Change that `pipeline._cell_requests` made, which is of no commit log, and uses three fields
        for its own ends: `segment` is when the row was read, by the node's clock, `position` the time of the batch that
        requested the read, both in ms since the epoch, and `part` the disturbances at that time. `write_time` and
        `effect` are those of the event that had the row read.
        """
        deletes = change.effect == 0 or change.effect & Effect.DELETES
        # Events of older versions have the time of the read alone.
        requested_at_ms = change.segment if change.position < 0 else change.position
        deleted_to = change.write_time if deletes else None
        read_at_us = clamp_time(change.segment * 1000)  # whoever writes to the topic may name any time
        return cls(cells, read_at_us, requested_at_ms // 1000, deleted_to, change.effect, change.part)

    def is_deleted(self, name: str, write_time: int) -> bool:
        """Return whether a cell of a column, which the read did not find, was deleted by the event that had the row
        read.
        """
        if self.deleted_to is None or write_time > self.deleted_to:
            return False
        return not self.effect or bool(self.effect & column_bit(name))


def is_read(change: Change) -> bool:
    """Return whether an event has the cells of a read."""
    return change.cells is not None and change.origin is not Origin.LOG


class ReadOutcome(NamedTuple):
    """The effect of a part of a read: whether it `changed` the row, and whether it `is_open`: then the row is read
    again.
    """

    changed: bool
    is_open: bool


class ReadMerger:
    """Merges reads into rows of one scope. `columns` are those of the scope, `lists` those of them that are unfrozen
    lists, `schema` is the id of the definition that has them. `is_cassandra_3` as of `_cell_rules.wins`.
    """

    def __init__(
        self,
        scope: Scope,
        schema: bytes,
        columns: AbstractSet[str],
        lists: AbstractSet[str],
        dropped_at: Mapping[str, int],
        patience_s: int,
        is_cassandra_3: bool = False,
    ) -> None:
        self._is_row = scope is Scope.ROW
        self._schema, self._columns, self._lists, self._dropped_at = schema, columns, lists, dropped_at
        self._patience_s, self._is_cassandra_3 = patience_s, is_cassandra_3

    def is_last(self, row: CellRow, read: RowRead) -> bool:
        """Return whether a read is the last word on a row. A read lacks columns that were added since."""
        return 0 < row.reread_at <= read.requested_at_s and read.cells.schema == self._schema

    def merge(self, row: CellRow, read: RowRead, floor: int, now: int) -> bool:
        """Merge a read. Return whether that changes the row. `floor` as in `_cell_merge.merge_update`, without the
        deletions that were lifted.
        """
        cells, at_s = read.cells, read.read_at_us // 1_000_000
        is_last = self.is_last(row, read)
        has_doubtful_liveness = _has_doubtful_liveness(row, cells)
        is_liveness_known = bool(read.effect & Effect.ROW) and not has_doubtful_liveness
        # 1. Deletions, and the liveness if the event says it. Cells follow by rules of their own.
        certain = _certain_part(cells, is_liveness_known)
        changed = merge_update(row, certain, floor, self._dropped_at).changed
        deleted_to = floor if row.deletion is None else max(floor, row.deletion.write_time)
        if not is_liveness_known:
            _doubt_liveness(row, read)
        # 2. The cells that the read found, and those that it did not.
        shown = [c for c in cells.cells if c.write_time > self._dropped_at.get(c.column, NEVER)]
        found_cells = {(c.column, c.path): c for c in shown if not row.hides(c, floor)}
        found_outcome = self._merge_found_cells(row, read, found_cells, is_last)
        changed |= found_outcome.changed
        is_open = found_outcome.is_open or read.deleted_to is not None or len(found_cells) < len(shown)
        is_open |= has_doubtful_liveness
        changed |= self._remove_missing(row, read, found_cells, is_last)
        is_open |= bool(self._missing_keys(row, found_cells, at_s))
        # 3. Lists, each as a whole, and the row itself.
        outcomes = [
            self._merge_list(row, read, name, [c for key, c in found_cells.items() if key[0] == name], is_last)
            for name in self._lists
        ]
        if self._is_row and not is_liveness_known:
            outcomes.append(self._merge_liveness(row, read, deleted_to, list(found_cells.values()), is_last, now))
        changed |= any(outcome.changed for outcome in outcomes)
        is_open |= any(outcome.is_open for outcome in outcomes)
        if read.deleted_to is not None:
            _imply_deletion(row, read.deleted_to, at_s)
        return self._plan_next_read(row, is_last, is_open, now) or changed

    def _plan_next_read(self, row: CellRow, is_last: bool, is_open: bool, now: int) -> bool:
        """Plan the row's next read, if there is to be one. Return whether that changes the row."""
        if is_last:
            row.reread_at = 0
            return True
        # A planned read that was not the last word is planned again: the table was altered, say.
        if 0 < row.reread_at <= now or (is_open and not row.reread_at):
            row.reread_at = now + self._patience_s
            return True
        return False

    def _missing_keys(self, row: CellRow, found_cells: Mapping[CellKey, Cell], at_s: int) -> list[CellKey]:
        """Return the cells that live here at the time of a read, and that it did not find."""
        cells = row.cells.items()
        return [key for key, c in cells if key not in found_cells and self._is_live_cell(c, at_s + _TTL_ROUNDING_S)]

    def _remove_missing(self, row: CellRow, read: RowRead, found_cells: Mapping[CellKey, Cell], is_last: bool) -> bool:
        """Remove missing cells, as far as the read says that they are gone. Return whether there were any."""
        at_s = read.read_at_us // 1_000_000
        missing = self._missing_keys(row, found_cells, at_s)
        removed = [key for key in missing if is_last or read.is_deleted(key[0], row.cells[key].write_time)]
        for key in removed:
            _imply_deletion(row, row.cells.pop(key).write_time, at_s)
            row.recent_mutations = b""
        return bool(removed)

    def _is_live_cell(self, cell: Cell, at_s: int) -> bool:
        """Return whether a cell lives at a time, and is of a column of this scope that is no list."""
        is_plain = cell.column in self._columns and cell.column not in self._lists
        return is_plain and cell.value is not None and (cell.expires is None or cell.expires > at_s)

    def _merge_found_cells(
        self, row: CellRow, read: RowRead, found_cells: Mapping[CellKey, Cell], is_last: bool
    ) -> ReadOutcome:
        """Merge the cells of other columns than lists, as those of events are merged. Those of the last word also
        replace newer ones, and those that are known to be gone.

        The outcome is open where an older cell was found than the stored one: the read came before that was visible,
        or that is a tombstone that was purged, or a write that was lost.
        """
        changed = is_open = False
        for key, cell in found_cells.items():
            current = row.cells.get(key)
            if key[0] in self._lists or (current is not None and _is_same_cell(cell, current)):
                continue
            if current is not None and not wins(cell, current, self._is_cassandra_3):
                if not (is_last or read.is_deleted(key[0], current.write_time)):
                    is_open = True
                    continue
                # A late copy of it must not win over what was found.
                _imply_deletion(row, current.write_time, read.read_at_us // 1_000_000)
                row.recent_mutations = b""
            row.cells[key] = cell
            changed = True
        return ReadOutcome(changed, is_open)

    def _merge_list(self, row: CellRow, read: RowRead, name: str, elements: list[Cell], is_last: bool) -> ReadOutcome:
        """Replace a list by the one that the read found, if they differ, and if nothing speaks against it."""
        at_s = read.read_at_us // 1_000_000
        keys = [key for key in row.cells if key[0] == name]
        live = [
            c for key in keys if (c := row.cells[key]).value is not None and (c.expires is None or c.expires > at_s)
        ]
        live.sort(key=lambda cell: _timeuuid_order(cell.path))
        if [*map(list_element, live)] == [*map(list_element, elements)]:
            return ReadOutcome(False, False)
        missing = _missing_elements(live, elements)
        if not is_last and not self._may_replace_list(row, read, name, missing):
            return ReadOutcome(False, True)
        for cell in missing:
            _imply_deletion(row, cell.write_time, at_s)
        for key in keys:
            if row.cells[key] in live or is_read_path(key[1]):
                del row.cells[key]
        for index, cell in enumerate(elements):
            path = read_path(index)
            row.cells[name, path] = cell._replace(path=path)
        return ReadOutcome(True, False)

    def _may_replace_list(self, row: CellRow, read: RowRead, name: str, missing: Sequence[Cell]) -> bool:
        """Return whether a read that is not the last word may replace a list: no element was deleted so recently that
        the read may be older, and its event deleted those elements of events that it did not find.
        """
        since = read.read_at_us // 1_000_000 - self._patience_s
        tombstones = [c for key, c in row.cells.items() if key[0] == name and c.value is None]
        if any((tombstone.deleted_at or 0) > since for tombstone in tombstones):
            return False
        return all(read.is_deleted(name, c.write_time) for c in missing if not is_read_path(c.path))

    def _merge_liveness(
        self, row: CellRow, read: RowRead, deleted_to: int, found_cells: Sequence[Cell], is_last: bool, now: int
    ) -> ReadOutcome:
        """Merge the liveness of the row itself, which a read only guesses."""
        guess, current, at_s = read.cells.liveness, row.liveness, read.read_at_us // 1_000_000
        if current is not None and current.expires is not None and current.expires <= at_s:
            current = None
        if guess is None:
            return self._merge_absence(row, current, is_last, at_s)
        if (current is not None and row.liveness_bound is None) or (read.cells.cells and not found_cells):
            return ReadOutcome(False, False)
        # A row of its key alone, which a deletion with a write time in the client's future does not delete.
        if guess.write_time <= deleted_to:
            if not is_last:
                return ReadOutcome(False, True)
            guess = guess._replace(write_time=deleted_to + 1)
        changed = row.liveness_bound is None or current is None or not _is_same_liveness(guess, current)
        if changed:
            row.liveness = guess
        row.liveness_bound = max(read.read_at_us, row.liveness_bound or NEVER)
        # Of a row of its key alone, a deletion that is known may not have been applied yet when it was read.
        is_sure = deleted_to == NEVER or any(cell.expires is None or cell.expires > now for cell in found_cells)
        return ReadOutcome(changed, not is_sure)

    def _merge_absence(self, row: CellRow, current: Liveness | None, is_last: bool, at_s: int) -> ReadOutcome:
        """Remove the liveness of a row that the read did not find, if it is a guess, or the read is the last word."""
        if row.liveness_bound is not None:
            row.liveness = row.liveness_bound = None
            return ReadOutcome(True, False)
        if current is not None and is_last:
            row.liveness, row.recent_mutations = None, b""
            _imply_deletion(row, current.write_time, at_s)
            return ReadOutcome(True, False)
        return ReadOutcome(False, current is not None)


def _missing_elements(live: Sequence[Cell], elements: Sequence[Cell]) -> list[Cell]:
    """Return the live elements of a list that are not among those that a read found; equal ones are counted."""
    remaining = Counter(map(list_element, elements))
    missing = []
    for cell in live:
        remaining[list_element(cell)] -= 1
        if remaining[list_element(cell)] < 0:
            missing.append(cell)
    return missing


def _doubt_liveness(row: CellRow, read: RowRead) -> None:
    """Take the liveness of a row that was not proven for a guess: what dropped or lost events may have dropped it."""
    if row.proven_up_to < read.disturbances and row.liveness is not None and row.liveness_bound is None:
        row.liveness_bound = read.read_at_us


def _has_doubtful_liveness(row: CellRow, cells: Cells) -> bool:
    """Return whether a read shows that the row itself was written before what an earlier read showed to be gone. It was
    written once more since, or this answer is the older one: that is for the last word.
    """
    return row.liveness is None and cells.liveness is not None and cells.liveness.write_time <= row.absent_to()


def _certain_part(cells: Cells, is_liveness_known: bool) -> Cells:
    """Return what of a read is merged as a mutation is: its event's deletion, and the liveness if the event says it."""
    deletion = None if cells.deletion is None else estimate_deletion(*cells.deletion)
    return cells._replace(liveness=cells.liveness if is_liveness_known else None, deletion=deletion, cells=())


def _imply_deletion(row: CellRow, write_time: int, deleted_at: int) -> None:
    if row.implied_deletion is None or write_time > row.implied_deletion.write_time:
        row.implied_deletion = Deletion(write_time, deleted_at)


def _is_same_cell(a: Cell, b: Cell) -> bool:
    """Return whether two cells are one, but for the TTL, which a read rounds."""
    if (a.write_time, a.value) != (b.write_time, b.value):
        return False
    if a.expires is None or b.expires is None:
        return a.expires is b.expires
    return abs(a.expires - b.expires) <= _TTL_ROUNDING_S


def _is_same_liveness(a: Liveness, b: Liveness) -> bool:
    if a.expires is None or b.expires is None:
        return a.expires is b.expires
    return abs(a.expires - b.expires) <= _TTL_ROUNDING_S
