"""From CQL's bytes to JSON text, without building values in between: the JSON forms of a record, and keys of maps.

Numbers stand for what Avro has as numbers: a date is days, a timestamp ms, both since 1970-01-01, a time ns of its day.
uuid and inet are text, blob and varint base64, a decimal `{"bigint":base64,"scale":n}`, a duration its three parts.
Tuples and UDTs are objects without their null fields, maps are objects too. Numbers that JSON does not have are text:
"NaN", "Infinity", "-Infinity". A value of no bytes is null, as in the Avro of data records, unless its type has it.

In the form of a `key`, different keys have different text: a varint of no bytes is "", and in text that is not UTF-8
each illegal byte is a lone surrogate, `\\udc80` to `\\udcff`. Elsewhere such text is refused, and so is a map with
different keys that have the same text.
"""

from __future__ import annotations

import struct
from base64 import b64encode
from collections.abc import Callable, Sequence
from json.encoder import encode_basestring, encode_basestring_ascii
from typing import TypeVar

from helenus_schemas.codec import _datastax_key
from helenus_schemas.cql.text import as_double, as_long, as_microseconds, as_text, float_text, inet, spelled
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
    wrong_size,
)

Encode = Callable[[bytes], str]
T = TypeVar("T", str, bytes)


def map_key(t: CqlType, key: bool = False) -> Encode:
    """Return a function from a map key's CQL bytes to its text: a scalar's text form, of other types their JSON.

    Raises ValueError for a type that has neither; the function raises Malformed.
    """
    form = as_text(t) or encoder(t, key)
    empty_too = key and t.name == "varint"

    def encode(data: bytes) -> str:
        try:
            return "" if empty_too and not data else form(data)
        except (struct.error, ValueError) as error:
            raise Malformed(f"a map's key: {error}") from None

    return encode


def distinct(data: bytes, key: Callable[[bytes], T], value: Callable[[bytes], T]) -> dict[T, T]:
    """Return a map's entries, encoded. Raises Malformed for different keys that have the same text."""
    parts = entries(data)
    encoded = {key(k): value(v) for k, v in parts}
    if len(encoded) < len(parts):
        raise Malformed("keys of a map that are one as text")
    return encoded


def encoder(t: CqlType, key: bool = False) -> Encode:
    """Return a function from a value's CQL bytes to JSON; it raises ValueError or struct.error on bytes that are not a
    value.

    Raises ValueError for a type without JSON form.
    """
    if t.shown_as:
        return _shown_as(t)
    if key and t.name in _IN_KEYS:
        return _IN_KEYS[t.name]
    if t.name in _SCALARS:
        return _SCALARS[t.name]
    if t.name in ("list", "set"):
        return _array(encoder(t.args[0], key), elements)
    if t.name == "vector":
        width, dimension = t.args[0].width, t.dimension
        return _array(encoder(t.args[0], key), lambda data: vector(data, width, dimension))
    if t.name == "map":
        return _map(t.args[0], encoder(t.args[1], key), key)
    if t.name == "tuple":
        return _record([f"index_{i}" for i in range(len(t.args))], t.args, key)
    if t.name == "udt":
        return _record(t.fields, t.args, key)
    raise ValueError(f"the type {t} has no JSON form")


def objects(
    names: Sequence[str], types: Sequence[CqlType], nulls: bool = True, keys: int = 0, datastax: bool = False
) -> Callable[[Sequence[bytes | None]], str]:
    """Return a function as `encoder`, for values of several types: to an object of them, with its nulls or without.

    None is null; so is a value of no bytes, unless its type has it. The first `keys` columns are in the form of a key;
    `datastax`: in DataStax's form of keys.
    """
    members = [
        (
            f"{encode_basestring(name)}:",
            _datastax(t) if datastax else encoder(t, i < keys),
            t.name in (MAY_BE_EMPTY if i < keys else EMPTY_IS_A_VALUE),
        )
        for i, (name, t) in enumerate(zip(names, types, strict=True))
    ]

    def encode(values: Sequence[bytes | None]) -> str:
        parts = [
            name + item(data) if data or (empty and data is not None) else f"{name}null" if nulls else ""
            for (name, item, empty), data in zip(members, values, strict=True)
        ]
        return f"{{{','.join(parts if nulls else filter(None, parts))}}}"

    return encode


def _datastax(t: CqlType) -> Encode:
    return _datastax_key.json_encoder(t) or encoder(t, key=True)


