"""Reads an event's key from Avro to CQL's bytes in one pass, for the common types.

Of other types, and of malformed keys, it reads nothing: then the functions of `_from_avro` decide.

    KeyBytesReader([int], [text]).read_key(b"\\x0a\\2\\2x") == (b"\\0\\0\\0\\5", b"x")

It runs as plain Python, and compiled by Cython with the types of `_key_bytes.pxd`, with the same results. Only where it
is compiled it is faster than the functions.
"""

from __future__ import annotations

from collections.abc import Sequence

from helenus_schemas.codec._from_avro import NUMBERS
from helenus_schemas.codec.wire_bytes import read_long
from helenus_schemas.cql.types import CqlType

COMPILED = not __file__.endswith(".py")
_compiled = COMPILED

# How Avro becomes a value.
_INTEGER = 1
_DATE = 2
_REVERSED = 3
_SIZED = 4
_UUID = 5
_FORMS = {
    **dict.fromkeys(NUMBERS, _INTEGER),
    **dict.fromkeys("boolean float double".split(), _REVERSED),
    **dict.fromkeys("ascii text blob varint".split(), _SIZED),
    **dict.fromkeys("uuid timeuuid".split(), _UUID),
    "date": _DATE,
}
_SCRATCH = bytearray(16)


class KeyBytesReader:
    """Reads the keys of a table with these columns of the partition key, and these clustering columns."""

    def __init__(self, partition: Sequence[CqlType], clustering: Sequence[CqlType]) -> None:
        types = (*partition, *clustering)
        self._partition = len(partition)
        self._forms = [_FORMS.get(t.name, 0) for t in types]
        self._sizes = [NUMBERS.get(t.name) or t.width for t in types]
        self._count = len(types) if all(self._forms) else 0

    def read_key(self, data: bytes) -> tuple[bytes | None, ...] | None:
        """Return the CQL bytes of the columns; None if the functions have to decide."""
        try:
            return self._read_key(data)
        except IndexError:
            return None

    def _read_key(self, data: bytes) -> tuple[bytes | None, ...] | None:
        values: list[bytes | None] = []
        offset, end, count, partition = 0, len(data), self._count, self._partition
        if not count:
            return None
        for i in range(count):
            if i >= partition:
                branch = data[offset]
                offset += 1
                if branch == 0:
                    values.append(None)
                    continue
                if branch != 2:
                    return None
            form: int = self._forms[i]
            size: int = self._sizes[i]
            if form == _REVERSED:
                if size > end - offset:
                    return None
                values.append(reversed_bytes(data, offset, size))
                offset += size
                continue
            number, offset = read_long(data, offset)
            if form in (_INTEGER, _DATE):
                limit = 1  # of 64 bits in C, where the number 1 has 32
                limit <<= 8 * size - 1
                if size < 8 and not -limit <= number < limit:
                    return None
                values.append(integer(number + 0x80000000 if form == _DATE else number, size))
                continue
            if number < 0 or number > end - offset:
                return None
            if form == _SIZED:
                values.append(data[offset : offset + number])
            else:
                uuid_bytes = uuid(data, offset) if number == 36 else None
                if uuid_bytes is None:
                    return None
                values.append(uuid_bytes)
            offset += number
        return tuple(values) if offset == end else None


def integer(value: int, size: int) -> bytes:
    """Return a number in so many bytes, the high ones first."""
    if _compiled:
        raw = _SCRATCH
        for i in range(size):
            raw[i] = value >> 8 * (size - 1 - i) & 0xFF
        return raw[:size]  # type: ignore[return-value] # in C it is a pointer, and a slice of it is bytes
    return (value & (1 << 8 * size) - 1).to_bytes(size, "big")


def reversed_bytes(data: bytes, offset: int, size: int) -> bytes:
    """Return the bytes from an offset on in reverse order."""
    if _compiled:
        raw = _SCRATCH
        for i in range(size):
            raw[i] = data[offset + size - 1 - i]
        return raw[:size]  # type: ignore[return-value] # as in `integer`
    return data[offset : offset + size][::-1]


def uuid(data: bytes, offset: int) -> bytes | None:
    """Return the 16 bytes of a UUID's text as our agents write it; None for any other text."""
    raw = _SCRATCH
    for i in range(16):
        if i == 4 or i == 6 or i == 8 or i == 10:
            if data[offset] != 45:
                return None
            offset += 1
        high, low = hex_digit(data[offset]), hex_digit(data[offset + 1])
        if high < 0 or low < 0:
            return None
        raw[i] = high << 4 | low
        offset += 2
    return raw[:16] if _compiled else bytes(raw)  # type: ignore[return-value] # as in `integer`


def hex_digit(byte: int) -> int:
    """Return the value of a lowercase hexadecimal digit; -1 for any other character."""
    if 48 <= byte <= 57:
        return byte - 48
    if 97 <= byte <= 102:
        return byte - 87
    return -1
