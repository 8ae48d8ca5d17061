"""From CQL's bytes to Avro's, without building values in between.

A CQL value travels as the same bytes in commit-log cells, native-protocol rows and bound parameters, so one compiler of
small functions serves the agent's keys and the connector's rows, and no value is squeezed through a Python type that
cannot hold it. Sources: Cassandra's native protocol v4/v5 section 6 (CQL), Avro 1.11 binary encoding (Avro).

There are two forms of a value. The *exact* one (`encoder`) is a key's: it is read back (`from_avro`) to the same bytes,
so what has no exact form is refused. The one of data records (`plain`, `optionals`) shows a value as sinks take it:
text keys in every map, null for a value of no bytes of a type that has none, which CQL allows, and no text that is no
UTF-8, which Cassandra takes and many readers do not. The exact form has such text as it is, and so has a column of the
`key` where data records show that among their values.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple

from helenus_schemas.codec.to_json import distinct, map_key
from helenus_schemas.cql.text import as_double, as_long, as_microseconds, as_text, inet
from helenus_schemas.cql.types import CqlType
from helenus_schemas.cql.values import (
    EMPTY_IS_A_VALUE,
    MAY_BE_EMPTY,
    Malformed,
    duration,
    elements,
    entries,
    fields,
    vector,
)

Encode = Callable[[bytes], bytes]
Optional = Callable[["bytes | None"], bytes]

_LOWEST_SCALE = -(1 << 31)
_MANY_BYTES = 256

# Avro longs by two bytes: the last one or two, by their zigzag form, and pairs that go on.
_LAST = tuple(bytes((v,)) if v < 0x80 else bytes((v & 0x7F | 0x80, v >> 7)) for v in range(0x4000))
_PAIRS = tuple(bytes((v & 0x7F | 0x80, v >> 7 | 0x80)) for v in range(0x4000))


def long_bytes(value: int) -> bytes:
    """An Avro int or long: zigzag, seven bits a byte, low ones first."""
    rest = (value << 1) ^ (value >> 63)
    if rest < 0x4000:
        return _LAST[rest]
    out = b""
    while rest > 0x3FFF:
        out += _PAIRS[rest & 0x3FFF]
        rest >>= 14
    return out + _LAST[rest]


def read_long(data: bytes, at: int) -> tuple[int, int]:
    """Read an Avro int or long; returns it and the offset behind it. Raises IndexError at the end of data."""
    byte = data[at]
    at += 1
    if byte < 0x80:
        return (byte >> 1) ^ -(byte & 1), at
    value = byte & 0x7F
    shift = 7
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


def _sized(data: bytes) -> bytes:
    size = len(data)
    return (_LAST[2 * size] if size < 0x2000 else long_bytes(size)) + data


def _utf8(data: bytes) -> bytes:
    if not data.isascii():
        data.decode()
    # As _sized: a call is half the cost.
    size = len(data)
    return (_LAST[2 * size] if size < 0x2000 else long_bytes(size)) + data


def _number(width: int, code: str, offset: int = 0) -> Encode:
    unpack = struct.Struct(f">{code}").unpack

    def encode(data: bytes) -> bytes:
        if len(data) != width:
            raise _not(width, data)
        value = unpack(data)[0] - offset
        # As long_bytes: a call is half the cost.
        rest = (value << 1) ^ (value >> 63)
        return _LAST[rest] if rest < 0x4000 else long_bytes(value)

    return encode


def _reversed(width: int) -> Encode:
    def encode(data: bytes) -> bytes:
        if len(data) != width:
            raise _not(width, data)
        return data[::-1]

    return encode


def _boolean(data: bytes) -> bytes:
    if len(data) != 1:
        raise _not(1, data)
    return b"\1" if data != b"\0" else b"\0"


def _exact_boolean(data: bytes) -> bytes:
    if data not in (b"\0", b"\1"):
        raise Malformed(f"a boolean of the bytes {data.hex()} where 00 and 01 are exact")
    return data


def _not(width: int, data: bytes) -> Malformed:
    return Malformed(f"{len(data)} bytes where {width} are a value")


def _inet(data: bytes) -> bytes:
    if len(data) not in (4, 16):
        raise Malformed(f"an inet of {len(data)} bytes")
    return _sized(inet(data).encode())


def _uuid(data: bytes) -> bytes:
    if len(data) != 16:
        raise _not(16, data)
    text = data.hex()
    # "H" is the Avro length of 36 characters.
    return f"H{text[:8]}-{text[8:12]}-{text[12:16]}-{text[16:20]}-{text[20:]}".encode()


def _varint(data: bytes) -> bytes:
    if not data:
        raise Malformed("a varint of no bytes")
    return _sized(data)


def _decimal(data: bytes) -> bytes:
    if len(data) < 5:
        raise Malformed(f"a decimal of {len(data)} bytes")
    return _sized(data[4:]) + long_bytes(int.from_bytes(data[:4], "big", signed=True))


def _least(data: bytes) -> bytes:
    """A varint in the fewest bytes that hold it and its sign; no bytes stay none."""
    start = 0
    while start < len(data) - 1 and data[start] == (0xFF if data[start + 1] & 0x80 else 0):
        start += 1
    return _sized(data[start:])


def _one_nan(width: int, infinity: int) -> Encode:
    """A float whose NaNs are one, the one that Java writes."""
    encode = _reversed(width)
    sign, nan = 1 << (8 * width - 1), (infinity + (infinity & -infinity) // 2).to_bytes(width, "big")

    def encode_one(data: bytes) -> bytes:
        return encode(nan if len(data) == width and int.from_bytes(data, "big") & ~sign > infinity else data)

    return encode_one


def _stripped(data: bytes) -> bytes:
    """A decimal without zeros at its end: one of the forms of a number, the same for all."""
    if len(data) < 5:
        raise Malformed(f"a decimal of {len(data)} bytes")
    scale, unscaled = int.from_bytes(data[:4], "big", signed=True), int.from_bytes(data[4:], "big", signed=True)
    if not unscaled:
        return b"\2\0\0"
    if len(data) > _MANY_BYTES:
        unscaled, zeros = _without_zeros(unscaled, scale - _LOWEST_SCALE)
        scale -= zeros
    while scale > _LOWEST_SCALE and not unscaled % 10:
        unscaled //= 10
        scale -= 1
    # The fewest bytes that hold it and its sign.
    size = (unscaled + (unscaled < 0)).bit_length() // 8 + 1
    return _sized(unscaled.to_bytes(size, "big", signed=True)) + long_bytes(scale)


def _without_zeros(value: int, most: int, power: int = 10, size: int = 1) -> tuple[int, int]:
    """The number without zeros at its end, and how many those were, `most` at most: it takes them away `size` at once,
    the `power` of 10 of so many, and twice as many where that goes.
    """
    rest, more = divmod(value, power)
    if more or size > most:
        return value, 0
    rest, zeros = _without_zeros(rest, most - size, power * power, 2 * size)
    zeros += size
    # What twice as many left has so many once, if at all.
    last, more = divmod(rest, power)
    return (rest, zeros) if more or zeros + size > most else (last, zeros + size)


def _told(t: CqlType) -> Encode:
    """A decimal, varint or time in the form that was asked for."""
    if t.shown_as == "microseconds":
        return lambda data: long_bytes(as_microseconds(data))
    text = as_text(t)
    assert text is not None
    if t.shown_as == "string":
        return _text(text)
    if t.shown_as == "long":
        return lambda data: long_bytes(as_long(data))
    return lambda data: struct.pack("<d", as_double(data))


def _duration(data: bytes) -> bytes:
    return b"".join([long_bytes(part) for part in duration(data)])


_SCALARS: dict[str, Encode] = {
    "ascii": _sized,
    "text": _sized,
    "blob": _sized,
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
_ONE_FORM: dict[str, Encode] = {
    "decimal": _stripped,
    "varint": _least,
    "float": _one_nan(4, 0x7F80_0000),
    "double": _one_nan(8, 0x7FF0_0000_0000_0000),
}
"""Clustering values of types that have several forms of what Cassandra's comparison holds for equal, as boolean has."""


