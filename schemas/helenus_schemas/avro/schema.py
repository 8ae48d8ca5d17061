"""Avro schemas of a table's records: its primary key, and its rows.

The mapping is DataStax CDC's where that is exact. It differs so that every value survives: `time` is a long of
nanoseconds, tinyint and smallint are signed in keys too, and named types carry a namespace, without which fastavro
refuses a schema that uses one twice. `docs/records.md` has the whole of it.
"""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import replace
from typing import Any, Literal

from helenus_schemas.codec.key import Compat
from helenus_schemas.cql.table import Column, Table
from helenus_schemas.cql.types import CqlType, quote
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
_TOLD: dict[str, Schema] = {"microseconds": _MICROS}
_RECORDS: dict[str, list[tuple[str, str]]] = {
    "decimal": [("bigint", "bytes"), ("scale", "int")],
    "duration": [("months", "int"), ("days", "int"), ("nanoseconds", "long")],
}
_OURS = re.compile(r"cql_(decimal|duration)|(Tuple|Entry)_[0-9a-f]{1,8}")
"""Names of records that are made here, which no type of CQL has."""

TABLE_ID = "cql_id"
"""The property of a key's schema that holds the table's id: a table that is made anew has another."""
_PRIMITIVE = {"null", "boolean", "int", "long", "float", "double", "bytes", "string"}
_COMPLEX = ("record", "enum", "fixed", "array", "map", "error")
_NAMES = {"name", "namespace", "doc", "aliases", "cql_name", TABLE_ID}


class Unmappable(ValueError):
    """A CQL type that has no Avro form here."""


TRUNCATION = '{"type":"record","name":"Truncation","namespace":"helenus","fields":[{"name":"table","type":"string"}]}'
"""The schema of the key of a record that concerns a whole table: `keyspace.table`."""


def key_schema(table: Table, compat: Compat = "exact", nullable: bool = False) -> Schema:
    """The schema of a primary key: partition columns plain, unless all are to be `nullable`, clustering columns not.

    A null clustering column stands for the whole partition. Raises Unmappable, naming the column.
    """
    schemas = _Schemas(table, exact=True)
    return schemas.table(_compatible(table, schemas.fields(table.primary_key, not nullable), compat))


def value_schema(table: Table, nullable: bool = False) -> Schema:
    """The schema of a row outside its key, every column nullable; of key columns only, it has those, as the key does.

    Raises Unmappable, naming the column.
    """
    schemas = _Schemas(table, exact=False)
    return schemas.table(schemas.fields(value_columns(table), bool(never_null(table)) and not nullable))


def json_schema(table: Table, part: Literal["key", "value", "row"], compat: Compat = "exact") -> Schema:
    """The schema of the JSON of a row, of its value, or of its key as `compat` has it; every column is nullable.

    What JSON has as text, is a string here. A type in the key of a whole row is another record than in its values, as
    those may tell a decimal or varint in another form. Raises Unmappable, naming the column, for a name that Avro has
    not: JSON has CQL's.
    """
    schemas = _Schemas(table, exact=False)
    keys = () if part == "value" else table.primary_key
    fields = schemas.fields(keys, plain=False, suffix=" in key" if part == "row" else "")
    if part == "key":
        fields = _compatible(table, fields, compat)
    values = {"key": (), "value": value_columns(table), "row": table.values}[part]
    schema = schemas.table([*fields, *schemas.fields(values, plain=False)])
    if renamed := _renamed(schema):
        what = f"{table.full_name}: no schema of JSON can have the name {renamed}: take Avro, or leave the column out"
        raise Unmappable(what)
    return _without_bytes(schema)


def value_columns(table: Table) -> tuple[Column, ...]:
    """The columns of `value_schema`, in its order."""
    return table.values or table.primary_key


def never_null(table: Table) -> tuple[Column, ...]:
    """Those of `value_columns` that are not nullable, the first ones: the partition key of a table of key columns only.

    Unless it had others, which were dropped: a new field without a default is none that a registry takes.
    """
    return () if table.values or table.dropped else table.partition_key


def text(schema: Schema) -> str:
    """The schema as compact JSON, as registries and readers take it."""
    return json.dumps(schema, separators=(",", ":"))


def parsed(text: str) -> Schema:
    """A schema to compare, with all names in full. Registries give back shorter ones, as Java prints them.

    Raises ValueError for what is no JSON.
    """
    return _in_full(json.loads(text), "")


