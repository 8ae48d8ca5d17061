"""Connect's schemas and values in the JSON of Kafka Connect's JsonConverter, with decimals in base64."""

from __future__ import annotations

import math
from base64 import b64encode
from decimal import Decimal
from typing import Any

from helenus_connector.connect_data import java_numbers as java
from helenus_connector.connect_data.schema import DECIMAL, ConnectSchema
from helenus_connector.connect_data.times import is_time, to_number

_TYPES = {"float32": "float", "float64": "double"}
"""Names of types, where the JSON has another name."""
_DIGITS = 10_000
"""Most digits of a decimal: a scale beyond that would be a value of some kB that holds zeros."""


def json_schema(schema: ConnectSchema) -> dict[str, Any]:
    """Return a schema in the form of JsonConverter."""
    form: dict[str, Any] = {"type": _TYPES.get(schema.type, schema.type)}
    if schema.type == "struct":
        form["fields"] = [{**json_schema(field.schema), "field": field.name} for field in schema.fields]
    elif schema.type == "map":
        assert schema.key_schema is not None
        form["keys"] = json_schema(schema.key_schema)
    if schema.value_schema is not None:
        form["items" if schema.type == "array" else "values"] = json_schema(schema.value_schema)
    form["optional"] = schema.is_optional
    more = {"name": schema.name, "version": schema.version, "doc": schema.doc, "parameters": dict(schema.parameters)}
    form |= {name: value for name, value in more.items() if value not in (None, {})}
    if schema.default is not None:
        form["default"] = json_value(schema, schema.default)
    return form


def json_value(schema: ConnectSchema | None, value: Any, with_defaults: bool = True) -> Any:
    """Return a value in the form of JsonConverter, `with_defaults` in place of nulls. Raises ValueError for one that is
    not of its schema.
    """
    if schema is None:
        return _without_schema(value)
    if value is None:
        if schema.default is not None and with_defaults:
            return json_value(schema, schema.default)
        if schema.is_optional or schema.default is not None:
            return None
        raise ValueError("null, where a value is required")
    if schema.type == "struct":
        return {field.name: json_value(field.schema, value[field.name], with_defaults) for field in schema.fields}
    if schema.type == "array":
        return [json_value(schema.value_schema, item, with_defaults) for item in value]
    if schema.type == "map":
        of_key, of_value = schema.key_schema, schema.value_schema
        if of_key is not None and of_key.type == "string":
            return {key: json_value(of_value, item, with_defaults) for key, item in value.items()}
        return [[json_value(of_key, key), json_value(of_value, item, with_defaults)] for key, item in value.items()]
    return _scalar_value(schema, value)


def _scalar_value(schema: ConnectSchema, value: Any) -> Any:
    if is_time(schema):
        return to_number(value)
    if schema.type == "bytes":
        return b64encode(unscaled_bytes(schema, value) if schema.name == DECIMAL else value).decode()
    if isinstance(value, float):
        if not math.isfinite(value):
            return java.float_text(value)
        return float(java.float_text(value, 32)) if schema.type == "float32" else value
    return value


def unscaled_bytes(schema: ConnectSchema, value: Decimal) -> bytes:
    """Return the unscaled integer of a decimal, signed, in as few bytes as hold it. Raises ValueError if its scale is
    not the schema's.
    """
    scale = int(dict(schema.parameters).get("scale", "0"))
    sign, digits, exponent = value.as_tuple()
    if exponent != -scale:
        raise ValueError(f"a decimal has not the scale {scale} of its schema")
    if len(digits) > _DIGITS:
        raise ValueError(f"a decimal of more than {_DIGITS} digits")
    unscaled = int(Decimal((sign, digits, 0)))  # of text Python reads 4,300 digits
    length = (unscaled + (unscaled < 0)).bit_length() // 8 + 1
    return unscaled.to_bytes(length, "big", signed=True)


def _without_schema(value: Any) -> Any:
    """Return a value without a schema, such as a transform of a user's own makes."""
    if isinstance(value, bytes):
        return b64encode(value).decode()
    if isinstance(value, dict):
        if all(isinstance(key, str) for key in value):
            return {key: _without_schema(item) for key, item in value.items()}
        return [[_without_schema(key), _without_schema(item)] for key, item in value.items()]
    if isinstance(value, list):
        return [_without_schema(item) for item in value]
    if isinstance(value, float) and not math.isfinite(value):
        return java.float_text(value)
    if value is None or isinstance(value, (str, int, float)):
        return value
    raise ValueError(f"a {type(value).__name__} without a schema")
