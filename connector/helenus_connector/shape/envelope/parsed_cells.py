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
from helenus_schemas.cql.values import Malformed, collection_bytes, part_bytes
from helenus_schemas.errors import HelenusError, Kind
from helenus_schemas.event.cells import Cell, Cells, Deletion

BAD_BYTES = (ValueError, IndexError, struct.error)
"""Raised by bytes that are no valid value of their type."""
_BEFORE_ALL = -(1 << 63) - 1
"""A time before any write time, which has 64 bits."""


class ParsedCells(NamedTuple):
    """What a change writes of a row: the `columns`; those of many cells that are `replaced` as a whole; and by column
    what is `removed`: keys of a map, elements of a set, fields of a UDT, time UUIDs of a list's elements.
    """

    columns: tuple[str, ...] = ()
    replaced: tuple[str, ...] = ()
    removed: Mapping[str, tuple[str, ...]] = {}


class ParsedChange(NamedTuple):
    """What a change says of a row: the operation `op`, `c`, `u` or `d`; the CQL bytes of the `columns` that it writes,
    None if it deletes the row; and what of them is `changed`. `is_row`: the row itself is written, as INSERT does.
    """

    op: str
    columns: dict[str, bytes | None] | None
    changed: ParsedCells
    is_row: bool


def parse_cells(cells: Cells, published: frozenset[str], shows_removed: bool = False) -> ParsedChange:
    """Return what the cells say of the `published` columns. Raises BAD_BYTES for bytes that are no values.

    The operation is `c` if the row itself is written, whether it was there or not; or deleted and written at once. With
    `shows_removed` what is removed of a map, or a list, is null in its value, and a collection of no elements empty.
    """
    is_deleted = cells.deletion is not None
    deleted_at = cells.deletion.write_time if cells.deletion else _BEFORE_ALL
    live_cells = [c for c in cells.cells if c.write_time > deleted_at]
    is_row = cells.liveness is not None and cells.liveness.write_time > deleted_at
    if is_deleted and not is_row and all(c.value is None for c in live_cells):
        return ParsedChange("d", None, ParsedCells(), False)
    by_column: dict[str, list[Cell]] = {}
    for cell in live_cells:
        by_column.setdefault(cell.column, []).append(cell)
    written = by_column.keys() | cells.deletions.keys()
    names = [name for name in cells.columns if name in published and name in written]
    values: dict[str, bytes | None] = {}
    removed: dict[str, tuple[str, ...]] = {}
    for name in names:
        t, column_cells = cells.columns[name], by_column.get(name, [])
        if not t.multicell:
            values[name] = column_cells[0].value
            continue
        values[name], removed_paths = _parse_elements(t, column_cells, cells.deletions.get(name), shows_removed)
        if removed_paths:
            removed[name] = removed_paths
    replaced = tuple(name for name in names if name in cells.deletions)
    op = "c" if is_row or is_deleted else "u"
    return ParsedChange(op, values, ParsedCells(tuple(names), replaced, removed), is_row)


def _parse_elements(
    t: CqlType, cells: Sequence[Cell], deletion: Deletion | None, shows_removed: bool
) -> tuple[bytes | None, tuple[str, ...]]:
    """Return what is written of a column of many cells, as one value, and what is removed of it."""
    if deletion is not None:
        cells = [cell for cell in cells if cell.write_time > deletion.write_time]
    written = [cell for cell in cells if cell.value is not None]
    if shows_removed and t.name != "udt":
        value: bytes | None = _elements(t, written if t.name == "set" else cells)
    else:
        value = _partial_value(t, written)
    return value, tuple([removed_path(t, cell.path or b"") for cell in cells if cell.value is None])


def unreadable_record(key: bytes, table: Table, error: Exception, subject: str = "a change") -> ShapedRecord:
    """Return what stands for the record of a change whose bytes are no values, or none that a record can hold; the
    `subject` is what cannot be published.
    """
    cause = HelenusError(Kind.POISON_EVENT, f"{subject} cannot be published: {error}", table.full_name)
    record = Record(None, str(cause).encode(), ())
    return ShapedRecord(record, cause, key, None, lambda _: record)


def _partial_value(t: CqlType, cells: Sequence[Cell]) -> bytes | None:
    """Return the elements, or fields, that are written, as one value; None if there are none."""
    if not cells:
        return None
    if t.name == "udt":
        fields = {_field_number(t, cell.path or b""): cell.value for cell in cells}
        return b"".join(part_bytes(fields.get(number)) for number in range(max(fields) + 1))
    return _elements(t, cells)


def _elements(t: CqlType, cells: Sequence[Cell]) -> bytes:
    return collection_bytes(len(cells), [part for cell in cells for part in _cell_parts(t, cell)])


def _cell_parts(t: CqlType, cell: Cell) -> tuple[bytes | None, ...]:
    if t.name == "map":
        return cell.path, cell.value
    return (cell.path,) if t.name == "set" else (cell.value,)


def removed_path(t: CqlType, path: bytes) -> str:
    """Return what is removed of a column of many cells, by the path of its cell. Raises BAD_BYTES."""
    if t.name == "udt":
        return t.fields[_field_number(t, path)]
    return str(UUID(bytes=path)) if t.name == "list" else map_key(t.args[0])(path)


def _field_number(t: CqlType, path: bytes) -> int:
    number = int.from_bytes(path, "big")
    if number >= len(t.fields):
        raise Malformed(f"field {number} of a type of {len(t.fields)}")
    return number
