"""Scalars from CQL's bytes to Avro's: one small function for each type, and further ones for canonical forms.

All raise ValueError or struct.error for bytes that are not a value of the type.
"""

from __future__ import annotations

import struct
from collections.abc import Callable

from helenus_schemas.codec.avro_long import SHORT, long_bytes, sized_bytes
from helenus_schemas.cql.text import as_double, as_long, as_microseconds, as_text, inet
from helenus_schemas.cql.types import CqlType
from helenus_schemas.cql.values import Malformed, duration, shortest_varint, wrong_size

Encode = Callable[[bytes], bytes]
_MIN_SCALE = -(1 << 31)  # a Java int
_LONG_DECIMAL_BYTES = 256  # above this size, zeros are removed many at once: one at a time takes quadratic time


def utf8(data: bytes) -> bytes:
    """Encode text as an Avro string. Raises UnicodeDecodeError for text that is not UTF-8."""
    if not data.isascii():
        data.decode()
    # The same as `sized_bytes`, inlined: the call would be half the cost.
    size = len(data)
    return (SHORT[2 * size] if size < 0x2000 else long_bytes(size)) + data


def string(text: Callable[[bytes], str]) -> Encode:
    """Return an encoder of a value's text."""
    return lambda data: sized_bytes(text(data).encode())


def _number(width: int, code: str, offset: int = 0) -> Encode:
    unpack = struct.Struct(f">{code}").unpack

    def encode(data: bytes) -> bytes:
        if len(data) != width:
            raise wrong_size(data, width)
        value = unpack(data)[0] - offset
        # The same as `long_bytes`, inlined: the call would be half the cost.
        zigzagged = (value << 1) ^ (value >> 63)
        return SHORT[zigzagged] if zigzagged < 0x4000 else long_bytes(value)

    return encode


def _reversed(width: int) -> Encode:
    def encode(data: bytes) -> bytes:
        if len(data) != width:
            raise wrong_size(data, width)
        return data[::-1]

    return encode


def _boolean(data: bytes) -> bytes:
    if len(data) != 1:
        raise wrong_size(data, 1)
    return b"\1" if data != b"\0" else b"\0"


def exact_boolean(data: bytes) -> bytes:
    """Encode a boolean that is the byte 0 or 1. Raises Malformed for any other."""
    if data not in (b"\0", b"\1"):
        raise Malformed(f"a boolean of the bytes {data.hex()} where 00 and 01 are exact")
    return data


def _inet(data: bytes) -> bytes:
    if len(data) not in (4, 16):
        raise Malformed(f"an inet of {len(data)} bytes")
    return sized_bytes(inet(data).encode())


def _uuid(data: bytes) -> bytes:
    if len(data) != 16:
        raise wrong_size(data, 16)
    text = data.hex()
    # "H" is the Avro length of 36 characters.
    return f"H{text[:8]}-{text[8:12]}-{text[12:16]}-{text[16:20]}-{text[20:]}".encode()


def _varint(data: bytes) -> bytes:
    if not data:
        raise Malformed("a varint of no bytes")
    return sized_bytes(data)


def _decimal(data: bytes) -> bytes:
    if len(data) < 5:
        raise Malformed(f"a decimal of {len(data)} bytes")
    return sized_bytes(data[4:]) + long_bytes(int.from_bytes(data[:4], "big", signed=True))


def _canonical_float(width: int, infinity: int) -> Encode:
    """Return an encoder of a float: every NaN becomes the one that Java writes."""
    encode = _reversed(width)
    sign, nan = 1 << (8 * width - 1), (infinity + (infinity & -infinity) // 2).to_bytes(width, "big")

    def encode_canonical(data: bytes) -> bytes:
        return encode(nan if len(data) == width and int.from_bytes(data, "big") & ~sign > infinity else data)

    return encode_canonical


def _canonical_decimal(data: bytes) -> bytes:
    """Encode a decimal without trailing zeros: equal decimals get the same bytes."""
    if len(data) < 5:
        raise Malformed(f"a decimal of {len(data)} bytes")
    scale, unscaled = int.from_bytes(data[:4], "big", signed=True), int.from_bytes(data[4:], "big", signed=True)
    if not unscaled:
        return b"\2\0\0"
    if len(data) > _LONG_DECIMAL_BYTES:
        unscaled, zeros = without_zeros(unscaled, scale - _MIN_SCALE)
        scale -= zeros
    while scale > _MIN_SCALE and not unscaled % 10:
        unscaled //= 10
        scale -= 1
    # The fewest bytes that hold it and its sign.
    size = (unscaled + (unscaled < 0)).bit_length() // 8 + 1
    return sized_bytes(unscaled.to_bytes(size, "big", signed=True)) + long_bytes(scale)


def without_zeros(value: int, max_zeros: int, power: int = 10, size: int = 1) -> tuple[int, int]:
    """Return the number without its trailing zeros, and how many were removed: `max_zeros` at most.

    It removes `size` zeros at once, by division by `power`, 10 to the `size`; then twice as many as long as that works.
    """
    quotient, remainder = divmod(value, power)
    if remainder or size > max_zeros:
        return value, 0
    quotient, zeros = without_zeros(quotient, max_zeros - size, power * power, 2 * size)
    zeros += size
    # After removing pairs of `size` zeros, at most one more `size` is left.
    shorter, remainder = divmod(quotient, power)
    return (quotient, zeros) if remainder or zeros + size > max_zeros else (shorter, zeros + size)


def shown_as(t: CqlType) -> Encode:
    """Return the encoder of a decimal, varint or time in the form that its type's `shown_as` names."""
    if t.shown_as == "microseconds":
        return lambda data: long_bytes(as_microseconds(data))
    text = as_text(t)
    assert text is not None
    if t.shown_as == "string":
        return string(text)
    if t.shown_as == "long":
        return lambda data: long_bytes(as_long(data))
    return lambda data: struct.pack("<d", as_double(data))


def _duration(data: bytes) -> bytes:
    return b"".join([long_bytes(part) for part in duration(data)])


SCALARS: dict[str, Encode] = {
    "ascii": sized_bytes,
    "text": sized_bytes,
    "blob": sized_bytes,
    "varint": _varint,
    "inet": _inet,
    "boolean": _boolean,
    "tinyint": _number(1, "b"),
    "smallint": _number(2, "h"),
    "int": _number(4, "i"),
    "bigint": _number(8, "q"),
    "counter": _number(8, "q"),
    "timestamp": _number(8, "q"),
    "time": _number(8, "q"),
    "date": _number(4, "I", 1 << 31),
    "float": _reversed(4),
    "double": _reversed(8),
    "uuid": _uuid,
    "timeuuid": _uuid,
    "decimal": _decimal,
    "duration": _duration,
}
CANONICAL_SCALARS: dict[str, Encode] = {
    "decimal": _canonical_decimal,
    "varint": lambda data: sized_bytes(shortest_varint(data)),
    "float": _canonical_float(4, 0x7F80_0000),
    "double": _canonical_float(8, 0x7FF0_0000_0000_0000),
}
"""Encoders of types whose values have several byte forms that Cassandra compares as equal: each gives all equal values
the same bytes. A boolean has several forms too, and its usual encoder already unites them."""
