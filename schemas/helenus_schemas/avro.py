"""Avro schemas of a table's records: the primary key, the row, and the events that announce a Change.

The mapping is DataStax CDC's where that is exact. It differs in three places, so that every value survives: `time` is
a long of nanoseconds, tinyint and smallint are signed in keys too, and the `cql_*` records carry a namespace, without
which fastavro refuses a schema that uses one twice.
"""

from __future__ import annotations

import json
from typing import Any

from helenus_schemas.cql import CqlType
from helenus_schemas.names import avro_name, avro_names
from helenus_schemas.table import Column, Table
from helenus_schemas.text import as_text

Schema = Any

_SCALARS: dict[str, Schema] = {
    "ascii": "string",
    "text": "string",
    "inet": "string",
    "boolean": "boolean",
    "blob": "bytes",
    "tinyint": "int",
    "smallint": "int",
    "int": "int",
    "bigint": "long",
    "counter": "long",
    "float": "float",
    "double": "double",
    "timestamp": {"type": "long", "logicalType": "timestamp-millis"},
    "date": {"type": "int", "logicalType": "date"},
    "time": {"type": "long", "logicalType": "cql_time"},
    "uuid": {"type": "string", "logicalType": "uuid"},
    "timeuuid": {"type": "string", "logicalType": "uuid"},
    "varint": {"type": "bytes", "logicalType": "cql_varint"},
}
_RECORDS: dict[str, list[tuple[str, str]]] = {
    "decimal": [("bigint", "bytes"), ("scale", "int")],
    "duration": [("months", "int"), ("days", "int"), ("nanoseconds", "long")],
}


class Unmappable(ValueError):
    """A CQL type that has no Avro form here."""


class _Schemas:
    """Builds the schemas of one record: a named type is defined where it is first met and referred to after."""

    def __init__(self, table: Table) -> None:
        self.table = table
        self.defined: set[str] = set()

    def of(self, t: CqlType) -> Schema:
        if t.name in _SCALARS:
            return _SCALARS[t.name]
        if t.name in _RECORDS:
            fields: list[Schema] = [{"name": name, "type": kind} for name, kind in _RECORDS[t.name]]
            return self.record(f"cql_{t.name}", fields, logicalType=f"cql_{t.name}")
        if t.name in ("list", "set", "vector"):
            return {"type": "array", "items": self.of(t.args[0])}
        if t.name == "map":
            if as_text(t.args[0]) is None:
                raise Unmappable(f"a map with keys of type {t.args[0]}")
            return {"type": "map", "values": self.of(t.args[1])}
        if t.name == "tuple":
            name = f"Tuple_{_java_hash(str(t)):x}"
            if self.known(name):
                return self.full(name)
            self.defined.add(self.full(name))
            fields = [self.nullable(f"index_{i}", f"index_{i}", a) for i, a in enumerate(t.args)]
            return self.record(name, fields, doc=f"CQL type {t}")
        if t.name == "udt":
            name = avro_name(t.label)
            # A record must not take the name of the table's own.
            name = f"{name}_type" if name == avro_name(self.table.name) else name
            legal = avro_names(t.fields)
            if self.known(name):
                return self.full(name)
            self.defined.add(self.full(name))
            return self.record(
                name,
                [self.nullable(legal[f], f, a) for f, a in zip(t.fields, t.args, strict=True)],
                doc=f"CQL type {self.table.keyspace}.{t.label}",
            )
        raise Unmappable(f"the type {t}")

    def nullable(self, name: str, original: str, t: CqlType, default: bool = True) -> Schema:
        schema: dict[str, Schema] = {"name": name, "type": ["null", self.of(t)]}
        if default:
            schema["default"] = None
        return schema if name == original else {**schema, "cql_name": original}

    def record(self, name: str, fields: list[Schema], **properties: str) -> Schema:
        full = self.full(name)
        if name.startswith("cql_") and self.known(name):
            return full
        self.defined.add(full)
        return {
            "type": "record",
            "name": name,
            "namespace": avro_name(self.table.keyspace),
            **properties,
            "fields": fields,
        }

    def known(self, name: str) -> bool:
        return self.full(name) in self.defined

    def full(self, name: str) -> str:
        return f"{avro_name(self.table.keyspace)}.{name}"


def key_schema(table: Table) -> Schema:
    """The schema of a primary key: partition columns plain, clustering columns nullable.

    A null clustering column stands for the whole partition. Raises Unmappable, naming the column.
    """
    schemas = _Schemas(table)
    legal = avro_names(c.name for c in table.primary_key)
    fields = []
    for column in table.primary_key:
        field = _field(schemas, legal[column.name], column)
        if column.kind == "partition_key":
            field = {**{k: v for k, v in field.items() if k != "default"}, "type": field["type"][1]}
        fields.append(field)
    return schemas.record(avro_name(table.name), fields, doc=f"Primary key of {table.full_name}")


def value_schema(table: Table) -> Schema:
    """The schema of a row outside its key, every column nullable; a table of key columns only has those as value."""
    schemas = _Schemas(table)
    columns = value_columns(table)
    legal = avro_names(c.name for c in columns)
    fields = [_field(schemas, legal[c.name], c) for c in columns]
    return schemas.record(avro_name(table.name), fields, doc=f"Row of {table.full_name}")


def value_columns(table: Table) -> tuple[Column, ...]:
    """The columns of `value_schema`, in its order."""
    return table.values or table.primary_key


def _field(schemas: _Schemas, name: str, column: Column) -> Schema:
    try:
        return schemas.nullable(name, column.name, column.type)
    except Unmappable as error:
        raise Unmappable(f"{schemas.table.full_name}: column {column.name}: {error} has no Avro form") from None


def _java_hash(text: str) -> int:
    """Java's `String.hashCode`, unsigned: part of the name that DataStax gives a tuple's record."""
    value = 0
    units = text.encode("utf-16-be")
    for i in range(0, len(units), 2):
        value = (value * 31 + int.from_bytes(units[i : i + 2], "big")) & 0xFFFFFFFF
    return value


def text(schema: Schema) -> str:
    """The schema as compact JSON, as registries and readers take it."""
    return json.dumps(schema, separators=(",", ":"))
