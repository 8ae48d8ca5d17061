"""Avro schemas of a table's records: its primary key, and its rows.

The mapping is DataStax CDC's where that is exact. It differs so that every value survives: `time` is a long of
nanoseconds, tinyint and smallint are signed in keys too, and named types carry a namespace, without which fastavro
refuses a schema that uses one twice. `docs/records.md` has the whole of it.
"""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Iterable
from dataclasses import replace
from typing import Any, Literal

from helenus_schemas.codec.key import Compat
from helenus_schemas.cql.table import Column, Table
from helenus_schemas.cql.types import CqlType, quote, walk
from helenus_schemas.names import avro_name

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
_MICROS = {"type": "long", "logicalType": "time-micros"}
_SHOWN_AS: dict[str, Schema] = {"microseconds": _MICROS}
_RECORDS: dict[str, list[tuple[str, str]]] = {
    "decimal": [("bigint", "bytes"), ("scale", "int")],
    "duration": [("months", "int"), ("days", "int"), ("nanoseconds", "long")],
}
_RESERVED_NAMES = re.compile(r"cql_(decimal|duration)|(Tuple|Entry)_[0-9a-f]{1,8}")
"""Names of records that are made here: a user-defined type of that name gets another one."""

TABLE_ID = "cql_id"
"""The property of a key's schema that holds the table's id: a table that is recreated has another."""


class Unmappable(ValueError):
    """A CQL type that has no Avro form here."""


TRUNCATION = '{"type":"record","name":"Truncation","namespace":"helenus","fields":[{"name":"table","type":"string"}]}'
"""The schema of the key of a record that concerns a whole table: `keyspace.table`."""


def key_schema(table: Table, compat: Compat = "exact", nullable: bool = False) -> Schema:
    """Return the schema of a primary key: partition columns plain, unless all are to be `nullable`, clustering columns
    not.

    A null clustering column stands for the whole partition. Raises Unmappable, naming the column.
    """
    schemas = _Schemas(table, exact=True)
    return schemas.table(_compatible(table, schemas.fields(table.primary_key, not nullable), compat))


def value_schema(table: Table, nullable: bool = False) -> Schema:
    """Return the schema of a row outside its key, every column nullable. A table of key columns only has those in its
    value.

    Raises Unmappable, naming the column.
    """
    schemas = _Schemas(table, exact=False)
    return schemas.table(schemas.fields(value_columns(table), bool(required_columns(table)) and not nullable))


def row_schema(table: Table, part: Literal["key", "value", "row"] = "row", compat: Compat = "exact") -> Schema:
    """Return the schema of a whole row, its key's columns first, of its value, or of its key as `compat` has it; every
    column is nullable, and maps are maps.

    A type in the key of a whole row is another record than in its values, as those may show a decimal or varint in
    another form. Raises Unmappable, naming the column.
    """
    schemas = _Schemas(table, exact=False)
    keys = () if part == "value" else table.primary_key
    fields = schemas.fields(keys, plain=False, suffix=" in key" if part == "row" else "")
    if part == "key":
        fields = _compatible(table, fields, compat)
    values = {"key": (), "value": value_columns(table), "row": table.values}[part]
    return schemas.table([*fields, *schemas.fields(values, plain=False)])


def json_schema(table: Table, schema: Schema) -> Schema:
    """Return the schema of what a `schema` describes in JSON: what JSON has as text, is a string here.

    Raises Unmappable for a name that is not legal in Avro: JSON has CQL's names.
    """
    if renamed := _renamed(schema):
        message = (
            f"{table.full_name}: no schema of JSON can have the name {renamed}: take Avro, or leave the column out"
        )
        raise Unmappable(message)
    return _without_bytes(schema)


def value_columns(table: Table) -> tuple[Column, ...]:
    """Return the columns of `value_schema`, in its order."""
    return table.values or table.primary_key


