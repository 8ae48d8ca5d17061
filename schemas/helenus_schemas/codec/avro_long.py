"""Avro's int and long: zigzag, seven bits a byte, the low ones first."""

from __future__ import annotations

from functools import lru_cache

from helenus_schemas.cql.values import Malformed

SHORT = tuple(bytes((v,)) if v < 0x80 else bytes((v & 0x7F | 0x80, v >> 7)) for v in range(0x4000))
"""The Avro longs of one or two bytes, by their zigzag form: also the last bytes of longer ones."""
_PAIRS = tuple(bytes((v & 0x7F | 0x80, v >> 7 | 0x80)) for v in range(0x4000))
_OF_PAIR = {pair: value for value, pair in enumerate(_PAIRS)}


def long_bytes(value: int) -> bytes:
    """A number as an Avro int or long."""
    rest = (value << 1) ^ (value >> 63)
    if rest < 0x4000:
        return SHORT[rest]
    out = b""
    while rest > 0x3FFF:
        out += _PAIRS[rest & 0x3FFF]
        rest >>= 14
    return out + SHORT[rest]


def read_long(data: bytes, at: int) -> tuple[int, int]:
    """Read an Avro int or long; returns it and the offset after it. Raises IndexError at the end of data."""
    byte = data[at]
    at += 1
    if byte < 0x80:
        return (byte >> 1) ^ -(byte & 1), at
    value = byte & 0x7F
    byte = data[at]
    at += 1
    value |= (byte & 0x7F) << 7
    shift = 14
    while byte & 0x80:
        if shift > 63:
            raise Malformed("an Avro long of more than 10 bytes")
        byte = data[at]
        at += 1
        value |= (byte & 0x7F) << shift
        shift += 7
    if value >> 64:
        raise Malformed("an Avro long of more than 64 bits")
    return (value >> 1) ^ -(value & 1), at


def whole_long(data: bytes) -> int:
    """The Avro int or long that these bytes are, no more and no less: for times, a third of what `read_long` costs."""
    if len(data) < 6:
        return read_long(data, 0)[0]
    value = _OF_PAIR[data[:2]] | _OF_PAIR[data[2:4]] << 14 | _high(data[4:])
    return (value >> 1) ^ -(value & 1)


@lru_cache(1024)
def _high(data: bytes) -> int:
    """The bits from the 28th on. Cached: they are the same for all times of two minutes."""
    value = 0
    for at, byte in enumerate(data):
        value |= (byte & 0x7F) << 28 + 7 * at
    if value >> 64:
        raise Malformed("an Avro long of more than 64 bits")
    return value
