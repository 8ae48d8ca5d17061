"""What the cells of a change say of its row: an operation, the columns as CQL bytes, and what of them is changed.

UPDATE t SET v = 1, m = m + {'a': 2}, s = s - {'x'} WHERE k = 7
→ op u, {v: 1, m: {'a': 2}, s: null}, Said(columns=(m, s, v), removed={s: ('x',)})
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
"""What bytes raise that are no values."""
_NULL = struct.pack(">i", -1)


class ParsedCells(NamedTuple):
    """What of a row a change writes: the `columns`; those of many cells that are `replaced` as a whole; and by column
    what is `removed`: keys of a map, elements of a set, fields of a UDT, time UUIDs of a list's elements.
    """

    columns: tuple[str, ...] = ()
    replaced: tuple[str, ...] = ()
    removed: Mapping[str, tuple[str, ...]] = {}


def parse_cells(
    found: Cells, published: frozenset[str], shows_removed: bool = False
) -> tuple[str, dict[str, bytes | None] | None, ParsedCells]:
    """The operation, the `published` columns that are written, and what is changed of them; the columns are None of a
    row that is deleted. Raises BAD_BYTES for bytes that are no values.

    `c`: the row itself is written, as INSERT does, whether it was there or not; or deleted and written at once. With
    `shows_removed` what is removed of a map, or a list, is null in its value, and a collection of no elements empty.
    """
    gone_at = found.deletion.write_time if found.deletion else None
    cells = [c for c in found.cells if gone_at is None or c.write_time > gone_at]
    is_row = found.liveness is not None and (gone_at is None or found.liveness.write_time > gone_at)
    if gone_at is not None and not is_row and all(c.value is None for c in cells):
        return "d", None, ParsedCells()
    by_column: dict[str, list[Cell]] = {}
    for cell in cells:
        by_column.setdefault(cell.column, []).append(cell)
    names = [n for n in found.columns if n in published and (n in by_column or n in found.deletions)]
    values: dict[str, bytes | None] = {}
    removed: dict[str, tuple[str, ...]] = {}
    for name in names:
        of_column, members = found.columns[name], by_column.get(name, [])
        if not of_column.multicell:
            values[name] = members[0].value
            continue
        if (deleted := found.deletions.get(name)) is not None:
            members = [cell for cell in members if cell.write_time > deleted.write_time]
        if shows_removed and of_column.name != "udt":
            values[name] = _elements(of_column, [c for c in members if c.value is not None or of_column.name != "set"])
        else:
            values[name] = _value(of_column, [cell for cell in members if cell.value is not None])
        if gone := tuple(_removed(of_column, cell.path or b"") for cell in members if cell.value is None):
            removed[name] = gone
    replaced = tuple(name for name in names if name in found.deletions)
    return "c" if is_row or gone_at is not None else "u", values, ParsedCells(tuple(names), replaced, removed)


def unreadable(key: bytes, table: Table, error: Exception) -> ShapedRecord:
    """In place of the record of a change whose bytes are no values, or none that a record can hold."""
    cause = HelenusError(Kind.POISON_EVENT, f"a change cannot be published: {error}", table.full_name)
    record = Record(None, str(cause).encode(), ())
    return ShapedRecord(record, cause, key, None, lambda _: record)


def _value(t: CqlType, cells: Sequence[Cell]) -> bytes | None:
    """The elements, or fields, that are written, as one value; None if there are none."""
    if not cells:
        return None
    if t.name == "udt":
        fields = {_number(t, cell.path or b""): cell.value for cell in cells}
        return b"".join(_sized(fields.get(i)) for i in range(max(fields) + 1))
    return _elements(t, cells)


def _elements(t: CqlType, cells: Sequence[Cell]) -> bytes:
    parts = [part for cell in cells for part in _parts(t, cell)]
    return struct.pack(">i", len(cells)) + b"".join(map(_sized, parts))


def _parts(t: CqlType, cell: Cell) -> tuple[bytes | None, ...]:
    if t.name == "map":
        return cell.path, cell.value
    return (cell.path,) if t.name == "set" else (cell.value,)


def _removed(t: CqlType, path: bytes) -> str:
    if t.name == "udt":
        return t.fields[_number(t, path)]
    return str(UUID(bytes=path)) if t.name == "list" else map_key(t.args[0])(path)


def _number(t: CqlType, path: bytes) -> int:
    number = int.from_bytes(path, "big")
    if number >= len(t.fields):
        raise Malformed(f"field {number} of a type of {len(t.fields)}")
    return number


def _sized(part: bytes | None) -> bytes:
    return _NULL if part is None else struct.pack(">i", len(part)) + part