def _shown_as(t: CqlType) -> Encode:
    """Return the encoder of a decimal, varint or time in the form that its type's `shown_as` names."""
    if t.shown_as == "microseconds":
        return lambda data: str(as_microseconds(data))
    text = as_text(t)
    assert text is not None
    if t.shown_as == "double":
        return lambda data: _quoted(spelled(as_double(data)))
    return (lambda data: f'"{text(data)}"') if t.shown_as == "string" else lambda data: str(as_long(data))


def _string(data: bytes) -> str:
    return encode_basestring(data.decode())


def _any_string(data: bytes) -> str:
    try:
        return encode_basestring(data.decode())
    except UnicodeDecodeError:
        return encode_basestring_ascii(data.decode("utf-8", "surrogateescape"))


def _number(code: str, offset: int = 0) -> Encode:
    unpack = struct.Struct(f">{code}").unpack
    return lambda data: str(unpack(data)[0] - offset)


def _double(data: bytes) -> str:
    return _quoted(spelled(struct.unpack(">d", data)[0]))


def _float(data: bytes) -> str:
    return _quoted(float_text(data))


def _quoted(number: str) -> str:
    """Quote NaN and infinite numbers, which JSON does not have."""
    return number if number[-1].isdigit() else f'"{number}"'


def _uuid(data: bytes) -> str:
    if len(data) != 16:
        raise wrong_size(data, 16)
    text = data.hex()
    return f'"{text[:8]}-{text[8:12]}-{text[12:16]}-{text[16:20]}-{text[20:]}"'


def _base64(data: bytes) -> str:
    return f'"{b64encode(data).decode()}"'


def _varint(data: bytes) -> str:
    if not data:
        raise Malformed("a varint of no bytes")
    return _base64(data)


def _decimal(data: bytes) -> str:
    if len(data) < 5:
        raise Malformed(f"a decimal of {len(data)} bytes")
    return f'{{"bigint":{_base64(data[4:])},"scale":{int.from_bytes(data[:4], "big", signed=True)}}}'


def _duration(data: bytes) -> str:
    months, days, nanoseconds = duration(data)
    return f'{{"months":{months},"days":{days},"nanoseconds":{nanoseconds}}}'


def _boolean(data: bytes) -> str:
    if len(data) != 1:
        raise wrong_size(data, 1)
    return "true" if data != b"\0" else "false"


_SCALARS: dict[str, Encode] = {
    "ascii": _string,
    "text": _string,
    "blob": _base64,
    "varint": _varint,
    "inet": lambda data: f'"{inet(data)}"',
    "boolean": _boolean,
    "tinyint": _number("b"),
    "smallint": _number("h"),
    "int": _number("i"),
    "bigint": _number("q"),
    "counter": _number("q"),
    "timestamp": _number("q"),
    "time": _number("q"),
    "date": _number("I", 1 << 31),
    "float": _float,
    "double": _double,
    "uuid": _uuid,
    "timeuuid": _uuid,
    "decimal": _decimal,
    "duration": _duration,
}
_IN_KEYS: dict[str, Encode] = {"ascii": _any_string, "text": _any_string, "varint": _base64}


def _array(item: Encode, parts_of: Callable[[bytes], list[bytes]]) -> Encode:
    return lambda data: f"[{','.join([item(part) for part in parts_of(data)])}]"


def _map(t: CqlType, value: Encode, key: bool) -> Encode:
    text = map_key(t, key)
    name = encoder(t, key) if t.name in ("ascii", "text") else lambda data: encode_basestring(text(data))
    # In the form of a key, two keys with the same text are both written: they distinguish two rows.
    if key or t.name in ("ascii", "text"):
        return lambda data: f"{{{','.join([f'{name(k)}:{value(v)}' for k, v in entries(data)])}}}"

    def encode(data: bytes) -> str:
        parts = distinct(data, name, value)
        return f"{{{','.join([f'{k}:{v}' for k, v in parts.items()])}}}"

    return encode


def _record(names: Sequence[str], types: Sequence[CqlType], key: bool) -> Encode:
    encode = objects(names, types, nulls=False, keys=len(types) if key else 0)
    field_count = len(types)

    def encode_record(data: bytes) -> str:
        parts = fields(data, field_count)
        return encode(parts + [None] * (field_count - len(parts)))

    return encode_record
