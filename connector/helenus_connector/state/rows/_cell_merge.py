"""Merges a mutation's cells into a row, by Cassandra's rules.

    UPDATE t USING TIMESTAMP 20 SET v = 1, then one that came late, USING TIMESTAMP 10 SET v = 2, w = 2
    → cells v = 1 at 20 and w = 2 at 10

The rules for two cells are in `_cell_rules`. A deletion deletes what has its write time or an older one
(DeletionTime.supersedes of Cassandra 5.0). Deleted cells are not stored: a late copy of one is hidden by the deletion.

What a read of the row (`_row_read`) left open is in doubt once a mutation contradicts it, and the row is read again.
The same holds where Cassandra does not decide by write times: a tombstone that may have been purged hides nothing for
sure (`Doubts`). A deletion from before the horizon may be a late copy of one that was purged, and what it deletes here
may have been written since: it is merged, and the row is read.
"""

from __future__ import annotations

from collections.abc import Mapping
from collections.abc import Set as AbstractSet
from typing import NamedTuple

from helenus_connector.state.rows._cell_rules import (
    NEVER,
    NO_DOUBTS,
    Doubts,
    ListElement,
    list_element,
    supersedes,
    wins,
)
from helenus_connector.state.rows._row import CellRow
from helenus_schemas.event.cells import Cell, Cells, Deletion, Liveness, is_read_path


class MergeResult(NamedTuple):
    """The result of a merge: whether the row `changed`, and whether it is `in_doubt`, so that it is to be read.

    `is_unproven`: write times do not decide whether what was left out, or deleted, lives. Only a read decides, twice if
    need be.
    """

    changed: bool
    in_doubt: bool
    is_unproven: bool = False


_UNCHANGED, _CHANGED = MergeResult(False, False), MergeResult(True, False)
_IN_DOUBT, _UNPROVEN = MergeResult(False, True), MergeResult(False, False, True)
_DELETED_UNPROVEN = MergeResult(True, False, True)