def _in_full(schema: Schema, namespace: str) -> Schema:
    if isinstance(schema, list):
        return [_in_full(part, namespace) for part in schema]
    if isinstance(schema, str):
        return schema if schema in _PRIMITIVE or "." in schema or not namespace else f"{namespace}.{schema}"
    if not isinstance(schema, dict):
        return schema
    found = dict(schema)
    if isinstance(name := schema.get("name"), str):
        within, _, short = name.rpartition(".")
        own = found.pop("namespace", namespace)  # which counts for nothing where the name has one
        namespace = within or own
        found["name"] = f"{namespace}.{short}" if namespace else short
    for part in ("type", "items", "values"):
        if part in found and not (part == "type" and found[part] in _COMPLEX):
            found[part] = _in_full(found[part], namespace)
    if isinstance(fields := schema.get("fields"), list):
        found["fields"] = [_field_in_full(field, namespace) for field in fields]
    return found


def _field_in_full(field: Schema, namespace: str) -> Schema:
    typed = isinstance(field, dict) and "type" in field
    return {**field, "type": _in_full(field["type"], namespace)} if typed else field


def unnamed(schema: Schema) -> Schema:
    """What of a schema decides on the bytes, and what they mean: all but names."""
    if isinstance(schema, dict):
        return {key: unnamed(value) for key, value in schema.items() if key not in _NAMES}
    return [unnamed(part) for part in schema] if isinstance(schema, list) else schema


def other_times(known: Schema, new: Schema) -> str | None:
    """What speaks against records that go on where those `known` are: a `time` of theirs is a number of something else,
    which no registry notices, as both are longs. None if nothing does.

    DataStax's connector writes µs, as this one does where it is told to.
    """
    ours, theirs = (dict(_times(schema)) for schema in (new, known))
    differ = [name for name, kind in ours.items() if theirs.get(name, kind) != kind]
    if not differ:
        return None
    unit = {"cql_time": "ns", "time-micros": "µs"}
    was, now = unit[theirs[differ[0]]], unit[ours[differ[0]]]
    how = "set time.precision.mode, and for keys key.compat, as the topic has it, or choose another data.topic"
    return f"the topic has {', '.join(differ)} as a time in {was}, and would get it in {now}: {how}"


def has_times(schema: Schema) -> bool:
    """Whether a field, at any depth, is a time."""
    return any(_times(schema))


def _times(schema: Schema, name: str = "") -> Iterator[tuple[str, str]]:
    """The fields, at any depth, that are times: `column.field` and the logical type."""
    if isinstance(schema, list):
        for branch in schema:
            yield from _times(branch, name)
    elif isinstance(schema, dict):
        if schema.get("logicalType") in ("cql_time", "time-micros"):
            yield name, schema["logicalType"]
        for field in schema.get("fields") or ():
            yield from _times(field["type"], f"{name}.{field['name']}" if name else field["name"])
        for part in ("type", "items", "values"):
            if isinstance(schema.get(part), (dict, list)):
                yield from _times(schema[part], name)


def objection(known: Schema, key: Schema, value: Schema) -> str | None:
    """What speaks against keys that go on under the schema they have, which gives the same bytes; None if nothing does.

    After a RENAME they do; but its names may be those of other columns by now, or of a table that was `made_anew`.
    """
    taken = ", ".join(_taken(known, key, [field["name"] for field in value["fields"]]))
    told = f"{_told(known)}, and {taken} is the name of another column or field now" if taken else None
    return made_anew(known, key) or told


def made_anew(known: Schema, key: Schema) -> str | None:
    """What speaks against keys that go on where those `known` are: they are of a table before, which had another key.

    None if they are not. A schema without the table's id is taken for one of this table.
    """
    table = key.get(TABLE_ID)
    if not isinstance(known, dict) or "fields" not in known:  # somebody else's
        return None
    if known.get(TABLE_ID, table) == table or {**known, TABLE_ID: table} == key:
        return None
    return f"{_told(known)}, and the table was made anew with the key ({', '.join(f['name'] for f in key['fields'])})"


