"""Envelopes in Avro straight from the bytes of a change's cells, in one pass: what `decode_cells`, `said` and `to_avro`
make together, for the changes that are most: rows that are written. Of all else, and of whatever is wrong, it makes
nothing: those are the others' to decide.

    cells of INSERT INTO t (k, v) VALUES (7, 'x') → the record's value, and the CQL bytes of the row's columns

It runs as it is, and compiled by Cython with the types of `_direct_envelope.pxd`: the results are the same.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Mapping

from helenus_connector.shape.encoding.parsed_cells import ParsedCells
from helenus_schemas.codec.avro_long import SHORT
from helenus_schemas.codec.avro_long import long_bytes as plain_long_bytes
from helenus_schemas.codec.avro_long import read_long as plain_read_long
from helenus_schemas.codec.to_avro import plain
from helenus_schemas.cql.table import Table
from helenus_schemas.cql.types import CqlType
from helenus_schemas.cql.values import EMPTY_IS_A_VALUE
from helenus_schemas.event.cells import columns_of, width_of

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
_MOST_COLUMNS = 63
_MOST_KEPT = 1000
_MOST_TEXT = 1 << 14  # bytes that name 63 columns and their types
_NEVER = -0x8000000000000000
_FURTHEST = 9_000_000_000_000_000  # µs; what is further has no nanoseconds
_SCRATCH = bytearray(10)  # where a long is written in C
_ERRORS = (ValueError, LookupError, TypeError, ArithmeticError, struct.error)


class EnvelopeColumn:
    """A column as a change has it. `width`: of its values, -1: it is before them. `is_many`: it has many cells, of a
    map (`parts` 2), or a set or a list (1, of a set the path), 0: of another type. `place`: among the table's values,
    -1: it is not published. Its value is `form` in Avro, of `size` bytes (0: any), by `encode` if that is _OTHER.
    """

    def __init__(self, t: CqlType, width: int, place: int, of_table: CqlType | None) -> None:
        self.width = width
        self.is_many = t.multicell
        self.is_set = t.name == "set"
        self.parts = {"map": 2, "set": 1, "list": 1}.get(t.name, 0)
        self.place = place
        self.form, self.size, self.takes_none = _OTHER, 0, False
        self.encode: Callable[[bytes], bytes] = bytes
        if of_table is not None:
            self.takes_none = of_table.name in EMPTY_IS_A_VALUE
            self.encode = plain(of_table)
            if not of_table.shown_as and of_table.name in _FORMS:
                self.form = _FORMS[of_table.name]
                self.size = 0 if self.form in (_TEXT, _SIZED) else of_table.width or _WIDTHS[of_table.name]


class DirectEnvelopes:
    """Makes the envelopes of one version of a table. `head` is what comes before a row, `middle` what comes between a
    row and its write time, `places` what comes between `snapshot` and `file`; `said` makes `written`.
    """

    def __init__(
        self, table: Table, head: bytes, middle: bytes, places: bytes, said: Callable[[ParsedCells], bytes]
    ) -> None:
        self._head = head
        self._middle = middle
        self._places = b"\x0afalse" + places
        self._said = said
        self._table = {c.name: (place, c.type) for place, c in enumerate(table.values)}
        self._nothing: list[bytes | None] = [None] * len(self._table)
        self._nulls = [b"\0"] * len(self._table)
        self._columns: dict[bytes, tuple[list[EnvelopeColumn], list[str]]] = {}
        self._names: dict[tuple[bytes, int, int], bytes] = {}
        self._segments: dict[int, bytes] = {}

    def meet(self, cells: bytes, types: Mapping[str, CqlType]) -> None:
        """Cells are those of columns of these types: from now on, read such."""
        text = columns_of(cells)
        if text in self._columns or len(types) > _MOST_COLUMNS or len(text) > _MOST_TEXT:
            return
        if len(self._columns) >= _MOST_KEPT:
            self._columns.clear()
        columns = [EnvelopeColumn(t, width_of(t), *self._table.get(name, (-1, None))) for name, t in types.items()]
        self._columns[text] = columns, list(types)

    def made(
        self, event: bytes, cells: bytes, key: bytes, write_time: int, now: int
    ) -> tuple[bytes, tuple[bytes | None, ...], bool] | None:
        """A record's value, the CQL bytes of its row's columns that are none of the key's, and whether the row itself
        is written, as INSERT does. None for a change that is not for this.

        `event` is the event's value, of the scope ROW or STATIC, and ends with the `cells`; `key` is the Avro of the
        row's key columns; `write_time` in µs, `now` in ms.
        """
        try:
            return self._made(event, cells, key, write_time, now)
        except _ERRORS:
            return None

    def _made(
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
            or not -_FURTHEST < write_time < _FURTHEST
        ):
            return None
        _, at = read_long(event, 73)
        _, at = read_long(event, at)
        _, at = read_long(event, at)
        segment, at = read_long(event, at)
        position, at = read_long(event, at)
        if segment < 0 or position < 0 or cells[0] != 2:
            return None
        size, at = read_long(cells, 33)
        end = len(cells)
        if not 0 <= size <= end - at:
            return None
        text = cells[at : at + size]
        columns = self._columns.get(text)
        if columns is None:
            return None
        values = self._nothing[:]
        encoded = self._nulls[:]
        found = row(cells, at + size, columns[0], values, encoded)
        if found[0] < 0:
            return None
        op, written, replaced = found
        name = text, written, replaced
        said = self._names.get(name)
        if said is None:
            said = self._names_of(name, columns[1])
        file = self._segments.get(segment)
        if file is None:
            file = self._segment(segment)
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
                said,
            )
        )
        return value, tuple(values), op == 1

    def _names_of(self, name: tuple[bytes, int, int], names: list[str]) -> bytes:
        _, written, replaced = name
        of_written, of_replaced = (
            tuple([n for i, n in enumerate(names) if bits >> i & 1]) for bits in (written, replaced)
        )
        if len(self._names) >= _MOST_KEPT:
            self._names.clear()
        self._names[name] = said = self._said(ParsedCells(of_written, of_replaced))
        return said

    def _segment(self, segment: int) -> bytes:
        if len(self._segments) >= _MOST_KEPT:
            self._segments.clear()
        text = str(segment).encode()
        self._segments[segment] = file = b"\2" + plain_long_bytes(len(text)) + text
        return file


def row(
    d: bytes, at: int, columns: list[EnvelopeColumn], values: list[bytes | None], encoded: list[bytes]
) -> tuple[int, int, int]:
    """Fill in the CQL bytes of a row's columns, and their Avro: 1 if the row itself is written, 0 if not, and -1 if it
    is not for this; then bits of the columns that are written, and of those that are replaced. `at` is where the
    lowest times are.
    """
    low, at = read_long(d, at)
    _, at = read_long(d, at)
    _, at = read_long(d, at)
    size, at = read_long(d, at)
    end = len(d)
    if size != end - at:
        return -1, 0, 0
    flags = d[at]
    at += 1
    if flags & 16:
        return -1, 0, 0  # the row is deleted
    has_time, has_ttl = flags & 4 != 0, flags & 12 == 12
    row_time = 0
    if has_time:
        delta, at = vint(d, at)
        row_time = summed(low, delta)
        if has_ttl:
            _, at = vint(d, at)
            _, at = vint(d, at)
    missing = 0
    if not flags & 32:
        missing, at = vint(d, at)
    written = replaced = 0
    bit = 1
    count = len(columns)
    for i in range(count):
        column = columns[i]
        if missing >> i & 1:
            bit <<= 1
            continue
        many = 1
        deleted = _NEVER
        if column.is_many:
            if not column.parts:
                return -1, 0, 0
            if flags & 64:
                delta, at = vint(d, at)
                deleted = summed(low, delta)
                _, at = vint(d, at)
            many, at = vint(d, at)
            if many > end - at:
                return -1, 0, 0
            if column.place >= 0:
                if deleted != _NEVER:
                    replaced |= bit
                    written |= bit
                elif many:
                    written |= bit
        elif column.place >= 0:
            written |= bit
        parts = []
        live = 0
        value = b""
        is_gone = False
        for _n in range(many):
            cell = d[at]
            at += 1
            time = row_time
            if not cell & 8:
                delta, at = vint(d, at)
                time = summed(low, delta)
            elif not has_time:
                return -1, 0, 0
            if cell & 16:
                if not has_ttl:
                    return -1, 0, 0
            elif cell & 3:
                _, at = vint(d, at)
                if cell & 2:
                    _, at = vint(d, at)
            is_gone = cell & 1 != 0
            path = b""
            if column.is_many:
                size, at = length(d, at)
                path = d[at : at + size]
                at += size
            size = 0
            if not cell & 4:
                size = column.width
                if size < 0:
                    size, at = length(d, at)
                elif size > end - at:
                    return -1, 0, 0
            value = d[at : at + size]
            at += size
            if not column.is_many or (deleted != _NEVER and time <= deleted):
                continue
            if is_gone:
                return -1, 0, 0  # what is removed is said by name
            live += 1
            if column.parts == 2 or column.is_set:
                parts.append(uint(len(path)))
                parts.append(path)
            if not column.is_set:
                parts.append(uint(len(value)))
                parts.append(value)
        if column.place >= 0:
            if column.is_many:
                if live:
                    value = uint(live) + b"".join(parts)
                    values[column.place] = value
                    encoded[column.place] = b"\2" + column.encode(value)
            elif not is_gone:
                values[column.place] = value
                encoded[column.place] = avro(value, column)
        bit <<= 1
    if at != end or (count < 64 and missing >> count):
        return -1, 0, 0
    return int(has_time), written, replaced


def avro(value: bytes, column: EnvelopeColumn) -> bytes:
    """The union of null and a column's type, of a value. Raises ValueError, and for no bytes where a type has no such
    value: a header is to say that.
    """
    size = len(value)
    form = column.form
    if column.size and size != column.size:
        raise ValueError("another size")
    if form == _INTEGER:
        return b"\2" + long_bytes(integer(value))
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


def is_alike(table: Table) -> bool:
    """Whether a row's key columns are the event's key, after the byte that says that the first one is not null."""
    is_one = len(table.partition_key) == 1
    return is_one and all(c.type.name in _ALIKE and not c.type.shown_as for c in table.primary_key)


def long_bytes(value: int) -> bytes:
    """A number of 64 bits as an Avro long."""
    if _compiled:
        rest = (value << 1) ^ (value >> 63)
        raw = _SCRATCH
        size = 0
        while rest > 0x7F:
            raw[size] = rest & 0x7F | 0x80
            rest >>= 7
            size += 1
        raw[size] = rest
        return raw[: size + 1]  # type: ignore[return-value] # in C it is a pointer, and a slice of it is bytes
    return plain_long_bytes(value)


def read_long(d: bytes, at: int) -> tuple[int, int]:
    """Read an Avro long; returns it and the offset after it. Raises IndexError, and Malformed."""
    if _compiled:
        rest, shift, end = 0, 0, at
        while shift < 63:
            byte = d[end]
            end += 1
            rest |= (byte & 0x7F) << shift
            if byte < 0x80:
                return (rest >> 1) ^ -(rest & 1), end
            shift += 7
    return plain_read_long(d, at)


def vint(d: bytes, at: int) -> tuple[int, int]:
    """The vint at an offset, and the offset after it."""
    first = d[at]
    at += 1
    if first < 0x80:
        return first, at
    if _compiled:
        size = 1
        while size < 8 and first & 0x80 >> size:
            size += 1
        value = first & 0x7F >> size
        while size:
            size -= 1
            value = value << 8 | d[at]
            at += 1
        return value, at
    size = 8 - (first ^ 0xFF).bit_length()
    if size > len(d) - at:
        raise IndexError("index out of range")
    return (first & 0x7F >> size) << 8 * size | int.from_bytes(d[at : at + size], "big"), at + size


def length(d: bytes, at: int) -> tuple[int, int]:
    """The vint at an offset, a number of bytes that are there, and the offset after it."""
    value, at = vint(d, at)
    if value > len(d) - at:
        raise IndexError("index out of range")
    return value, at


def summed(low: int, delta: int) -> int:
    """A sum of unsigned numbers as a signed one of 64 bits."""
    total = low + delta
    if _compiled:
        return total
    total &= 0xFFFFFFFFFFFFFFFF
    return total - 0x10000000000000000 if total >> 63 else total


def integer(value: bytes) -> int:
    """A signed number of at most 8 bytes."""
    if _compiled:
        number = 0
        for i in range(len(value)):
            number = number << 8 | value[i]
        shift = 64 - 8 * len(value)
        return number << shift >> shift
    return int.from_bytes(value, "big", signed=True)


def uint(value: int) -> bytes:
    """A size as 4 bytes."""
    if _compiled:
        raw = _SCRATCH
        raw[0], raw[1], raw[2], raw[3] = value >> 24 & 0xFF, value >> 16 & 0xFF, value >> 8 & 0xFF, value & 0xFF
        return raw[:4]  # type: ignore[return-value] # as in `long_bytes`
    return value.to_bytes(4, "big")
