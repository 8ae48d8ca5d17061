"""Encode values as Debezium's Cassandra connector shows them: from CQL's bytes to Avro's, or to JSON.

    inet 10.0.0.1 → "/10.0.0.1"          duration 1mo2d → 2764800000000000 (ns)      map<int, int> → array of entries

Every value, element and field is nullable, also where CQL has no null. `DebeziumForm` has what differs between
Avro and JSON; larger values than scalars are encoded here, for both.
"""

from __future__ import annotations

import json
from base64 import b64encode
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from helenus_connector.shape.envelope.avro_bytes import array_bytes, text_bytes
from helenus_schemas.codec import to_avro, to_json
from helenus_schemas.codec.avro_long import long_bytes, sized_bytes
from helenus_schemas.cql.text import as_text, java_inet
from helenus_schemas.cql.types import CqlType
from helenus_schemas.cql.values import EMPTY_IS_A_VALUE, Malformed, duration, fields, vector

_DAY, _DAYS_OF_MONTH = 86_400_000_000_000, 30
_TEXTS = ("ascii", "text", "uuid", "timeuuid", "inet")
_MARSHAL = {
    "text": "UTF8",
    "tinyint": "Byte",
    "smallint": "Short",
    "int": "Int32",
    "bigint": "Long",
    "blob": "Bytes",
    "counter": "CounterColumn",
    "date": "SimpleDate",
    "inet": "InetAddress",
    "timeuuid": "TimeUUID",
    "uuid": "UUID",
    "varint": "Integer",
    "udt": "User",
}
"""Cassandra's classes without `Type`, where they are not the CQL name with a capital."""


Piece = Any
"""Bytes of Avro, or text of JSON."""


@dataclass(frozen=True)
class DebeziumForm:
    """Avro, or JSON. `present` goes before a value that may be null and is not."""

    null: Piece
    present: Piece
    number: Callable[[int], Piece]
    text: Callable[[str], Piece]
    array: Callable[[Sequence[Piece]], Piece]
    entries: Callable[[Sequence[tuple[Piece, Piece]], bool], Piece]
    """Of a map, whose keys may be text."""
    struct: Callable[[Sequence[str]], Callable[[Sequence[Piece]], Piece]]
    """Of fields with these names."""
    decimal: Callable[[bytes], Piece]
    scalar: Callable[[CqlType, bool], Callable[[bytes], Piece]]

    def optional(self, t: CqlType, key: bool = False) -> Callable[[bytes | None], Piece]:
        """Return a function from CQL bytes, or None, to a value that may be null. It raises ValueError and struct.error
        on bytes that are not a value. A varint of more than 64 bits that is shown as a long is null, but not in a
        `key`; so is a duration of more ns than a long has.
        """
        encode, null, present = self.required(t, key), self.null, self.present
        may_be_empty = t.name in EMPTY_IS_A_VALUE
        if t.shown_as == "long" and not key:

            def encode_long(data: bytes | None) -> Piece:
                return null if not data or (len(data) > 8 and not fits_long(data)) else present + encode(data)

            return encode_long

        if t.name == "duration":

            def encode_duration(data: bytes | None) -> Piece:
                nanoseconds = _nanoseconds(data) if data else None
                return null if nanoseconds is None else present + self.number(nanoseconds)

            return encode_duration

        def encode_optional(data: bytes | None) -> Piece:
            return present + encode(data) if data or (may_be_empty and data is not None) else null

        return encode_optional

    def required(self, t: CqlType, key: bool = False) -> Callable[[bytes], Piece]:
        """Return a function as `optional`, to a value that is not null."""
        if t.shown_as:
            return self.scalar(t, key)
        if t.name == "inet":
            return lambda data: self.text(f"/{java_inet(data)}")
        if t.name == "decimal":
            return self.decimal
        if t.name in ("list", "set"):
            item, array = self.optional(t.args[0], key), self.array
            return lambda data: array([item(part) for part in _parts(data, 1)])
        if t.name == "vector":
            item, array, width, dimension = self.optional(t.args[0], key), self.array, t.args[0].width, t.dimension
            return lambda data: array([item(part) for part in vector(data, width, dimension)])
        if t.name == "map":
            return self._map(t, key)
        if t.name in ("tuple", "udt"):
            struct, field_count = self.struct(field_names(t)), len(t.args)
            items = [self.optional(a, key) for a in t.args]

            def encode_struct(data: bytes) -> Piece:
                parts = fields(data, field_count)
                parts += [None] * (field_count - len(parts))
                return struct([item(part) for item, part in zip(items, parts, strict=True)])

            return encode_struct
        return self.scalar(t, key)

    def _map(self, t: CqlType, key: bool) -> Callable[[bytes], Piece]:
        has_texts, value = is_text(t.args[0]), self.optional(t.args[1], key)
        name = self.required(t.args[0], key) if has_texts else self.optional(t.args[0], key)

        def encode(data: bytes) -> Piece:
            parts = _parts(data, 2)
            if None in parts[::2]:
                raise Malformed("a key of a map that is null")
            pairs = zip(parts[::2], parts[1::2], strict=True)
            return self.entries([(name(k or b""), value(v)) for k, v in pairs], has_texts)

        return encode


