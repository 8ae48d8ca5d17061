"""Encode the payload of CEP-44's envelope: a table's row as Cassandra's Sidecar has it in Avro, schema and bytes.

All columns in one record, each nullable; a map is an array of {key, value}, a timestamp is in µs, decimal and varint
are fixed of 16 bytes. What the Sidecar has no form for is in ours: duration, counter, tuple, vector, a null field of a
user-defined type. `docs/cep44.md` has the table of types.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from helenus_connector.shape.envelope.direct_records import ColumnSlot
from helenus_connector.shape.envelope.value_writer import (
    MILLISECONDS,
    ValuePart,
    array_part,
    entries_part,
    record_part,
    scalar_part,
)
from helenus_schemas.codec import to_avro
from helenus_schemas.codec.avro_long import long_bytes, sized_bytes
from helenus_schemas.cql.table import Column, Table
from helenus_schemas.cql.types import CqlType
from helenus_schemas.cql.values import EMPTY_IS_A_VALUE, MAY_BE_EMPTY, Malformed, elements, entries, fields, vector
from helenus_schemas.names import avro_name

Encode = Callable[[bytes], bytes]

_NULL, _PRESENT = b"\0", b"\2"
_DIGITS, _SCALE, _WIDTH = 38, 19, 16
_LIMIT = 10**_DIGITS
_LONG = 1 << 63
_SIMPLE: dict[str, tuple[str, str | None]] = {
    **dict.fromkeys(("ascii", "text"), ("string", None)),
    **dict.fromkeys(("uuid", "timeuuid"), ("string", "uuid")),
    **dict.fromkeys(("tinyint", "smallint", "int"), ("int", None)),
    **dict.fromkeys(("bigint", "counter", "time"), ("long", None)),
    "blob": ("bytes", None),
    "boolean": ("boolean", None),
    "date": ("int", "date"),
    "double": ("double", None),
    "float": ("float", None),
    "inet": ("bytes", "inet"),
    "timestamp": ("long", "timestamp-micros"),
}
_SHOWN: dict[str, tuple[str, str | None]] = {
    "string": ("string", None),
    "double": ("double", None),
    "long": ("long", None),
    "microseconds": ("long", "time-micros"),
}
_DURATION = (("months", "int"), ("days", "int"), ("nanoseconds", "long"))


class UnfitValue(ValueError):
    """A value that Cassandra holds, and the payload has no form for."""


def payload_schema(table: Table) -> dict[str, Any]:
    """Return the Avro schema of a table's payload. Raises ValueError for a column without Avro form, by name."""
    name = avro_name(table.name)
    namespace = f"{avro_name(table.keyspace)}.{name}"
    columns = (*table.primary_key, *table.values)
    keys = {"primary_keys": table.primary_key, "partition_keys": table.partition_key}
    kinds = {**keys, "clustering_keys": table.clustering, "static_columns": table.statics}
    record = _record_schema(name, namespace, [_column_schema(c, namespace) for c in columns])
    return {**record, **{kind: [avro_name(c.name) for c in of_kind] for kind, of_kind in kinds.items()}}


def column_encoder(column: Column) -> to_avro.Optional:
    """Return an encoder of a column's CQL bytes to the payload's field. It raises UnfitValue, and ValueError for bytes
    that are no value of the type.
    """
    is_key = column.kind in ("partition_key", "clustering")
    return _optional_encoder(column.type, is_key)


def encoder(columns: Sequence[Column]) -> Callable[[Sequence[bytes | None]], bytes]:
    """Return an encoder of the values of columns, in their order, to the fields of the payload. It raises as those of
    `column_encoder`.
    """
    items = [column_encoder(column) for column in columns]

    def encode(values: Sequence[bytes | None]) -> bytes:
        return b"".join([_NULL if v is None else item(v) for item, v in zip(items, values, strict=True)])

    return encode


def payload_slots(columns: Sequence[Column]) -> list[ColumnSlot]:
    """Return the slots of columns in a payload, of which each is all that `column_encoder` makes."""
    parts = (_payload_part(c.type, c.kind in ("partition_key", "clustering")) for c in columns)
    return [ColumnSlot(part, _NULL, b"") for part in parts]


