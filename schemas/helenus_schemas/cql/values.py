"""The parts of a CQL value: the elements of collections and vectors, the fields of tuples and UDTs.

Every function that reads takes the value's bytes and returns its parts' bytes, undecoded; None stands for null. All of
them raise Malformed on other bytes. `part_bytes`, `collection_bytes` and `vint_bytes` write parts. Source: Cassandra's
native protocol v5 section 6, `VectorType.java`.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable

from helenus_schemas.cql.types import CqlType

EMPTY_IS_A_VALUE = frozenset(("ascii", "text", "blob", "tuple", "udt"))
"""Types of which zero bytes are a value like any other. CQL allows zero bytes for most other types too, where they mean
little: records show those as null."""
MAY_BE_EMPTY = EMPTY_IS_A_VALUE | {"varint"}
"""Types of which zero bytes have a form in keys."""

_SIZE = struct.Struct(">i").unpack_from
_size_bytes = struct.Struct(">i").pack
_NULL = _size_bytes(-1)
_WIDTHS = {"tinyint": 1, "varint": 1, "smallint": 2, "date": 4, "time": 8, "inet": 4, "decimal": 5} | dict.fromkeys(
    ("list", "set", "map"), 4
)


class Malformed(ValueError):
    """Bytes that are not a value of their type."""


def stand_in(t: CqlType) -> bytes:
    """Return a zero or empty value of a type. An event's key has it in place of no bytes, which Avro can't have
    there.
    """
    if t.name == "vector":
        item = stand_in(t.args[0])
        return (item if t.args[0].width else bytes((len(item),)) + item) * t.dimension
    if t.name in ("tuple", "udt"):
        return b"\xff\xff\xff\xff" * len(t.args)
    return bytes(t.width or _WIDTHS.get(t.name, 0))


def wrong_size(data: bytes, width: int) -> Malformed:
    """Return the error for a value that has not its type's fixed size."""
    return Malformed(f"{len(data)} bytes where {width} {'is' if width == 1 else 'are'} a value")


def shortest_varint(data: bytes) -> bytes:
    """Return a varint in the fewest bytes that hold it and its sign, as `BigInteger.toByteArray`; no bytes stay
    none.
    """
    start = 0
    while start < len(data) - 1 and data[start] == (0xFF if data[start + 1] & 0x80 else 0):
        start += 1
    return data[start:]


class NullElement(Malformed):
    """A collection with an element that is null. Cassandra accepts it as a bound parameter."""


def elements(data: bytes) -> list[bytes]:
    """Return the elements of a list or set."""
    return _counted(data, 1)


def entries(data: bytes) -> list[tuple[bytes, bytes]]:
    """Return the keys and values of a map, in its order."""
    parts = _counted(data, 2)
    return list(zip(parts[::2], parts[1::2], strict=True))


def _counted(data: bytes, parts_per_element: int) -> list[bytes]:
    if len(data) < 4:
        raise Malformed(f"a collection of {len(data)} bytes")
    (count,) = _SIZE(data)
    if not 0 <= 4 * count * parts_per_element <= len(data) - 4:
        raise Malformed(f"a collection of {count} elements in {len(data)} bytes")
    parts = []
    end = 4
    length = len(data)
    try:
        for _ in range(count * parts_per_element):
            start = end + 4
            end = start + _SIZE(data, end)[0]
            if not start <= end <= length:
                if end < start:
                    raise NullElement("an element that is null")
                raise Malformed(f"an element of {end - start} bytes with {length - start} left")
            parts.append(data[start:end])
    except struct.error:
        raise Malformed("a collection that ends early") from None
    if end != length:
        raise Malformed(f"{length - end} bytes after a collection")
    return parts


def fields(data: bytes, max_fields: int) -> list[bytes | None]:
    """Return the fields of a tuple or UDT, `max_fields` at most: an older value has fewer than its type, a newer one
    more.
    """
    parts: list[bytes | None] = []
    offset = 0
    while offset < len(data) and len(parts) < max_fields:
        if len(data) - offset < 4:
            raise Malformed("a field that ends early")
        (size,) = _SIZE(data, offset)
        offset += 4
        if size > len(data) - offset:
            raise Malformed(f"a field of {size} bytes with {len(data) - offset} left")
        if size < 0:
            parts.append(None)
        else:
            parts.append(data[offset : offset + size])
            offset += size
    return parts


def vector(data: bytes, width: int, dimension: int) -> list[bytes]:
    """Return the elements of a vector; `width` is an element's size, 0 if that goes before each as a vint."""
    parts = []
    if width:
        parts = [data[offset : offset + width] for offset in range(0, len(data), width)]
        if len(data) != width * dimension:
            raise Malformed(f"{len(data)} bytes where {width * dimension} are a vector")
        return parts
    offset = 0
    for _ in range(dimension):
        size, offset = vint(data, offset)
        if size > len(data) - offset:
            raise Malformed(f"an element of {size} bytes with {len(data) - offset} left")
        parts.append(data[offset : offset + size])
        offset += size
    if offset != len(data):
        raise Malformed(f"{len(data) - offset} bytes after a vector")
    return parts


def duration(data: bytes) -> tuple[int, int, int]:
    """Return months, days and nanoseconds of a duration."""
    parts = []
    offset = 0
    for _ in range(3):
        value, offset = vint(data, offset)
        parts.append((value >> 1) ^ -(value & 1))
    months, days, nanoseconds = parts
    return months, days, nanoseconds


def vint(data: bytes, offset: int) -> tuple[int, int]:
    """Return the unsigned vint at an offset, and the offset after it: it has as many leading one bits as bytes
    follow.
    """
    if offset >= len(data):
        raise Malformed("a number that ends early")
    first = data[offset]
    if first < 0x80:
        return first, offset + 1
    extra = 8 - (first ^ 0xFF).bit_length()
    if extra > len(data) - offset - 1:
        raise Malformed("a number that ends early")
    return (first & 0xFF >> extra) << 8 * extra | int.from_bytes(
        data[offset + 1 : offset + 1 + extra], "big"
    ), offset + 1 + extra


def part_bytes(part: bytes | None) -> bytes:
    """Return an element or a field after its size, as 4 bytes; the size of null is -1."""
    return _NULL if part is None else _size_bytes(len(part)) + part


def collection_bytes(count: int, parts: Iterable[bytes | None]) -> bytes:
    """Return a collection of so many elements: the parts are its elements, or a map's keys and values in turn."""
    return _size_bytes(count) + b"".join(map(part_bytes, parts))


def vint_bytes(value: int) -> bytes:
    """Encode an unsigned number of at most 64 bits, as `vint` reads it."""
    size = max(0, (value.bit_length() - 1) // 7)
    if size >= 8:
        return b"\xff" + value.to_bytes(8, "big")
    ones = 0xFF << (8 - size) & 0xFF
    return (ones << 8 * size | value).to_bytes(size + 1, "big")