def merge_update(
    row: CellRow,
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
    deletion = _UNCHANGED if update.deletion is None else _merge_deletion(row, update.deletion, floor, doubts)
    deleted_to = floor if row.deletion is None else max(floor, row.deletion.write_time)
    floors = deleted_to, _firmly_deleted_to(row, floor, doubts)
    liveness = _UNCHANGED if update.liveness is None else _merge_liveness(row, update.liveness, floors, doubts)
    columns = _UNCHANGED
    if update.deletions:
        columns = _merge_column_deletions(row, update.deletions, deleted_to, dropped_at, doubts)
    changed, in_doubt, is_unproven = _merge_cells(row, update, floors, dropped_at, lists, doubts)
    return MergeResult(
        changed or deletion.changed or liveness.changed or columns.changed,
        in_doubt or deletion.in_doubt or liveness.in_doubt,
        is_unproven or deletion.is_unproven or liveness.is_unproven or columns.is_unproven,
    )


def _merge_deletion(row: CellRow, deletion: Deletion, floor: int, doubts: Doubts) -> MergeResult:
    """Merge a deletion of the row: it removes all that is not newer."""
    if deletion.write_time <= floor or (row.deletion is not None and deletion <= row.deletion):
        return _UNCHANGED
    row.deletion = deletion
    in_doubt = row.is_liveness_in_doubt(deletion.write_time)
    is_unproven = row.is_deletion_unproven(deletion.write_time, doubts.horizon)
    row.drop_shadowed(deletion.write_time, keeps_deletion=True)
    return MergeResult(True, in_doubt, is_unproven)


def _merge_liveness(row: CellRow, liveness: Liveness, floors: tuple[int, int], doubts: Doubts) -> MergeResult:
    """Merge when the row itself was written. `floors` as in `_merge_cells`."""
    deleted_to, firmly_deleted_to = floors
    if liveness.write_time <= deleted_to:
        return _UNPROVEN if liveness.write_time > firmly_deleted_to else _UNCHANGED
    if row.liveness is None and liveness.write_time <= row.absent_to():
        return _IN_DOUBT
    if row.liveness is not None and not _replaces_liveness(row, liveness, row.liveness):
        return _UNCHANGED
    if liveness.write_time <= doubts.horizon:
        return _UNPROVEN
    row.liveness, row.liveness_bound = liveness, None
    return _CHANGED


def _merge_column_deletions(
    row: CellRow, deletions: Mapping[str, Deletion], deleted_to: int, dropped_at: Mapping[str, int], doubts: Doubts
) -> MergeResult:
    """Merge deletions of whole columns of many cells."""
    changed = is_unproven = False
    for name, deletion in deletions.items():
        previous = row.deletions.get(name)
        is_newer = previous is None or deletion > previous
        if is_newer and deletion.write_time > max(deleted_to, dropped_at.get(name, NEVER)):
            row.deletions[name] = deletion
            is_unproven |= row.is_deletion_unproven(deletion.write_time, doubts.horizon, name)
            row.drop_shadowed_cells(name, deletion.write_time)
            changed = True
    return MergeResult(changed, False, is_unproven)


def _merge_cells(
    row: CellRow,
    update: Cells,
    floors: tuple[int, int],
    dropped_at: Mapping[str, int],
    lists: AbstractSet[str],
    doubts: Doubts,
) -> MergeResult:
    """Merge a mutation's cells. `floors`: up to which write time they are deleted, and deleted for sure."""
    changed = in_doubt = is_unproven = False
    deleted_to, firmly_deleted_to = floors
    absent_to = row.absent_to()
    cells, deletions, horizon = row.cells, row.deletions, doubts.horizon
    read_elements = _read_elements(row, update, lists) if lists else {}
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
        result = _put_cell(row, cell, current, doubts)
        changed |= result.changed
        is_unproven |= result.is_unproven
    return MergeResult(changed, in_doubt, is_unproven)


def _put_cell(row: CellRow, cell: Cell, current: Cell | None, doubts: Doubts) -> MergeResult:
    """Put a cell in the current one's place, if it wins."""
    if cell == current:
        return _UNCHANGED
    is_live = cell[2] is not None
    if current is not None and doubts.is_cassandra_3 and doubts.is_tie_undecided(cell, current):
        return _UNPROVEN
    if current is None or wins(cell, current, doubts.is_cassandra_3):
        is_known = cell[1] > doubts.horizon and (row.implied_deletion is None or not row.may_be_late_copy(cell[1]))
        # The current one may have been written after a newer deletion, which took this cell, was purged.
        if is_live and not is_known:
            return _UNPROVEN
        row.cells[cell[0], cell[3]] = cell
        if not is_live and current is not None and current[2] is not None:
            row.forget_mutations()
        is_undecided = not is_known and current is not None and current[2] is not None
        return _DELETED_UNPROVEN if is_undecided else _CHANGED
    return _UNPROVEN if is_live and doubts.is_soft(current) else _UNCHANGED


def _firmly_deleted_to(row: CellRow, floor: int, doubts: Doubts) -> int:
    """Return up to which write time a deletion that can't have been purged deletes all."""
    firm = floor if doubts.firm_floor is None else doubts.firm_floor
    if row.deletion is None or row.deletion.deleted_at <= doubts.soft_before:
        return firm
    return max(firm, row.deletion.write_time)


def _replaces_liveness(row: CellRow, liveness: Liveness, guess: Liveness) -> bool:
    """Return whether a liveness replaces this row's, which may be a guess."""
    if row.liveness_bound is None:
        return supersedes(liveness, guess)
    # Cells that were written later, or had expired by the bound, say nothing of when the row itself was written.
    bound_s = row.liveness_bound // 1_000_000
    cells = [c for c in row.cells.values() if c.value is not None and c.write_time <= guess.write_time]
    return all(c.write_time <= liveness.write_time for c in cells if c.expires is None or c.expires > bound_s)


def _read_elements(row: CellRow, update: Cells, lists: AbstractSet[str]) -> dict[str, list[ListElement]]:
    """Return the elements that a read found, of those lists that an update names."""
    elements: dict[str, list[ListElement]] = {}
    for name in lists & update.columns.keys():
        for (column, path), cell in row.cells.items():
            if column == name and is_read_path(path):
                elements.setdefault(name, []).append(list_element(cell))
    return elements


def _remove_element(elements: list[ListElement] | None, cell: Cell) -> bool:
    """Remove a cell from the list elements that a read found. Return whether it was among them."""
    if elements is None or list_element(cell) not in elements:
        return False
    elements.remove(list_element(cell))
    return True
