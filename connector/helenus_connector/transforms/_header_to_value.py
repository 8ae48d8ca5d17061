"""Debezium's HeaderToValue: moves or copies headers to fields of the value."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, ClassVar

from helenus_connector.connect_data.record import ConnectHeader, ConnectRecord
from helenus_connector.connect_data.schema import ConnectSchema, SchemaField
from helenus_connector.transforms._record_part import VALUE, SchemaCache, Struct, copy_basics, field_value
from helenus_connector.transforms.contract import ConfigKey, TransformError

_BYTES = ConnectSchema("bytes", is_optional=True)
_CACHED = 100


def _check_names(names: Sequence[str]) -> None:
    if not names or any(" " in name for name in names):
        raise ValueError("give names without blanks in them")


class HeaderToValue:
    """Adds fields of headers; a name with a dot in it is that of a field of a struct."""

    KEYS: ClassVar[Sequence[ConfigKey]] = (
        ConfigKey("headers", "LIST", "Headers to move or copy.", importance="HIGH", check=_check_names),
        ConfigKey("fields", "LIST", "Names of fields, in the order of headers.", importance="HIGH", check=_check_names),
        ConfigKey(
            "operation",
            "STRING",
            "Whether the headers leave the record.",
            importance="HIGH",
            choices=("move", "copy"),
            ignores_case=True,
        ),
    )

    def __init__(self, settings: Mapping[str, Any]) -> None:
        if len(settings["headers"]) != len(settings["fields"]):
            raise ValueError("fields: name as many fields as headers")
        self._paths = {
            header: tuple(field.split("."))
            for header, field in zip(settings["headers"], settings["fields"], strict=True)
        }
        self._moves = settings["operation"].lower() == "move"
        # By the headers that a record has: which fields it gets.
        self._schemas: dict[tuple[tuple[str, ConnectSchema], ...], SchemaCache[ConnectSchema]] = {}

    def apply(self, record: ConnectRecord) -> ConnectRecord:
        if record.value is None:
            return record
        schema = VALUE.struct_schema(record, "headers to fields")
        headers = [header for header in record.headers if header.name in self._paths]
        if not headers:
            return record
        values = {field.name: field_value(record.value, field) for field in schema.fields}
        for header in headers:
            values = _put(schema, values, self._paths[header.name], header.value)
        changed = VALUE.replace(record, self._schema_cache(headers).get(schema), values)
        if not self._moves:
            return changed
        return replace(changed, headers=tuple(h for h in record.headers if h.name not in self._paths))

    def _schema_cache(self, headers: Sequence[ConnectHeader]) -> SchemaCache[ConnectSchema]:
        added = tuple((header.name, header.schema or _BYTES) for header in headers)
        cache = self._schemas.get(added)
        if cache is None:
            if len(self._schemas) >= _CACHED:
                self._schemas.clear()

            def make(schema: ConnectSchema) -> ConnectSchema:
                for name, own in added:
                    schema = _add_field(schema, self._paths[name], own)
                return schema

            cache = self._schemas[added] = SchemaCache(make)
        return cache


def _add_field(schema: ConnectSchema, path: tuple[str, ...], own: ConnectSchema) -> ConnectSchema:
    """Return a struct's schema with a field more, at a path: structs that are not there are made. One that is there
    keeps its schema.
    """
    name, *inner = path
    field = schema.find_field(name)
    if field is not None and not inner:
        return copy_basics(schema)
    if field is not None and field.schema.type != "struct":
        raise TransformError(f"headers to fields: {name} is no struct")
    if inner:
        struct = ConnectSchema("struct", is_optional=True) if field is None else field.schema
        own = replace(_add_field(struct, tuple(inner), own), is_optional=field is None)
    fields = [SchemaField(name, own) if other.name == name else other for other in schema.fields]
    if field is None:
        fields.append(SchemaField(name, own))
    return copy_basics(schema, fields=tuple(fields))


def _put(schema: ConnectSchema, struct: Struct | None, path: tuple[str, ...], value: Any) -> dict[str, Any]:
    """Return a struct's values with one more, at a path."""
    name, *inner = path
    values = dict(struct or {})
    if inner:
        field = schema.find_field(name)
        own = ConnectSchema("struct") if field is None else field.schema
        value = _put(own, values.get(name), tuple(inner), value)
    return {**values, name: value}
