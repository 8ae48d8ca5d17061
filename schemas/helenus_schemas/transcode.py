"""From CQL's bytes to Avro's and back, without building values in between.

A CQL value travels as the same bytes in commit-log cells, native-protocol rows and bound parameters, so one compiler of
small functions serves the agent's keys and the connector's rows, and no value is squeezed through a Python type that
cannot hold it. Sources: Cassandra's native protocol v4/v5 section 6 (CQL), Avro 1.11 binary encoding (Avro).
"""

from __future__ import annotations

import ipaddress
import struct
import uuid
from collections.abc import Callable, Sequence

from helenus_schemas.cql import CqlType
from helenus_schemas.text import AsText, as_text

Encode = Callable[[bytes], bytes]
Decode = Callable[[bytes, int], "tuple[bytes, int]"]


class Malformed(ValueError):
    """Bytes that are no value of their type."""


def long_bytes(value: int) -> bytes:
    """An Avro int or long: zigzag, seven bits a byte, low ones first."""
    rest = (value << 1) ^ (value >> 63)
    if rest < 0x80:
        return bytes((rest,))
    out = bytearray()
    while rest > 0x7F:
        out.append(rest & 0x7F | 0x80)
        rest >>= 7
    out.append(rest)
    return bytes(out)


def read_long(data: bytes, at: int) -> tuple[int, int]:
    """Read an Avro int or long; returns it and the offset behind it. Raises IndexError at the end of data."""
    byte = data[at]
    at += 1
    value = byte & 0x7F
    shift = 7
    while byte & 0x80:
        if shift > 63:
            raise Malformed("an Avro long of more than 10 bytes")
        byte = data[at]
        at += 1
        value |= (byte & 0x7F) << shift
        shift += 7
    return (value >> 1) ^ -(value & 1), at


def _sized(data: bytes) -> bytes:
    return long_bytes(len(data)) + data


def _take(data: bytes, at: int) -> tuple[bytes, int]:
    size, at = read_long(data, at)
    if not 0 <= size <= len(data) - at:
        raise Malformed(f"a length of {size} with {len(data) - at} bytes left")
    return data[at : at + size], at + size


def _exact(width: int, encode: Encode) -> Encode:
    def checked(data: bytes) -> bytes:
        if len(data) != width:
            raise Malformed(f"{len(data)} bytes where {width} are a value")
        return encode(data)

    return checked


def _integer(data: bytes) -> bytes:
    return long_bytes(int.from_bytes(data, "big", signed=True))


def _date(data: bytes) -> bytes:
    return long_bytes(int.from_bytes(data, "big") - (1 << 31))


def _inet(data: bytes) -> bytes:
    return _sized(str(ipaddress.ip_address(data)).encode())


def _uuid(data: bytes) -> bytes:
    text = data.hex()
    # "H" is the Avro length of 36 characters.
    return f"H{text[:8]}-{text[8:12]}-{text[12:16]}-{text[16:20]}-{text[20:]}".encode()


def _decimal(data: bytes) -> bytes:
    if len(data) < 5:
        raise Malformed(f"a decimal of {len(data)} bytes")
    return _sized(data[4:]) + _integer(data[:4])


def _duration(data: bytes) -> bytes:
    out = b""
    at = 0
    for _ in range(3):
        value, at = _vint(data, at)
        out += long_bytes((value >> 1) ^ -(value & 1))
    return out


def _vint(data: bytes, at: int) -> tuple[int, int]:
    first = data[at]
    extra = 8 - (first ^ 0xFF).bit_length()
    value = int.from_bytes(bytes((first & (0xFF >> extra),)) + data[at + 1 : at + 1 + extra], "big")
    return value, at + 1 + extra


_ENCODERS: dict[str, Encode] = {
    "ascii": _sized,
    "text": _sized,
    "blob": _sized,
    "varint": _sized,
    "inet": _inet,
    "boolean": _exact(1, lambda data: b"\1" if data != b"\0" else b"\0"),
    "tinyint": _exact(1, _integer),
    "smallint": _exact(2, _integer),
    "int": _exact(4, _integer),
    "bigint": _exact(8, _integer),
    "counter": _exact(8, _integer),
    "timestamp": _exact(8, _integer),
    "time": _exact(8, _integer),
    "date": _exact(4, _date),
    "float": _exact(4, lambda data: data[::-1]),
    "double": _exact(8, lambda data: data[::-1]),
    "uuid": _exact(16, _uuid),
    "timeuuid": _exact(16, _uuid),
    "decimal": _decimal,
    "duration": _duration,
}


def encoder(t: CqlType) -> Encode:
    """A function from a value's CQL bytes to its Avro bytes; it raises Malformed or IndexError on bad bytes."""
    if t.name in _ENCODERS:
        return _ENCODERS[t.name]
    if t.name in ("list", "set"):
        return _array(encoder(t.args[0]))
    if t.name == "map":
        text = as_text(t.args[0])
        if text is None:
            raise ValueError(f"the type {t} has no Avro form")
        return _map(_encode_text(text), encoder(t.args[1]))
    if t.name == "vector":
        return _vector(encoder(t.args[0]), t.args[0].width, t.dimension)
    if t.name in ("udt", "tuple"):
        return _fields([nullable(encoder(a)) for a in t.args])
    raise ValueError(f"the type {t} has no Avro form")


