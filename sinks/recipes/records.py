"""Records of a data topic, in the Confluent wire format, as Python values and as Arrow: what batches.py is made of.

Needs fastavro and pyarrow. The Avro types are those of docs/records.md.
"""

from __future__ import annotations

import io
import json
from collections.abc import Callable, Mapping
from decimal import Decimal
from typing import Any, NamedTuple

import fastavro
import pyarrow as pa

Row = dict[str, Any]
Limits = Mapping[pa.DataType, tuple[int, int]]
"""The dates and timestamps that a store can hold, as their numbers: CQL has more."""


class Failure(Exception):
    """What ends a recipe with one line on standard error: what failed, where, and what to do."""


class Columns(NamedTuple):
    """The columns of a key or a value: their Arrow types, their Avro types, and which of them may be null."""

    types: dict[str, pa.DataType]
    avro: dict[str, Any]
    nullable: set[str]


class Schemas:
    """Reads records by the schemas that they name. `get_schema` gives the text of the schema with an id."""

    def __init__(self, get_schema: Callable[[int], str]) -> None:
        self._get_schema = get_schema
        self._readers: dict[int, Callable[[bytes], Row]] = {}

    def read(self, data: bytes | None) -> Row:
        """Decode a record: a zero byte, the schema's id in four bytes, Avro. Raises Failure for other bytes."""
        if data is not None and len(data) > 16 and data[0] == 1:
            raise Failure(
                "a record names its schema by a GUID, as with schema.registration=defer: recipes read ids alone; "
                "write the topic anew with schema.registration=block"
            )
        if data is None or len(data) < 5 or data[0] != 0:
            raise Failure(
                "a record is not Avro in the Confluent wire format: recipes read output.format=key-value-avro"
            )
        schema_id = int.from_bytes(data[1:5], "big")
        if schema_id not in self._readers:
            self._readers[schema_id] = _reader(json.loads(self._get_schema(schema_id)))
        return self._readers[schema_id](data)


def read_columns(schema_text: str) -> Columns:
    """Give the columns of a record's schema. Raises Failure for an envelope: its fields are not the row's."""
    schema = json.loads(schema_text)
    if {"op", "source", "after"} <= {field["name"] for field in schema["fields"]}:
        raise Failure("the topic has envelopes: recipes read output.format=key-value-avro")
    names: dict[str, Any] = {}
    return Columns(
        {field["name"]: to_arrow(field["type"], names) for field in schema["fields"]},
        {field["name"]: field["type"] for field in schema["fields"]},
        {field["name"] for field in schema["fields"] if isinstance(field["type"], list)},
    )


def to_arrow(schema: Any, names: dict[str, Any]) -> pa.DataType:
    """Give the Arrow type of an Avro schema. `names` are the records that were defined before it."""
    schema = _resolve(schema, names)
    if isinstance(schema, str):
        return _PLAIN[schema]
    logical = schema.get("logicalType", "")
    if logical in _LOGICAL:
        return _LOGICAL[logical]
    match schema["type"]:
        case "record":
            return pa.struct([(field["name"], to_arrow(field["type"], names)) for field in schema["fields"]])
        case "array":
            return pa.list_(to_arrow(schema["items"], names))
        case "map":
            return pa.map_(pa.string(), to_arrow(schema["values"], names))
        case plain:
            return to_arrow(plain, names)


def merge_schemas(table: pa.Schema | None, records: pa.Schema) -> pa.Schema:
    """Give the columns that hold the table's values and the records': the records' first, then the table's others.

    Types inside of types grow too. A store that has one type for text and bytes says null for it. Raises Failure for a
    column whose two types have no such union.
    """
    stored = {field.name: _plain_type(field.type) for field in table or ()}
    merged = {field.name: merge_types(stored.get(field.name), field.type, field.name) for field in records}
    others = {name: kind for name, kind in stored.items() if name not in merged and "null" not in str(kind)}
    return pa.schema(list({**merged, **others}.items()))


