"""Avro's int and long: zigzag, seven bits a byte, the low ones first. And bytes and strings, after their length."""

from __future__ import annotations

from functools import lru_cache

from helenus_schemas.cql.values import Malformed

SHORT = tuple(bytes((v,)) if v < 0x80 else bytes((v & 0x7F | 0x80, v >> 7)) for v in range(0x4000))
"""The Avro longs of one or two bytes, by their zigzag form: also the last bytes of longer ones."""
_PAIRS = tuple(bytes((v & 0x7F | 0x80, v >> 7 | 0x80)) for v in range(0x4000))
_PAIR_VALUES = {pair: value for value, pair in enumerate(_PAIRS)}


def long_bytes(value: int) -> bytes:
    """Encode a number as an Avro int or long."""
    zigzagged = (value << 1) ^ (value >> 63)
    if zigzagged < 0x4000:
        return SHORT[zigzagged]
    encoded = b""
    while zigzagged > 0x3FFF:
        encoded += _PAIRS[zigzagged & 0x3FFF]
        zigzagged >>= 14
    return encoded + SHORT[zigzagged]


def sized_bytes(data: bytes) -> bytes:
    """Return bytes after their length, as Avro writes `bytes` and `string`."""
    size = len(data)
    return (SHORT[2 * size] if size < 0x2000 else long_bytes(size)) + data


def read_long(data: bytes, offset: int) -> tuple[int, int]:
    """Read an Avro int or long; return it and the offset after it. Raises IndexError at the end of data."""
    byte = data[offset]
    offset += 1
    if byte < 0x80:
        return (byte >> 1) ^ -(byte & 1), offset
    value = byte & 0x7F
    byte = data[offset]
    offset += 1
    value |= (byte & 0x7F) << 7
    shift = 14
    while byte & 0x80:
        if shift > 63:
            raise Malformed("an Avro long of more than 10 bytes")
        byte = data[offset]
        offset += 1
        value |= (byte & 0x7F) << shift
        shift += 7
    if value >> 64:
        raise Malformed("an Avro long of more than 64 bits")
    return (value >> 1) ^ -(value & 1), offset


def whole_long(data: bytes) -> int:
    """Read the Avro int or long that these bytes are, no more and no less: for times, a third of what `read_long`
    costs.
    """
    if len(data) < 6:
        return read_long(data, 0)[0]
    value = _PAIR_VALUES[data[:2]] | _PAIR_VALUES[data[2:4]] << 14 | _high(data[4:])
    return (value >> 1) ^ -(value & 1)


@lru_cache(1024)
def _high(data: bytes) -> int:
    """Return the bits from the 28th on. Cached: they are the same for all times of two minutes."""
    value = 0
    for index, byte in enumerate(data):
        value |= (byte & 0x7F) << 28 + 7 * index
    if value >> 64:
        raise Malformed("an Avro long of more than 64 bits")
    return value
