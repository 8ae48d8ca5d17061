"""Encodes a row's columns from CQL's bytes to Avro's plain form, in one pass into one buffer, for the common types.

Of other types, and of malformed values, it encodes nothing: then the functions of `to_avro` decide.

    Columns([int, text], ...).encode((b"\\0\\0\\0\\5", None)) == b"\\2\\x0a\\0"

It runs as plain Python, and compiled by Cython with the types of `_columns.pxd`, with the same results. Only where it
is compiled it is faster than the functions.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Sequence

from helenus_schemas.cql.types import CqlType
from helenus_schemas.cql.values import EMPTY_IS_A_VALUE, MAY_BE_EMPTY

COMPILED = not __file__.endswith(".py")
_compiled = COMPILED

# How a value becomes Avro.
_OTHER = 0
_INTEGER = 1
_DATE = 2
_REVERSED = 3
_SIZED = 4
_TEXT = 5
_UUID = 6
_BOOLEAN = 7
_DECIMAL = 8
_ARRAY = 9
_MAP = 10
_VECTOR = 11
_RECORD = 12
_FORMS = {
    **dict.fromkeys("tinyint smallint int bigint counter timestamp time".split(), _INTEGER),
    **dict.fromkeys("float double".split(), _REVERSED),
    **dict.fromkeys("ascii text".split(), _TEXT),
    **dict.fromkeys("uuid timeuuid".split(), _UUID),
    **dict.fromkeys("list set".split(), _ARRAY),
    **dict.fromkeys("tuple udt".split(), _RECORD),
    "blob": _SIZED,
    "varint": _SIZED,
    "date": _DATE,
    "boolean": _BOOLEAN,
    "decimal": _DECIMAL,
    "vector": _VECTOR,
}
_WIDTHS = {"tinyint": 1, "smallint": 2, "counter": 8, "time": 8, "date": 4}  # those that the type itself does not say
_HEX = b"0123456789abcdef"
_ROOM = 1 << 12  # enough for a usual row; larger ones make it grow
_ERRORS = (ValueError, LookupError, TypeError, ArithmeticError, struct.error)


class ColumnPart:
    """How the values of a type are encoded: as `form`, of `size` bytes (0: any; of a vector: of its elements), with
    `parts`; by `encode` if the form is _OTHER. `accepts_empty`: zero bytes are a value, not null. `rejects_empty`: zero
    bytes are malformed.
    """

    def __init__(self, t: CqlType, key: bool, plain: Callable[[CqlType, bool], Callable[[bytes], bytes]]) -> None:
        self.encode = plain(t, key)
        self.accepts_empty = t.name in (MAY_BE_EMPTY if key else EMPTY_IS_A_VALUE)
        self.rejects_empty = t.name == "varint" and not key
        self.form = _OTHER if t.shown_as else _FORMS.get(t.name, _OTHER)
        self.size, self.count = 0, t.dimension
        inner = t.args
        if self.form == _TEXT and key:
            self.form = _SIZED
        elif self.form in (_INTEGER, _DATE, _REVERSED, _UUID, _BOOLEAN):
            self.size = t.width or _WIDTHS[t.name]
        elif self.form == _VECTOR:
            self.size = t.args[0].width
        elif t.name == "map" and t.args[0].name in ("ascii", "text"):
            self.form = _MAP
        self.parts = [ColumnPart(a, key, plain) for a in inner] if self.form >= _ARRAY else []


class Buffer:
    """A growing buffer: `size` bytes of `data` are written, of `room` that are allocated."""

    def __init__(self) -> None:
        self.data = bytearray(_ROOM)
        self.raw = self.data
        self.room = _ROOM
        self.size = 0

    def reserve(self, size: int) -> None:
        """Make room for so many more bytes."""
        if self.size + size > self.room:
            self.data.extend(bytes(self.room + size))
            self.raw = self.data
            self.room = len(self.data)

    def put_byte(self, value: int) -> None:
        """Append a byte, for which there is room."""
        self.raw[self.size] = value
        self.size += 1

    def put_varint(self, value: int) -> None:
        """Append a number that is in zigzag form already, seven bits a byte, for which there is room."""
        size = self.size
        while value > 0x7F:
            self.raw[size] = value & 0x7F | 0x80
            value >>= 7
            size += 1
        self.raw[size] = value
        self.size = size + 1

    def append(self, data: bytes) -> None:
        """Append bytes as they are."""
        self.copy(data, 0, len(data))

    def copy(self, data: bytes, offset: int, end: int) -> int:
        """Append the bytes from `offset` to `end`. Return them ORed together: bit 0x80 says that they are not all
        ASCII.
        """
        count = end - offset
        self.reserve(count)
        size = self.size
        self.size = size + count
        if not _compiled:
            self.data[size : size + count] = data[offset:end]
            return 0 if data[offset:end].isascii() else 0x80
        return copy_bytes(self.raw, size, data, offset, count)

    def put_optional(self, part: ColumnPart, data: bytes, offset: int, end: int) -> bool:
        """Append a union of null and a type. Return as `put_value`."""
        self.reserve(1)
        if offset == end and not part.accepts_empty:
            self.put_byte(0)
            return True
        self.put_byte(2)
        return self.put_value(part, data, offset, end)

    def put_value(self, part: ColumnPart, data: bytes, offset: int, end: int) -> bool:
        """Append a value, the bytes from `offset` to `end`. Return False if they are not a value of the type: then the
        functions decide.
        """
        form = part.form
        size = end - offset
        if form in (_TEXT, _SIZED):
            return self.put_sized(part, data, offset, end)
        if form >= _ARRAY:
            return self.put_composite(part, data, offset, end)
        if form == _DECIMAL:
            return size >= 5 and self.put_decimal(data, offset, end)
        if form == _OTHER:
            self.append(part.encode(data[offset:end]))
            return True
        if size != part.size:
            return False
        if form == _UUID:
            return self.put_uuid(data, offset)
        if form == _REVERSED:
            self.reserve(size)
            for i in range(size):
                self.raw[self.size + i] = data[end - 1 - i]
            self.size += size
            return True
        self.reserve(10)
        if form == _BOOLEAN:
            self.put_byte(0 if data[offset] == 0 else 1)
            return True
        number = integer(data, offset, size)
        if form == _DATE:
            number = number - 0x80000000 if number >= 0 else number + 0x80000000
        self.put_varint(zigzag(number))
        return True

    def put_sized(self, part: ColumnPart, data: bytes, offset: int, end: int) -> bool:
        """Append text or bytes, after their size. Return as `put_value`."""
        if offset == end and part.rejects_empty:
            return False
        self.reserve(10)
        self.put_varint((end - offset) << 1)
        if self.copy(data, offset, end) & 0x80 and part.form == _TEXT:
            data[offset:end].decode()
        return True

    def put_decimal(self, data: bytes, offset: int, end: int) -> bool:
        """Append a decimal, of at least 5 bytes: its unscaled value, then its scale."""
        self.reserve(20)
        self.put_varint((end - offset - 4) << 1)
        self.copy(data, offset + 4, end)
        self.reserve(10)
        self.put_varint(zigzag(integer(data, offset, 4)))
        return True

    def put_uuid(self, data: bytes, offset: int) -> bool:
        """Append the text of a UUID's 16 bytes."""
        self.reserve(37)
        self.put_byte(72)
        for i in range(16):
            if i == 4 or i == 6 or i == 8 or i == 10:
                self.put_byte(45)
            byte = data[offset + i]
            self.put_byte(_HEX[byte >> 4])
            self.put_byte(_HEX[byte & 15])
        return True

    def put_composite(self, part: ColumnPart, data: bytes, offset: int, end: int) -> bool:
        """Append a collection, vector or tuple. Return as `put_value`."""
        form = part.form
        if form == _RECORD:
            for inner in part.parts:
                if offset == end:
                    self.reserve(1)
                    self.put_byte(0)
                    continue
                if end - offset < 4:
                    return False
                size = integer(data, offset, 4)
                offset += 4
                if size > end - offset:
                    return False
                if size < 0:
                    self.reserve(1)
                    self.put_byte(0)
                elif not self.put_optional(inner, data, offset, offset + size):
                    return False
                else:
                    offset += size
            return True
        if form == _VECTOR:
            return self.put_vector(part, data, offset, end)
        if end - offset < 4:
            return False
        count = integer(data, offset, 4)
        offset += 4
        if count < 0:
            return False
        self.reserve(11)
        if count:
            self.put_varint(count << 1)
        for _ in range(count):
            for inner in part.parts:
                if end - offset < 4:
                    return False
                size = integer(data, offset, 4)
                offset += 4
                if size < 0 or size > end - offset or not self.put_value(inner, data, offset, offset + size):
                    return False
                offset += size
        self.reserve(1)
        self.put_byte(0)
        return offset == end

    def put_vector(self, part: ColumnPart, data: bytes, offset: int, end: int) -> bool:
        """Append a vector; each element follows its size if their type has no fixed one. Return as `put_value`."""
        inner: ColumnPart = part.parts[0]
        size = part.size
        self.reserve(10)
        self.put_varint(part.count << 1)
        for _ in range(part.count):
            if not part.size:
                if offset == end or data[offset] >= 0x80:  # longer ones are the functions'
                    return False
                size = data[offset]
                offset += 1
            if size > end - offset or not self.put_value(inner, data, offset, offset + size):
                return False
            offset += size
        self.reserve(1)
        self.put_byte(0)
        return offset == end