def merge_types(old: pa.DataType | None, new: pa.DataType, where: str) -> pa.DataType:
    """Give the union of a stored type and a record's. Raises Failure if there is none."""
    if old is None or old == new or (pa.types.is_null(old) and new in (pa.string(), pa.binary())):
        return new
    if pa.types.is_struct(old) and pa.types.is_struct(new):
        fields = {field.name: field.type for field in old}
        for field in new:
            fields[field.name] = merge_types(fields.get(field.name), field.type, f"{where}.{field.name}")
        return pa.struct(list(fields.items()))
    if pa.types.is_list(old) and pa.types.is_list(new):
        return pa.list_(merge_types(old.value_type, new.value_type, f"{where}[]"))
    if pa.types.is_map(old) and pa.types.is_map(new):
        return pa.map_(pa.string(), merge_types(old.item_type, new.item_type, f"{where}{{}}"))
    raise Failure(
        f"column {where} is {old} in the table and {new} in the topic: rename it in the table, or fill another table"
    )


def has_grown(old: pa.DataType, new: pa.DataType, in_maps: bool = False) -> bool:
    """Return whether a union has fields that the stored type lacks; with `in_maps`, whether types within maps have."""
    old = _plain_type(old)
    if pa.types.is_struct(new):
        stored = {field.name: field.type for field in old}
        if not in_maps and stored.keys() != {field.name for field in new}:
            return True
        return any(has_grown(stored[f.name], f.type, in_maps) for f in new if f.name in stored)
    if pa.types.is_list(new):
        return has_grown(old.value_type, new.value_type, in_maps)
    return bool(pa.types.is_map(new)) and has_grown(old.item_type, new.item_type)


def _plain_type(kind: pa.DataType) -> pa.DataType:
    """Give the type as records have it: stores return strings as large ones, and times in other units."""
    if pa.types.is_timestamp(kind):
        return _LOGICAL["timestamp-millis"] if kind.tz else kind
    if pa.types.is_large_string(kind) or pa.types.is_string_view(kind):
        return pa.string()
    if pa.types.is_large_binary(kind) or pa.types.is_binary_view(kind):
        return pa.binary()
    if pa.types.is_struct(kind):
        return pa.struct([(field.name, _plain_type(field.type)) for field in kind])
    if pa.types.is_map(kind):
        return pa.map_(pa.string(), _plain_type(kind.item_type))
    if pa.types.is_list(kind) or pa.types.is_large_list(kind):
        return pa.list_(_plain_type(kind.value_type))
    return kind


def widen(table: pa.Table, schema: pa.Schema) -> pa.Table:
    """Give a table the columns of a wider schema, with null in those that it lacks; types inside of types as well."""
    columns = [
        table[field.name].cast(field.type) if field.name in table.column_names else pa.nulls(len(table), field.type)
        for field in schema
    ]
    return pa.table(columns, schema=schema)


def to_rows(table: pa.Table) -> list[Row]:
    """Give rows with values as records have them: dates and timestamps as numbers, which Python's own may not hold."""
    schema = pa.schema([(field.name, _numbers(_plain_type(field.type))) for field in table.schema])
    plain = table.cast(pa.schema([(field.name, _plain_type(field.type)) for field in table.schema]))
    return list(plain.cast(schema).to_pylist(maps_as_pydicts="lossy"))


def _numbers(kind: pa.DataType) -> pa.DataType:
    """Give the type with numbers for dates and timestamps."""
    if pa.types.is_struct(kind):
        return pa.struct([(field.name, _numbers(field.type)) for field in kind])
    if pa.types.is_list(kind):
        return pa.list_(_numbers(kind.value_type))
    if pa.types.is_map(kind):
        return pa.map_(pa.string(), _numbers(kind.item_type))
    return {pa.date32(): pa.int32(), pa.timestamp("ms", "UTC"): pa.int64()}.get(kind, kind)


def fits(value: Any, kind: pa.DataType, limits: Limits) -> bool:
    """Return whether a store with these limits can hold a record's value."""
    if value is None or not has_limits(kind, limits):
        return True
    if pa.types.is_struct(kind):
        return all(fits(value.get(field.name), field.type, limits) for field in kind)
    if pa.types.is_list(kind):
        return all(fits(item, kind.value_type, limits) for item in value)
    if pa.types.is_map(kind):
        return all(fits(item, kind.item_type, limits) for item in value.values())
    low, high = limits[kind]
    return bool(low <= value <= high)


