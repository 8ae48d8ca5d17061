"""Kafka's transforms of which fields there are: ReplaceField, ExtractField, HoistField, Flatten, ValueToKey and
SetSchemaMetadata.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any, ClassVar

from helenus_connector.connect_data.record import ConnectRecord
from helenus_connector.connect_data.schema import ConnectSchema, SchemaField
from helenus_connector.transforms._field_path import FIELD_SYNTAX, FieldPath
from helenus_connector.transforms._record_part import (
    KEY,
    REPLACE_NULL,
    RecordPart,
    SchemaCache,
    Struct,
    check_unique,
    copy_basics,
    field_value,
    put,
)
from helenus_connector.transforms.contract import ConfigKey, TransformError, check_not_empty


def _parse_renames(mappings: Sequence[str]) -> dict[str, str]:
    renames = {}
    for mapping in mappings:
        parts = mapping.split(":")
        if len(parts) != 2 or not parts[1]:
            raise ValueError(f"give pairs as field:new_name, and not {mapping}")
        renames[parts[0]] = parts[1]
    return renames


class ReplaceField:
    """Leaves fields out, or renames them."""

    KEYS: ClassVar[Sequence[ConfigKey]] = (
        ConfigKey("exclude", "LIST", "Fields to leave out; this takes precedence over include.", default=()),
        ConfigKey("include", "LIST", "Fields to keep; default: all.", default=()),
        ConfigKey("renames", "LIST", "New names, as field:new_name.", default=(), check=_parse_renames),
        REPLACE_NULL,
    )

    def __init__(self, settings: Mapping[str, Any], part: RecordPart) -> None:
        self._part = part
        self._excluded, self._included = frozenset(settings["exclude"]), frozenset(settings["include"])
        self._renames = _parse_renames(settings["renames"])
        self._sources = {new: field for field, new in self._renames.items()}
        self._with_default: bool = settings[REPLACE_NULL.name]
        self._schemas = SchemaCache(self._make_schema)

    def apply(self, record: ConnectRecord) -> ConnectRecord:
        struct = self._part.value(record)
        if struct is None:
            return record
        schema, fields = self._schemas.get(self._part.struct_schema(record, "replacing fields"))
        values = {name: field_value(struct, field, self._with_default) for name, field in fields}
        return self._part.replace(record, schema, values)

    def _make_schema(self, schema: ConnectSchema) -> tuple[ConnectSchema, list[tuple[str, SchemaField]]]:
        fields = [
            SchemaField(self._renames.get(field.name, field.name), field.schema)
            for field in schema.fields
            if field.name not in self._excluded and (not self._included or field.name in self._included)
        ]
        check_unique(fields)
        # As Kafka, which finds a field's value by its new name: of two that have it, it would be the renamed one.
        by_name = {field.name: field for field in schema.fields}
        sources = [(field.name, by_name[self._sources.get(field.name, field.name)]) for field in fields]
        return copy_basics(schema, fields=tuple(fields)), sources


class ExtractField:
    """Replaces a struct by one of its fields."""

    KEYS: ClassVar[Sequence[ConfigKey]] = (
        ConfigKey("field", "STRING", "Field to extract.", check=check_not_empty),
        REPLACE_NULL,
        FIELD_SYNTAX,
    )

    def __init__(self, settings: Mapping[str, Any], part: RecordPart) -> None:
        self._part = part
        self._path = FieldPath(settings["field"], settings[FIELD_SYNTAX.name])
        self._with_default: bool = settings[REPLACE_NULL.name]
        self._fields = SchemaCache(self._path.find)

    def apply(self, record: ConnectRecord) -> ConnectRecord:
        schema, struct = self._part.schema(record), self._part.value(record)
        if schema is None:
            if struct is None:
                return record
            raise TransformError(f"extracting {self._path}: the {self._part.name} has no schema")
        if schema.type != "struct":
            raise TransformError(f"extracting {self._path}: the {self._part.name} is {schema.type}, and no struct")
        field = self._fields.get(schema)
        if field is None:
            raise TransformError(f"the {self._part.name} has no field {self._path}")
        value = None if struct is None else self._path.value(schema, struct, self._with_default)
        return self._part.replace(record, field.schema, value)


class HoistField:
    """Wraps the key or value in a struct of one field."""

    KEYS: ClassVar[Sequence[ConfigKey]] = (ConfigKey("field", "STRING", "Name of the field.", check=check_not_empty),)

    def __init__(self, settings: Mapping[str, Any], part: RecordPart) -> None:
        self._part = part
        self._field: str = settings["field"]
        self._schemas = SchemaCache(lambda schema: ConnectSchema("struct", fields=(SchemaField(self._field, schema),)))

    def apply(self, record: ConnectRecord) -> ConnectRecord:
        schema, value = self._part.schema(record), self._part.value(record)
        if schema is None:
            return self._part.replace(record, None, {self._field: value})
        return self._part.replace(record, self._schemas.get(schema), {self._field: put(schema, self._field, value)})


class Flatten:
    """Makes the fields of structs within a struct its own: `a.b`."""

    KEYS: ClassVar[Sequence[ConfigKey]] = (
        ConfigKey("delimiter", "STRING", "What is between two names; Avro needs _ here.", default="."),
    )

    def __init__(self, settings: Mapping[str, Any], part: RecordPart) -> None:
        self._part = part
        self._delimiter: str = settings["delimiter"]
        self._schemas = SchemaCache(self._make_schema)

    def apply(self, record: ConnectRecord) -> ConnectRecord:
        struct = self._part.value(record)
        if struct is None:
            return record
        schema = self._part.struct_schema(record, "flattening")
        flat = self._schemas.get(schema)
        values = dict.fromkeys((field.name for field in flat.fields), None) | dict(self._values(schema, struct, ""))
        for field in flat.fields:
            put(field.schema, field.name, values[field.name])
        return self._part.replace(record, flat, values)

    def _make_schema(self, schema: ConnectSchema) -> ConnectSchema:
        fields = list(self._fields(schema, "", schema.is_optional, schema.default))
        check_unique(fields)
        return copy_basics(schema, fields=tuple(fields))

    def _fields(
        self, schema: ConnectSchema, prefix: str, is_optional: bool, default: Struct | None
    ) -> Iterator[SchemaField]:
        """Yield the fields of a struct at any depth: optional, and with a default, if a struct around it is so."""
        for field in schema.fields:
            name = f"{prefix}{field.name}"
            optional = is_optional or field.schema.is_optional
            own_default = field.schema.default
            if own_default is None and default is not None:
                own_default = field_value(default, field)
            if field.schema.type == "struct":
                yield from self._fields(field.schema, f"{name}{self._delimiter}", optional, own_default)
            elif field.schema.type == "map":
                raise TransformError(f"flattening: the field {name} is a map")
            else:
                yield SchemaField(name, copy_basics(field.schema, is_optional=optional, default=own_default))

    def _values(self, schema: ConnectSchema, struct: Struct | None, prefix: str) -> Iterator[tuple[str, Any]]:
        if struct is None:
            return
        for field in schema.fields:
            name, value = f"{prefix}{field.name}", field_value(struct, field)
            if field.schema.type == "struct":
                yield from self._values(field.schema, value, f"{name}{self._delimiter}")
            else:
                yield name, value


class ValueToKey:
    """Makes the key of fields of the value."""

    KEYS: ClassVar[Sequence[ConfigKey]] = (
        ConfigKey("fields", "LIST", "Fields of the value.", importance="HIGH", check=check_not_empty),
        REPLACE_NULL,
    )

    def __init__(self, settings: Mapping[str, Any]) -> None:
        self._fields: list[str] = settings["fields"]
        self._with_default: bool = settings[REPLACE_NULL.name]
        self._schemas = SchemaCache(self._make_schema)

    def apply(self, record: ConnectRecord) -> ConnectRecord:
        schema, struct = record.value_schema, record.value
        if schema is None or schema.type != "struct" or struct is None:
            raise TransformError("copying fields to the key: the value has to be a struct")
        key = self._schemas.get(schema)
        values = {field.name: field_value(struct, field, self._with_default) for field in key.fields}
        return KEY.replace(record, key, values)

    def _make_schema(self, schema: ConnectSchema) -> ConnectSchema:
        fields = [schema.find_field(name) for name in self._fields]
        if None in fields:
            raise TransformError(f"the value has no field {self._fields[fields.index(None)]}")
        return ConnectSchema("struct", fields=tuple(field for field in fields if field is not None))


class SetSchemaMetadata:
    """Sets a schema's name, its version, or both."""

    KEYS: ClassVar[Sequence[ConfigKey]] = (
        ConfigKey("schema.name", "STRING", "The schema's name.", default=None, importance="HIGH"),
        ConfigKey("schema.version", "INT", "The schema's version.", default=None, importance="HIGH"),
        REPLACE_NULL,
    )

    def __init__(self, settings: Mapping[str, Any], part: RecordPart) -> None:
        self._part = part
        names = {"name": settings["schema.name"], "version": settings["schema.version"]}
        self._changes = {name: value for name, value in names.items() if value is not None}
        self._with_default: bool = settings[REPLACE_NULL.name]
        if not self._changes:
            raise ValueError("set schema.name, schema.version or both")
        self._schemas = SchemaCache(lambda schema: replace(schema, **self._changes))

    def apply(self, record: ConnectRecord) -> ConnectRecord:
        schema, value = self._part.schema(record), self._part.value(record)
        if schema is None:
            if value is None:
                return record
            raise TransformError(f"naming the schema: the {self._part.name} has none")
        if schema.type == "struct" and value is not None:
            value = {field.name: field_value(value, field, self._with_default) for field in schema.fields}
        return self._part.replace(record, self._schemas.get(schema), value)
