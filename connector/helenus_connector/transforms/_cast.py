"""Kafka's Cast: fields, or the whole key or value, as another type."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, ClassVar, cast

from helenus_connector.connect_data import java_numbers as java
from helenus_connector.connect_data.java_text import scalar_text
from helenus_connector.connect_data.record import ConnectRecord
from helenus_connector.connect_data.schema import ConnectSchema, ConnectType, SchemaField
from helenus_connector.connect_data.times import is_time, to_number
from helenus_connector.transforms._record_part import REPLACE_NULL, RecordPart, SchemaCache, copy_basics, field_value
from helenus_connector.transforms.contract import ConfigKey, TransformError

_TYPES = ("int8", "int16", "int32", "int64", "float32", "float64", "boolean", "string")
_STRUCTURED = ("array", "map", "struct")


def _parse_spec(spec: Sequence[str]) -> dict[str | None, ConnectType]:
    """Return the types by field; of the whole value by None."""
    if not spec:
        raise ValueError("name a field to cast, as field:type")
    casts: dict[str | None, ConnectType] = {}
    for part in spec:
        field, colon, kind = part.rpartition(":")
        if ":" in field:
            raise ValueError(f"give pairs as field:type, and not {part}")
        kind = kind.strip().lower()
        if kind not in _TYPES:
            raise ValueError(f"{kind} is no type to cast to: give one of {', '.join(_TYPES)}")
        casts[field.strip() if colon else None] = cast("ConnectType", kind)
    if None in casts and len(spec) > 1:
        raise ValueError("a type without a field casts the whole value: give it alone")
    return casts


class Cast:
    """Casts fields."""

    KEYS: ClassVar[Sequence[ConfigKey]] = (
        ConfigKey(
            "spec",
            "LIST",
            f"Pairs field:type, or a type alone for the whole key or value. Types: {', '.join(_TYPES)}. Bytes become "
            "text in base64.",
            importance="HIGH",
            check=_parse_spec,
        ),
        REPLACE_NULL,
    )

    def __init__(self, settings: Mapping[str, Any], part: RecordPart) -> None:
        self._part = part
        self._casts = _parse_spec(settings["spec"])
        self._whole = self._casts.get(None)
        self._with_default: bool = settings[REPLACE_NULL.name]
        self._schemas = SchemaCache(self._make_schema)

    def apply(self, record: ConnectRecord) -> ConnectRecord:
        value = self._part.value(record)
        if value is None:
            return record
        if self._whole is not None and (schema := self._part.schema(record)) is not None:
            return self._part.replace(record, self._schemas.get(schema), cast_value(schema, value, self._whole))
        schema = self._part.struct_schema(record, "casting fields")
        values = {}
        for field in schema.fields:
            kind = self._casts.get(field.name)
            field_content = field_value(value, field, self._with_default)
            values[field.name] = field_content if kind is None else cast_value(field.schema, field_content, kind)
        return self._part.replace(record, self._schemas.get(schema), values)

    def _make_schema(self, schema: ConnectSchema) -> ConnectSchema:
        if self._whole is not None:
            default = cast_value(schema, schema.default, self._whole)
            return ConnectSchema(
                self._whole, schema.is_optional, schema.name, schema.version, schema.doc, default, schema.parameters
            )
        fields = []
        for field in schema.fields:
            kind = self._casts.get(field.name)
            if kind is not None:
                default = cast_value(field.schema, field.schema.default, kind)
                field = SchemaField(field.name, ConnectSchema(kind, field.schema.is_optional, default=default))
            fields.append(field)
        return copy_basics(schema, is_optional=schema.is_optional, default=schema.default, fields=tuple(fields))


def cast_value(schema: ConnectSchema, value: Any, kind: ConnectType) -> Any:
    """Return a value as another type, as Java converts it. Raises TransformError."""
    if value is None:
        return None
    if schema.type in _STRUCTURED:
        raise TransformError(f"a {schema.type} can't be cast")
    if kind == "string":
        return scalar_text(schema, value)
    if is_time(schema):
        value = to_number(value)
    if isinstance(value, bytes):
        raise TransformError(f"bytes can't be cast to {kind}")
    if kind == "boolean":
        if isinstance(value, str):
            return value.lower() == "true"
        return value if isinstance(value, bool) else java.to_integer(value, "int64") != 0
    if kind in ("float32", "float64"):
        number = java.parse_float(value) if isinstance(value, str) else java.to_float(value)
        return java.to_float32(number) if kind == "float32" else number
    return java.parse_integer(value, kind) if isinstance(value, str) else java.to_integer(value, kind)