def has_limits(kind: pa.DataType, limits: Limits) -> bool:
    """Return whether a type, or a type inside of it, has limits."""
    if pa.types.is_struct(kind):
        return any(has_limits(field.type, limits) for field in kind)
    if pa.types.is_list(kind):
        return has_limits(kind.value_type, limits)
    return has_limits(kind.item_type, limits) if pa.types.is_map(kind) else kind in limits


def _reader(schema: Any) -> Callable[[bytes], Row]:
    parsed = fastavro.parse_schema(_without_logical_types(schema))
    convert = make_converter(schema, {})

    def read(data: bytes) -> Row:
        record = fastavro.schemaless_reader(io.BytesIO(data[5:]), parsed, None)
        assert isinstance(record, dict)
        return convert(record) if convert else record  # type: ignore[no-any-return]

    return read


def make_converter(schema: Any, names: dict[str, Any]) -> Callable[[Any], Any] | None:
    """Make a function that makes text of the decimals and varints in a value; None if it can hold none."""
    schema = _resolve(schema, names)
    if isinstance(schema, str):
        return None
    logical = schema.get("logicalType")
    if logical in _AS_TEXT:
        return lambda value: None if value is None else _AS_TEXT[logical](value)
    match schema["type"]:
        case "record":
            parts = {f["name"]: c for f in schema["fields"] if (c := make_converter(f["type"], names))}
            return (lambda value: value and {**value, **{n: c(value[n]) for n, c in parts.items()}}) if parts else None
        case "array":
            item = make_converter(schema["items"], names)
            return (lambda value: value and list(map(item, value))) if item else None
        case "map":
            item = make_converter(schema["values"], names)
            return (lambda value: value and {name: item(v) for name, v in value.items()}) if item else None
    return None


def _resolve(schema: Any, names: dict[str, Any]) -> Any:
    """A schema without null, and that of a record where it is referred to by name."""
    if isinstance(schema, list):
        (schema,) = [branch for branch in schema if branch != "null"]
    if isinstance(schema, str):
        return names.get(schema, schema)
    if schema["type"] == "record":
        full_name = ".".join(filter(None, [schema.get("namespace"), schema["name"]]))
        names[full_name] = schema
    return schema


def _without_logical_types(schema: Any) -> Any:
    """A schema by which fastavro gives numbers for dates and times, as Python's own hold fewer."""
    if isinstance(schema, list):
        return [_without_logical_types(branch) for branch in schema]
    if isinstance(schema, dict):
        return {name: _without_logical_types(part) for name, part in schema.items() if name != "logicalType"}
    return schema


def decimal_text(value: Mapping[str, Any]) -> str:
    """Write a `cql_decimal` with all its digits, as CQL prints it."""
    sign, digits, _ = Decimal(int.from_bytes(value["bigint"], "big", signed=True)).as_tuple()
    return str(Decimal((sign, digits, -value["scale"])))


def varint_text(value: bytes) -> str:
    """Write a `cql_varint` with all its digits: `str` of an int takes no more than 4,300."""
    return f"{Decimal(int.from_bytes(value, 'big', signed=True)):f}"


_AS_TEXT: dict[Any, Callable[[Any], str]] = {"cql_decimal": decimal_text, "cql_varint": varint_text}
_PLAIN = {
    "boolean": pa.bool_(),
    "int": pa.int32(),
    "long": pa.int64(),
    "float": pa.float32(),
    "double": pa.float64(),
    "bytes": pa.binary(),
    "string": pa.string(),
}
# A time stays a number, ns since midnight: Delta has no type for it. A decimal has a scale of its own in each value,
# and a varint any number of digits: no store has a type for these.
_LOGICAL = {
    "date": pa.date32(),
    "timestamp-millis": pa.timestamp("ms", "UTC"),
    "cql_decimal": pa.string(),
    "cql_varint": pa.string(),
}
MICROSECONDS: Limits = {_LOGICAL["timestamp-millis"]: (-9_223_372_022_400_000, 9_223_372_036_854_774)}
"""Of stores whose timestamps are microseconds in 64 bits: from the year -290,308 to 294,247."""
FOUR_DIGIT_YEARS: Limits = {
    _LOGICAL["date"]: (-719_162, 2_932_896),
    _LOGICAL["timestamp-millis"]: (-62_135_596_800_000, 253_402_300_799_999),
}
"""Of stores with the calendar of Python's dates: the years 1 to 9999."""
