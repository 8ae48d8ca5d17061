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
_NO_DELETION = NO_DELETION
_SCRATCH = bytearray(4)  # where a size is written in C


class ChangedColumn:
    """A column as a change has it. `width` is the size of its values; -1 if it stands before each value. `is_many`: it
    has many cells. `parts` of a cell are in its value: 2 of a map, 1 of a list or a set (whose part is the path), 0 of
    a UDT, of which `fields` is the number. `index` is its number among the table's values; -1 if it is not published.
    """

    def __init__(self, t: CqlType, width: int, index: int) -> None:
        self.width = width
        self.is_many = t.multicell
        self.is_set = t.name == "set"
        self.parts = {"map": 2, "set": 1, "list": 1}.get(t.name, 0)
        self.fields = len(t.fields)
        self.type = t
        self.index = index


class ChangedRow:
    """The row of the change that was read last, of a table with so many columns that are not of its key.

    `values` are their CQL bytes, NULL for those that are deleted, None for those that are not written; `expiries` say
    when they expire, s since the epoch, or -1. `is_written`: the row itself is, as by INSERT. `written` and `replaced`
    have a bit for each column of the change. `removed` are numbers of its columns with the paths of what is removed of
    them. `ttl` and `expires` are those of the first cell that has them, or of the row; -1 if none has.
    """

    def __init__(self, columns: int) -> None:
        self.values: list[bytes | None] = []
        self.expiries: list[int] = []
        self.removed: list[tuple[int, bytes]] = []
        self.is_written = False
        self.written = self.replaced = 0
        self.ttl = self.expires = -1
        self._cursor = RowCursor()
        self._no_values: list[bytes | None] = [None] * columns
        self._no_expiries = [-1] * columns

    def read(self, data: bytes, offset: int, columns: list[ChangedColumn], shows_removed: bool) -> bool:
        """Read a row of these columns, fewer than 64; `offset` is where the lowest times are. With `shows_removed` an
        element that is removed is a null in its collection. Return False for a row that is not for this class, such as
        one that is deleted. Raises what decoding raises.
        """
        cursor = self._cursor
        low, offset = read_long(data, offset)
        low_deletion, offset = read_long(data, offset)
        low_ttl, offset = read_long(data, offset)
        size, offset = read_long(data, offset)
        if size != len(data) - offset:
            return False
        cursor.begin_row(data, offset, low, low_deletion, low_ttl)
        count = len(columns)
        cursor.read_head(count)
        if cursor.is_deleted or cursor.missing >> count:
            return False
        self.values, self.expiries, self.removed = self._no_values[:], self._no_expiries[:], []
        self.written = self.replaced = 0
        self.ttl = self.expires = -1
        for i in range(count):
            column = columns[i]
            if cursor.missing >> i & 1:
                continue
            if column.is_many:
                self.read_elements(column, i, shows_removed)
            else:
                self.read_value(column, i)
        self.note_expiry(cursor.ttl, cursor.expires)
        self.is_written = cursor.has_write_time
        return cursor.offset == len(data)

    def is_cleared(self) -> bool:
        """Return whether no column has a value."""
        for value in self.values:  # noqa: SIM110  # Cython has no closures in such a function
            if value is not None and value is not _NULL:
                return False
        return True

    def note_expiry(self, ttl: int | None, expires: int | None) -> None:
        """Keep the TTL of a cell or of the row, unless there was one before."""
        if self.ttl < 0 and ttl is not None:
            self.ttl = ttl
            self.expires = expires or 0

    def read_value(self, column: ChangedColumn, number: int) -> None:
        """Read a column of one cell, whose number in the change this is."""
        cursor = self._cursor
        cursor.read_cell(column.width, False)
        self.note_expiry(cursor.cell_ttl, cursor.cell_expires)
        if column.index >= 0:
            self.written |= 1 << number
            value = cursor.value
            self.values[column.index] = _NULL if value is None else value
            if cursor.cell_expires is not None:
                self.expiries[column.index] = cursor.cell_expires

    def read_elements(self, column: ChangedColumn, number: int, shows_removed: bool) -> None:
        """Read the elements of a collection, or the fields of a UDT."""
        cursor = self._cursor
        count = cursor.read_column(True)
        deleted = cursor.column_deletion
        parts: list[bytes] = []
        live = 0
        for _ in range(count):
            cursor.read_cell(-1, True)
            self.note_expiry(cursor.cell_ttl, cursor.cell_expires)
            if deleted != _NO_DELETION and cursor.cell_time <= deleted:
                continue
            if cursor.value is None:
                if column.index >= 0:
                    self.removed.append((number, cursor.path or b""))
                if not shows_removed or column.is_set or not column.parts:
                    continue
            live += 1
            if column.parts:
                add_element(parts, column, cursor.path or b"", cursor.value)
            else:
                set_field(parts, column, cursor.path or b"", cursor.value or b"")
        is_replaced = deleted != _NO_DELETION
        if column.index >= 0 and (count or is_replaced):
            self.written |= 1 << number
            if is_replaced:
                self.replaced |= 1 << number
            self.values[column.index] = elements_bytes(column, parts, live, shows_removed)


def elements_bytes(column: ChangedColumn, parts: list[bytes], live: int, shows_removed: bool) -> bytes:
    """Return the CQL bytes of a collection, or a UDT, of which so many elements are `live`; NULL if it has none."""
    if not live:
        return size_bytes(0) if shows_removed and column.parts else _NULL
    return (size_bytes(live) if column.parts else b"") + b"".join(parts)


def add_element(parts: list[bytes], column: ChangedColumn, path: bytes, value: bytes | None) -> None:
    """Add an element to the parts of a collection's CQL bytes; None for one that is removed."""
    if column.parts == 2 or column.is_set:
        parts.append(size_bytes(len(path)))
        parts.append(path)
    if value is None:
        parts.append(_NO_PART)
    elif not column.is_set:
        parts.append(size_bytes(len(value)))
        parts.append(value)


def set_field(fields: list[bytes], column: ChangedColumn, path: bytes, value: bytes) -> None:
    """Set a field, whose number is the path, among those of a UDT until the last one that has a value. Raises
    ValueError if the UDT has no such field.
    """
    number = path[0] << 8 | path[1] if len(path) == 2 else column.fields
    if number >= column.fields:
        raise ValueError("no such field")
    while len(fields) <= number:
        fields.append(_NO_PART)
    fields[number] = size_bytes(len(value)) + value


def size_bytes(value: int) -> bytes:
    """Encode a size as 4 bytes."""
    if _compiled:
        raw = _SCRATCH
        raw[0], raw[1], raw[2], raw[3] = value >> 24 & 0xFF, value >> 16 & 0xFF, value >> 8 & 0xFF, value & 0xFF
        return raw[:4]  # type: ignore[return-value] # in C it is a pointer, and a slice of it is bytes
    return value.to_bytes(4, "big")
