"""Encode envelopes in Avro straight from the bytes of a change's cells, in one pass, for the most frequent changes:
rows that are written. The records are those that `decode_cells`, `parse_cells` and `to_avro` make together. Other
changes, and bytes that are not valid, are left to these.

    cells of INSERT INTO t (k, v) VALUES (7, 'x') → the record's value, and the CQL bytes of the row's columns

It runs as it is, and compiled by Cython with the types of `_direct_envelope.pxd`: the results are the same.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Mapping

from helenus_connector.shape.envelope.parsed_cells import ParsedCells
from helenus_schemas.codec.avro_long import SHORT, sized_bytes
from helenus_schemas.codec.avro_long import long_bytes as plain_long_bytes
from helenus_schemas.codec.to_avro import plain
from helenus_schemas.codec.wire_bytes import read_long
from helenus_schemas.cql.table import Table
from helenus_schemas.cql.types import CqlType
from helenus_schemas.cql.values import EMPTY_IS_A_VALUE
from helenus_schemas.event.cells import columns_of, width_of
from helenus_schemas.event.row_cursor import NO_DELETION, RowCursor

COMPILED = not __file__.endswith(".py")
_compiled = COMPILED

# How a column's values become Avro.
_OTHER = 0
_INTEGER = 1
_REVERSED = 2
_SIZED = 3
_TEXT = 4
_UUID = 5
_BOOLEAN = 6
_FORMS = {
    **dict.fromkeys("tinyint smallint int bigint timestamp time".split(), _INTEGER),
    **dict.fromkeys("float double".split(), _REVERSED),
    **dict.fromkeys("ascii text".split(), _TEXT),
    **dict.fromkeys("uuid timeuuid".split(), _UUID),
    "blob": _SIZED,
    "boolean": _BOOLEAN,
}
_WIDTHS = {"tinyint": 1, "smallint": 2, "time": 8}  # those that the type itself does not say
_ALIKE = frozenset("tinyint smallint int bigint timestamp time date ascii text blob uuid timeuuid boolean".split())
"""Types whose values are the same bytes of Avro in events' keys and in rows."""
_MAX_COLUMNS = 63  # so that bits of 64-bit numbers stand for them
_MAX_CACHED = 1000  # entries of each cache: a table's changes write the same few sets of columns
_MAX_HEADER = 1 << 14  # bytes that name 63 columns and their types
_WRITTEN = 1
_REPLACED = 2
_NO_DELETION = NO_DELETION
_MAX_WRITE_TIME = 9_000_000_000_000_000  # µs; what is further has no nanoseconds
_SCRATCH = bytearray(10)  # where a long is written in C
_ERRORS = (ValueError, LookupError, TypeError, ArithmeticError, struct.error)


class EnvelopeColumn:
    """A column as a change has it. `width` is the size of its values; -1 if it stands before each value. `is_many`: it
    has many cells. `parts` of a cell are in its value: 2 of a map, 1 of a list or a set (whose part is the path), 0 of
    another type. `index` is its number among the table's values; -1 if it is not published. Its value becomes `form` in
    Avro, of `size` bytes (0: any), by `encode` if that is _OTHER.
    """

    def __init__(self, t: CqlType, width: int, index: int, table_type: CqlType | None) -> None:
        self.width = width
        self.is_many = t.multicell
        self.is_set = t.name == "set"
        self.parts = {"map": 2, "set": 1, "list": 1}.get(t.name, 0)
        self.index = index
        self.form, self.size, self.takes_none = _OTHER, 0, False
        self.encode: Callable[[bytes], bytes] = bytes
        if table_type is not None:
            self.takes_none = table_type.name in EMPTY_IS_A_VALUE
            self.encode = plain(table_type)
            if not table_type.shown_as and table_type.name in _FORMS:
                self.form = _FORMS[table_type.name]
                self.size = 0 if self.form in (_TEXT, _SIZED) else table_type.width or _WIDTHS[table_type.name]


