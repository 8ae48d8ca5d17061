"""Reads the cells of a row, one after the other, from the bytes of the commit log that an event carries. The grammar is
in `cells`.

    cursor.begin_row(data, offset, lowest times)
    cursor.read_head(len(columns))                     its `write_time`, `is_deleted`, ... are those of the row
    for each of the columns that is not `is_missing`:
        for as many cells as cursor.read_column(...):  `column_deletion` is the column's
            cursor.read_cell(...)                      `cell_time`, `path`, `value`, ... are those of the cell

It runs as it is, and compiled by Cython with the types of `row_cursor.pxd`: the results are the same.
"""

from __future__ import annotations

from typing import Any

from helenus_schemas.cql.values import Malformed

COMPILED = not __file__.endswith(".py")
_compiled = COMPILED
NO_DELETION = -0x8000000000000000
"""The write time of a deletion that is none."""
_NO_DELETION = NO_DELETION
_SECONDS = 0xFFFFFFFF


class RowCursor:
    """A position in a row; when it is read, in the next one. Write times are in µs; `ttl`, `expires` and `deleted_at`
    in s, None if there is none. All methods raise Malformed and IndexError.
    """

    write_time: int
    deletion_time: int
    deleted_at: int
    cell_time: int
    cell_ttl: int | None
    cell_expires: int | None
    cell_deleted_at: int | None
    path: bytes | None
    value: bytes | None

    def begin_row(self, data: bytes, offset: int, low: int, low_deletion: int, low_ttl: int) -> None:
        """Go to the row that begins at an `offset` of `data`. The lowest times are those of its update: `low` in µs,
        `low_deletion` and `low_ttl` in s.
        """
        self.data = data
        self.offset = offset
        self.end = len(data)
        self.low, self.low_deletion, self.low_ttl = low, low_deletion, low_ttl
        self.has_write_time = self.is_deleted = self.has_column_deletions = self.lists_present = False
        self.ttl: int | None = None
        self.expires: int | None = None
        self.column_deletion = _NO_DELETION
        self.missing = 0
        self.listed: set[int] | None = None

    def read_head(self, columns: int) -> None:
        """Read what comes before the cells of a row, whose update has so many columns."""
        flags = self.read_byte()
        self.has_column_deletions = flags & 64 != 0
        if flags & 4:
            self.has_write_time = True
            self.write_time = self.read_time()
            if flags & 8:
                self.ttl = self.low_ttl + self.read_vint() & _SECONDS
                self.expires = self.low_deletion + self.read_vint() & _SECONDS
        if flags & 16:
            self.is_deleted = True
            self.deletion_time = self.read_deletion()
        if not flags & 32:
            self.missing = self.read_vint()
            if columns >= 64:
                self.read_listed(columns)

    def read_listed(self, columns: int) -> None:
        """Read the numbers of the columns that the row has, or of those that it does not have."""
        if self.missing > columns:
            raise Malformed("not the cells of an event: more columns missing than there are")
        present = columns - self.missing
        self.lists_present = present < columns // 2
        self.listed = set()
        for _ in range(present if self.lists_present else self.missing):
            self.listed.add(self.read_vint())

    def is_missing(self, column: int) -> bool:
        """Return whether the row does not have the update's column of this number."""
        if self.listed is None:
            return self.missing >> column & 1 != 0
        return (column in self.listed) != self.lists_present

    def read_column(self, is_many: bool) -> int:
        """Read what comes before the cells of a column, and return their number. `is_many`: it can have many."""
        if not is_many:
            return 1
        if self.has_column_deletions:
            self.column_deletion = self.read_deletion()
        return self.read_vint()

    def read_cell(self, width: int, is_many: bool) -> None:
        """Read a cell, whose value has `width` bytes; -1: as many as stand before them."""
        flags = self.read_byte()
        self.cell_ttl = self.cell_expires = self.cell_deleted_at = None
        if not flags & 8:
            self.cell_time = self.read_time()
        elif self.has_write_time:
            self.cell_time = self.write_time
        else:
            raise Malformed("not the cells of an event: a cell with the write time of a row that has none")
        if flags & 16:
            self.cell_ttl, self.cell_expires = self.ttl, self.expires
            if self.ttl is None:
                raise Malformed("not the cells of an event: a cell with the TTL of a row that has none")
        elif flags & 3:
            self.read_expiry(flags)
        self.path = self.read_bytes(-1) if is_many else None
        value = self.read_bytes(0 if flags & 4 else width)
        self.value = None if flags & 1 else value

    def cell_fields(self, column: str) -> tuple[Any, ...]:
        """Return the cell of a column as the fields of `cells.Cell`."""
        return column, self.cell_time, self.value, self.path, self.cell_ttl, self.cell_expires, self.cell_deleted_at

    def read_expiry(self, flags: int) -> None:
        """Read when a cell of these flags expires, or was deleted."""
        seconds = self.low_deletion + self.read_vint() & _SECONDS
        if flags & 2:
            ttl = self.low_ttl + self.read_vint() & _SECONDS
            if not flags & 1:
                self.cell_ttl = ttl
        if flags & 1:
            self.cell_deleted_at = seconds
        else:
            self.cell_expires = seconds

    def read_bytes(self, width: int) -> bytes:
        """Read so many bytes; -1: as many as the vint before them says."""
        size = self.read_vint() if width < 0 else width
        remaining = self.end - self.offset
        if size > remaining:
            raise Malformed(f"not the cells of an event: they end {size - remaining} bytes after the data")
        start = self.offset
        self.offset = start + size
        return self.data[start : self.offset]

    def read_deletion(self) -> int:
        """Read a deletion, return its write time, and keep when a node deleted in `deleted_at`."""
        time = self.read_time()
        self.deleted_at = self.low_deletion + self.read_vint() & _SECONDS
        return time

    def read_time(self) -> int:
        """Read a write time: it is written as an unsigned difference to the lowest, both of 64 bits."""
        time = self.low + self.read_vint()
        if _compiled:
            return time
        time &= 0xFFFFFFFFFFFFFFFF
        return time - (1 << 64) if time >> 63 else time

    def read_vint(self) -> int:
        """Read an unsigned number: it has as many leading one bits in its first byte as bytes follow."""
        first = self.read_byte()
        if first < 0x80:
            return first
        size = 1
        while size < 8 and first & 0x80 >> size:
            size += 1
        data, offset = self.data, self.offset
        remaining = self.end - offset
        if size > remaining:
            raise Malformed(f"not the cells of an event: a number of {size} bytes where {remaining} are left")
        self.offset = offset + size
        value = first & 0x7F >> size
        if not _compiled:
            return value << 8 * size | int.from_bytes(data[offset : offset + size], "big")
        for i in range(size):
            value = value << 8 | data[offset + i]
        return value

    def read_byte(self) -> int:
        """Read one byte."""
        offset = self.offset
        if offset >= self.end:
            raise IndexError("index out of range")  # as Python says it; Cython has other words
        self.offset = offset + 1
        return self.data[offset]