def _encode_text(text: AsText) -> Encode:
    def encode(data: bytes) -> bytes:
        try:
            return _sized(text(data).encode())
        except (struct.error, ValueError) as error:
            raise Malformed(f"a map's key: {error}") from None

    return encode


def nullable(encode: Encode) -> Callable[[bytes | None], bytes]:
    """An encoder of the union of null and a type; None is null."""

    def encode_union(data: bytes | None) -> bytes:
        return b"\0" if data is None else b"\2" + encode(data)

    return encode_union


def _element(data: bytes, at: int) -> tuple[bytes, int]:
    """An element of a collection: an int length and its bytes."""
    size = int.from_bytes(data[at : at + 4], "big", signed=True)
    at += 4
    if not 0 <= size <= len(data) - at:
        raise Malformed(f"an element of {size} bytes with {len(data) - at} left")
    return data[at : at + size], at + size


def _array(item: Encode) -> Encode:
    def encode(data: bytes) -> bytes:
        count = int.from_bytes(data[:4], "big")
        if not count:
            return b"\0"
        out = [long_bytes(count)]
        at = 4
        for _ in range(count):
            element, at = _element(data, at)
            out.append(item(element))
        out.append(b"\0")
        return b"".join(out)

    return encode


def _map(key: Encode, value: Encode) -> Encode:
    def encode(data: bytes) -> bytes:
        count = int.from_bytes(data[:4], "big")
        if not count:
            return b"\0"
        out = [long_bytes(count)]
        at = 4
        for _ in range(count):
            element, at = _element(data, at)
            out.append(key(element))
            element, at = _element(data, at)
            out.append(value(element))
        out.append(b"\0")
        return b"".join(out)

    return encode


def _vector(item: Encode, width: int, dimension: int) -> Encode:
    def encode(data: bytes) -> bytes:
        out = [long_bytes(dimension)]
        at = 0
        for _ in range(dimension):
            size = width
            if not width:
                size, at = _vint(data, at)
            if size > len(data) - at:
                raise Malformed(f"an element of {size} bytes with {len(data) - at} left")
            out.append(item(data[at : at + size]))
            at += size
        out.append(b"\0")
        return b"".join(out)

    return encode


def _fields(items: Sequence[Callable[[bytes | None], bytes]]) -> Encode:
    """A UDT or tuple: fields that an older version of the type did not have are missing at the end, and null."""

    def encode(data: bytes) -> bytes:
        out = []
        at = 0
        for item in items:
            if at >= len(data) or data[at : at + 4] == b"\xff\xff\xff\xff":
                at += 4
                out.append(item(None))
            else:
                element, at = _element(data, at)
                out.append(item(element))
        return b"".join(out)

    return encode


def decoder(t: CqlType) -> Decode:
    """A function from Avro bytes and an offset to a scalar's CQL bytes and the offset behind it: what keys need."""
    if t.name in ("ascii", "text", "blob", "varint"):
        return _take
    if t.name in ("uuid", "timeuuid"):
        return _text(lambda text: uuid.UUID(text).bytes)
    if t.name == "inet":
        return _text(lambda text: ipaddress.ip_address(text).packed)
    if t.name in ("boolean", "float", "double"):
        return _reversed(t.width)
    widths = {"tinyint": 1, "smallint": 2, "int": 4, "date": 4, "bigint": 8, "timestamp": 8, "time": 8}
    if t.name in widths:
        return _number(widths[t.name], 1 << 31 if t.name == "date" else 0)
    if t.name == "decimal":
        return _read_decimal
    raise ValueError(f"the type {t} is not supported in a primary key")


def _text(parse: Callable[[str], bytes]) -> Decode:
    def decode(data: bytes, at: int) -> tuple[bytes, int]:
        text, at = _take(data, at)
        return parse(text.decode()), at

    return decode


def _reversed(width: int) -> Decode:
    def decode(data: bytes, at: int) -> tuple[bytes, int]:
        if len(data) - at < width:
            raise Malformed(f"{len(data) - at} bytes where {width} are a value")
        return data[at : at + width][::-1], at + width

    return decode


def _number(width: int, offset: int) -> Decode:
    limit = 1 << (8 * width)

    def decode(data: bytes, at: int) -> tuple[bytes, int]:
        value, at = read_long(data, at)
        if not -(limit >> 1) <= value < limit >> 1:
            raise Malformed(f"{value} does not fit {width} bytes")
        return ((value + offset) % limit).to_bytes(width, "big"), at

    return decode


def _read_decimal(data: bytes, at: int) -> tuple[bytes, int]:
    unscaled, at = _take(data, at)
    scale, at = read_long(data, at)
    if not unscaled or not -(1 << 31) <= scale < 1 << 31:
        raise Malformed(f"a decimal of {len(unscaled)} bytes and scale {scale}")
    return struct.pack(">i", scale) + unscaled, at
