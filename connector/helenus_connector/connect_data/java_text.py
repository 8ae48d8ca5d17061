"""Values as text, as Java's `toString` and Connect's `Values` write them: forms of StringConverter and headers."""

from __future__ import annotations

import json
from base64 import b64encode
from collections.abc import Mapping
from typing import Any

from helenus_connector.connect_data import java_numbers as java
from helenus_connector.connect_data.schema import ConnectSchema
from helenus_connector.connect_data.times import is_time, time_text, to_milliseconds


def scalar_text(schema: ConnectSchema | None, value: Any) -> str:
    """Return a value that is no array, map or struct as text. Bytes are in base64."""
    if schema is not None and is_time(schema):
        return time_text(to_milliseconds(value, schema.name))
    if isinstance(value, bytes):
        return b64encode(value).decode()
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, float):
        return java.float_text(value, 32 if schema is not None and schema.type == "float32" else 64)
    return str(value)


def value_text(schema: ConnectSchema | None, value: Any) -> str:
    """Return any value as text, as Java's `toString`: `Struct{a=1,b=x}`, where a null field is left out."""
    if value is None:
        return "null"
    kind = None if schema is None else schema.type
    if schema is not None and kind == "struct":
        fields = ((field, value[field.name]) for field in schema.fields)
        return f"Struct{{{','.join(f'{f.name}={value_text(f.schema, v)}' for f, v in fields if v is not None)}}}"
    if isinstance(value, Mapping):
        of_key, of_value = (None, None) if schema is None else (schema.key_schema, schema.value_schema)
        return f"{{{', '.join(f'{value_text(of_key, k)}={value_text(of_value, v)}' for k, v in value.items())}}}"
    if isinstance(value, list):
        item = None if schema is None else schema.value_schema
        return f"[{', '.join(value_text(item, v) for v in value)}]"
    return scalar_text(schema, value)


def header_bytes(schema: ConnectSchema | None, value: Any) -> bytes:
    """Return a header's value, which is not None, as SimpleHeaderConverter writes it; bytes without a schema as they
    are.
    """
    if schema is None and isinstance(value, bytes):
        return value
    return _literal(schema, value, is_embedded=False).encode()


def _literal(schema: ConnectSchema | None, value: Any, is_embedded: bool) -> str:
    """Return a value as Connect's `Values.convertToString`: text within an array or a map is in quotes."""
    if value is None:
        return "null"
    if schema is not None and schema.type == "struct":
        present = ((f, f.schema.default if value[f.name] is None else value[f.name]) for f in schema.fields)
        return f"{{{','.join(f'{json.dumps(f.name)}:{_literal(f.schema, v, True)}' for f, v in present)}}}"
    if isinstance(value, str):
        return json.dumps(value, ensure_ascii=False) if is_embedded else value
    if isinstance(value, list):
        item = None if schema is None else schema.value_schema
        return f"[{','.join(_literal(item, v, is_embedded=True) for v in value)}]"
    if isinstance(value, Mapping):
        of_key, of_value = (None, None) if schema is None else (schema.key_schema, schema.value_schema)
        entries = (f"{_literal(of_key, k, True)}:{_literal(of_value, v, True)}" for k, v in value.items())
        return f"{{{','.join(entries)}}}"
    text = scalar_text(schema, value)
    return f'"{text}"' if is_embedded and isinstance(value, bytes) else text
