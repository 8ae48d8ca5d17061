"""What SELECT shows of a row that is kept as cells: whole CQL values, from cells that live.

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
    """A row that lives: CQL values by column, None for null; the newest write time of what lives, in µs; when the first
    of it expires, s since the epoch.
    """

    values: Mapping[str, bytes | None]
    write_time: int
    expires: int | None


class RowValues:
    """Shows rows of these columns. A cell that is not newer than `dropped_at` of its column, µs, is one of a column of
    the same name that was dropped.
    """

    def __init__(self, columns: Sequence[Column], dropped_at: Mapping[str, int]) -> None:
        self.nothing: dict[str, bytes | None] = {column.name: None for column in columns}
        self._many = {c.name: _assembled(c.type) for c in columns if c.type.multicell}
        self._dropped_at = dropped_at

    def shown(self, row: CellRow, now: int) -> ShownRow | None:
        """What of a row lives at a time, s since the epoch; None if it does not."""
        values = self.nothing.copy()
        newest, expires = NEVER, None
        is_live = False
        if row.liveness is not None:
            time, _, ends = row.liveness
            if ends is None or ends > now:
                is_live, newest, expires = True, time, ends
        many: dict[str, list[Cell]] = {}
        for cell in row.cells.values():
            name, time, value, path, _, ends, _ = cell
            if value is None or name not in values or (ends is not None and ends <= now):
                continue
            if self._dropped_at and time <= self._dropped_at.get(name, NEVER):
                continue
            if (path is not None) != (name in self._many):
                continue  # of a column that was dropped, and came again as another
            if path is None:
                values[name] = value
            else:
                many.setdefault(name, []).append(cell)
            is_live = True
            if time > newest:
                newest = time
            if ends is not None and (expires is None or ends < expires):
                expires = ends
        if not is_live:
            return None
        for name, cells in many.items():
            values[name] = self._many[name](cells)
        return ShownRow(values, newest, expires)


def cell_decoder(columns: Sequence[Column]) -> Callable[[bytes, Scope], Cells]:
    """As `decode_cells`, for a table of these columns: what it returns can be merged and shown. Raises Malformed also
    for a path that is none of its column: a row that has it could not be shown again.
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
    """What raises for bytes that are no path of a column of many cells; None if all are."""
    if t.name == "udt":
        return _NUMBER
    return None if t.name == "list" or t.args[0].name in _ANY_BYTES else order(t.args[0])


def _assembled(t: CqlType) -> Callable[[list[Cell]], bytes]:
    """Makes the value of a column of many cells."""
    if t.name == "udt":
        most = len(t.args)

        def udt(cells: list[Cell]) -> bytes:
            found = [_NULL] * most
            for cell in cells:
                (number,) = _NUMBER(cell.path or b"\0\0")
                if number < most:
                    found[number] = _sized(cell.value or b"")
            return b"".join(found)

        return udt
    of_path = order(CqlType("timeuuid") if t.name == "list" else t.args[0])

    def by_path(cell: Cell) -> Any:
        return of_path(cell.path)

    def collection(cells: list[Cell]) -> bytes:
        cells.sort(key=by_path)
        parts = [_SIZE(len(cells))]
        for cell in cells:
            if t.name != "list":
                parts.append(_sized(cell.path or b""))
            if t.name != "set":
                parts.append(_sized(cell.value or b""))
        return b"".join(parts)

    return collection


def _sized(data: bytes) -> bytes:
    return _SIZE(len(data)) + data
