"""From the exact Avro form of a value back to its CQL bytes: for reading keys."""

from __future__ import annotations

import ipaddress
import struct
import uuid
from collections.abc import Callable, Sequence

from helenus_schemas.codec.avro_long import read_long
from helenus_schemas.cql.types import CqlType
from helenus_schemas.cql.values import Malformed, collection_bytes, part_bytes, vint_bytes, wrong_size

Decode = Callable[[bytes, int], "tuple[bytes, int]"]
"""From Avro bytes and an offset to a value's CQL bytes and the offset after it. Raises ValueError or IndexError."""

NUMBERS = {"tinyint": 1, "smallint": 2, "int": 4, "date": 4, "bigint": 8, "timestamp": 8, "time": 8}
"""Bytes of the types that Avro has as int or long."""


def decoder(t: CqlType) -> Decode:
    """Return the function that reads the exact form of a type. Raises ValueError for a type that no key can have."""
    if t.name in ("ascii", "text", "blob", "varint"):
        return _read_bytes
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
    """Return a decoder of the union of null and a type."""

    def decode_union(data: bytes, offset: int) -> tuple[bytes | None, int]:
        branch = data[offset]
        if branch == 0:
            return None, offset + 1
        if branch != 2:
            raise Malformed(f"union branch {branch}")
        return decode(data, offset + 1)

    return decode_union


def number(width: int, offset: int = 0, unsigned: bool = False, factor: int = 1) -> Decode:
    """Return a decoder of an int or long to CQL bytes: `factor` times the number, plus `offset`, of a signed or
    `unsigned` value.
    """
    limit = 1 << (8 * width)
    low = 0 if unsigned else -(limit >> 1)
    end = low + limit
    code = "bhiq"[width.bit_length() - 1]
    pack = struct.Struct(">" + (code if low + offset < 0 else code.upper())).pack

    def decode(data: bytes, position: int) -> tuple[bytes, int]:
        value, position = read_long(data, position)
        value *= factor
        if not low <= value < end:
            raise Malformed(f"{value} does not fit {width} bytes")
        return pack(value + offset), position

    return decode


def _read_bytes(data: bytes, offset: int) -> tuple[bytes, int]:
    size, offset = read_long(data, offset)
    if not 0 <= size <= len(data) - offset:
        raise Malformed(f"a length of {size} with {len(data) - offset} bytes left")
    return data[offset : offset + size], offset + size


def _text(parse: Callable[[str], bytes]) -> Decode:
    def decode(data: bytes, offset: int) -> tuple[bytes, int]:
        text, offset = _read_bytes(data, offset)
        return parse(text.decode()), offset

    return decode


def _reversed(width: int) -> Decode:
    def decode(data: bytes, offset: int) -> tuple[bytes, int]:
        if len(data) - offset < width:
            raise wrong_size(data[offset:], width)
        return data[offset : offset + width][::-1], offset + width

    return decode


def _decimal(data: bytes, offset: int) -> tuple[bytes, int]:
    unscaled, offset = _read_bytes(data, offset)
    scale, offset = read_long(data, offset)
    if not unscaled or not -(1 << 31) <= scale < 1 << 31:
        raise Malformed(f"a decimal of {len(unscaled)} bytes and scale {scale}")
    return struct.pack(">i", scale) + unscaled, offset


def _items(parts: Sequence[Decode], data: bytes, offset: int) -> tuple[list[bytes], int, int]:
    """Read the items of an array or map: their parts, the number of items, and the offset after them."""
    values: list[bytes] = []
    total = 0
    count, offset = read_long(data, offset)
    while count:
        # Ours are one block; other writers may write a negative count, and the block's size after it.
        if count < 0:
            _, offset = read_long(data, offset)
            count = -count
        if count > len(data) - offset:
            raise Malformed(f"a block of {count} items with {len(data) - offset} bytes left")
        total += count
        for _ in range(count):
            for decode in parts:
                part, offset = decode(data, offset)
                values.append(part)
        count, offset = read_long(data, offset)
    return values, total, offset


def _collection(parts: Sequence[Decode]) -> Decode:
    def decode(data: bytes, offset: int) -> tuple[bytes, int]:
        values, count, offset = _items(parts, data, offset)
        return collection_bytes(count, values), offset

    return decode


def _vector(item: Decode, width: int, dimension: int) -> Decode:
    def decode(data: bytes, offset: int) -> tuple[bytes, int]:
        values, count, offset = _items([item], data, offset)
        if count != dimension:
            raise Malformed(f"{count} elements where {dimension} are a vector")
        return b"".join(values if width else [vint_bytes(len(p)) + p for p in values]), offset

    return decode


def _record(items: Sequence[Decode]) -> Decode:
    optional = [nullable(item) for item in items]

    def decode(data: bytes, offset: int) -> tuple[bytes, int]:
        encoded = []
        for item in optional:
            part, offset = item(data, offset)
            encoded.append(part_bytes(part))
        return b"".join(encoded), offset

    return decode
