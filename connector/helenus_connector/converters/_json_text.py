"""Values as JSON, as Confluent's JsonSchemaConverter writes it: without a required field that has no value.

BASE64: {"d": "AXo="}, NUMERIC: {"d": 3.78}; dates, times and timestamps are numbers, NaN is text
"""

from __future__ import annotations

import json
import math
from base64 import b64encode
from collections.abc import Callable
from typing import Any

from helenus_connector.connect_data.java_numbers import float_text
from helenus_connector.connect_data.schema import DECIMAL, ConnectSchema
from helenus_connector.converters._values import LOGICAL, decimal_bytes, number_of, unscaled_digits

KEY, VALUE = "key", "value"
"""Names of the parts of a map's entries, if its keys are no text."""


class JsonText:
    """Encodes values; with `is_numeric` decimals are numbers."""

    def __init__(self, is_numeric: bool) -> None:
        self._is_numeric = is_numeric

    def encode(self, schema: ConnectSchema | None, value: Any) -> str:
        """Return a value as JSON, null for None. Raises ValueError for a value that is none of the schema."""
        if schema is None:
            return _text(value)
        if value is None:
            if schema.default is None:
                return "null"
            value = schema.default
        if schema.name in LOGICAL:
            return self._logical(schema, value)
        match schema.type:
            case "struct":
                return self._struct(schema, value)
            case "array":
                items = (self.encode(schema.value_schema, item) for item in _checked(value, list))
                return f"[{','.join(items)}]"
            case "map":
                return self._map(schema, value)
            case "bytes":
                return _text(b64encode(_checked(value, bytes)).decode())
            case "float32" | "float64":
                return _float(value, schema.type == "float32")
            case "boolean":
                return "true" if _checked(value, bool) else "false"
            case "string":
                return _text(_checked(value, str))
            case _:
                if isinstance(value, bool):
                    raise ValueError("bool is no number")
                return str(_checked(value, int))

    def _logical(self, schema: ConnectSchema, value: Any) -> str:
        if schema.name != DECIMAL:
            return str(number_of(schema, value))
        if self._is_numeric:
            unscaled_digits(value)  # is one
            return str(value)
        return _text(b64encode(decimal_bytes(schema, value)).decode())

    def _struct(self, schema: ConnectSchema, value: Any) -> str:
        members = []
        for field in schema.fields:
            member = _checked(value, dict).get(field.name)
            is_missing = member is None and field.schema.default is None and not field.schema.is_optional
            if is_missing:
                continue
            members.append(f"{_text(field.name)}:{self.encode(field.schema, member)}")
        return f"{{{','.join(members)}}}"

    def _map(self, schema: ConnectSchema, value: Any) -> str:
        key_schema, value_schema = schema.key_schema, schema.value_schema
        entries = [
            (self.encode(key_schema, key), self.encode(value_schema, member))
            for key, member in _checked(value, dict).items()
        ]
        if has_text_keys(schema):
            return f"{{{','.join(f'{key}:{member}' for key, member in entries)}}}"
        members = (f'{{"{KEY}":{key},"{VALUE}":{member}}}' for key, member in entries)
        return f"[{','.join(members)}]"


def has_text_keys(schema: ConnectSchema) -> bool:
    """Return whether a map's keys are text that is never null: then it is an object."""
    key_schema = schema.key_schema
    return key_schema is not None and key_schema.type == "string" and not key_schema.is_optional


_text: Callable[[Any], str] = json.JSONEncoder(ensure_ascii=False, separators=(",", ":"), allow_nan=False).encode


def _checked(value: Any, kind: type) -> Any:
    if not isinstance(value, kind):
        raise ValueError(f"{type(value).__name__} in the place of {kind.__name__}")
    return value


def _float(value: Any, is_single: bool) -> str:
    if not isinstance(value, int | float) or isinstance(value, bool):
        raise ValueError(f"{type(value).__name__} in the place of a float")
    text = float_text(float(value), 32 if is_single else 64)
    return text if math.isfinite(value) else f'"{text}"'  # as Jackson writes them
