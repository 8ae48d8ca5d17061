"""Comparing Avro schemas: whether records of a new one may follow those of the one that a topic or subject has.

All functions take schemas as `parsed` returns them. Those that return text return what is wrong, None if nothing is.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from typing import Literal

from helenus_schemas.avro.build import TABLE_ID, Schema

_PRIMITIVE = {"null", "boolean", "int", "long", "float", "double", "bytes", "string"}
_COMPLEX = ("record", "enum", "fixed", "array", "map", "error")
_MOST_LEVELS = 200  # of JSON: three or four of each collection, or type, within another
_MOST_PARTS = 10_000  # of a record: a table has few columns, and types few fields
_NAMES = {"name", "namespace", "doc", "aliases", "cql_name", TABLE_ID}


def parsed(text: str) -> Schema:
    """A schema to compare, with all names in full. Registries return shorter ones, as Java prints them.

    Raises ValueError for text that is not JSON, or not of the form that Avro's schemas have.
    """
    try:
        return _in_full(json.loads(text), "", 0)
    except RecursionError:
        raise ValueError("a schema of too many levels") from None


def _in_full(schema: Schema, namespace: str, depth: int) -> Schema:
    depth += 1
    if depth > _MOST_LEVELS:
        raise ValueError(f"a schema of more than {_MOST_LEVELS} levels")
    if isinstance(schema, list):
        return [_in_full(part, namespace, depth) for part in schema]
    if isinstance(schema, str):
        return schema if schema in _PRIMITIVE or "." in schema or not namespace else f"{namespace}.{schema}"
    if not isinstance(schema, dict):
        return schema
    found = dict(schema)
    if isinstance(name := schema.get("name"), str):
        within, _, short = name.rpartition(".")
        own = found.pop("namespace", namespace)  # ignored where the name itself has one
        namespace = within or own
        found["name"] = f"{namespace}.{short}" if namespace else short
    for part in ("type", "items", "values"):
        if part in found and not (part == "type" and found[part] in _COMPLEX):
            found[part] = _in_full(found[part], namespace, depth)
    if "fields" in schema:
        if not isinstance(schema["fields"], list):
            raise ValueError("a schema whose fields are no list")
        found["fields"] = [_field_in_full(field, namespace, depth) for field in schema["fields"]]
    return found


def _field_in_full(field: Schema, namespace: str, depth: int) -> Schema:
    if not isinstance(field, dict) or not isinstance(field.get("name"), str) or "type" not in field:
        raise ValueError("a schema with a field that has no name or no type")
    return {**field, "type": _in_full(field["type"], namespace, depth)}


def check_size(schema: Schema) -> None:
    """Raise ValueError for a schema by which a few bytes are a value of many parts, such as an array of nulls, or that
    names a type within itself: reading such a value takes any memory. Those of tables are not like that.
    """
    _parts(schema, {})


def _parts(schema: Schema, records: dict[str, tuple[int, bool] | None]) -> tuple[int, bool]:
    """The parts of a value beside those that are there by bytes of their own, and whether it may take no bytes."""
    if isinstance(schema, list):
        for branch in schema:
            _parts(branch, records)
        return 1, False  # the number of the branch takes a byte
    if not isinstance(schema, dict):
        record = records.get(schema, (1, schema == "null"))
        if record is None:
            raise ValueError(f"a schema of the type {schema} within itself")
        return record
    kind, name = schema.get("type"), schema.get("name")
    if kind in ("array", "map"):
        if _parts(schema.get("items", schema.get("values")), records)[1] and kind == "array":
            raise ValueError("a schema of an array whose items take no bytes")
        return 1, False
    if isinstance(kind, (dict, list)):
        return _parts(kind, records)
    if "fields" not in schema:
        return 1, kind == "null" or (kind == "fixed" and schema.get("size") == 0)
    if isinstance(name, str):
        records[name] = None
    parts = [_parts(field["type"], records) for field in schema["fields"]]
    count, is_empty = 1 + sum(part for part, _ in parts), all(empty for _, empty in parts)
    if count > _MOST_PARTS:
        raise ValueError(f"a schema of {count} parts")
    if isinstance(name, str):
        records[name] = count, is_empty
    return count, is_empty


def without_names(schema: Schema) -> Schema:
    """The part of a schema that decides on the bytes and their meaning: all but names."""
    if isinstance(schema, dict):
        return {key: without_names(value) for key, value in schema.items() if key not in _NAMES}
    return [without_names(part) for part in schema] if isinstance(schema, list) else schema


def other_times(known: Schema, new: Schema) -> str | None:
    """Why records with `time` columns may not follow the `known` ones: those have another unit. No registry notices it,
    as both are longs.

    DataStax's connector writes µs, as this one does where it is configured so.
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


def incompatibility(known: Schema, key: Schema, value: Schema) -> str | None:
    """Why new keys may not keep the `known` schema, which gives the same bytes.

    After a RENAME they may; but its names may be those of other columns by now, or of a table that was `recreated`.
    """
    taken = ", ".join(_taken(known, key, [field["name"] for field in value["fields"]]))
    what = f"{_columns(known)}, and {taken} is the name of another column or field now" if taken else None
    return recreated(known, key) or what


def recreated(known: Schema, key: Schema) -> str | None:
    """Why new keys may not follow the `known` ones: those are of a dropped table of this name, with another key.

    A schema without the table's id counts as one of this table.
    """
    table = key.get(TABLE_ID)
    if not isinstance(known, dict) or "fields" not in known:  # somebody else's
        return None
    if known.get(TABLE_ID, table) == table or {**known, TABLE_ID: table} == key:
        return None
    return (
        f"{_columns(known)}, and the table was recreated with the key ({', '.join(f['name'] for f in key['fields'])})"
    )


def other_form(known: Schema, now: Schema) -> Literal["decimal", "varint"] | None:
    """Which kind of number two schemas of a table's values show in different forms, at any depth; None if none."""
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
    """`cql_decimal` or `cql_varint` for their exact forms, a plain type's name for others."""
    schema = _present(schema)
    if isinstance(schema, dict):
        return str(schema.get("logicalType") or schema.get("type"))
    return str(schema).rpartition(".")[2]  # a record that was defined before


def _present(schema: Schema) -> Schema:
    """The branch of an optional type that is not null."""
    return next((branch for branch in schema if branch != "null"), None) if isinstance(schema, list) else schema


def _columns(key: Schema) -> str:
    return f"keys are written as ({', '.join(field['name'] for field in key['fields'])})"


def _taken(known: Schema, now: Schema, others: Iterable[str] = ()) -> Iterator[str]:
    """Names in a schema that another field has in a schema of the same form, at any depth: `column.field` in a type."""
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
