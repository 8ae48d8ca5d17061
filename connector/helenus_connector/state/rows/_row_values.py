"""What SELECT shows of a row that is stored as cells: whole CQL values, from live cells.

cells m[1] = a, m[2] = b, of which m[2] has expired → m = {1: a}
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Mapping, Sequence
from struct import Struct
from typing import Any, NamedTuple

from helenus_connector.state.rows._cell_rules import NEVER
from helenus_connector.state.rows._row import CellRow
from helenus_schemas.cql.order import order
from helenus_schemas.cql.table import Column
from helenus_schemas.cql.types import CqlType
from helenus_schemas.cql.values import Malformed
from helenus_schemas.event.cells import Cell, Cells, decode_cells
from helenus_schemas.event.change import Scope

_SIZE = Struct(">i").pack
_NULL = b"\xff\xff\xff\xff"
_NUMBER = Struct(">H").unpack
_ANY_BYTES = frozenset("ascii text blob inet varint tinyint smallint int bigint date time timestamp".split())
"""Types whose order takes any bytes."""


class ShownRow(NamedTuple):
    """A live row: CQL values by column, None for null; the newest write time of its live cells, in µs; when the first
    of them expires, s since the epoch.
    """

    values: Mapping[str, bytes | None]
    write_time: int
    expires: int | None


class RowValues:
    """Makes the values of rows of these columns. A cell that is not newer than `dropped_at` of its column, µs, belongs
    to a dropped column of the same name.
    """

    def __init__(self, columns: Sequence[Column], dropped_at: Mapping[str, int]) -> None:
        self.nulls: dict[str, bytes | None] = {column.name: None for column in columns}
        self._assemblers = {c.name: _assembler(c.type) for c in columns if c.type.multicell}
        self._dropped_at = dropped_at

    def show(self, row: CellRow, now: int) -> ShownRow | None:
        """Return a row as it lives at a time, s since the epoch; None if it does not."""
        values = self.nulls.copy()
        newest, expires = NEVER, None
        is_live = False
        if row.liveness is not None:
            write_time, _, expires_at = row.liveness
            if expires_at is None or expires_at > now:
                is_live, newest, expires = True, write_time, expires_at
        cells_by_column: dict[str, list[Cell]] = {}
        for cell in row.cells.values():
            name, write_time, value, path, _, expires_at, _ = cell
            if value is None or name not in values or (expires_at is not None and expires_at <= now):
                continue
            if self._dropped_at and write_time <= self._dropped_at.get(name, NEVER):
                continue
            if (path is not None) != (name in self._assemblers):
                continue  # of a column that was dropped, and came again as another
            if path is None:
                values[name] = value
            else:
                cells_by_column.setdefault(name, []).append(cell)
            is_live = True
            if write_time > newest:
                newest = write_time
            if expires_at is not None and (expires is None or expires_at < expires):
                expires = expires_at
        if not is_live:
            return None
        for name, cells in cells_by_column.items():
            values[name] = self._assemblers[name](cells)
        return ShownRow(values, newest, expires)


def cell_decoder(columns: Sequence[Column]) -> Callable[[bytes, Scope], Cells]:
    """Return a `decode_cells` for a table of these columns, whose result can be merged and shown. It raises Malformed
    also for a path that is not valid for its column: a row that has it could not be shown again.
    """
    checks = {c.name: check for c in columns if c.type.multicell and (check := _path_check(c.type))}

    def decode(data: bytes, scope: Scope) -> Cells:
        cells = decode_cells(data, scope)
        for cell in cells.cells:
            if cell.path is not None and (check := checks.get(cell.column)):
                try:
                    check(cell.path)
                except (ValueError, IndexError, struct.error) as error:
                    raise Malformed(f"not a path of the column {cell.column}: {error}") from None
        return cells

    return decode if checks else decode_cells


def _path_check(t: CqlType) -> Callable[[bytes], Any] | None:
    """Return what raises for bytes that are no valid path of a column of many cells; None if all are valid."""
    if t.name == "udt":
        return _NUMBER
    return None if t.name == "list" or t.args[0].name in _ANY_BYTES else order(t.args[0])


def _assembler(t: CqlType) -> Callable[[list[Cell]], bytes]:
    """Return what makes the value of a column of many cells."""
    if t.name == "udt":
        field_count = len(t.args)

        def udt(cells: list[Cell]) -> bytes:
            fields = [_NULL] * field_count
            for cell in cells:
                (number,) = _NUMBER(cell.path or b"\0\0")
                if number < field_count:
                    fields[number] = _with_size(cell.value or b"")
            return b"".join(fields)

        return udt
    path_order = order(CqlType("timeuuid") if t.name == "list" else t.args[0])

    def by_path(cell: Cell) -> Any:
        return path_order(cell.path)

    def collection(cells: list[Cell]) -> bytes:
        cells.sort(key=by_path)
        parts = [_SIZE(len(cells))]
        for cell in cells:
            if t.name != "list":
                parts.append(_with_size(cell.path or b""))
            if t.name != "set":
                parts.append(_with_size(cell.value or b""))
        return b"".join(parts)

    return collection


def _with_size(data: bytes) -> bytes:
    return _SIZE(len(data)) + data
