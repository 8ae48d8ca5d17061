"""A row's columns from CQL's bytes to Avro's plain form, in one pass into one buffer: what `to_avro` makes of small
functions, of the types that are most. Of all else, and of whatever is wrong, it makes nothing: the functions decide.

    Columns([int, text], ...).encode((b"\\0\\0\\0\\5", None)) == b"\\2\\x0a\\0"

It runs as it is, and compiled by Cython with the types of `_columns.pxd`: the results are the same. Only where it is
compiled it is faster than the functions.
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
_ROOM = 1 << 12
_ERRORS = (ValueError, LookupError, TypeError, ArithmeticError, struct.error)


class ColumnPart:
    """A type as columns have it. Its values are `form` in Avro, of `size` bytes (0: any, of a vector: of its elements),
    with `parts`; by `encode` if that is _OTHER. `takes_none`: no bytes are a value where null is possible too,
    `needs_some`: nowhere.
    """

    def __init__(self, t: CqlType, key: bool, plain: Callable[[CqlType, bool], Callable[[bytes], bytes]]) -> None:
        self.encode = plain(t, key)
        self.takes_none = t.name in (MAY_BE_EMPTY if key else EMPTY_IS_A_VALUE)
        self.needs_some = t.name == "varint" and not key
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
    """Where Avro is written: `size` bytes of `data` are."""

    def __init__(self) -> None:
        self.data = bytearray(_ROOM)
        self.raw = self.data
        self.room = _ROOM
        self.size = 0

    def reserve(self, size: int) -> None:
        """Have room for so many more bytes."""
        if self.size + size > self.room:
            self.data.extend(bytes(self.room + size))
            self.raw = self.data
            self.room = len(self.data)

    def byte(self, value: int) -> None:
        """One byte, for which there is room."""
        self.raw[self.size] = value
        self.size += 1

    def unsigned(self, value: int) -> None:
        """A number in its zigzag form, for which there is room: seven bits a byte."""
        size = self.size
        while value > 0x7F:
            self.raw[size] = value & 0x7F | 0x80
            value >>= 7
            size += 1
        self.raw[size] = value
        self.size = size + 1

    def whole(self, d: bytes) -> None:
        """Bytes as they are."""
        self.copy(d, 0, len(d))

    def copy(self, d: bytes, at: int, end: int) -> int:
        """Bytes from an offset to another; all of them in one, to see whether one is no ASCII."""
        count = end - at
        self.reserve(count)
        size = self.size
        self.size = size + count
        if not _compiled:
            self.data[size : size + count] = d[at:end]
            return 0 if d[at:end].isascii() else 0x80
        return copied(self.raw, size, d, at, count)

    def optional(self, part: ColumnPart, d: bytes, at: int, end: int) -> bool:
        """The union of null and a type. Whether it is for this, as in `value`."""
        self.reserve(1)
        if at == end and not part.takes_none:
            self.byte(0)
            return True
        self.byte(2)
        return self.value(part, d, at, end)

    def value(self, part: ColumnPart, d: bytes, at: int, end: int) -> bool:
        """A value, which is the bytes from an offset to another. Whether it is for this: it is not if they are none of
        the type.
        """
        form = part.form
        size = end - at
        if form in (_TEXT, _SIZED):
            if not size and part.needs_some:
                return False
            self.reserve(10)
            self.unsigned(size << 1)
            if self.copy(d, at, end) & 0x80 and form == _TEXT:
                d[at:end].decode()
            return True
        if form in (_INTEGER, _DATE):
            if size != part.size:
                return False
            self.reserve(10)
            number = integer(d, at, size)
            if form == _DATE:
                number = number - 0x80000000 if number >= 0 else number + 0x80000000
            self.unsigned(zigzag(number))
            return True
        if form >= _ARRAY:
            return self.many(part, d, at, end)
        if form == _REVERSED:
            if size != part.size:
                return False
            self.reserve(size)
            for i in range(size):
                self.raw[self.size + i] = d[end - 1 - i]
            self.size += size
            return True
        if form == _UUID:
            return size == 16 and self.uuid(d, at)
        if form == _BOOLEAN:
            self.reserve(1)
            self.byte(0 if d[at] == 0 else 1)
            return size == 1
        if form == _DECIMAL:
            if size < 5:
                return False
            self.reserve(20)
            self.unsigned((size - 4) << 1)
            self.copy(d, at + 4, end)
            self.reserve(10)
            self.unsigned(zigzag(integer(d, at, 4)))
            return True
        self.whole(part.encode(d[at:end]))
        return True

    def uuid(self, d: bytes, at: int) -> bool:
        """The text of 16 bytes."""
        self.reserve(37)
        self.byte(72)
        for i in range(16):
            if i == 4 or i == 6 or i == 8 or i == 10:
                self.byte(45)
            byte = d[at + i]
            self.byte(_HEX[byte >> 4])
            self.byte(_HEX[byte & 15])
        return True

    def many(self, part: ColumnPart, d: bytes, at: int, end: int) -> bool:
        """A collection, a vector, a tuple: as `value`."""
        form = part.form
        if form == _RECORD:
            for inner in part.parts:
                if at == end:
                    self.reserve(1)
                    self.byte(0)
                    continue
                if end - at < 4:
                    return False
                size = integer(d, at, 4)
                at += 4
                if size > end - at:
                    return False
                if size < 0:
                    self.reserve(1)
                    self.byte(0)
                elif not self.optional(inner, d, at, at + size):
                    return False
                else:
                    at += size
            return True
        if form == _VECTOR:
            return self.vector(part, d, at, end)
        if end - at < 4:
            return False
        count = integer(d, at, 4)
        at += 4
        if count < 0:
            return False
        self.reserve(11)
        if count:
            self.unsigned(count << 1)
        for _ in range(count):
            for inner in part.parts:
                if end - at < 4:
                    return False
                size = integer(d, at, 4)
                at += 4
                if size < 0 or size > end - at or not self.value(inner, d, at, at + size):
                    return False
                at += size
        self.reserve(1)
        self.byte(0)
        return at == end

    def vector(self, part: ColumnPart, d: bytes, at: int, end: int) -> bool:
        """The elements of a vector, each after its size if their type has none."""
        inner: ColumnPart = part.parts[0]
        size = part.size
        self.reserve(10)
        self.unsigned(part.count << 1)
        for _ in range(part.count):
            if not part.size:
                if at == end or d[at] >= 0x80:  # longer ones are the functions'
                    return False
                size = d[at]
                at += 1
            if size > end - at or not self.value(inner, d, at, at + size):
                return False
            at += size
        self.reserve(1)
        self.byte(0)
        return at == end


class Columns:
    """Values of several types, each as the union of null and its type: of columns of a `key`, or of others, all of them
    after `head`. `plain` makes the function of a type, and `functions` make the Avro of what is not for this.
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
        """The Avro of so many values. Raises as the functions."""
        made = self.row(values)
        if made is None:
            return self._functions(values)
        return made

    def row(self, values: Sequence[bytes | None]) -> bytes | None:
        """The same; None if that is for the functions."""
        buffer = self._buffer
        if buffer is None:  # another thread has it
            buffer = Buffer()
        self._buffer = None
        try:
            return self._made(buffer, tuple(values))
        except _ERRORS:
            return None
        finally:
            self._buffer = buffer

    def _made(self, buffer: Buffer, values: tuple[bytes | None, ...]) -> bytes | None:
        count = self._count
        if len(values) != count:
            return None
        buffer.size = 0
        buffer.whole(self._head)
        for i in range(count):
            value = values[i]
            if value is None:
                buffer.reserve(1)
                buffer.byte(0)
                continue
            part: ColumnPart = self._parts[i]
            if not buffer.optional(part, value, 0, len(value)):
                return None
        return taken(buffer)


def taken(buffer: Buffer) -> bytes:
    """What was written."""
    raw, size = buffer.raw, buffer.size
    if _compiled:
        return raw[:size]  # type: ignore[return-value] # in C it is a pointer, and a slice of it is bytes
    return bytes(raw[:size])


def copied(raw: bytearray, size: int, d: bytes, at: int, count: int) -> int:
    """Copy bytes in C; all of them in one."""
    seen = 0
    for i in range(count):
        raw[size + i] = d[at + i]
        seen |= d[at + i]
    return seen


def integer(d: bytes, at: int, size: int) -> int:
    """A signed number of at most 8 bytes."""
    if _compiled:
        number = 0
        for i in range(size):
            number = number << 8 | d[at + i]
        shift = 64 - 8 * size
        return number << shift >> shift
    return int.from_bytes(d[at : at + size], "big", signed=True)


def zigzag(value: int) -> int:
    return (value << 1) ^ (value >> 63)