def required_columns(table: Table) -> tuple[Column, ...]:
    """Return the first of `value_columns`, that are not nullable: the partition key of a table of key columns only.

    There are none if it had other columns, which were dropped: registries refuse a new field without a default.
    """
    return () if table.values or table.dropped else table.partition_key


def text(schema: Schema) -> str:
    """Return the schema as compact JSON, as registries and readers take it."""
    return json.dumps(schema, separators=(",", ":"))


class _Schemas:
    """Builds the schemas of one record: a named type is defined where it first appears, and referred to after that.

    `exact`: in the form of keys, see `codec.to_avro`. `alike`: names that Java's hash gives to several types.
    `suffix`: what is appended to the names of tuples and user-defined types, in the fields that are built.
    """

    def __init__(self, table: Table, exact: bool) -> None:
        self.source = table
        self.exact = exact
        self.namespace = avro_name(table.keyspace)
        self.name = avro_name(table.name)
        self.defined: set[str] = set()
        self.suffix = ""
        made = {
            _hashed(t, table.keyspace): _made_name(t, table.keyspace)
            for t in walk(c.type for c in table.columns)
            if t.name in ("tuple", "map")
        }
        self.alike = {name for name, uses in Counter(made.values()).items() if uses > 1}

    def table(self, fields: list[Schema]) -> Schema:
        """Return the table's own record."""
        original = {} if self.name == self.source.name else {"cql_name": self.source.name}
        return self._record(self.name, f"Table {self.source.full_name}", fields, **original)

    def fields(self, columns: Iterable[Column], plain: bool = True, suffix: str = "") -> list[Schema]:
        """Return a field for each column; those of the partition key are never null if `plain`."""
        self.suffix = suffix
        fields = []
        for column in columns:
            try:
                field = self._field(column.name, column.type)
            except Unmappable as error:
                message = f"{self.source.full_name}: column {column.name}: {error} has no Avro form"
                raise Unmappable(message) from None
            if plain and column.kind == "partition_key":
                del field["default"]
                field["type"] = field["type"][1]
            fields.append(field)
        return fields

    def _type_schema(self, t: CqlType) -> Schema:
        if t.shown_as:
            return _SHOWN_AS.get(t.shown_as, t.shown_as)  # the other names are Avro's own
        if t.name in _SCALARS:
            return _SCALARS[t.name]
        if t.name in ("list", "set", "vector"):
            return {"type": "array", "items": self._type_schema(t.args[0])}
        if t.name == "map" and not self._has_entries(t):
            _check(t.args[0])
            return {"type": "map", "values": self._type_schema(t.args[1])}
        if t.name not in ("map", "tuple", "udt") and t.name not in _RECORDS:
            raise Unmappable(f"the type {t}")
        name = self._name(t)
        full = f"{self.namespace}.{name}"
        defined = full in self.defined
        self.defined.add(full)
        schema: Schema = full if defined else self._define(name, t)
        return {"type": "array", "items": schema} if t.name == "map" else schema

    def _define(self, name: str, t: CqlType) -> Schema:
        if t.name in _RECORDS:
            fields: list[Schema] = [{"name": field, "type": kind} for field, kind in _RECORDS[t.name]]
            return self._record(name, None, fields, logicalType=f"cql_{t.name}")
        if t.name == "map":
            parts = [{"name": n, "type": self._type_schema(a)} for n, a in zip(("key", "value"), t.args, strict=True)]
            return self._record(name, f"Entry of {t}", parts)
        if t.name == "tuple":
            fields = [self._field(f"index_{i}", a) for i, a in enumerate(t.args)]
            return self._record(name, f"CQL type {t}", fields)
        fields = [self._field(f, a) for f, a in zip(t.fields, t.args, strict=True)]
        original = {} if name == t.label else {"cql_name": t.label}
        return self._record(name, f"CQL type {self.source.keyspace}.{t.label}", fields, **original)

    def _field(self, original: str, t: CqlType) -> dict[str, Schema]:
        name = avro_name(original)
        field: dict[str, Schema] = {"name": name, "type": ["null", self._type_schema(t)], "default": None}
        return field if name == original else {**field, "cql_name": original}

    def _record(self, name: str, doc: str | None, fields: list[Schema], **properties: str) -> Schema:
        start = {"type": "record", "name": name, "namespace": self.namespace}
        return {**start, **({"doc": doc} if doc else {}), **properties, "fields": fields}

    def _has_entries(self, t: CqlType) -> bool:
        return t.name == "map" and self.exact and t.args[0].name not in ("ascii", "text")

    def _name(self, t: CqlType) -> str:
        """Return the name of a type's record: whatever else the table has, and whatever fields the type gets."""
        name = t.label if t.name == "udt" else _made_name(t, self.source.keyspace)
        is_reserved = t.name == "udt" and _RESERVED_NAMES.fullmatch(name) is not None
        if name in self.alike and t.name != "udt":
            name += f" of {t}"
        if t.name not in _RECORDS:
            name += self.suffix
        legal_name = avro_name(name, is_taken=is_reserved or (t.name == "udt" and name == self.name))
        return avro_name(f"{name} beside its table") if legal_name == self.name else legal_name


