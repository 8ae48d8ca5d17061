"""From the JSON of a key back to its CQL bytes, as `to_json` writes it in the form of a key."""

from __future__ import annotations

import ipaddress
import json
import re
import struct
import uuid
from base64 import b64decode
from collections.abc import Callable, Mapping, Sequence
from datetime import date
from decimal import Decimal
from typing import Any

from helenus_schemas.cql.types import CqlType
from helenus_schemas.cql.values import Malformed, collection_bytes, part_bytes, vint_bytes

Decode = Callable[[Any], bytes]
"""From a parsed JSON value, whose objects are `Pairs`. Raises ValueError, or what Python raises for another value."""
_BAD_VALUES = (ValueError, TypeError, LookupError, ArithmeticError, struct.error, AttributeError)
_TIMESTAMP = re.compile(r"([+-]?\d{4,}-\d\d-\d\d)T(\d\d):(\d\d):(\d\d)\.(\d{3})Z")
_TIME = re.compile(r"(\d\d):(\d\d):(\d\d)\.(\d{9})")
_DAYS_OF_400_YEARS = 146_097


class Pairs(list[tuple[str, Any]]):
    """The members of a JSON object, in order; a map in a key may have two with the same name."""


def objects(names: Sequence[str], types: Sequence[CqlType]) -> Callable[[bytes], list[bytes | None]]:
    """Return a function from a JSON object with these members, all of them, to their CQL bytes; None for null.

    The function raises Malformed for other JSON.
    """
    decoders = [decoder(t) for t in types]

    def decode(text: bytes) -> list[bytes | None]:
        try:
            members = json.loads(text, object_pairs_hook=Pairs)
            if not isinstance(members, Pairs) or [name for name, _ in members] != list(names):
                raise Malformed(f"not an object of {', '.join(names)}")
            return [
                None if v is None else decode_column(v) for decode_column, (_, v) in zip(decoders, members, strict=True)
            ]
        except Malformed:
            raise
        except (*_BAD_VALUES, RecursionError) as error:
            raise Malformed(f"not an object of {', '.join(names)}: {error}") from None

    return decode


def decoder(t: CqlType) -> Decode:
    """Return a function from a value's JSON to its CQL bytes. Raises ValueError for a type that no key can have."""
    if t.name in _SCALARS:
        return _SCALARS[t.name]
    if t.name in ("list", "set"):
        item = decoder(t.args[0])
        return lambda value: collection_bytes(len(value), [item(part) for part in value])
    if t.name == "vector":
        item, width = decoder(t.args[0]), t.args[0].width
        return lambda value: b"".join(p if width else vint_bytes(len(p)) + p for p in map(item, value))
    if t.name == "map":
        return _map(t)
    if t.name in ("tuple", "udt"):
        names = t.fields if t.name == "udt" else tuple(f"index_{i}" for i in range(len(t.args)))
        return _record(names, [decoder(a) for a in t.args])
    raise ValueError(f"the type {t} is not supported in a primary key")


def _map(t: CqlType) -> Decode:
    key, value = _text_decoder(t.args[0]), decoder(t.args[1])

    def decode(pairs: Pairs) -> bytes:
        return collection_bytes(len(pairs), [part for k, v in pairs for part in (key(k), value(v))])

    return decode


def _text_decoder(t: CqlType) -> Callable[[str], bytes]:
    """Return a function from a map key's text to its CQL bytes."""
    if t.name in ("ascii", "text", "uuid", "timeuuid", "inet", "float", "double"):
        return decoder(t)
    if t.name in _FROM_TEXT:
        return _FROM_TEXT[t.name]
    decode_json = decoder(t)
    return lambda text: decode_json(json.loads(text, object_pairs_hook=Pairs))


def _record(names: Sequence[str], parts: Sequence[Decode]) -> Decode:
    def decode(pairs: Pairs) -> bytes:
        members: Mapping[str, Any] = dict(pairs)
        if members.keys() - set(names):
            raise Malformed(f"not an object of {', '.join(names)}")
        encoded = []
        for name, decode_field in zip(names, parts, strict=True):
            value = decode_field(members[name]) if members.get(name) is not None else None
            encoded.append(part_bytes(value))
        return b"".join(encoded)

    return decode


