"""Compares a row of the source with that of the target, and says which cells would make them equal."""

from __future__ import annotations

from collections.abc import Collection, Iterator
from dataclasses import dataclass

from helenus_connector.replicate._cluster_table import RowImage, RowKey
from helenus_connector.replicate._list_copies import are_equal_lists, expire_together, list_cells
from helenus_schemas.event.cells import Cell, Cells, Deletion
from helenus_schemas.event.change import Scope

_REVIVALS = 1_000
"""How often a cell may be written with old write times after a TRUNCATE: its copy is newer by a µs each time."""
CellName = tuple[str, "bytes | None"]


@dataclass(frozen=True)
class RowDifference:
    """What differs in a row: `kind` is `missing`, `ghost` or `cells`, `columns` says which cells' and how."""

    kind: str
    key: RowKey
    columns: tuple[str, ...] = ()


def compare_rows(
    key: RowKey, source: RowImage | None, target: RowImage | None, lists: Collection[str], columns: Collection[str]
) -> RowDifference | None:
    """Return what differs in a row, in these columns; None if nothing does. `lists` are the names of unfrozen lists,
    whose elements have other write times in a copy.
    """
    if source is None or target is None:
        if source is target:
            return None
        image = source or target
        assert image is not None
        if key[1] is Scope.STATIC and not any(cell.column in columns for cell in image.cells.cells):
            return None
        return RowDifference("missing" if target is None else "ghost", key)
    names = tuple(_differing_columns(source, target, lists, columns))
    return RowDifference("cells", key, names) if names else None


def _differing_columns(
    source: RowImage, target: RowImage, lists: Collection[str], columns: Collection[str]
) -> Iterator[str]:
    in_source, in_target = _by_name(source.cells), _by_name(target.cells)
    reasons: dict[str, str] = {}
    for name in in_source.keys() | in_target.keys():
        column = name[0]
        if column in columns and column not in lists:
            reason = _difference(in_source.get(name), in_target.get(name))
            if reason:
                reasons[column] = reason
    for column in lists:
        if column in columns and not are_equal_lists(list_cells(source, column), list_cells(target, column)):
            reasons[column] = "elements"
    for column, reason in sorted(reasons.items()):
        yield f"{column} ({reason})"


def _difference(source: Cell | None, target: Cell | None) -> str:
    if source is None or target is None:
        return "only in the source" if target is None else "only in the target"
    if source.value != target.value:
        return "value"
    if source.write_time != target.write_time:
        return f"write time {source.write_time} and {target.write_time}"
    return "" if expire_together(source, target) else f"expires at {source.expires} and {target.expires}"


def repair_cells(
    key: RowKey, source: RowImage | None, target: RowImage | None, lists: Collection[str], truncated_at: int = 0
) -> Cells | None:
    """Return what makes the target's row equal to the source's, but for lists: its cells, and tombstones of those that
    the source does not have, with their own write times. None if nothing is to be written. `truncated_at`, µs since
    the epoch, is given where rows were written before it.
    """
    if source is None:
        return None if target is None else _deletion(key, target, lists, truncated_at)
    if target is None:
        return source.cells
    in_source, in_target = _by_name(source.cells), _by_name(target.cells)
    cells = [cell for name, cell in in_source.items() if name[0] not in lists and _lacks(in_target.get(name), cell)]
    cells += [_tombstone(cell) for name, cell in in_target.items() if name not in in_source and name[0] not in lists]
    return source.cells._replace(liveness=None, cells=tuple(cells)) if cells else None


def revived_cells(
    source: RowImage | None, target: RowImage | None, lists: Collection[str], truncated_at: int
) -> Cells | None:
    """Return the cells of a source's row that the target hides, by what a TRUNCATE at this time, µs since the epoch,
    took from the source: with write times just after it. None if there are none.

    Cassandra shows a write after a TRUNCATE whatever its write time is. The target was not truncated, but has
    tombstones.
    """
    if source is None or not truncated_at:
        return None
    in_target = {} if target is None else _by_name(target.cells)
    cells = []
    for name, cell in _by_name(source.cells).items():
        copy = in_target.get(name)
        copied_at = truncated_at if copy is None else max(truncated_at, copy.write_time)
        is_hidden = copy is None or copy.value != cell.value
        if name[0] not in lists and is_hidden and max(cell.write_time, copied_at - _REVIVALS) <= truncated_at:
            cells.append(cell._replace(write_time=copied_at + 1))
    liveness = source.cells.liveness if target is None else None
    if liveness is not None and liveness.write_time <= truncated_at:
        liveness = liveness._replace(write_time=truncated_at + 1)
    return source.cells._replace(liveness=liveness, cells=tuple(cells)) if cells or liveness else None


def _lacks(target: Cell | None, source: Cell) -> bool:
    """Return whether to write a cell of the source is of use: not where the target has it with a newer write time."""
    if target is not None and target.write_time > source.write_time:
        target = target._replace(write_time=source.write_time)
    return bool(_difference(source, target))


def _deletion(key: RowKey, target: RowImage, lists: Collection[str], truncated_at: int) -> Cells:
    cells = target.cells
    if key[1] is Scope.STATIC:
        return cells._replace(cells=tuple(_tombstone(cell) for cell in cells.cells if cell.column not in lists))
    # The row itself may be newer than its cells; of one without cells no read says when it was written.
    newest = max((cell.write_time for cell in cells.cells), default=truncated_at or target.read_at_ms * 1000)
    deletion = Deletion(newest, target.read_at_ms // 1000)
    return cells._replace(liveness=None, deletion=deletion, cells=())


def _tombstone(cell: Cell) -> Cell:
    return cell._replace(value=None, ttl=None, expires=None, deleted_at=0)


def _by_name(cells: Cells) -> dict[CellName, Cell]:
    return {(cell.column, cell.path): cell for cell in cells.cells}