def other_form(known: Schema, now: Schema) -> Literal["decimal", "varint"] | None:
    """Which kind of number two schemas of a table's values show in different forms, at any depth; None if none.

    Both as `parsed` gives them.
    """
    old, new = _form(known), _form(now)
    if old != new:
        if "cql_decimal" in (old, new) or {old, new} == {"string", "double"}:
            return "decimal"
        if "cql_varint" in (old, new) or {old, new} == {"string", "long"}:
            return "varint"
    known, now = _present(known), _present(now)
    if not isinstance(known, dict) or not isinstance(now, dict):
        return None
    pairs = [(known[part], now[part]) for part in ("items", "values") if part in known and part in now]
    types = {field["name"]: field["type"] for field in known.get("fields", ())}
    pairs += [(types[f["name"]], f["type"]) for f in now.get("fields", ()) if f["name"] in types]
    return next((found for pair in pairs if (found := other_form(*pair))), None)


def _form(schema: Schema) -> str:
    """`cql_decimal` or `cql_varint` for their exact forms; a plain type's name for all others that have one."""
    schema = _present(schema)
    if isinstance(schema, dict):
        return str(schema.get("logicalType") or schema.get("type"))
    return str(schema).rpartition(".")[2]  # a record that was defined before


def _present(schema: Schema) -> Schema:
    """What is not null of an optional type."""
    return next((branch for branch in schema if branch != "null"), None) if isinstance(schema, list) else schema


def _told(key: Schema) -> str:
    return f"keys are told as ({', '.join(field['name'] for field in key['fields'])})"


def _taken(known: Schema, now: Schema, others: Iterable[str] = ()) -> Iterator[str]:
    """Names in a schema that are another's in one of the same form, at any depth: `column.field` in a type."""
    if isinstance(known, list):
        for branches in zip(known, now, strict=True):
            yield from _taken(*branches)
    elif isinstance(known, dict):
        fields = list(zip(known.get("fields", ()), now.get("fields", ()), strict=True))
        names = {*others, *(new["name"] for _, new in fields)}
        for old, new in fields:
            if old["name"] != new["name"] and old["name"] in names:
                yield old["name"]
            yield from (f"{old['name']}.{name}" for name in _taken(old["type"], new["type"]))
        for part in ("type", "items", "values"):
            if part in known:
                yield from _taken(known[part], now[part])


class _Schemas:
    """Builds the schemas of one record: a named type is defined where it is first met and referred to after.

    `exact`: in the form of keys, see `transcode`. `alike`: names that Java's hash gives to several types.
    `suffix`: what the names of tuples and user-defined types have behind them, in the fields that are built.
    """

    def __init__(self, table: Table, exact: bool) -> None:
        self.of_table = table
        self.exact = exact
        self.namespace = avro_name(table.keyspace)
        self.name = avro_name(table.name)
        self.defined: set[str] = set()
        self.suffix = ""
        made = {
            _hashed(t, table.keyspace): _made_name(t, table.keyspace)
            for t in _walk(c.type for c in table.columns)
            if t.name in ("tuple", "map")
        }
        self.alike = {name for name, uses in Counter(made.values()).items() if uses > 1}

    def table(self, fields: list[Schema]) -> Schema:
        """The table's own record."""
        original = {} if self.name == self.of_table.name else {"cql_name": self.of_table.name}
        return self._record(self.name, f"Table {self.of_table.full_name}", fields, **original)

    def fields(self, columns: Iterable[Column], plain: bool = True, suffix: str = "") -> list[Schema]:
        """A field for each column; those of the partition key are never null if `plain`."""
        self.suffix = suffix
        fields = []
        for column in columns:
            try:
                field = self._field(column.name, column.type)
            except Unmappable as error:
                what = f"{self.of_table.full_name}: column {column.name}: {error} has no Avro form"
                raise Unmappable(what) from None
            if plain and column.kind == "partition_key":
                del field["default"]
                field["type"] = field["type"][1]
            fields.append(field)
        return fields

    def _of(self, t: CqlType) -> Schema:
        if t.told:
            return _TOLD.get(t.told, t.told)  # else the names are Avro's
        if t.name in _SCALARS:
            return _SCALARS[t.name]
        if t.name in ("list", "set", "vector"):
            return {"type": "array", "items": self._of(t.args[0])}
        if t.name == "map" and not self._has_entries(t):
            _check(t.args[0])
            return {"type": "map", "values": self._of(t.args[1])}
        if t.name not in ("map", "tuple", "udt") and t.name not in _RECORDS:
            raise Unmappable(f"the type {t}")
        name = self._name(t)
        full = f"{self.namespace}.{name}"
        defined = full in self.defined
        self.defined.add(full)
        schema: Schema = full if defined else self._named(name, t)
        return {"type": "array", "items": schema} if t.name == "map" else schema

    def _named(self, name: str, t: CqlType) -> Schema:
        if t.name in _RECORDS:
            fields: list[Schema] = [{"name": field, "type": kind} for field, kind in _RECORDS[t.name]]
            return self._record(name, None, fields, logicalType=f"cql_{t.name}")
        if t.name == "map":
            parts = [{"name": n, "type": self._of(a)} for n, a in zip(("key", "value"), t.args, strict=True)]
            return self._record(name, f"Entry of {t}", parts)
        if t.name == "tuple":
            fields = [self._field(f"index_{i}", a) for i, a in enumerate(t.args)]
            return self._record(name, f"CQL type {t}", fields)
        fields = [self._field(f, a) for f, a in zip(t.fields, t.args, strict=True)]
        original = {} if name == t.label else {"cql_name": t.label}
        return self._record(name, f"CQL type {self.of_table.keyspace}.{t.label}", fields, **original)

    def _field(self, original: str, t: CqlType) -> dict[str, Schema]:
        name = avro_name(original)
        field: dict[str, Schema] = {"name": name, "type": ["null", self._of(t)], "default": None}
        return field if name == original else {**field, "cql_name": original}

    def _record(self, name: str, doc: str | None, fields: list[Schema], **properties: str) -> Schema:
        start = {"type": "record", "name": name, "namespace": self.namespace}
        return {**start, **({"doc": doc} if doc else {}), **properties, "fields": fields}

    def _has_entries(self, t: CqlType) -> bool:
        return t.name == "map" and self.exact and t.args[0].name not in ("ascii", "text")

    def _name(self, t: CqlType) -> str:
        """The name of a type's record: whatever else the table has, and whatever fields the type gets."""
        name = t.label if t.name == "udt" else _made_name(t, self.of_table.keyspace)
        ours = t.name == "udt" and _OURS.fullmatch(name) is not None
        if name in self.alike and t.name != "udt":
            name += f" of {t}"
        if t.name not in _RECORDS:
            name += self.suffix
        found = avro_name(name, taken=ours or (t.name == "udt" and name == self.name))
        return avro_name(f"{name} beside its table") if found == self.name else found