def _made_name(t: CqlType, keyspace: str) -> str:
    """Return the name of the record of a type that has no name in CQL."""
    if t.name in _RECORDS:
        return f"cql_{t.name}"
    return f"{'Tuple' if t.name == 'tuple' else 'Entry'}_{_java_hash(_hashed(t, keyspace)):x}"


def _hashed(t: CqlType, keyspace: str) -> str:
    """Return the text whose hash is in a record's name: for a tuple `asCql(false, true)` of the driver that DataStax
    uses.
    """
    return str(_bare(t, keyspace) if t.name == "tuple" else t)


def _bare(t: CqlType, keyspace: str) -> CqlType:
    """Return a type without `frozen`, and with the keyspace before names of user-defined ones."""
    if t.name == "udt":
        return CqlType(f"{quote(keyspace)}.{quote(t.label)}")
    return replace(t, args=tuple(_bare(a, keyspace) for a in t.args), frozen=False)


def _compatible(table: Table, fields: list[Schema], compat: Compat) -> list[Schema]:
    """Return a key's fields in the form that `compat` names."""
    for field, column in zip(fields, table.primary_key, strict=True):
        if compat == "datastax" and column.type.name == "time":
            field["type"] = ["null", _MICROS] if isinstance(field["type"], list) else _MICROS
    return fields


def _renamed(schema: Schema) -> str | None:
    """Return the first CQL name, below the table's own, that is another name in Avro."""
    parts = schema if isinstance(schema, list) else list(schema.values()) if isinstance(schema, dict) else []
    own = schema.get("cql_name") if isinstance(schema, dict) and schema.get("type") != "record" else None
    return own or next(filter(None, map(_renamed, parts)), None)


def _without_bytes(schema: Schema) -> Schema:
    if isinstance(schema, list):
        return [_without_bytes(part) for part in schema]
    if isinstance(schema, dict):
        return {key: _without_bytes(part) if key in _SCHEMAS else part for key, part in schema.items()}
    return "string" if schema == "bytes" else schema


_SCHEMAS = {"type", "items", "values", "fields"}


def _check(key: CqlType) -> None:
    """Raise Unmappable for a map key without a text form: of a custom type, at any depth."""
    for t in walk([key]):
        if t.name == "custom":
            raise Unmappable(f"a map with keys of the type {t}")


def _java_hash(text: str) -> int:
    """Return Java's `String.hashCode`, unsigned: part of the name that DataStax gives a tuple's record."""
    value = 0
    units = text.encode("utf-16-be")
    for i in range(0, len(units), 2):
        value = (value * 31 + int.from_bytes(units[i : i + 2], "big")) & 0xFFFFFFFF
    return value