def _number(code: str, offset: int = 0) -> Decode:
    pack = struct.Struct(f">{code}").pack

    def decode(value: Any) -> bytes:
        if type(value) is not int:
            raise Malformed(f"{value!r} where a number is expected")
        return pack(value + offset)

    return decode


def _float(code: str) -> Decode:
    pack = struct.Struct(f">{code}").pack
    return lambda value: pack(float(value))


def _boolean(value: Any) -> bytes:
    if value not in (True, False):
        raise Malformed(f"{value!r} where a boolean is expected")
    return b"\1" if value else b"\0"


def _base64(value: str) -> bytes:
    return b64decode(value, validate=True)


def _decimal(value: Pairs) -> bytes:
    parts = dict(value)
    return struct.pack(">i", parts["scale"]) + _base64(parts["bigint"])


_SCALARS: dict[str, Decode] = {
    **dict.fromkeys(("ascii", "text"), lambda value: value.encode("utf-8", "surrogateescape")),
    **dict.fromkeys(("blob", "varint"), _base64),
    **dict.fromkeys(("uuid", "timeuuid"), lambda value: uuid.UUID(value).bytes),
    **dict.fromkeys(("bigint", "counter", "timestamp", "time"), _number("q")),
    "tinyint": _number("b"),
    "smallint": _number("h"),
    "int": _number("i"),
    "date": _number("I", 1 << 31),
    "float": _float("f"),
    "double": _float("d"),
    "boolean": _boolean,
    "inet": lambda value: ipaddress.ip_address(value).packed,
    "decimal": _decimal,
}


def _shortest_varint(value: int) -> bytes:
    """Return a varint in the fewest bytes."""
    return value.to_bytes((value + (value < 0)).bit_length() // 8 + 1, "big", signed=True)


def _decimal_text(text: str) -> bytes:
    sign, digits, exponent = Decimal(text).as_tuple()
    return struct.pack(">i", -int(exponent)) + _shortest_varint(int(Decimal((sign, digits, 0))))


def _varint_text(text: str) -> bytes:
    if not text:
        return b""
    number = Decimal(text)  # int() takes no more than 4,300 digits of a text
    if number.as_tuple().exponent != 0:
        raise Malformed("another number where a varint is expected")
    return _shortest_varint(int(number))


def _days(text: str) -> int:
    """Return the days since 1970-01-01 of a date of any year."""
    year, month, day = re.fullmatch(r"([+-]?\d+)-(\d\d)-(\d\d)", text).groups()  # type: ignore[union-attr]
    eras, year_of_era = divmod(int(year), 400)
    return date(year_of_era + 400, int(month), int(day)).toordinal() - 719_163 + (eras - 1) * _DAYS_OF_400_YEARS


def _timestamp(text: str) -> bytes:
    day, *clock = _TIMESTAMP.fullmatch(text).groups()  # type: ignore[union-attr]
    hours, minutes, seconds, millis = map(int, clock)
    return struct.pack(">q", ((_days(day) * 24 + hours) * 60 + minutes) * 60_000 + seconds * 1000 + millis)


def _time(text: str) -> bytes:
    hours, minutes, seconds, nanos = map(int, _TIME.fullmatch(text).groups())  # type: ignore[union-attr]
    return struct.pack(">q", (hours * 3600 + minutes * 60 + seconds) * 1_000_000_000 + nanos)


_FROM_TEXT: dict[str, Callable[[str], bytes]] = {
    **{
        name: (lambda encode: lambda text: encode(int(text)))(_SCALARS[name])
        for name in ("tinyint", "smallint", "int", "bigint")
    },
    "boolean": lambda text: b"\1" if text == "true" else b"\0",
    "varint": _varint_text,
    "decimal": _decimal_text,
    "blob": lambda text: bytes.fromhex(text.removeprefix("0x")),
    "date": lambda text: struct.pack(">I", _days(text) + (1 << 31)),
    "timestamp": _timestamp,
    "time": _time,
}