def _payload_part(t: CqlType, key: bool, is_optional: bool = True) -> ValuePart:
    encode: Encode = _optional_encoder(t, key) if is_optional else _encoder(t, key)
    if not t.shown_as:
        if t.name == "timestamp":
            return ValuePart(MILLISECONDS, encode, 8, is_optional)
        if t.name in ("list", "set"):
            return array_part(_payload_part(t.args[0], key, False), encode, is_optional)
        if t.name == "map":
            name, value = (_payload_part(a, key, False) for a in t.args)
            return entries_part(name, value, encode, False, is_optional)
        if t.name in ("udt", "tuple"):
            return record_part([_payload_part(a, key) for a in t.args], (), encode, is_optional)
    return scalar_part(t, False, encode, is_optional, key)


def _column_schema(column: Column, namespace: str) -> dict[str, Any]:
    try:
        type_schema = _type_schema(column.type, f"{namespace}.{avro_name(column.name)}")
    except ValueError as error:
        raise ValueError(f"column {column.name}: {error}") from None
    if column.reversed:
        type_schema["isReversed"] = "true"
    return _field_schema(column.name, type_schema)


def _field_schema(original: str, type_schema: dict[str, Any]) -> dict[str, Any]:
    """Return a field whose null comes first, and is the default: registries take a new column only with one."""
    name = avro_name(original)
    field: dict[str, Any] = {"name": name, "type": ["null", type_schema], "default": None}
    return field if name == original else {**field, "cql_name": original}


def _record_schema(name: str, namespace: str, members: list[dict[str, Any]]) -> dict[str, Any]:
    return {"type": "record", "name": name, "namespace": namespace, "fields": members}


def _type_schema(t: CqlType, path: str) -> dict[str, Any]:
    """Return the schema of a type; `path` is where it is used: each named type has its own."""
    schema: dict[str, Any] = {**_bare_schema(t, path), "cqlType": str(t)}
    return {**schema, "isFrozen": "true"} if t.frozen and t.args else schema


def _bare_schema(t: CqlType, path: str) -> dict[str, Any]:
    if t.shown_as:
        return _simple_schema(*_SHOWN[t.shown_as])
    if t.name in _SIMPLE:
        return _simple_schema(*_SIMPLE[t.name])
    if t.name in ("decimal", "varint"):
        fixed = {"type": "fixed", "name": "fixed", "namespace": path, "size": _WIDTH, "logicalType": "decimal"}
        return {**fixed, "precision": _DIGITS, "scale": _SCALE if t.name == "decimal" else 0}
    if t.name in ("list", "set", "vector"):
        items = {"type": "array", "items": _type_schema(t.args[0], f"{path}.{t.name}")}
        return {**items, "logicalType": "array_set"} if t.name == "set" else items
    if t.name == "map":
        path = f"{path}.array_map"
        parts = zip(("key", "value"), t.args, strict=True)
        entry = _record_schema(
            "array_map", path, [{"name": n, "type": _type_schema(a, f"{path}.{n}")} for n, a in parts]
        )
        return {"type": "array", "items": entry, "logicalType": "array_map"}
    if t.name in ("udt", "tuple"):
        name = f"record_{t.name}"
        path = f"{path}.{name}"
        names = t.fields if t.name == "udt" else [f"index_{i}" for i in range(len(t.args))]
        members = [
            _field_schema(n, _type_schema(a, f"{path}.{avro_name(n)}")) for n, a in zip(names, t.args, strict=True)
        ]
        return {**_record_schema(name, path, members), "logicalType": name}
    if t.name == "duration":
        return _record_schema("record_duration", path, [{"name": n, "type": kind} for n, kind in _DURATION])
    raise ValueError(f"the type {t} has no Avro form")


def _simple_schema(kind: str, logical: str | None) -> dict[str, Any]:
    return {"type": kind, "logicalType": logical} if logical else {"type": kind}


