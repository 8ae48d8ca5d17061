"""`io.confluent.connect.json.JsonSchemaConverter`: JSON, and its JSON Schema in a registry.

Source: `JsonSchemaData` of Confluent's schema-registry 8. Members, and branches of `oneOf`, are in the order of the
fields, null first; Confluent's are in that of Java's hashes, so a registry may take the two for versions of one schema.
"""

from __future__ import annotations

import json
import struct
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from helenus_connector.connect_data.schema import DECIMAL, ConnectSchema
from helenus_connector.converters._json_text import KEY, VALUE, JsonText, has_text_keys
from helenus_connector.converters._values import unfit
from helenus_connector.converters.subjects import SchemaStore, SubjectSchemas, flag, subject_settings
from helenus_schemas.errors import HelenusError, Kind

_FRAME = struct.Struct(">bI")
_MAX_SCHEMAS = 100  # of one topic: each ALTER makes one
_NAMESPACE = "io.confluent.connect.json"
"""Parameters with such names are of the converter, and in no schema."""
_TYPES = {
    **dict.fromkeys(("int8", "int16", "int32", "int64"), "integer"),
    **dict.fromkeys(("float32", "float64"), "number"),
    **dict.fromkeys(("string", "bytes"), "string"),
    "boolean": "boolean",
}
_SAID_BY_TYPE = ("boolean", "string")
Json = dict[str, Any]


class JsonSchemaConverter:
    """Encodes values in JSON behind the frame of their schema's id."""

    def __init__(self, properties: Mapping[str, str], is_key: bool, store: SchemaStore) -> None:
        decimals = properties.get("decimal.format", "BASE64").upper()
        if decimals not in ("BASE64", "NUMERIC"):
            raise HelenusError(Kind.CONFIG, f"decimal.format={decimals[:40]}: give BASE64 or NUMERIC")
        self._is_numeric = decimals == "NUMERIC"
        self._allows_more = flag(properties, "object.additional.properties", True)
        self._text = JsonText(self._is_numeric)
        self._subjects = SubjectSchemas(store, "JSON", is_key, subject_settings(properties, is_key))
        self._schemas: dict[int, tuple[ConnectSchema, str]] = {}

    def to_bytes(self, topic: str, schema: ConnectSchema | None, value: Any) -> bytes | None:
        if value is None:
            return None
        if schema is None:
            raise unfit("JsonSchemaConverter needs a schema, and the value has none", topic)
        try:
            data = self._text.encode(schema, value).encode()
        except (ValueError, LookupError, TypeError) as error:
            raise unfit(f"a value has no form in JSON: {error}", topic) from None
        name = schema.name if not schema.is_optional else None  # an optional schema has its title in a branch
        return _FRAME.pack(0, self._subjects.register(topic, name, self._schema_text(schema)).id) + data

    def _schema_text(self, schema: ConnectSchema) -> str:
        """Return a schema's JSON Schema. Kept by the schema itself: records of one table have the same object."""
        cached = self._schemas.get(id(schema))
        if cached is None or cached[0] is not schema:
            text = json.dumps(json_schema(schema, self._is_numeric, self._allows_more), ensure_ascii=False)
            if len(self._schemas) >= _MAX_SCHEMAS:
                self._schemas.clear()
            cached = self._schemas[id(schema)] = schema, text
        return cached[1]


def json_schema(
    schema: ConnectSchema, is_numeric: bool = False, allows_more: bool = True, index: int | None = None
) -> Json:
    """Return the JSON Schema of values: with `is_numeric` decimals are numbers; unless it `allows_more`, objects have
    no members beyond their fields. `index` is that of a field.
    """
    position = {} if index is None else {"connect.index": index}
    if schema.is_optional:
        required = json_schema(replace(schema, is_optional=False), is_numeric, allows_more)
        return {"oneOf": [{"type": "null"}, required], **position}
    described: Json = {}
    if schema.name is not None:
        described["title"] = schema.name
    if schema.doc is not None:
        described["description"] = schema.doc
    if schema.default is not None:
        described["default"] = json.loads(JsonText(is_numeric).encode(schema, schema.default))
    described |= _type_schema(schema, is_numeric, allows_more)
    if schema.version is not None:
        described["connect.version"] = schema.version
    if parameters := {name: text for name, text in schema.parameters if not name.startswith(_NAMESPACE)}:
        described["connect.parameters"] = parameters
    return {**described, **position}


def _type_schema(schema: ConnectSchema, is_numeric: bool, allows_more: bool) -> Json:
    """Return what a JSON Schema says of the type alone."""

    def inner(member: ConnectSchema | None, index: int | None = None) -> Json:
        assert member is not None
        return json_schema(member, is_numeric, allows_more, index)

    match schema.type:
        case "array":
            return {"type": "array", "items": inner(schema.value_schema)}
        case "map" if has_text_keys(schema):
            more = inner(schema.value_schema)
            return {"type": "object", "additionalProperties": more, "connect.type": "map"}
        case "map":
            parts = {KEY: inner(schema.key_schema, 0), VALUE: inner(schema.value_schema, 1)}
            return {"type": "array", "items": {"type": "object", "properties": parts}, "connect.type": "map"}
        case "struct":
            members = {field.name: inner(field.schema, number) for number, field in enumerate(schema.fields)}
            closed = {} if allows_more else {"additionalProperties": False}
            return {"type": "object", "properties": members, **closed}
    json_type = "number" if schema.name == DECIMAL and is_numeric else _TYPES[schema.type]
    return {"type": json_type} | ({} if schema.type in _SAID_BY_TYPE else {"connect.type": schema.type})
