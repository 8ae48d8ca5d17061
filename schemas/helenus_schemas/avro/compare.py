"""Comparing Avro schemas: whether records of a new one may follow those of the one that a topic or subject has.

All functions take schemas as `parsed` returns them. Those that return text return what is wrong, None if nothing is.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from typing import Literal

from helenus_schemas.avro.build import TABLE_ID, Schema

PRIMITIVE = {"null", "boolean", "int", "long", "float", "double", "bytes", "string"}
COMPLEX = ("record", "enum", "fixed", "array", "map", "error")
_MAX_LEVELS = 200  # of JSON: three or four of each collection, or type, within another
_MAX_PARTS = 10_000  # of a record: a table has few columns, and types few fields
_NAMES = {"name", "namespace", "doc", "aliases", "cql_name", TABLE_ID}


def parsed(text: str) -> Schema:
    """Return a schema to compare, with all names in full. Registries return shorter ones, as Java prints them.

    Raises ValueError for text that is not JSON, or not of the form that Avro's schemas have.
    """
    try:
        return _in_full(json.loads(text), "", 0)
    except RecursionError:
        raise ValueError("a schema of too many levels") from None


def _in_full(schema: Schema, namespace: str, depth: int) -> Schema:
    depth += 1
    if depth > _MAX_LEVELS:
        raise ValueError(f"a schema of more than {_MAX_LEVELS} levels")
    if isinstance(schema, list):
        return [_in_full(part, namespace, depth) for part in schema]
    if isinstance(schema, str):
        return schema if schema in PRIMITIVE or "." in schema or not namespace else f"{namespace}.{schema}"
    if not isinstance(schema, dict):
        return schema
    full = dict(schema)
    if isinstance(name := schema.get("name"), str):
        own_namespace, _, short = name.rpartition(".")
        field_namespace = full.pop("namespace", namespace)  # ignored where the name itself has one
        namespace = own_namespace or field_namespace
        full["name"] = f"{namespace}.{short}" if namespace else short
    for part in ("type", "items", "values"):
        if part in full and not (part == "type" and full[part] in COMPLEX):
            full[part] = _in_full(full[part], namespace, depth)
    if "fields" in schema:
        if not isinstance(schema["fields"], list):
            raise ValueError("a schema whose fields are no list")
        full["fields"] = [_field_in_full(field, namespace, depth) for field in schema["fields"]]
    return full


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
    """Return the parts of a value beside those that are there by bytes of their own, and whether it may take no
    bytes.
    """
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
    if count > _MAX_PARTS:
        raise ValueError(f"a schema of {count} parts")
    if isinstance(name, str):
        records[name] = count, is_empty
    return count, is_empty


def without_names(schema: Schema) -> Schema:
    """Return the part of a schema that decides on the bytes and their meaning: all but names."""
    if isinstance(schema, dict):
        return {key: without_names(value) for key, value in schema.items() if key not in _NAMES}
    return [without_names(part) for part in schema] if isinstance(schema, list) else schema


def other_times(existing: Schema, new: Schema) -> str | None:
    """Return why records with `time` columns may not follow the `existing` ones: those have another unit. No registry
    notices it, as both are longs.

    DataStax's connector writes µs, as this one does where it is configured so.
    """
    ours, theirs = (dict(_times(schema)) for schema in (new, existing))
    differ = [name for name, kind in ours.items() if theirs.get(name, kind) != kind]
    if not differ:
        return None
    unit = {"cql_time": "ns", "time-micros": "µs"}
    old_unit, new_unit = unit[theirs[differ[0]]], unit[ours[differ[0]]]
    advice = "set time.precision.mode, and for keys key.compat, as the topic has it, or choose another data.topic"
    return f"the topic has {', '.join(differ)} as a time in {old_unit}, and would get it in {new_unit}: {advice}"


def has_times(schema: Schema) -> bool:
    """Return whether a field, at any depth, is a time."""
    return any(_times(schema))


def _times(schema: Schema, name: str = "") -> Iterator[tuple[str, str]]:
    """Yield the fields, at any depth, that are times: `column.field` and the logical type."""
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


def incompatibility(existing: Schema, key: Schema, value: Schema) -> str | None:
    """Return why new keys may not keep the `existing` schema, which gives the same bytes.

    After a RENAME they may; but its names may be those of other columns by now, or of a table that was `recreated`.
    """
    reused = ", ".join(_reused_names(existing, key, [field["name"] for field in value["fields"]]))
    reason = f"{_columns(existing)}, and {reused} is the name of another column or field now" if reused else None
    return recreated(existing, key) or reason


def kept_problem(latest: Schema, key: Schema, value: Schema) -> str | None:
    """Return why the keys of a subject may not go on by another schema, with values by `value`; None if they may."""
    if without_names(latest) == without_names(key):
        return incompatibility(latest, key, value)
    return recreated(latest, key)


def recreated(existing: Schema, key: Schema) -> str | None:
    """Return why new keys may not follow the `existing` ones: those are of a dropped table of this name, with another
    key.

    A schema without the table's id counts as one of this table.
    """
    table = key.get(TABLE_ID)
    if not isinstance(existing, dict) or "fields" not in existing:  # somebody else's
        return None
    if existing.get(TABLE_ID, table) == table or {**existing, TABLE_ID: table} == key:
        return None
    columns = ", ".join(field["name"] for field in key["fields"])
    return f"{_columns(existing)}, and the table was recreated with the key ({columns})"


def other_form(existing: Schema, proposed: Schema) -> Literal["decimal", "varint"] | None:
    """Return which kind of number two schemas of a table's values show in different forms, at any depth; None if
    none.
    """
    old, new = _form(existing), _form(proposed)
    if old != new:
        if "cql_decimal" in (old, new) or {old, new} == {"string", "double"}:
            return "decimal"
        if "cql_varint" in (old, new) or {old, new} == {"string", "long"}:
            return "varint"
    existing, proposed = _present(existing), _present(proposed)
    if not isinstance(existing, dict) or not isinstance(proposed, dict):
        return None
    pairs = [(existing[part], proposed[part]) for part in ("items", "values") if part in existing and part in proposed]
    types = {field["name"]: field["type"] for field in existing.get("fields", ())}
    pairs += [(types[f["name"]], f["type"]) for f in proposed.get("fields", ()) if f["name"] in types]
    return next((number_type for pair in pairs if (number_type := other_form(*pair))), None)


def _form(schema: Schema) -> str:
    """Return `cql_decimal` or `cql_varint` for their exact forms, a plain type's name for others."""
    schema = _present(schema)
    if isinstance(schema, dict):
        return str(schema.get("logicalType") or schema.get("type"))
    return str(schema).rpartition(".")[2]  # a record that was defined before


def _present(schema: Schema) -> Schema:
    """Return the branch of an optional type that is not null."""
    return next((branch for branch in schema if branch != "null"), None) if isinstance(schema, list) else schema


def _columns(key: Schema) -> str:
    return f"keys are written as ({', '.join(field['name'] for field in key['fields'])})"


def _reused_names(existing: Schema, proposed: Schema, outer_names: Iterable[str] = ()) -> Iterator[str]:
    """Yield the names in the existing schema that another field of the proposed one has, at any depth: `column.field`
    in a type.
    """
    if isinstance(existing, list):
        for branches in zip(existing, proposed, strict=True):
            yield from _reused_names(*branches)
    elif isinstance(existing, dict):
        fields = list(zip(existing.get("fields", ()), proposed.get("fields", ()), strict=True))
        names = {*outer_names, *(new["name"] for _, new in fields)}
        for old, new in fields:
            if old["name"] != new["name"] and old["name"] in names:
                yield old["name"]
            yield from (f"{old['name']}.{name}" for name in _reused_names(old["type"], new["type"]))
        for part in ("type", "items", "values"):
            if part in existing:
                yield from _reused_names(existing[part], proposed[part])