def field_names(t: CqlType) -> tuple[str, ...]:
    """Return the names of a UDT's fields, or a tuple's."""
    return t.fields or tuple(f"field{n}" for n in range(1, len(t.args) + 1))


def short_class(t: CqlType) -> str:
    """Return Cassandra's class of a type, without `Type`."""
    return _MARSHAL.get(t.name, t.name.capitalize())


def fits_long(varint: bytes) -> bool:
    """Return whether a varint has 64 bits or fewer."""
    return -1 << 63 <= int.from_bytes(varint, "big", signed=True) < 1 << 63


def exact_text(t: CqlType, data: bytes) -> str | None:
    """Return the exact text of a value that Debezium shows as another: a decimal as a double, a longer varint as a
    long, a duration; None of a value that is shown as it is.
    """
    if t.name == "duration":
        months, days, nanoseconds = duration(data)
        return "".join(f"{n}{unit}" for n, unit in ((months, "mo"), (days, "d"), (nanoseconds, "ns")) if n) or "0ns"
    if t.shown_as == "double" or (t.shown_as == "long" and not fits_long(data)):
        text = as_text(t)
        assert text is not None
        return text(data)
    return None


def _parts(data: bytes, parts_per_entry: int) -> list[bytes | None]:
    """Return the parts of a collection; None is one that is deleted."""
    count = int.from_bytes(data[:4], "big", signed=True) * parts_per_entry
    parts = fields(data[4:], count + 1)
    if len(data) < 4 or len(parts) != count:
        raise Malformed(f"a collection of {count} parts in {len(data)} bytes")
    return parts


def _nanoseconds(data: bytes) -> int | None:
    """Return the ns of a duration with months of 30 days; None if no long can hold them. Raises Malformed."""
    months, days, nanoseconds = duration(data)
    total = (months * _DAYS_OF_MONTH + days) * _DAY + nanoseconds
    return total if -1 << 63 <= total < 1 << 63 else None


def is_text(t: CqlType) -> bool:
    """Return whether a type is shown as text."""
    return t.name in _TEXTS or t.shown_as == "string"


def _scale(decimal: bytes) -> int:
    if len(decimal) < 5:
        raise Malformed(f"a decimal of {len(decimal)} bytes")
    return int.from_bytes(decimal[:4], "big", signed=True)


def _avro_entries(entries: Sequence[tuple[bytes, bytes]], has_texts: bool) -> bytes:  # noqa: ARG001
    return array_bytes([key + value for key, value in entries])


def _json_entries(entries: Sequence[tuple[str, str]], has_texts: bool) -> str:
    if has_texts:
        return f"{{{','.join([f'{key}:{value}' for key, value in entries])}}}"
    return f"[{','.join([f'[{key},{value}]' for key, value in entries])}]"


def _json_struct(names: Sequence[str]) -> Callable[[Sequence[str]], str]:
    pattern = ",".join(f"{_text(name).replace('%', '%%')}:%s" for name in names)
    return lambda values: f"{{{pattern % tuple(values)}}}"


def _text(text: str) -> str:
    return json.dumps(text, ensure_ascii=False)


AVRO = DebeziumForm(
    null=b"\0",
    present=b"\2",
    number=long_bytes,
    text=text_bytes,
    array=array_bytes,
    entries=_avro_entries,
    struct=lambda _: b"".join,
    decimal=lambda data: long_bytes(_scale(data)) + sized_bytes(data[4:]),
    scalar=to_avro.plain,
)
JSON = DebeziumForm(
    null="null",
    present="",
    number=str,
    text=_text,
    array=lambda items: f"[{','.join(items)}]",
    entries=_json_entries,
    struct=_json_struct,
    decimal=lambda data: f'{{"scale":{_scale(data)},"value":"{b64encode(data[4:]).decode()}"}}',
    scalar=to_json.encoder,
)
