"""Make records straight from the bytes of a change's cells, in one pass, for the most frequent changes: rows that are
written. They are those that `decode_cells`, `parse_cells` and a shape make together. Other changes, and bytes that are
not valid, are left to these.

    cells of INSERT INTO t (k, v) VALUES (7, 'x') → the record's key and value

What a value consists of is a `RecordLayout`, in Avro or JSON: a shape gives it.

It runs as it is, and compiled by Cython with the types of `direct_records.pxd`: the results are the same.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from helenus_connector.shape.envelope._changed_row import NULL, ChangedColumn, ChangedRow
from helenus_connector.shape.envelope.parsed_cells import ParsedCells, removed_path
from helenus_connector.shape.envelope.value_writer import ValuePart, ValueWriter
from helenus_schemas.codec.wire_bytes import read_long
from helenus_schemas.cql.table import Table
from helenus_schemas.cql.types import CqlType
from helenus_schemas.event.cells import columns_of, width_of

if TYPE_CHECKING:
    from helenus_connector.shape.envelope.record_layout import RecordLayout

COMPILED = not __file__.endswith(".py")

# What a part of a record's value is.
_ROW = 0
_NOW = 1
_WRITE_MS = 2
_WRITE_US = 3
_WRITE_NS = 4
_SEGMENT = 5
_POSITION = 6
_NODE = 7
_OPERATION = 8
_CHANGED = 9
_EXACT = 10
_FIELDS = 11
_TTL = 12
ROW, NOW, WRITE_MS, WRITE_US, WRITE_NS = _ROW, _NOW, _WRITE_MS, _WRITE_US, _WRITE_NS
SEGMENT, POSITION, NODE = _SEGMENT, _POSITION, _NODE
OPERATION, CHANGED, EXACT, FIELDS, TTL = _OPERATION, _CHANGED, _EXACT, _FIELDS, _TTL

_NULL = NULL
_MAX_COLUMNS = 63  # so that bits of 64-bit numbers stand for them
_MAX_CACHED = 1000  # entries of each cache: a table's changes write the same few sets of columns
_MAX_HEADER = 1 << 14  # bytes that name 63 columns and their types
_MAX_WRITE_TIME = 9_000_000_000_000_000  # µs; what is further has no nanoseconds
_MICROSECONDS = 1_000_000  # in a second
_ERRORS = (ValueError, LookupError, TypeError, ArithmeticError, struct.error)


class ColumnSlot:
    """A column in a row, or in a key: `absent` is all of one that is not written, `head` and `tail` go around a value
    that is written as `part` says. With `shows_expiry` a cell that expires has `expiry_head`, the time in µs, and
    `expiry_tail` instead of the tail. `exact` returns an entry of the part _EXACT, None if a value has none.
    """

    def __init__(
        self,
        part: ValuePart,
        absent: bytes,
        head: bytes,
        tail: bytes = b"",
        expiry: tuple[bytes, bytes] | None = None,
        exact: Callable[[bytes], Any] | None = None,
    ) -> None:
        self.part = part
        self.absent, self.head, self.tail = absent, head, tail
        self.shows_expiry = expiry is not None
        self.expiry_head, self.expiry_tail = expiry or (b"", b"")
        self.exact = exact


class DirectRecords:
    """Makes the records of one version of a table, of which some columns are not of its key."""

    def __init__(self, table: Table, layout: RecordLayout) -> None:
        self._layout = layout
        self._writer = ValueWriter(layout.is_json)
        self._steps = [part for _, part in layout.value]
        self._constants = [constant for constant, _ in layout.value]
        self._end = layout.end
        self._keys, self._row_keys, self._slots = list(layout.keys), list(layout.row_keys), list(layout.columns)
        self._key_head, self._key_tail = layout.key_head, layout.key_tail
        self._update, self._insert = layout.operations
        self._sizes_row, self._shows_removed = layout.sizes_row, layout.shows_removed
        self._removal, self._clearing = layout.removal, layout.clearing
        self._has_exact = any(slot.exact is not None for slot in layout.columns)
        self._no_exact = layout.exact(())
        self._row = ChangedRow(len(self._slots))
        self._indexes = {c.name: index for index, c in enumerate(table.values)}
        self._columns: dict[bytes, tuple[list[ChangedColumn], list[str]]] = {}
        self._names: dict[tuple[bytes, int, int, bool], tuple[bytes, bytes]] = {}
        self._segments: dict[int, bytes] = {}
        # Of the change that is encoded:
        self._segment_number = self._position = 0

    def learn_columns(self, cells: bytes, types: Mapping[str, CqlType]) -> None:
        """Learn the columns, with their types, that these cells have: later changes of the same columns are encoded."""
        header = columns_of(cells)
        if header in self._columns or len(types) > _MAX_COLUMNS or len(header) > _MAX_HEADER:
            return
        if len(self._columns) >= _MAX_CACHED:
            self._columns.clear()
        columns = [ChangedColumn(t, width_of(t), self._indexes.get(name, -1)) for name, t in types.items()]
        self._columns[header] = columns, list(types)

    def encode_change(
        self, event: bytes, cells: bytes, key: Sequence[bytes | None], write_time: int, now: int, is_static: bool
    ) -> tuple[bytes, bytes, bool] | None:
        """Return a record's key, no bytes if the shape makes it, its value, and whether the row itself is written, as
        INSERT does; None for a change that this class does not encode.

        `event` is the event's value, of the scope ROW or STATIC, and ends with the `cells`; `key` is the CQL bytes of
        its primary key; `write_time` in µs, `now` in ms.
        """
        try:
            return self._encode_change(event, cells, tuple(key), write_time, now, is_static)
        except _ERRORS:
            return None

    def row_values(self) -> tuple[bytes | None, ...]:
        """Return the CQL bytes of the columns that are not of the key, of the change that was encoded last."""
        return tuple([None if value is _NULL else value for value in self._row.values])

    def _encode_change(
        self,
        event: bytes,
        cells: bytes,
        key: tuple[bytes | None, ...],
        write_time: int,
        now: int,
        is_static: bool,
    ) -> tuple[bytes, bytes, bool] | None:
        if len(key) != len(self._row_keys) or b"" in key or not self._read_place(event, len(event) - len(cells)):
            return None
        if cells[0] != 2 or not -_MAX_WRITE_TIME < write_time < _MAX_WRITE_TIME:
            return None
        size, offset = read_long(cells, 33)
        if not 0 <= size <= len(cells) - offset:
            return None
        header = cells[offset : offset + size]
        header_columns = self._columns.get(header)
        if header_columns is None:
            return None
        columns: list[ChangedColumn] = header_columns[0]
        row = self._row
        if not row.read(cells, offset + size, columns, self._shows_removed):
            return None
        name = header, row.written, row.replaced, is_static
        names = None if row.removed else self._names.get(name)
        if names is None:
            names = self._encode_names(name, header_columns[1], columns, row.removed)
        record_key = self._encode_key(key)
        sized_row = self._encode_row(key) if self._sizes_row else b""
        writer = self._writer
        writer.clear()
        for i in range(len(self._steps)):
            step: int = self._steps[i]
            writer.append(self._constants[i])
            if step == _ROW:
                if self._sizes_row:
                    writer.put_number(len(sized_row))
                    writer.append(sized_row)
                else:
                    self._put_row(key)
            elif step == _NODE:
                writer.put_text(event, 36, 72)
            elif step == _CHANGED:
                writer.append(names[0])
            elif step == _FIELDS:
                writer.append(names[1])
            else:
                self._put_of_change(step, write_time, now)
        writer.append(self._end)
        return record_key, writer.written(0), row.is_written

    def _read_place(self, event: bytes, size: int) -> bool:
        """Read where the commit log has the change, of which the event has `size` bytes before its cells. Return False
        if it is not a change of a row, or has no such place.
        """
        if size < 82 or event[:2] != b"\2@" or event[34:36] != b"\2H" or event[72] != 0:
            return False
        if event[size - 2] != 0 or event[size - 1] != 2:
            return False
        _, offset = read_long(event, 73)
        _, offset = read_long(event, offset)
        _, offset = read_long(event, offset)
        segment, offset = read_long(event, offset)
        position, offset = read_long(event, offset)
        self._segment_number, self._position = segment, position
        return segment >= 0 and position >= 0

    def _encode_key(self, key: tuple[bytes | None, ...]) -> bytes:
        """Return a record's key; no bytes if the shape makes it."""
        if not self._keys:
            return b""
        writer = self._writer
        writer.clear()
        writer.append(self._key_head)
        self._put_key(self._keys, key)
        writer.append(self._key_tail)
        return writer.written(0)

    def _encode_row(self, key: tuple[bytes | None, ...]) -> bytes:
        """Return a row by itself."""
        self._writer.clear()
        self._put_row(key)
        return self._writer.written(0)

    def _put_of_change(self, step: int, write_time: int, now: int) -> None:
        """Write a part of a value that is no row and no name."""
        writer = self._writer
        if step == _NOW:
            writer.put_number(now)
        elif step == _WRITE_MS:
            writer.put_number(write_time // 1000)
        elif step == _WRITE_US:
            writer.put_number(write_time)
        elif step == _WRITE_NS:
            writer.put_number(write_time * 1000)
        elif step == _SEGMENT:
            writer.append(self._segment(self._segment_number))
        elif step == _POSITION:
            writer.put_number(self._position)
        elif step == _OPERATION:
            writer.append(self._operation())
        elif step == _EXACT:
            writer.append(self._exact() if self._has_exact else self._no_exact)
        elif self._row.ttl >= 0:
            writer.append(self._layout.ttl(self._row.ttl, self._row.expires))
        else:
            writer.append(self._layout.no_ttl)

    def _operation(self) -> bytes:
        """Return what the value says that the change is."""
        row = self._row
        if row.removed and self._removal:
            return self._removal
        is_clearing = not row.is_written and row.written and row.written == row.replaced
        if self._clearing and is_clearing and row.is_cleared():
            return self._clearing
        return self._insert if row.is_written else self._update

    def _put_key(self, slots: list[ColumnSlot], key: tuple[bytes | None, ...]) -> None:
        """Write the columns of a key."""
        writer = self._writer
        for i in range(len(slots)):
            slot: ColumnSlot = slots[i]
            value = key[i]
            if value is None:
                writer.append(slot.absent)
            else:
                writer.append(slot.head)
                writer.put_part(slot.part, value, 0, len(value))
                writer.append(slot.tail)

    def _put_row(self, key: tuple[bytes | None, ...]) -> None:
        """Write the row of this key."""
        writer, values, expiries = self._writer, self._row.values, self._row.expiries
        self._put_key(self._row_keys, key)
        for i in range(len(values)):
            slot: ColumnSlot = self._slots[i]
            value = values[i]
            if value is None:
                writer.append(slot.absent)
                continue
            writer.append(slot.head)
            if value is _NULL:
                writer.put_null()
            elif not value and not slot.part.accepts_empty:
                raise ValueError("no bytes")  # a header is to say that
            else:
                writer.put_part(slot.part, value, 0, len(value))
            expiry: int = expiries[i]
            if slot.shows_expiry and expiry >= 0:
                writer.append(slot.expiry_head)
                writer.put_number(expiry * _MICROSECONDS)
                writer.append(slot.expiry_tail)
            else:
                writer.append(slot.tail)

    def _exact(self) -> bytes:
        """Return the exact values of those that are shown as others."""
        entries = []
        for slot, value in zip(self._slots, self._row.values, strict=True):
            if slot.exact is not None and value and value is not _NULL:
                entry = slot.exact(value)
                if entry is not None:
                    entries.append(entry)
        return self._layout.exact(entries)

    def _encode_names(
        self,
        name: tuple[bytes, int, int, bool],
        names: list[str],
        columns: list[ChangedColumn],
        removed: list[tuple[int, bytes]],
    ) -> tuple[bytes, bytes]:
        _, written, replaced, is_static = name
        written_columns, replaced_columns = (
            tuple([n for i, n in enumerate(names) if bits >> i & 1]) for bits in (written, replaced)
        )
        paths: dict[str, tuple[str, ...]] = {}
        for number, path in removed:
            column = names[number]
            paths[column] = (*paths.get(column, ()), removed_path(columns[number].type, path))
        changed = ParsedCells(written_columns, replaced_columns, paths)
        encoded = self._layout.changed(changed), self._layout.fields(changed, is_static)
        if not removed:
            if len(self._names) >= _MAX_CACHED:
                self._names.clear()
            self._names[name] = encoded
        return encoded

    def _segment(self, segment: int) -> bytes:
        file = self._segments.get(segment)
        if file is None:
            if len(self._segments) >= _MAX_CACHED:
                self._segments.clear()
            self._segments[segment] = file = self._layout.segment(segment)
        return file
