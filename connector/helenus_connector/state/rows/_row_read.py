"""Merges what a read of a row found into the row that is kept: `state=rows`.

    kept v = 1, l = [a, b] · the read found v = 1, l = [b] → b alone, and a is not there up to its write time

A read shows what lives, with write times and TTLs, and merges as events do. But it does not show all:
- What it does not show may be deleted, or not there yet, as the event of a write may come before the write can be read.
  So nothing is taken away that the event which had the row read did not delete: the row is read once more, and that
  read, of `settle.min.age.ms` later, is the last word unless an event came in between.
- Lists have no paths. A list that differs from the one that is kept takes its place as a whole, with `read_path`s, and
  is read again with each event about it, until it is written as a whole.
- When the row itself was written is not shown. It is taken to be when the newest cell was, until an event speaks
  against it, or no cell is left: then the row is read again.

The last word wins over all that the state believes: what it does not show is gone, and a deletion that would hide what
it shows was purged, or dropped by a TRUNCATE. Which read that is goes by the times of batches alone, that in which it
was asked for and that for which it was planned, so no two clocks are compared.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from collections.abc import Set as AbstractSet
from typing import NamedTuple

from helenus_connector.state.rows._cell_rules import NEVER, element, wins
from helenus_connector.state.rows._row import CellRow
from helenus_schemas.cql.order import order
from helenus_schemas.cql.types import CqlType
from helenus_schemas.event.cells import Cell, Cells, Deletion, Liveness, is_read_path, read_path
from helenus_schemas.event.change import Change, Effect, Origin, Scope, column_bit

_by_time = order(CqlType("timeuuid"))
_ROUNDED_S = 2
"""By so much a time that is counted from a TTL may be off."""


class RowRead(NamedTuple):
    """What a read found, as the event of it says: `said`, the cells that live, at the time `at`, µs by the clock of the
    node; and the time of the batch in which it was asked for, `began`, s, before which it was not made. `since`: the
    write time of the event that had the row read, if it deleted something, and which columns (`effect`). `asked_after`:
    the partition's disturbances when it was asked for.
    """

    said: Cells
    at: int
    began: int
    since: int | None
    effect: int
    asked_after: int = 0

    @classmethod
    def from_change(cls, change: Change, said: Cells) -> RowRead:
        """Of a Change that `pipeline._asked` made."""
        deletes = change.effect == 0 or change.effect & Effect.DELETES
        began = change.segment if change.position < 0 else change.position  # events of before have the former alone
        since = change.write_time if deletes else None
        return cls(said, change.segment * 1000, began // 1000, since, change.effect, change.part)

    def is_deleted(self, name: str, write_time: int) -> bool:
        """Whether a cell of a column, which was not found, was deleted by the event that had the row read."""
        if self.since is None or write_time > self.since:
            return False
        return not self.effect or bool(self.effect & column_bit(name))


def is_read(change: Change) -> bool:
    """Whether an event has the cells of a read."""
    return change.cells is not None and change.origin is not Origin.LOG


class ReadMerge:
    """Merges reads into rows of one scope, at the batch's time. `columns` are those of the scope, `lists` those of them
    that are unfrozen lists, `schema` the id of the definition that has them.
    """

    def __init__(
        self,
        scope: Scope,
        schema: bytes,
        columns: AbstractSet[str],
        lists: AbstractSet[str],
        dropped_at: Mapping[str, int],
        patience_s: int,
    ) -> None:
        self._is_row = scope is Scope.ROW
        self._schema, self._columns, self._lists, self._dropped_at = schema, columns, lists, dropped_at
        self._patience_s = patience_s

    def is_last(self, row: CellRow, read: RowRead) -> bool:
        """Return whether a read is the last word on a row. Columns that were added since were not read."""
        return 0 < row.read_at <= read.began and read.said.schema == self._schema

    def merge(self, row: CellRow, read: RowRead, floor: int, now: int) -> bool:
        """Merge a read. Return whether that changes the row. `floor` as in `CellRow.merge`, without what is lifted."""
        said, at_s = read.said, read.at // 1_000_000
        is_last = self.is_last(row, read)
        is_known = bool(read.effect & Effect.ROW)
        known = said._replace(liveness=said.liveness if is_known else None, cells=())
        changed = row.merge(known, floor, self._dropped_at).changed
        gone = floor if row.deletion is None else max(floor, row.deletion.write_time)
        if row.proven < read.asked_after and row.liveness is not None and row.bound is None and not is_known:
            row.bound = read.at  # what dropped or lost events may have dropped the row itself
        shown = [c for c in said.cells if c.write_time > self._dropped_at.get(c.column, NEVER)]
        found = {(c.column, c.path): c for c in shown if not row.hides(c, floor)}
        changed |= self._cells(row, read, found, is_last)
        is_open = read.since is not None or len(found) < len(shown)
        changed |= self._missing(row, read, found, is_last)
        is_open |= any(p not in found and self._lives(c, at_s + _ROUNDED_S) for p, c in row.cells.items())
        for name in self._lists:
            is_taken, is_same = self._list(row, read, name, [c for p, c in found.items() if p[0] == name], is_last)
            changed |= is_taken and not is_same
            is_open |= not is_taken
        if self._is_row and not is_known:
            has_changed, is_sure = self._liveness(row, read, gone, list(found.values()), is_last, now)
            changed |= has_changed
            is_open |= not is_sure
        if read.since is not None:
            _unseen(row, read.since, at_s)
        if is_last:
            row.read_at = 0
            changed = True
        elif 0 < row.read_at <= now or (is_open and not row.read_at):
            row.read_at = now + self._patience_s  # also of a read that was not the last: the table was altered, say
            changed = True
        return changed

    def _missing(
        self, row: CellRow, read: RowRead, found: Mapping[tuple[str, bytes | None], Cell], is_last: bool
    ) -> bool:
        """Take away cells that live here and were not found, as far as the read says that they are gone."""
        at_s = read.at // 1_000_000
        missing = [p for p, c in row.cells.items() if p not in found and self._lives(c, at_s + _ROUNDED_S)]
        gone = [p for p in missing if is_last or read.is_deleted(p[0], row.cells[p].write_time)]
        for place in gone:
            _unseen(row, row.cells.pop(place).write_time, at_s)
            row.seen = b""
        return bool(gone)

    def _lives(self, cell: Cell, at: int) -> bool:
        is_plain = cell.column in self._columns and cell.column not in self._lists
        return is_plain and cell.value is not None and (cell.expires is None or cell.expires > at)

    def _cells(
        self, row: CellRow, read: RowRead, found: Mapping[tuple[str, bytes | None], Cell], is_last: bool
    ) -> bool:
        """Those of other columns than lists, as events' are merged; of the last word also over newer ones, and over
        those that are known to be gone.
        """
        changed = False
        for place, cell in found.items():
            there = row.cells.get(place)
            if place[0] in self._lists or (there is not None and _is_same(cell, there)):
                continue
            if there is not None and not wins(cell, there):
                if not (is_last or read.is_deleted(place[0], there.write_time)):
                    continue
                row.seen = b""
            row.cells[place] = cell
            changed = True
        return changed

    def _list(self, row: CellRow, read: RowRead, name: str, found: list[Cell], is_last: bool) -> tuple[bool, bool]:
        """A list: whether it is taken to be as it was found, and whether it was so before."""
        at = read.at // 1_000_000
        places = [p for p in row.cells if p[0] == name]
        here = [c for p in places if (c := row.cells[p]).value is not None and (c.expires is None or c.expires > at)]
        here.sort(key=lambda cell: _by_time(cell.path))
        if [*map(element, here)] == [*map(element, found)]:
            return True, True
        there = Counter(map(element, found))
        missing = []
        for cell in here:
            there[element(cell)] -= 1
            if there[element(cell)] < 0:
                missing.append(cell)
        of_events = [c for c in missing if not is_read_path(c.path)]
        since = at - self._patience_s
        deleted = [c for p in places if (c := row.cells[p]).value is None and (c.deleted_at or 0) > since]
        if not is_last and (deleted or not all(read.is_deleted(name, c.write_time) for c in of_events)):
            return False, False
        for cell in missing:
            _unseen(row, cell.write_time, at)
        for place in places:
            if row.cells[place] in here or is_read_path(place[1]):
                del row.cells[place]
        for n, cell in enumerate(found):
            path = read_path(n)
            row.cells[name, path] = cell._replace(path=path)
        return True, False

    def _liveness(
        self, row: CellRow, read: RowRead, gone: int, found: Sequence[Cell], is_last: bool, now: int
    ) -> tuple[bool, bool]:
        """The row itself: whether that changed, and whether it is sure."""
        guess, here, at = read.said.liveness, row.liveness, read.at // 1_000_000
        if here is not None and here.expires is not None and here.expires <= at:
            here = None
        if guess is None:  # there is no row
            if row.bound is not None:
                row.liveness = row.bound = None
                return True, True
            if here is not None and is_last:
                row.liveness, row.seen = None, b""
                _unseen(row, here.write_time, at)
                return True, True
            return False, here is None
        if (here is not None and row.bound is None) or (read.said.cells and not found):
            return False, True
        if guess.write_time <= gone:  # of a row of its key alone, which a deletion of a client's future does not take
            if not is_last:
                return False, False
            guess = guess._replace(write_time=gone + 1)
        changed = row.bound is None or here is None or not _is_same_life(guess, here)
        if changed:
            row.liveness = guess
        row.bound = max(read.at, row.bound or NEVER)
        # Of a row of its key alone, it may be that a deletion that is known had not been done yet.
        return changed, gone == NEVER or any(cell.expires is None or cell.expires > now for cell in found)


def _unseen(row: CellRow, write_time: int, at: int) -> None:
    if row.unseen is None or write_time > row.unseen.write_time:
        row.unseen = Deletion(write_time, at)


def _is_same(cell: Cell, other: Cell) -> bool:
    """Whether two cells are one, but for the TTL, which a read rounds."""
    if (cell.write_time, cell.value) != (other.write_time, other.value):
        return False
    if cell.expires is None or other.expires is None:
        return cell.expires is other.expires
    return abs(cell.expires - other.expires) <= _ROUNDED_S


def _is_same_life(one: Liveness, other: Liveness) -> bool:
    if one.expires is None or other.expires is None:
        return one.expires is other.expires
    return abs(one.expires - other.expires) <= _ROUNDED_S
