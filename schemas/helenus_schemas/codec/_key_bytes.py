"""An event's key from Avro to CQL's bytes in one pass: what `_from_avro` makes by small functions, of the types that
are most. Of all else, and of whatever is wrong, it makes nothing: the functions decide.

    Reader([int], [text]).key(b"\\x0a\\2\\2x") == (b"\\0\\0\\0\\5", b"x")

It runs as it is, and compiled by Cython with the types of `_key_bytes.pxd`: the results are the same. Only where it is
compiled it is faster than the functions.
"""

from __future__ import annotations

from collections.abc import Sequence

from helenus_schemas.codec._from_avro import NUMBERS
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

    def key(self, data: bytes) -> tuple[bytes | None, ...] | None:
        """The CQL bytes of the columns; None if that is for the functions."""
        try:
            return self._key(data)
        except IndexError:
            return None

    def _key(self, data: bytes) -> tuple[bytes | None, ...] | None:
        values: list[bytes | None] = []
        at, end, count, partition = 0, len(data), self._count, self._partition
        if not count:
            return None
        for i in range(count):
            if i >= partition:
                branch = data[at]
                at += 1
                if branch == 0:
                    values.append(None)
                    continue
                if branch != 2:
                    return None
            form: int = self._forms[i]
            size: int = self._sizes[i]
            if form == _REVERSED:
                if size > end - at:
                    return None
                values.append(turned(data, at, size))
                at += size
                continue
            number, at = read_long(data, at)
            if at < 0:
                return None
            if form in (_INTEGER, _DATE):
                limit = 1  # of 64 bits in C, where the number 1 has 32
                limit <<= 8 * size - 1
                if size < 8 and not -limit <= number < limit:
                    return None
                values.append(integer(number + 0x80000000 if form == _DATE else number, size))
                continue
            if number < 0 or number > end - at:
                return None
            if form == _SIZED:
                values.append(data[at : at + number])
            else:
                found = uuid(data, at) if number == 36 else None
                if found is None:
                    return None
                values.append(found)
            at += number
        return tuple(values) if at == end else None


def read_long(d: bytes, at: int) -> tuple[int, int]:
    """An Avro long and the offset after it, which is -1 for one that is for the functions. Raises IndexError."""
    rest, shift = 0, 0
    while shift < 63:
        byte = d[at]
        at += 1
        rest |= (byte & 0x7F) << shift
        if byte < 0x80:
            return (rest >> 1) ^ -(rest & 1), at
        shift += 7
    return 0, -1


def integer(value: int, size: int) -> bytes:
    """A number of so many bytes, the high ones first."""
    if _compiled:
        raw = _SCRATCH
        for i in range(size):
            raw[i] = value >> 8 * (size - 1 - i) & 0xFF
        return raw[:size]  # type: ignore[return-value] # in C it is a pointer, and a slice of it is bytes
    return (value & (1 << 8 * size) - 1).to_bytes(size, "big")


def turned(d: bytes, at: int, size: int) -> bytes:
    """Bytes from an offset on, the last one first."""
    if _compiled:
        raw = _SCRATCH
        for i in range(size):
            raw[i] = d[at + size - 1 - i]
        return raw[:size]  # type: ignore[return-value] # as in `integer`
    return d[at : at + size][::-1]


def uuid(d: bytes, at: int) -> bytes | None:
    """The 16 bytes of a UUID's text, as ours write it; None if it is another."""
    raw = _SCRATCH
    for i in range(16):
        if i == 4 or i == 6 or i == 8 or i == 10:
            if d[at] != 45:
                return None
            at += 1
        high, low = digit(d[at]), digit(d[at + 1])
        if high < 0 or low < 0:
            return None
        raw[i] = high << 4 | low
        at += 2
    return raw[:16] if _compiled else bytes(raw)  # type: ignore[return-value] # as in `integer`


def digit(byte: int) -> int:
    """What a digit of a number to the base 16 stands for; -1 if it is none."""
    if 48 <= byte <= 57:
        return byte - 48
    if 97 <= byte <= 102:
        return byte - 87
    return -1
