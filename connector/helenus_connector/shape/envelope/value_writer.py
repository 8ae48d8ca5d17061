"""Write values from CQL's bytes as Avro or JSON, one after the other, into one buffer.

    writer.append(b'{"k":')
    writer.put_optional(part, b"\\0\\0\\0\\7")    → {"k":7

A `ValuePart` says how the values of a type are written. It writes the common types itself, and leaves others, and all
that is longer than usual, to a function. Bytes that are no values raise an error: what was written is then to be thrown
away, and the functions decide.

It runs as it is, and compiled by Cython with the types of `value_writer.pxd`: the results are the same.
"""

from __future__ import annotations

import struct
from base64 import b64encode
from collections.abc import Callable, Sequence
from json.encoder import encode_basestring

from helenus_schemas.codec.avro_long import long_bytes
from helenus_schemas.cql.types import CqlType
from helenus_schemas.cql.values import EMPTY_IS_A_VALUE

COMPILED = not __file__.endswith(".py")
_compiled = COMPILED

# How a value is written.
_OTHER = 0
_INTEGER = 1
_DATE = 2
_MILLISECONDS = 3
_REVERSED = 4
_SIZED = 5
_TEXT = 6
_UUID = 7
_BOOLEAN = 8
_ARRAY = 9
_ENTRIES = 10
_RECORD = 11
_DOUBLE = 12
OTHER, MILLISECONDS, SIZED = _OTHER, _MILLISECONDS, _SIZED
_FORMS = {
    **dict.fromkeys("tinyint smallint int bigint timestamp time".split(), _INTEGER),
    **dict.fromkeys("float double".split(), _REVERSED),
    **dict.fromkeys("ascii text".split(), _TEXT),
    **dict.fromkeys("uuid timeuuid".split(), _UUID),
    "date": _DATE,
    "blob": _SIZED,
    "boolean": _BOOLEAN,
}
_WIDTHS = {"tinyint": 1, "smallint": 2, "time": 8, "date": 4}  # those that the type itself does not say
_unpack_double = struct.Struct(">d").unpack_from
_MAX_MILLISECONDS = (1 << 63) // 1000
_HEX = b"0123456789abcdef"
_ESCAPES = bytes(ord({8: "b", 9: "t", 10: "n", 12: "f", 13: "r"}.get(byte, "u")) for byte in range(32))
_ROOM = 1 << 12  # bytes: enough for a usual record; larger ones make it grow
_MAX_ROOM = 1 << 20  # bytes that a writer keeps
_SPECIAL = 0x100
_SCRATCH = bytearray(20)  # digits of a number


class ValuePart:
    """How the values of a type are written: as `form`, of `size` bytes (0: any), or by `encode` if the form is _OTHER.
    `is_optional`: it is a union of null and the type, which `encode` writes whole. `accepts_empty`: no bytes are a
    value, not null. The `parts` are those of an element of a collection, or the fields of a record, whose names in
    JSON, with what goes before them, are `heads`. `is_object`: in JSON its entries are members.
    """

    def __init__(
        self,
        form: int,
        encode: Callable[[bytes], bytes | str],
        size: int = 0,
        is_optional: bool = True,
        accepts_empty: bool = False,
        parts: Sequence[ValuePart] = (),
        heads: Sequence[bytes] = (),
        is_object: bool = False,
    ) -> None:
        self.form = form
        self.encode = encode
        self.size = size
        self.is_optional = is_optional
        self.accepts_empty = accepts_empty
        self.parts = list(parts)
        self.heads = list(heads)
        self.is_object = is_object


def scalar_part(
    t: CqlType, is_json: bool, encode: Callable[[bytes], bytes | str], is_optional: bool = True, key: bool = False
) -> ValuePart:
    """Return how a type is written that is no collection and no record. `encode` makes what a `ValuePart` leaves to a
    function; `key`: text in Avro has the bytes that it has, valid or not.
    """
    form = _OTHER if t.shown_as else _FORMS.get(t.name, _OTHER)
    if form == _REVERSED and is_json:
        form = _DOUBLE if t.name == "double" else _OTHER
    if form == _TEXT and key and not is_json:
        form = _SIZED
    has_size = form not in (_OTHER, _TEXT, _SIZED)
    size = (t.width or _WIDTHS[t.name]) if has_size else 0
    return ValuePart(form, encode, size, is_optional, t.name in EMPTY_IS_A_VALUE)