class Columns:
    """Encodes values of several types, each as the union of null and its type, after the bytes of `head`. `key`: the
    columns are those of a key. `plain` makes the function of one type; `functions` encode rows that this can't.
    """

    def __init__(
        self,
        types: Sequence[CqlType],
        plain: Callable[[CqlType, bool], Callable[[bytes], bytes]],
        functions: Callable[[Sequence[bytes | None]], bytes],
        key: bool = False,
        head: bytes = b"",
    ) -> None:
        self._parts = [ColumnPart(t, key, plain) for t in types]
        self._count = len(self._parts)
        self._buffer: Buffer | None = Buffer()
        self._functions = functions
        self._head = head

    def encode(self, values: Sequence[bytes | None]) -> bytes:
        """Return the Avro of a row's values. Raises as the functions."""
        encoded = self.try_encode(values)
        if encoded is None:
            return self._functions(values)
        return encoded

    def try_encode(self, values: Sequence[bytes | None]) -> bytes | None:
        """Return the same; None if the functions have to decide."""
        buffer = self._buffer
        if buffer is None:  # another thread has it
            buffer = Buffer()
        self._buffer = None
        try:
            return self._encode_row(buffer, tuple(values))
        except _ERRORS:
            return None
        finally:
            self._buffer = buffer

    def _encode_row(self, buffer: Buffer, values: tuple[bytes | None, ...]) -> bytes | None:
        count = self._count
        if len(values) != count:
            return None
        buffer.size = 0
        buffer.append(self._head)
        for i in range(count):
            value = values[i]
            if value is None:
                buffer.reserve(1)
                buffer.put_byte(0)
                continue
            part: ColumnPart = self._parts[i]
            if not buffer.put_optional(part, value, 0, len(value)):
                return None
        return written_bytes(buffer)


def written_bytes(buffer: Buffer) -> bytes:
    """Return a copy of the bytes written."""
    raw, size = buffer.raw, buffer.size
    if _compiled:
        return raw[:size]  # type: ignore[return-value] # in C it is a pointer, and a slice of it is bytes
    return bytes(raw[:size])


def copy_bytes(raw: bytearray, size: int, data: bytes, offset: int, count: int) -> int:
    """Copy bytes in C; return them ORed together."""
    combined = 0
    for i in range(count):
        raw[size + i] = data[offset + i]
        combined |= data[offset + i]
    return combined


def integer(data: bytes, offset: int, size: int) -> int:
    """Read a signed number of at most 8 bytes, the high ones first."""
    if _compiled:
        number = 0
        for i in range(size):
            number = number << 8 | data[offset + i]
        shift = 64 - 8 * size
        return number << shift >> shift
    return int.from_bytes(data[offset : offset + size], "big", signed=True)


def zigzag(value: int) -> int:
    """Return a signed number in Avro's zigzag form."""
    return (value << 1) ^ (value >> 63)
