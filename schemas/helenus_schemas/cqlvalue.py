"""What a CQL value of many parts holds: the elements of collections and vectors, the fields of tuples and UDTs.

Every function takes the value's bytes and gives its parts' bytes, undecoded; None stands for null. All of them raise
Malformed on bytes that are no such value. Source: Cassandra's native protocol v5 section 6, `VectorType.java`.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable

from helenus_schemas.cql import CqlType

EMPTY_IS_A_VALUE = frozenset(("ascii", "text", "blob", "tuple", "udt"))
"""Types of which no bytes at all are a value like another. CQL allows them for most others too, where they mean little:
records show those as null."""
MAY_BE_EMPTY = EMPTY_IS_A_VALUE | {"varint"}
"""Types of which no bytes have a form in keys."""

_SIZE = struct.Struct(">i").unpack_from
_WIDTHS = {"tinyint": 1, "smallint": 2, "date": 4, "time": 8, "inet": 4, "decimal": 5, "list": 4, "set": 4, "map": 4}


class Malformed(ValueError):
    """Bytes that are no value of their type."""


def stand_in(t: CqlType) -> bytes:
    """A value of a type, zero or nothing: what an event's key has in place of no bytes, which Avro can't have there."""
    if t.name == "vector":
        item = stand_in(t.args[0])
        return (item if t.args[0].width else bytes((len(item),)) + item) * t.dimension
    if t.name in ("tuple", "udt"):
        return b"\xff\xff\xff\xff" * len(t.args)
    return bytes(t.width or _WIDTHS.get(t.name, 0))


class NullElement(Malformed):
    """A collection with an element that is null. Cassandra takes one that is bound so."""


def elements(data: bytes) -> list[bytes]:
    """The elements of a list or set."""
    return _counted(data, 1)


def entries(data: bytes) -> list[tuple[bytes, bytes]]:
    """The keys and values of a map, in its order."""
    parts = _counted(data, 2)
    return list(zip(parts[::2], parts[1::2], strict=True))


def _counted(data: bytes, each: int) -> list[bytes]:
    if len(data) < 4:
        raise Malformed(f"a collection of {len(data)} bytes")
    (count,) = _SIZE(data)
    if not 0 <= 4 * count * each <= len(data) - 4:
        raise Malformed(f"a collection of {count} elements in {len(data)} bytes")
    parts = []
    end = 4
    most = len(data)
    try:
        for _ in range(count * each):
            start = end + 4
            end = start + _SIZE(data, end)[0]
            if not start <= end <= most:
                if end < start:
                    raise NullElement("an element that is null")
                raise Malformed(f"an element of {end - start} bytes with {most - start} left")
            parts.append(data[start:end])
    except struct.error:
        raise Malformed("a collection that ends early") from None
    if end != most:
        raise Malformed(f"{most - end} bytes behind a collection")
    return parts


def fields(data: bytes, most: int) -> list[bytes | None]:
    """The fields of a tuple or UDT, `most` at most: an older value has fewer than its type, a newer one more."""
    parts: list[bytes | None] = []
    at = 0
    while at < len(data) and len(parts) < most:
        if len(data) - at < 4:
            raise Malformed("a field that ends early")
        (size,) = _SIZE(data, at)
        at += 4
        if size > len(data) - at:
            raise Malformed(f"a field of {size} bytes with {len(data) - at} left")
        if size < 0:
            parts.append(None)
        else:
            parts.append(data[at : at + size])
            at += size
    return parts


def vector(data: bytes, width: int, dimension: int) -> list[bytes]:
    """The elements of a vector; `width` is an element's size, 0 if that goes before each as a vint."""
    parts = []
    if width:
        parts = [data[at : at + width] for at in range(0, len(data), width)]
        if len(data) != width * dimension:
            raise Malformed(f"{len(data)} bytes where {width * dimension} are a vector")
        return parts
    at = 0
    for _ in range(dimension):
        size, at = vint(data, at)
        if size > len(data) - at:
            raise Malformed(f"an element of {size} bytes with {len(data) - at} left")
        parts.append(data[at : at + size])
        at += size
    if at != len(data):
        raise Malformed(f"{len(data) - at} bytes behind a vector")
    return parts


def has_untold(t: CqlType, data: bytes) -> bool:
    """Whether a value that CQL allows has, however deep, something that records cannot tell.

    That is an element of a collection that is null, or of no bytes and a type that has none, text that is no UTF-8, and
    keys of a map that are one as text.
    """
    try:
        if t.name in ("ascii", "text"):
            return not _is_utf8(data)
        if t.name in ("list", "set"):
            return _any_untold((t.args[0], part) for part in elements(data))
        if t.name == "map":
            parts = entries(data)
            return _any_untold(
                (a, part) for entry in parts for a, part in zip(t.args, entry, strict=True)
            ) or _have_one_text(t.args[0], [key for key, _ in parts])
        if t.name == "vector":
            return _any_untold((t.args[0], part) for part in vector(data, t.args[0].width, t.dimension))
        if t.name in ("tuple", "udt"):
            # A field of no bytes is null.
            return any(part and has_untold(a, part) for a, part in zip(t.args, fields(data, len(t.args)), strict=False))
    except NullElement:
        return True
    return False


def _any_untold(parts: Iterable[tuple[CqlType, bytes]]) -> bool:
    return any(has_untold(t, part) if part else t.name not in EMPTY_IS_A_VALUE for t, part in parts)


def _have_one_text(t: CqlType, keys: list[bytes]) -> bool:
    from helenus_schemas.jsonform import map_key  # which is made of what is here

    return len(set(map(map_key(t), keys))) < len(keys)


def _is_utf8(data: bytes) -> bool:
    try:
        data.decode()
    except UnicodeDecodeError:
        return False
    return True


def duration(data: bytes) -> tuple[int, int, int]:
    """Months, days and nanoseconds of a duration."""
    parts = []
    at = 0
    for _ in range(3):
        value, at = vint(data, at)
        parts.append((value >> 1) ^ -(value & 1))
    months, days, nanoseconds = parts
    return months, days, nanoseconds


def vint(data: bytes, at: int) -> tuple[int, int]:
    """The unsigned vint at an offset, and the offset behind it: as many leading one bits as bytes follow."""
    if at >= len(data):
        raise Malformed("a number that ends early")
    first = data[at]
    if first < 0x80:
        return first, at + 1
    extra = 8 - (first ^ 0xFF).bit_length()
    if extra > len(data) - at - 1:
        raise Malformed("a number that ends early")
    return (first & 0xFF >> extra) << 8 * extra | int.from_bytes(data[at + 1 : at + 1 + extra], "big"), at + 1 + extra