def array_part(item: ValuePart, encode: Callable[[bytes], bytes | str], is_optional: bool = True) -> ValuePart:
    """Return how a list or a set is written."""
    return ValuePart(_ARRAY, encode, 0, is_optional, False, [item])


def entries_part(
    key: ValuePart,
    value: ValuePart,
    encode: Callable[[bytes], bytes | str],
    is_object: bool,
    is_optional: bool = True,
) -> ValuePart:
    """Return how a map is written."""
    return ValuePart(_ENTRIES, encode, 0, is_optional, False, [key, value], (), is_object)


def record_part(
    fields: Sequence[ValuePart],
    heads: Sequence[bytes],
    encode: Callable[[bytes], bytes | str],
    is_optional: bool = True,
) -> ValuePart:
    """Return how a tuple or UDT is written, whose fields are all optional and all shown."""
    return ValuePart(_RECORD, encode, 0, is_optional, True, fields, heads)


class ValueWriter:
    """A growing buffer: `size` bytes of `data` are written. All methods raise what decoding raises."""

    def __init__(self, is_json: bool) -> None:
        self.is_json = is_json
        self.data = bytearray(_ROOM) if _compiled else bytearray()
        self.raw = self.data
        self.room = _ROOM
        self.size = 0

    def clear(self) -> None:
        """Forget what was written."""
        if not _compiled:
            self.data = bytearray()
        elif self.room > _MAX_ROOM:
            self.data = bytearray(_ROOM)
            self.raw = self.data
            self.room = _ROOM
        self.size = 0

    def written(self, start: int) -> bytes:
        """Return the bytes written from `start` on."""
        raw = self.raw
        if _compiled:
            return raw[start : self.size]  # type: ignore[return-value] # in C it is a pointer, and a slice of it is bytes
        return bytes(self.data[start:])

    def reserve(self, size: int) -> None:
        """Make room for so many more bytes."""
        if self.size + size > self.room:
            self.data.extend(bytes(self.room + size))
            self.raw = self.data
            self.room = len(self.data)

    def put_byte(self, value: int) -> None:
        """Append a byte, for which there is room."""
        if not _compiled:
            self.data.append(value)
        else:
            self.raw[self.size] = value
        self.size += 1

    def append(self, data: bytes) -> None:
        """Append bytes as they are."""
        self.copy(data, 0, len(data))

    def append_piece(self, piece: bytes | str) -> None:
        """Append what a function made."""
        self.append(piece if isinstance(piece, bytes) else piece.encode())

    def copy(self, data: bytes, offset: int, end: int) -> None:
        """Append the bytes from `offset` to `end`."""
        count = end - offset
        if not _compiled:
            self.data += data[offset:end]
        else:
            self.reserve(count)
            copy_bytes(self.raw, self.size, data, offset, count)
        self.size += count

    def put_number(self, value: int) -> None:
        """Append a number of 64 bits."""
        if not _compiled:
            self.append(b"%d" % value if self.is_json else long_bytes(value))
        elif self.is_json:
            self.put_digits(value)
        else:
            self.put_zigzag(value)

    def put_zigzag(self, value: int) -> None:
        """Append a number as an Avro long, in C."""
        self.reserve(10)
        remaining = (value << 1) ^ (value >> 63)
        while remaining > 0x7F:
            self.put_byte(remaining & 0x7F | 0x80)
            remaining >>= 7
        self.put_byte(remaining)

    def put_digits(self, value: int) -> None:
        """Append a number in decimal digits, in C."""
        self.reserve(20)
        remaining = value
        if value < 0:
            remaining = 0 - remaining
            self.put_byte(45)
        raw = _SCRATCH
        index = 20
        while True:
            index -= 1
            raw[index] = 48 + remaining % 10
            remaining //= 10
            if not remaining:
                break
        while index < 20:
            self.put_byte(raw[index])
            index += 1

    def put_null(self) -> None:
        """Append null."""
        self.append(b"null" if self.is_json else b"\0")

    def put_part(self, part: ValuePart, data: bytes, offset: int, end: int) -> None:
        """Append an element or a field, the bytes from `offset` to `end`."""
        if part.is_optional and offset == end and not part.accepts_empty:
            self.put_null()
        else:
            if part.is_optional and not self.is_json and part.form != _OTHER:
                self.reserve(1)
                self.put_byte(2)
            self.put_value(part, data, offset, end)

    def put_value(self, part: ValuePart, data: bytes, offset: int, end: int) -> None:
        """Append a value without what says that it is not null."""
        form = part.form
        if part.size and end - offset != part.size:
            raise ValueError("another size")
        if form == _TEXT:
            self.put_text(data, offset, end)
        elif form <= _MILLISECONDS and form != _OTHER:
            self.put_integer(form, signed_integer(data, offset, part.size))
        elif form == _UUID:
            self.put_uuid(data, offset)
        elif form == _BOOLEAN and self.is_json:
            self.append(b"true" if data[offset] else b"false")
        elif form == _BOOLEAN:
            self.append(b"\1" if data[offset] else b"\0")
        elif form in (_ARRAY, _ENTRIES):
            self.put_collection(part, data, offset, end)
        elif form == _REVERSED:
            self.append(data[offset:end][::-1])
        elif form == _SIZED:
            self.put_bytes(data, offset, end)
        elif form == _RECORD:
            self.put_record(part, data, offset, end)
        elif form == _DOUBLE:
            double = _unpack_double(data, offset)[0]
            # JSON has finite numbers alone.
            self.append_piece(repr(double) if double - double == 0 else part.encode(data[offset:end]))
        else:
            self.append_piece(part.encode(data[offset:end]))

    def put_integer(self, form: int, number: int) -> None:
        """Append a number of this form, as CQL has it."""
        if form == _DATE:
            number = number - 0x80000000 if number >= 0 else number + 0x80000000
        elif form == _MILLISECONDS:
            if not -_MAX_MILLISECONDS <= number <= _MAX_MILLISECONDS:
                raise ValueError("more than 64 bits")
            number *= 1000
        self.put_number(number)

    def put_bytes(self, data: bytes, offset: int, end: int) -> None:
        """Append bytes, in JSON in Base64."""
        if self.is_json:
            self.append(b'"%b"' % b64encode(data[offset:end]))
        else:
            self.put_number(end - offset)
            self.copy(data, offset, end)

    def put_text(self, data: bytes, offset: int, end: int) -> None:
        """Append text, in JSON with quotes. Raises UnicodeDecodeError."""
        bits = text_bits(data, offset, end - offset)
        if bits & 0x80:
            data[offset:end].decode()
        if not self.is_json:
            self.put_number(end - offset)
            self.copy(data, offset, end)
        elif not _compiled:
            self.append(encode_basestring(data[offset:end].decode()).encode())
        else:
            self.append(b'"')
            if bits & _SPECIAL:
                self.put_escaped(data, offset, end)
            else:
                self.copy(data, offset, end)
            self.append(b'"')

    def put_escaped(self, data: bytes, offset: int, end: int) -> None:
        """Append text as `json.dumps` says it, in C."""
        self.reserve(6 * (end - offset))
        for i in range(offset, end):
            byte = data[i]
            if byte == 34 or byte == 92:
                self.put_byte(92)
                self.put_byte(byte)
            elif byte >= 32:
                self.put_byte(byte)
            else:
                self.put_byte(92)
                self.put_byte(_ESCAPES[byte])
                if _ESCAPES[byte] == 117:
                    self.put_byte(48)
                    self.put_byte(48)
                    self.put_byte(_HEX[byte >> 4])
                    self.put_byte(_HEX[byte & 15])

    def put_uuid(self, data: bytes, offset: int) -> None:
        """Append the text of a UUID's 16 bytes."""
        self.reserve(38)
        self.put_byte(34 if self.is_json else 72)
        for i in range(16):
            if i == 4 or i == 6 or i == 8 or i == 10:
                self.put_byte(45)
            byte = data[offset + i]
            self.put_byte(_HEX[byte >> 4])
            self.put_byte(_HEX[byte & 15])
        if self.is_json:
            self.put_byte(34)

    def put_collection(self, part: ValuePart, data: bytes, offset: int, end: int) -> None:
        """Append a list, a set or a map."""
        has_keys = part.form == _ENTRIES
        count = read_size(data, offset, end)
        offset += 4
        if count < 0:
            raise ValueError("fewer than no elements")
        if self.is_json:
            self.append(b"{" if part.is_object else b"[")
        elif count:
            self.put_number(count)
        for i in range(count):
            if i and self.is_json:
                self.append(b",")
            if has_keys:
                offset = self.put_entry(part, data, offset, end)
            else:
                offset = self.put_item(part.parts[0], data, offset, end)
        if offset != end:
            raise ValueError("bytes after the elements")
        if self.is_json:
            self.append(b"}" if part.is_object else b"]")
        else:
            self.append(b"\0")

    def put_entry(self, part: ValuePart, data: bytes, offset: int, end: int) -> int:
        """Append an entry of a map: a member of an object, or an array of two. Return where the next one is."""
        is_pair = self.is_json and not part.is_object
        if is_pair:
            self.append(b"[")
        if read_size(data, offset, end) < 0:
            raise ValueError("a key that is null")
        offset = self.put_item(part.parts[0], data, offset, end)
        if self.is_json:
            self.append(b"," if is_pair else b":")
        offset = self.put_item(part.parts[1], data, offset, end)
        if is_pair:
            self.append(b"]")
        return offset

    def put_item(self, item: ValuePart, data: bytes, offset: int, end: int) -> int:
        """Append an element, after its size. Return where the next one is."""
        size = read_size(data, offset, end)
        offset += 4
        if size >= 0:
            self.put_part(item, data, offset, offset + size)
            return offset + size
        if not item.is_optional:
            raise ValueError("an element that is null")
        self.put_null()
        return offset

    def put_record(self, part: ValuePart, data: bytes, offset: int, end: int) -> None:
        """Append a tuple or UDT. Fields that it does not have are null; more than the type has are left out."""
        for i in range(len(part.parts)):
            if self.is_json:
                self.append(part.heads[i])
            size = -1
            if offset != end:
                size = read_size(data, offset, end)
                offset += 4
            if size < 0:
                self.put_null()
            else:
                self.put_part(part.parts[i], data, offset, offset + size)
                offset += size
        if self.is_json:
            self.append(b"}")