def encoder(t: CqlType, clustering: bool = False) -> Encode:
    """A function from a value's CQL bytes to its exact Avro bytes; it raises ValueError on bytes that have none.

    Values that Cassandra's comparison holds for equal are one `clustering` key, and told alike: decimals of different
    scale, varints with bytes that add nothing, NaNs, booleans other than 0, a tuple with fewer fields than its type and
    the one with nulls for them. In a partition key they are two, and such a tuple has no exact form, nor has a boolean
    other than 0 and 1. Raises ValueError for a type without Avro form.
    """
    if clustering:
        return _encoder(t, _CLUSTERING)
    # A key's varint of no bytes comes back as it was: Avro's bytes are the same.
    return _sized if t.name == "varint" else _encoder(t, _PARTITION)


def plain(t: CqlType, key: bool = False) -> Encode:
    """A function from CQL bytes to Avro bytes as data records show them, of columns of a `key` or others; raises as
    `encoder`'s does.
    """
    return _encoder(t, _KEY_SHOWN if key else _SHOWN)


def optionals(types: Sequence[CqlType], key: bool = False) -> Callable[[Sequence[bytes | None]], bytes]:
    """As `plain`, for values of several types: each goes to the union of null and its type.

    None is null; so are no bytes, unless they are a value of their type.
    """
    empty_ones = MAY_BE_EMPTY if key else EMPTY_IS_A_VALUE
    items = [(plain(t, key), t.name in empty_ones) for t in types]

    def encode(values: Sequence[bytes | None]) -> bytes:
        return b"".join(
            [
                b"\2" + item(data) if data or (empty and data is not None) else b"\0"
                for (item, empty), data in zip(items, values, strict=True)
            ]
        )

    return encode


