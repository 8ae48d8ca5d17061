"""Read a row as a change writes it from the bytes of its cells: the values of the table's columns, and which of them
are written, are replaced as a whole, or have elements that are removed.

    INSERT INTO t (k, v) VALUES (7, 'x') → values [b"x"], written 0b1, replaced 0

It runs as it is, and compiled by Cython with the types of `_changed_row.pxd`: the results are the same.
"""

from __future__ import annotations

from helenus_schemas.codec.wire_bytes import read_long
from helenus_schemas.cql.types import CqlType
from helenus_schemas.event.row_cursor import NO_DELETION, RowCursor

COMPILED = not __file__.endswith(".py")
_compiled = COMPILED
NULL = b"a null that is written"
"""This very object stands for a column that a change deletes: one that it does not write is None."""
_NULL = NULL
_NO_PART = b"\xff\xff\xff\xff"  # the size of an element, or a field, that is null
_WRITTEN = 1
_REPLACED = 2
_NO_DELETION = NO_DELETION
_SCRATCH = bytearray(4)  # where a size is written in C


class ChangedColumn:
    """A column as a change has it. `width` is the size of its values; -1 if it stands before each value. `is_many`: it
    has many cells. `parts` of a cell are in its value: 2 of a map, 1 of a list or a set (whose part is the path), 0 of
    a UDT, of which `fields` is the number. `index` is its number among the table's values; -1 if it is not published.
    `ttl` and `expires`: of many cells that were read last those of the first that has them, -1 if none has.
    """

    def __init__(self, t: CqlType, width: int, index: int) -> None:
        self.width = width
        self.is_many = t.multicell
        self.is_set = t.name == "set"
        self.parts = {"map": 2, "set": 1, "list": 1}.get(t.name, 0)
        self.fields = len(t.fields)
        self.type = t
        self.index = index
        self.ttl = self.expires = -1


def read_row(
    cursor: RowCursor,
    data: bytes,
    offset: int,
    columns: list[ChangedColumn],
    values: list[bytes | None],
    expiries: list[int],
    removed: list[tuple[int, bytes]],
    shows_removed: bool,
) -> tuple[int, int, int, int, int]:
    """Fill in the CQL bytes of a row's columns, NULL for those that are deleted, and when they expire, s since the
    epoch; and the numbers of columns with the paths of what is removed of them.

    Return 1 if the row itself is written, 0 if not, and -1 if this can't encode it; bits of the columns that are
    written, and of those that are replaced; TTL and expiry of the first cell that has them, or of the row, -1 if none
    has. `offset` is where the lowest times are.
    """
    low, offset = read_long(data, offset)
    low_deletion, offset = read_long(data, offset)
    low_ttl, offset = read_long(data, offset)
    size, offset = read_long(data, offset)
    if size != len(data) - offset:
        return -1, 0, 0, -1, -1
    cursor.begin_row(data, offset, low, low_deletion, low_ttl)
    count = len(columns)
    cursor.read_head(count)
    if cursor.is_deleted or cursor.missing >> count:  # they are fewer than 64
        return -1, 0, 0, -1, -1
    written = replaced = 0
    ttl = expires = -1
    bit = 1
    for i in range(count):
        column = columns[i]
        if cursor.missing & bit:
            bit <<= 1
            continue
        if column.is_many:
            parts = read_elements(cursor, column, i, values, removed, shows_removed)
            if parts < 0:
                return -1, 0, 0, -1, -1
            if parts & _WRITTEN:
                written |= bit
            if parts & _REPLACED:
                replaced |= bit
            if ttl < 0:
                ttl, expires = column.ttl, column.expires
        else:
            cursor.read_cell(column.width, False)
            if column.index >= 0:
                written |= bit
                value = cursor.value
                values[column.index] = _NULL if value is None else value
                if cursor.cell_expires is not None:
                    expiries[column.index] = cursor.cell_expires
            if ttl < 0 and cursor.cell_ttl is not None:
                ttl = cursor.cell_ttl
                expires = cursor.cell_expires or 0
        bit <<= 1
    if cursor.offset != len(data):
        return -1, 0, 0, -1, -1
    if ttl < 0 and cursor.ttl is not None:
        ttl = cursor.ttl
        expires = cursor.expires or 0
    return int(cursor.has_write_time), written, replaced, ttl, expires


def is_cleared(values: list[bytes | None]) -> bool:
    """Return whether no column has a value."""
    for value in values:  # noqa: SIM110  # Cython has no closures in such a function
        if value is not None and value is not _NULL:
            return False
    return True


def read_elements(
    cursor: RowCursor,
    column: ChangedColumn,
    number: int,
    values: list[bytes | None],
    removed: list[tuple[int, bytes]],
    shows_removed: bool,
) -> int:
    """Fill in the elements of a collection, or the fields of a UDT. Return _WRITTEN if it has cells, or it is replaced
    as a whole, and _REPLACED if that is so, 0 if it is not published; -1 if this can't encode it. `number` is the
    column's in the change.
    """
    count = cursor.read_column(True)
    deleted = cursor.column_deletion
    column.ttl = -1
    parts = []
    fields = [_NO_PART] * column.fields
    live = end = 0
    for _ in range(count):
        cursor.read_cell(-1, True)
        if column.ttl < 0 and cursor.cell_ttl is not None:
            column.ttl = cursor.cell_ttl
            column.expires = cursor.cell_expires or 0
        if deleted != _NO_DELETION and cursor.cell_time <= deleted:
            continue
        value = cursor.value
        path = cursor.path or b""
        if value is None:
            if column.index >= 0:
                removed.append((number, path))
            if not shows_removed or column.is_set or not column.parts:
                continue
        live += 1
        if not column.parts:
            if len(path) != 2:
                return -1
            field = path[0] << 8 | path[1]
            fields[field] = size_bytes(len(value or b"")) + (value or b"")
            end = max(end, field + 1)
            continue
        if column.parts == 2 or column.is_set:
            parts.append(size_bytes(len(path)))
            parts.append(path)
        if value is None:
            parts.append(_NO_PART)
        elif not column.is_set:
            parts.append(size_bytes(len(value)))
            parts.append(value)
    if column.index < 0:
        return 0
    is_replaced = deleted != _NO_DELETION
    if live and column.parts:
        values[column.index] = size_bytes(live) + b"".join(parts)
    elif live:
        values[column.index] = b"".join(fields[:end])
    elif count or is_replaced:
        values[column.index] = size_bytes(0) if shows_removed and column.parts else _NULL
    if is_replaced:
        return _WRITTEN | _REPLACED
    return _WRITTEN if count else 0


def size_bytes(value: int) -> bytes:
    """Encode a size as 4 bytes."""
    if _compiled:
        raw = _SCRATCH
        raw[0], raw[1], raw[2], raw[3] = value >> 24 & 0xFF, value >> 16 & 0xFF, value >> 8 & 0xFF, value & 0xFF
        return raw[:4]  # type: ignore[return-value] # in C it is a pointer, and a slice of it is bytes
    return value.to_bytes(4, "big")
