"""Parse the cells of a change into an operation, the columns as CQL bytes, and what is changed of them.

UPDATE t SET v = 1, m = m + {'a': 2}, s = s - {'x'} WHERE k = 7
→ op u, {v: 1, m: {'a': 2}, s: null}, ParsedCells(columns=(m, s, v), removed={s: ('x',)})
"""

from __future__ import annotations

import struct
from collections.abc import Mapping, Sequence
from typing import NamedTuple
from uuid import UUID

from helenus_connector.interfaces.shape import Record, ShapedRecord
from helenus_schemas.codec.to_json import map_key
from helenus_schemas.cql.table import Table
from helenus_schemas.cql.types import CqlType
from helenus_schemas.cql.values import Malformed
from helenus_schemas.errors import HelenusError, Kind
from helenus_schemas.event.cells import Cell, Cells

BAD_BYTES = (ValueError, IndexError, struct.error)
"""Raised by bytes that are no valid value of their type."""
_NULL = struct.pack(">i", -1)


class ParsedCells(NamedTuple):
    """What a change writes of a row: the `columns`; those of many cells that are `replaced` as a whole; and by column
    what is `removed`: keys of a map, elements of a set, fields of a UDT, time UUIDs of a list's elements.
    """

    columns: tuple[str, ...] = ()
    replaced: tuple[str, ...] = ()
    removed: Mapping[str, tuple[str, ...]] = {}


def parse_cells(
    cells: Cells, published: frozenset[str], shows_removed: bool = False
) -> tuple[str, dict[str, bytes | None] | None, ParsedCells]:
    """Return the operation, the `published` columns that are written, and what is changed of them; None as the columns
    of a row that is deleted. Raises BAD_BYTES for bytes that are no values.

    `c`: the row itself is written, as INSERT does, whether it was there or not; or deleted and written at once. With
    `shows_removed` what is removed of a map, or a list, is null in its value, and a collection of no elements empty.
    """
    deleted_at = cells.deletion.write_time if cells.deletion else None
    live_cells = [c for c in cells.cells if deleted_at is None or c.write_time > deleted_at]
    is_row = cells.liveness is not None and (deleted_at is None or cells.liveness.write_time > deleted_at)
    if deleted_at is not None and not is_row and all(c.value is None for c in live_cells):
        return "d", None, ParsedCells()
    by_column: dict[str, list[Cell]] = {}
    for cell in live_cells:
        by_column.setdefault(cell.column, []).append(cell)
    names = [n for n in cells.columns if n in published and (n in by_column or n in cells.deletions)]
    values: dict[str, bytes | None] = {}
    removed: dict[str, tuple[str, ...]] = {}
    for name in names:
        column_type, column_cells = cells.columns[name], by_column.get(name, [])
        if not column_type.multicell:
            values[name] = column_cells[0].value
            continue
        if (deleted := cells.deletions.get(name)) is not None:
            column_cells = [cell for cell in column_cells if cell.write_time > deleted.write_time]
        if shows_removed and column_type.name != "udt":
            values[name] = _elements(
                column_type, [c for c in column_cells if c.value is not None or column_type.name != "set"]
            )
        else:
            values[name] = _partial_value(column_type, [cell for cell in column_cells if cell.value is not None])
        if removed_paths := tuple(
            _removed_path(column_type, cell.path or b"") for cell in column_cells if cell.value is None
        ):
            removed[name] = removed_paths
    replaced = tuple(name for name in names if name in cells.deletions)
    return "c" if is_row or deleted_at is not None else "u", values, ParsedCells(tuple(names), replaced, removed)


def unreadable_record(key: bytes, table: Table, error: Exception) -> ShapedRecord:
    """Return what stands for the record of a change whose bytes are no values, or none that a record can hold."""
    cause = HelenusError(Kind.POISON_EVENT, f"a change cannot be published: {error}", table.full_name)
    record = Record(None, str(cause).encode(), ())
    return ShapedRecord(record, cause, key, None, lambda _: record)


def _partial_value(t: CqlType, cells: Sequence[Cell]) -> bytes | None:
    """Return the elements, or fields, that are written, as one value; None if there are none."""
    if not cells:
        return None
    if t.name == "udt":
        fields = {_field_number(t, cell.path or b""): cell.value for cell in cells}
        return b"".join(_with_size(fields.get(number)) for number in range(max(fields) + 1))
    return _elements(t, cells)


def _elements(t: CqlType, cells: Sequence[Cell]) -> bytes:
    parts = [part for cell in cells for part in _cell_parts(t, cell)]
    return struct.pack(">i", len(cells)) + b"".join(map(_with_size, parts))


def _cell_parts(t: CqlType, cell: Cell) -> tuple[bytes | None, ...]:
    if t.name == "map":
        return cell.path, cell.value
    return (cell.path,) if t.name == "set" else (cell.value,)


def _removed_path(t: CqlType, path: bytes) -> str:
    if t.name == "udt":
        return t.fields[_field_number(t, path)]
    return str(UUID(bytes=path)) if t.name == "list" else map_key(t.args[0])(path)


def _field_number(t: CqlType, path: bytes) -> int:
    number = int.from_bytes(path, "big")
    if number >= len(t.fields):
        raise Malformed(f"field {number} of a type of {len(t.fields)}")
    return number


def _with_size(part: bytes | None) -> bytes:
    return _NULL if part is None else struct.pack(">i", len(part)) + part