class DirectEnvelopes:
    """Makes the envelopes of one version of a table. `head` is what comes before a row, `middle` what comes between a
    row and its write time, `places` what comes between `snapshot` and `file`; `encode_written` makes `written`.
    """

    def __init__(
        self, table: Table, head: bytes, middle: bytes, places: bytes, encode_written: Callable[[ParsedCells], bytes]
    ) -> None:
        self._head = head
        self._middle = middle
        self._places = b"\x0afalse" + places
        self._encode_written = encode_written
        self._cursor = RowCursor()
        self._table = {c.name: (index, c.type) for index, c in enumerate(table.values)}
        self._nothing: list[bytes | None] = [None] * len(self._table)
        self._nulls = [b"\0"] * len(self._table)
        self._columns: dict[bytes, tuple[list[EnvelopeColumn], list[str]]] = {}
        self._names_by_bits: dict[tuple[bytes, int, int], bytes] = {}
        self._segments: dict[int, bytes] = {}

    def learn_columns(self, cells: bytes, types: Mapping[str, CqlType]) -> None:
        """Learn the columns, with their types, that these cells have: later changes of the same columns are encoded."""
        header = columns_of(cells)
        if header in self._columns or len(types) > _MAX_COLUMNS or len(header) > _MAX_HEADER:
            return
        if len(self._columns) >= _MAX_CACHED:
            self._columns.clear()
        columns = [EnvelopeColumn(t, width_of(t), *self._table.get(name, (-1, None))) for name, t in types.items()]
        self._columns[header] = columns, list(types)

    def encode_change(
        self, event: bytes, cells: bytes, key: bytes, write_time: int, now: int
    ) -> tuple[bytes, tuple[bytes | None, ...], bool] | None:
        """Return a record's value, the CQL bytes of its row's non-key columns, and whether the row itself is written,
        as INSERT does; None for a change that this class does not encode.

        `event` is the event's value, of the scope ROW or STATIC, and ends with the `cells`; `key` is the Avro of the
        row's key columns; `write_time` in µs, `now` in ms.
        """
        try:
            return self._encode_change(event, cells, key, write_time, now)
        except _ERRORS:
            return None

    def _encode_change(
        self, event: bytes, cells: bytes, key: bytes, write_time: int, now: int
    ) -> tuple[bytes, tuple[bytes | None, ...], bool] | None:
        size = len(event) - len(cells)
        if (
            size < 82
            or event[:2] != b"\2@"
            or event[34:36] != b"\2H"
            or event[72] != 0
            or event[size - 2] != 0
            or event[size - 1] != 2
            or not -_MAX_WRITE_TIME < write_time < _MAX_WRITE_TIME
        ):
            return None
        _, offset = read_long(event, 73)
        _, offset = read_long(event, offset)
        _, offset = read_long(event, offset)
        segment, offset = read_long(event, offset)
        position, offset = read_long(event, offset)
        if segment < 0 or position < 0 or cells[0] != 2:
            return None
        size, offset = read_long(cells, 33)
        end = len(cells)
        if not 0 <= size <= end - offset:
            return None
        header = cells[offset : offset + size]
        columns = self._columns.get(header)
        if columns is None:
            return None
        values = self._nothing[:]
        encoded = self._nulls[:]
        parsed = read_row(self._cursor, cells, offset + size, columns[0], values, encoded)
        if parsed[0] < 0:
            return None
        op, written, replaced = parsed
        name = header, written, replaced
        written_names = self._names_by_bits.get(name)
        if written_names is None:
            written_names = self._written_names(name, columns[1])
        file = self._segments.get(segment)
        if file is None:
            file = self._segment_name(segment)
        value = b"".join(
            (
                self._head,
                key,
                b"".join(encoded),
                self._middle,
                long_bytes(write_time // 1000),
                long_bytes(write_time),
                long_bytes(write_time * 1000),
                self._places,
                file,
                b"\2",
                long_bytes(position),
                b"\2H",
                event[36:72],
                b"\2c\2" if op else b"\2u\2",
                long_bytes(now),
                b"\2",
                written_names,
            )
        )
        return value, tuple(values), op == 1

    def _written_names(self, name: tuple[bytes, int, int], names: list[str]) -> bytes:
        _, written, replaced = name
        written_columns, replaced_columns = (
            tuple([n for i, n in enumerate(names) if bits >> i & 1]) for bits in (written, replaced)
        )
        if len(self._names_by_bits) >= _MAX_CACHED:
            self._names_by_bits.clear()
        self._names_by_bits[name] = encoded = self._encode_written(ParsedCells(written_columns, replaced_columns))
        return encoded

    def _segment_name(self, segment: int) -> bytes:
        if len(self._segments) >= _MAX_CACHED:
            self._segments.clear()
        self._segments[segment] = file = b"\2" + sized_bytes(str(segment).encode())
        return file


def read_row(
    cursor: RowCursor,
    data: bytes,
    offset: int,
    columns: list[EnvelopeColumn],
    values: list[bytes | None],
    encoded: list[bytes],
) -> tuple[int, int, int]:
    """Fill in the CQL bytes of a row's columns, and their Avro. Return 1 if the row itself is written, 0 if not, and -1
    if this can't encode it; then bits of the columns that are written, and of those that are replaced. `offset` is
    where the lowest times are.
    """
    low, offset = read_long(data, offset)
    low_deletion, offset = read_long(data, offset)
    low_ttl, offset = read_long(data, offset)
    size, offset = read_long(data, offset)
    if size != len(data) - offset:
        return -1, 0, 0
    cursor.begin_row(data, offset, low, low_deletion, low_ttl)
    count = len(columns)
    cursor.read_head(count)
    if cursor.is_deleted or cursor.missing >> count:  # they are not more than _MAX_COLUMNS
        return -1, 0, 0
    written = replaced = 0
    bit = 1
    for i in range(count):
        column = columns[i]
        if cursor.missing & bit:
            pass
        elif column.is_many:
            parts = read_elements(cursor, column, values, encoded)
            if parts < 0:
                return -1, 0, 0
            if parts & _WRITTEN:
                written |= bit
            if parts & _REPLACED:
                replaced |= bit
        else:
            cursor.read_cell(column.width, False)
            if column.index >= 0:
                written |= bit
                value = cursor.value
                if value is not None:
                    values[column.index] = value
                    encoded[column.index] = encode_avro(value, column)
        bit <<= 1
    if cursor.offset != len(data):
        return -1, 0, 0
    return int(cursor.has_write_time), written, replaced


def read_elements(cursor: RowCursor, column: EnvelopeColumn, values: list[bytes | None], encoded: list[bytes]) -> int:
    """Fill in the elements of a collection. Return _WRITTEN if it has cells, or it is replaced as a whole, and
    _REPLACED if that is so, 0 if it is not published; -1 if this can't encode it.
    """
    if not column.parts:
        return -1
    count = cursor.read_column(True)
    deleted = cursor.column_deletion
    parts = []
    live = 0
    for _ in range(count):
        cursor.read_cell(-1, True)
        if deleted != _NO_DELETION and cursor.cell_time <= deleted:
            continue
        value = cursor.value
        if value is None:
            return -1  # what is removed is said by name
        live += 1
        if column.parts == 2 or column.is_set:
            path = cursor.path or b""
            parts.append(size_bytes(len(path)))
            parts.append(path)
        if not column.is_set:
            parts.append(size_bytes(len(value)))
            parts.append(value)
    if column.index < 0:
        return 0
    if live:
        value = size_bytes(live) + b"".join(parts)
        values[column.index] = value
        encoded[column.index] = b"\2" + column.encode(value)
    if deleted != _NO_DELETION:
        return _WRITTEN | _REPLACED
    return _WRITTEN if count else 0


def encode_avro(value: bytes, column: EnvelopeColumn) -> bytes:
    """Encode a value as the union of null and a column's type. Raises ValueError, also for no bytes where a type has no
    such value: a header is to say that.
    """
    size = len(value)
    form = column.form
    if column.size and size != column.size:
        raise ValueError("another size")
    if form == _INTEGER:
        return b"\2" + long_bytes(signed_integer(value))
    if form == _TEXT:
        if not value.isascii():
            value.decode()
        return b"".join((b"\2", SHORT[size << 1] if size < 0x2000 else long_bytes(size), value))
    if form == _REVERSED:
        return b"\2" + value[::-1]
    if form == _UUID:
        text = value.hex()
        return f"\2H{text[:8]}-{text[8:12]}-{text[12:16]}-{text[16:20]}-{text[20:]}".encode()
    if form == _BOOLEAN:
        return b"\2\1" if value[0] else b"\2\0"
    if form == _SIZED:
        return b"".join((b"\2", SHORT[size << 1] if size < 0x2000 else long_bytes(size), value))
    if not size and not column.takes_none:
        raise ValueError("no bytes")
    return b"\2" + column.encode(value)


def has_event_key_bytes(table: Table) -> bool:
    """Return whether a row's key columns are the event's key, after the byte that says that the first one is not
    null.
    """
    is_one = len(table.partition_key) == 1
    return is_one and all(c.type.name in _ALIKE and not c.type.shown_as for c in table.primary_key)


def long_bytes(value: int) -> bytes:
    """Encode a number of 64 bits as an Avro long."""
    if _compiled:
        remaining = (value << 1) ^ (value >> 63)
        raw = _SCRATCH
        size = 0
        while remaining > 0x7F:
            raw[size] = remaining & 0x7F | 0x80
            remaining >>= 7
            size += 1
        raw[size] = remaining
        return raw[: size + 1]  # type: ignore[return-value] # in C it is a pointer, and a slice of it is bytes
    return plain_long_bytes(value)


def signed_integer(value: bytes) -> int:
    """Decode a signed number of at most 8 bytes."""
    if _compiled:
        number = 0
        for i in range(len(value)):
            number = number << 8 | value[i]
        shift = 64 - 8 * len(value)
        return number << shift >> shift
    return int.from_bytes(value, "big", signed=True)


def size_bytes(value: int) -> bytes:
    """Encode a size as 4 bytes."""
    if _compiled:
        raw = _SCRATCH
        raw[0], raw[1], raw[2], raw[3] = value >> 24 & 0xFF, value >> 16 & 0xFF, value >> 8 & 0xFF, value & 0xFF
        return raw[:4]  # type: ignore[return-value] # as in `long_bytes`
    return value.to_bytes(4, "big")