def nullable(encode: Encode) -> Optional:
    """An encoder of the union of null and a type; None alone is null."""

    def encode_union(data: bytes | None) -> bytes:
        return b"\0" if data is None else b"\2" + encode(data)

    return encode_union


_Exact = Callable[[list["bytes | None"], int], "list[bytes | None]"]
"""What an exact form makes of the fields of a tuple of a type with so many."""


def _whole(parts: list[bytes | None], most: int) -> list[bytes | None]:
    if len(parts) != most:
        raise Malformed(f"a tuple of {len(parts)} fields where {most} are exact")
    return parts


def _padded(parts: list[bytes | None], most: int) -> list[bytes | None]:
    return _whole(parts + [None] * (most - len(parts)), most)


class _Form(NamedTuple):
    """How values go to Avro: `own` encoders of scalars, where they are not those of `_SCALARS`.

    `exact`: what becomes of a tuple's fields, None where values are shown. `key`: they are of a column of the key.
    """

    own: Mapping[str, Encode]
    exact: _Exact | None = None
    key: bool = True


_PARTITION = _Form({"boolean": _exact_boolean}, _whole)
_CLUSTERING = _Form(_ONE_FORM, _padded)
_SHOWN = _Form({"ascii": _utf8, "text": _utf8}, key=False)
_KEY_SHOWN = _Form({"varint": _sized})


def _encoder(t: CqlType, form: _Form) -> Encode:
    if t.shown_as:
        return _told(t)
    if t.name in _SCALARS:
        return form.own.get(t.name, _SCALARS[t.name])
    if t.name in ("list", "set"):
        return _array(_encoder(t.args[0], form), elements)
    if t.name == "vector":
        width, dimension = t.args[0].width, t.dimension
        return _array(_encoder(t.args[0], form), lambda data: vector(data, width, dimension))
    if t.name == "map":
        # Avro's map has text for keys; an exact one of another kind is an array of records, bytes for bytes the same.
        key = t.args[0]
        text = form.exact is None and key.name not in ("ascii", "text")
        told = _text(map_key(key, form.key)) if text else _encoder(key, form)
        return (_distinct_map if text and not form.key else _map)(told, _encoder(t.args[1], form))
    if t.name in ("udt", "tuple"):
        if form.exact is None:
            return _record(t.args, form.key)
        return _exact_record([nullable(_encoder(a, form)) for a in t.args], form.exact)
    raise ValueError(f"the type {t} has no Avro form")


def _text(tell: Callable[[bytes], str]) -> Encode:
    return lambda data: _sized(tell(data).encode())


def _array(item: Encode, parts_of: Callable[[bytes], list[bytes]]) -> Encode:
    def encode(data: bytes) -> bytes:
        parts = parts_of(data)
        if not parts:
            return b"\0"
        return b"".join([long_bytes(len(parts)), *map(item, parts), b"\0"])

    return encode


def _map(key: Encode, value: Encode) -> Encode:
    def encode(data: bytes) -> bytes:
        parts = entries(data)
        if not parts:
            return b"\0"
        return b"".join([long_bytes(len(parts)), *[key(k) + value(v) for k, v in parts], b"\0"])

    return encode


def _distinct_map(key: Encode, value: Encode) -> Encode:
    def encode(data: bytes) -> bytes:
        parts = distinct(data, key, value)
        if not parts:
            return b"\0"
        return b"".join([long_bytes(len(parts)), *[k + v for k, v in parts.items()], b"\0"])

    return encode


def _record(types: Sequence[CqlType], key: bool) -> Encode:
    """A UDT or tuple: fields that an older version of the type did not have are missing at the end, and null."""
    encode = optionals(types, key)
    most = len(types)

    def encode_record(data: bytes) -> bytes:
        parts = fields(data, most)
        return encode(parts + [None] * (most - len(parts)))

    return encode_record


def _exact_record(items: Sequence[Optional], exact: _Exact) -> Encode:
    most = len(items)

    def encode(data: bytes) -> bytes:
        # One more than the type has, to see that there are no more.
        parts = exact(fields(data, most + 1), most)
        return b"".join([item(part) for item, part in zip(items, parts, strict=True)])

    return encode