def read_size(data: bytes, offset: int, end: int) -> int:
    """Read a size of 4 bytes: of so many bytes that follow, negative for null; or a number of elements, of which each
    has more than one. Raises ValueError if it ends after `end`.
    """
    if end - offset < 4:
        raise ValueError("a value that ends early")
    size = signed_integer(data, offset, 4)
    if size > end - offset - 4:
        raise ValueError("a value that ends early")
    return size


def signed_integer(data: bytes, offset: int, size: int) -> int:
    """Decode a signed number of at most 8 bytes."""
    if not _compiled:
        return int.from_bytes(data[offset : offset + size], "big", signed=True)
    number = 0
    for i in range(size):
        number = number << 8 | data[offset + i]
    shift = 64 - 8 * size
    return number << shift >> shift


def copy_bytes(raw: bytearray, size: int, data: bytes, offset: int, count: int) -> None:
    """Copy bytes of `data` into a buffer."""
    for i in range(count):
        raw[size + i] = data[offset + i]


def text_bits(data: bytes, offset: int, count: int) -> int:
    """Return all bytes ORed together, and in C _SPECIAL if JSON has another form of one."""
    if not _compiled:
        return 0 if data[offset : offset + count].isascii() else 0x80
    bits = 0
    for i in range(count):
        byte = data[offset + i]
        bits |= byte
        if byte < 32 or byte == 34 or byte == 92:
            bits |= _SPECIAL
    return bits