def _made_name(t: CqlType, keyspace: str) -> str:
    """The name of the record of a type that has none of its own."""
    if t.name in _RECORDS:
        return f"cql_{t.name}"
    return f"{'Tuple' if t.name == 'tuple' else 'Entry'}_{_java_hash(_hashed(t, keyspace)):x}"


def _hashed(t: CqlType, keyspace: str) -> str:
    """The text whose hash is in a record's name: for a tuple `asCql(false, true)` of the driver that DataStax uses."""
    return str(_bare(t, keyspace) if t.name == "tuple" else t)


def _bare(t: CqlType, keyspace: str) -> CqlType:
    """A type without `frozen`, and with the keyspace before names of user-defined ones."""
    if t.name == "udt":
        return CqlType(f"{quote(keyspace)}.{quote(t.label)}")
    return replace(t, args=tuple(_bare(a, keyspace) for a in t.args), frozen=False)


def _compatible(table: Table, fields: list[Schema], compat: Compat) -> list[Schema]:
    """A key's fields in that form of keys."""
    for field, column in zip(fields, table.primary_key, strict=True):
        if compat == "datastax" and column.type.name == "time":
            field["type"] = ["null", _MICROS] if isinstance(field["type"], list) else _MICROS
    return fields


def _renamed(schema: Schema) -> str | None:
    """The first name of CQL's that is another in Avro, below a table's own."""
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


def _walk(types: Iterable[CqlType]) -> Iterator[CqlType]:
    for t in types:
        yield t
        yield from _walk(t.args)


def _check(key: CqlType) -> None:
    """A map's key is told as text, which every type has but those without any form."""
    for t in _walk([key]):
        if t.name == "custom":
            raise Unmappable(f"a map with keys of the type {t}")


def _java_hash(text: str) -> int:
    """Java's `String.hashCode`, unsigned: part of the name that DataStax gives a tuple's record."""
    value = 0
    units = text.encode("utf-16-be")
    for i in range(0, len(units), 2):
        value = (value * 31 + int.from_bytes(units[i : i + 2], "big")) & 0xFFFFFFFF
    return value