def _optional_encoder(t: CqlType, key: bool) -> to_avro.Optional:
    """Return an encoder to which a value of no bytes is null, unless its type has such a value."""
    encode = _encoder(t, key)
    empty = t.name in (MAY_BE_EMPTY - {"varint"} if key else EMPTY_IS_A_VALUE)

    def encode_union(data: bytes | None) -> bytes:
        return _PRESENT + encode(data) if data or (empty and data is not None) else _NULL

    return encode_union


def _encoder(t: CqlType, key: bool) -> Encode:
    if t.shown_as:
        return to_avro.plain(t)
    if t.name in _PAYLOAD_ENCODERS:
        return _PAYLOAD_ENCODERS[t.name]
    if t.name in ("list", "set"):
        return _array_encoder(_encoder(t.args[0], key), elements)
    if t.name == "vector":
        width, dimension = t.args[0].width, t.dimension
        return _array_encoder(_encoder(t.args[0], key), lambda data: vector(data, width, dimension))
    if t.name == "map":
        of_key, of_value = (_encoder(a, key) for a in t.args)
        return _array_encoder(lambda entry: of_key(entry[0]) + of_value(entry[1]), entries)
    if t.name in ("udt", "tuple"):
        return _struct_encoder([_optional_encoder(a, key) for a in t.args])
    return to_avro.plain(t, key)


def _array_encoder(item: Callable[[Any], bytes], parts_of: Callable[[bytes], Sequence[Any]]) -> Encode:
    def encode(data: bytes) -> bytes:
        parts = parts_of(data)
        return b"".join([long_bytes(len(parts)), *map(item, parts), b"\0"]) if parts else b"\0"

    return encode


def _struct_encoder(items: Sequence[to_avro.Optional]) -> Encode:
    """Return the encoder of a UDT or tuple: fields that an older version of the type did not have are null."""

    def encode(data: bytes) -> bytes:
        parts = fields(data, len(items))
        parts += [None] * (len(items) - len(parts))
        return b"".join([item(part) for item, part in zip(items, parts, strict=True)])

    return encode


def _timestamp(data: bytes) -> bytes:
    if len(data) != 8:
        raise Malformed(f"a timestamp of {len(data)} bytes")
    microseconds = int.from_bytes(data, "big", signed=True) * 1000
    if not -_LONG <= microseconds < _LONG:
        raise UnfitValue(f"the timestamp {microseconds // 1000} ms is beyond 64 bits in µs")
    return long_bytes(microseconds)


def _inet(data: bytes) -> bytes:
    if len(data) not in (4, 16):
        raise Malformed(f"an inet of {len(data)} bytes")
    return sized_bytes(data)


def _varint(data: bytes) -> bytes:
    if not data:
        raise Malformed("a varint of no bytes")
    return _fixed(int.from_bytes(data, "big", signed=True))


def _decimal(data: bytes) -> bytes:
    if len(data) < 5:
        raise Malformed(f"a decimal of {len(data)} bytes")
    scale, unscaled = int.from_bytes(data[:4], "big", signed=True), int.from_bytes(data[4:], "big", signed=True)
    added_digits = _SCALE - scale
    if not unscaled:
        return _fixed(0)
    if added_digits < 0:
        # Zeros at its end may go. So many as it has bits it can't have.
        unscaled, remainder = divmod(unscaled, 10**-added_digits) if -added_digits < unscaled.bit_length() else (0, 1)
        if remainder:
            raise UnfitValue(f"a decimal of the scale {scale}, where {_SCALE} is the largest")
        added_digits = 0
    if added_digits > _DIGITS:
        raise UnfitValue(f"a decimal of more than {_DIGITS - _SCALE} digits before its point")
    return _fixed(unscaled * 10**added_digits)


def _fixed(value: int) -> bytes:
    if not -_LIMIT < value < _LIMIT:
        raise UnfitValue(f"a number of more than {_DIGITS} digits")
    return value.to_bytes(_WIDTH, "big", signed=True)


_PAYLOAD_ENCODERS: dict[str, Encode] = {"timestamp": _timestamp, "inet": _inet, "varint": _varint, "decimal": _decimal}
