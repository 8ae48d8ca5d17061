"""From the exact Avro form of a value back to its CQL bytes: for reading keys."""

from __future__ import annotations

import ipaddress
import struct
import uuid
from collections.abc import Callable, Sequence

from helenus_schemas.codec.avro_long import read_long
from helenus_schemas.cql.types import CqlType
from helenus_schemas.cql.values import Malformed, wrong_size

Decode = Callable[[bytes, int], "tuple[bytes, int]"]
"""From Avro bytes and an offset to a value's CQL bytes and the offset after it. Raises ValueError or IndexError."""

NUMBERS = {"tinyint": 1, "smallint": 2, "int": 4, "date": 4, "bigint": 8, "timestamp": 8, "time": 8}
"""Bytes of the types that Avro has as int or long."""
_NULL = b"\xff\xff\xff\xff"


def decoder(t: CqlType) -> Decode:
    """The function that reads the exact form of a type. Raises ValueError for a type that no key can have."""
    if t.name in ("ascii", "text", "blob", "varint"):
        return _take
    if t.name in ("uuid", "timeuuid"):
        return _text(lambda text: uuid.UUID(text).bytes)
    if t.name == "inet":
        return _text(lambda text: ipaddress.ip_address(text).packed)
    if t.name in ("boolean", "float", "double"):
        return _reversed(t.width)
    if t.name in NUMBERS:
        return number(NUMBERS[t.name], offset=1 << 31 if t.name == "date" else 0)
    if t.name == "decimal":
        return _decimal
    if t.name in ("list", "set"):
        return _collection([decoder(t.args[0])])
    if t.name == "map":
        return _collection([decoder(t.args[0]), decoder(t.args[1])])
    if t.name == "vector":
        return _vector(decoder(t.args[0]), t.args[0].width, t.dimension)
    if t.name in ("tuple", "udt"):
        return _record([decoder(a) for a in t.args])
    raise ValueError(f"the type {t} is not supported in a primary key")


def nullable(decode: Decode) -> Callable[[bytes, int], tuple[bytes | None, int]]:
    """Reads the union of null and a type."""

    def decode_union(data: bytes, at: int) -> tuple[bytes | None, int]:
        branch = data[at]
        if branch == 0:
            return None, at + 1
        if branch != 2:
            raise Malformed(f"union branch {branch}")
        return decode(data, at + 1)

    return decode_union


def number(width: int, offset: int = 0, unsigned: bool = False, factor: int = 1) -> Decode:
    """Reads an int or long as CQL bytes: `factor` times the number, plus `offset`, of a signed or `unsigned` value."""
    limit = 1 << (8 * width)
    low = 0 if unsigned else -(limit >> 1)
    end = low + limit
    code = "bhiq"[width.bit_length() - 1]
    pack = struct.Struct(">" + (code if low + offset < 0 else code.upper())).pack

    def decode(data: bytes, at: int) -> tuple[bytes, int]:
        value, at = read_long(data, at)
        value *= factor
        if not low <= value < end:
            raise Malformed(f"{value} does not fit {width} bytes")
        return pack(value + offset), at

    return decode


def _take(data: bytes, at: int) -> tuple[bytes, int]:
    size, at = read_long(data, at)
    if not 0 <= size <= len(data) - at:
        raise Malformed(f"a length of {size} with {len(data) - at} bytes left")
    return data[at : at + size], at + size


def _text(parse: Callable[[str], bytes]) -> Decode:
    def decode(data: bytes, at: int) -> tuple[bytes, int]:
        text, at = _take(data, at)
        return parse(text.decode()), at

    return decode


def _reversed(width: int) -> Decode:
    def decode(data: bytes, at: int) -> tuple[bytes, int]:
        if len(data) - at < width:
            raise wrong_size(data[at:], width)
        return data[at : at + width][::-1], at + width

    return decode


def _decimal(data: bytes, at: int) -> tuple[bytes, int]:
    unscaled, at = _take(data, at)
    scale, at = read_long(data, at)
    if not unscaled or not -(1 << 31) <= scale < 1 << 31:
        raise Malformed(f"a decimal of {len(unscaled)} bytes and scale {scale}")
    return struct.pack(">i", scale) + unscaled, at


def _items(parts: Sequence[Decode], data: bytes, at: int) -> tuple[list[bytes], int, int]:
    """The parts of an array's or map's items, how many items there are, and the offset after them."""
    found: list[bytes] = []
    total = 0
    count, at = read_long(data, at)
    while count:
        # Ours are one block; other writers may write a negative count, and the block's size after it.
        if count < 0:
            _, at = read_long(data, at)
            count = -count
        if count > len(data) - at:
            raise Malformed(f"a block of {count} items with {len(data) - at} bytes left")
        total += count
        for _ in range(count):
            for decode in parts:
                part, at = decode(data, at)
                found.append(part)
        count, at = read_long(data, at)
    return found, total, at


def _collection(parts: Sequence[Decode]) -> Decode:
    def decode(data: bytes, at: int) -> tuple[bytes, int]:
        found, count, at = _items(parts, data, at)
        return struct.pack(">i", count) + b"".join([struct.pack(">i", len(p)) + p for p in found]), at

    return decode


def _vector(item: Decode, width: int, dimension: int) -> Decode:
    def decode(data: bytes, at: int) -> tuple[bytes, int]:
        found, count, at = _items([item], data, at)
        if count != dimension:
            raise Malformed(f"{count} elements where {dimension} are a vector")
        return b"".join(found if width else [_vint(len(p)) + p for p in found]), at

    return decode


def _record(items: Sequence[Decode]) -> Decode:
    optional = [nullable(item) for item in items]

    def decode(data: bytes, at: int) -> tuple[bytes, int]:
        out = []
        for item in optional:
            part, at = item(data, at)
            out.append(_NULL if part is None else struct.pack(">i", len(part)) + part)
        return b"".join(out), at

    return decode


def _vint(value: int) -> bytes:
    """An unsigned vint, as `cql.values.vint` reads it."""
    extra = next(n for n in range(9) if n == 8 or value < 1 << 7 * (n + 1))
    ones = 0xFF << (8 - extra) & 0xFF
    return ((ones << 8 * extra) | value).to_bytes(extra + 1, "big")
