"""Header converters: values of headers, as `ConnectHeader` has them, to bytes.

`SimpleHeaderConverter` writes text that it can read again, `StringConverter` text, `JsonConverter` JSON.
"""

from __future__ import annotations

import json
from base64 import b64encode
from collections.abc import Callable
from typing import Any

from helenus_connector.connect_data.schema import DATE, DECIMAL, TIME, TIMESTAMP, ConnectSchema
from helenus_connector.converters._json_text import JsonText
from helenus_connector.converters._values import calendar_date, java_number, number_of, unfit
from helenus_schemas.errors import HelenusError, Kind

SIMPLE = "org.apache.kafka.connect.storage.SimpleHeaderConverter"
"""Connect's default."""
HeaderConverter = Callable[["ConnectSchema | None", Any], "bytes | None"]
"""Returns the bytes of a header's value; None for none. Raises HelenusError POISON_EVENT."""
_STORAGE = "org.apache.kafka.connect.storage."
_DAY_MS = 86_400_000
_JSON = JsonText(is_numeric=False, is_confluent=False)


def header_converter(class_name: str, with_schemas: bool = True) -> HeaderConverter:
    """Return the converter of headers that a class's name says; `with_schemas` is JsonConverter's `schemas.enable`.

    Raises HelenusError CONFIG for another class.
    """
    converters: dict[str, HeaderConverter] = {
        SIMPLE: simple_header,
        f"{_STORAGE}StringConverter": string_header,
        "org.apache.kafka.connect.json.JsonConverter": json_header_with_schema if with_schemas else json_header,
    }
    if class_name not in converters:
        problem = f"header.converter={class_name}: there is no such header converter"
        raise HelenusError(Kind.CONFIG, problem, "", f"give one of {', '.join(converters)}")
    return converters[class_name]


def check_header_converter(class_name: str) -> str:
    """Return the name. Raises ValueError for a class that is no header converter."""
    try:
        header_converter(class_name)
    except HelenusError as error:
        raise ValueError(f"there is no such header converter: {error.advice}") from None
    return class_name


def simple_header(schema: ConnectSchema | None, value: Any) -> bytes | None:
    """Return a value as Connect's `Values.convertToString` writes it."""
    if value is None:
        return None
    return _fitting(lambda: _simple_text(schema, value, is_inner=False).encode())


def string_header(schema: ConnectSchema | None, value: Any) -> bytes | None:
    """Return the text of a value as Java's `toString` writes it; a struct has none that anybody could read."""
    if value is None:
        return None
    if isinstance(value, dict | list | bytes):
        raise unfit(f"a header of {type(value).__name__} is no text")
    return _fitting(lambda: _simple_text(schema, value, is_inner=False).encode())


def json_header(schema: ConnectSchema | None, value: Any) -> bytes | None:
    """Return a value as JSON."""
    return None if schema is None and value is None else _fitting(lambda: _JSON.encode(schema, value).encode())


def json_header_with_schema(schema: ConnectSchema | None, value: Any) -> bytes | None:
    """Return a value as JSON with its schema: {"schema": …, "payload": …}."""
    if schema is None and value is None:
        return None

    def encode() -> bytes:
        described = json.dumps(None if schema is None else connect_schema_json(schema), separators=(",", ":"))
        return f'{{"schema":{described},"payload":{_JSON.encode(schema, value)}}}'.encode()

    return _fitting(encode)


def connect_schema_json(schema: ConnectSchema) -> dict[str, Any]:
    """Return a schema as Connect's JsonConverter writes it."""
    names = {"float32": "float", "float64": "double"}
    described: dict[str, Any] = {"type": names.get(schema.type, schema.type)}
    if schema.type == "struct":
        described["fields"] = [{**connect_schema_json(field.schema), "field": field.name} for field in schema.fields]
    if schema.value_schema is not None:
        described["items" if schema.type == "array" else "values"] = connect_schema_json(schema.value_schema)
    if schema.key_schema is not None:
        described["keys"] = connect_schema_json(schema.key_schema)
    described["optional"] = schema.is_optional
    details = {"name": schema.name, "version": schema.version, "doc": schema.doc}
    described |= {name: value for name, value in details.items() if value is not None}
    if schema.parameters:
        described["parameters"] = dict(schema.parameters)
    if schema.default is not None:
        described["default"] = json.loads(_JSON.encode(schema, schema.default))
    return described


def _fitting(encode: Callable[[], bytes]) -> bytes:
    try:
        return encode()
    except (ValueError, LookupError, TypeError) as error:
        raise unfit(f"a header has no such form: {error}") from None


def _simple_text(schema: ConnectSchema | None, value: Any, is_inner: bool) -> str:
    """Return the text of a value; that `is_inner`, of a list or map, is quoted if it is text."""
    name = None if schema is None else schema.name
    if value is None:
        return "null"
    if isinstance(value, str | bytes):
        text = value if isinstance(value, str) else b64encode(value).decode()
        escaped = text.replace("\\", "\\\\").replace('"', '\\"')
        return f'"{escaped}"' if is_inner else text
    if isinstance(value, list | dict):
        return _collection_text(schema, value)
    if isinstance(value, bool):
        return str(value).lower()
    if schema is not None and name in (DATE, TIME, TIMESTAMP):
        return _date_text(number_of(schema, value) * (_DAY_MS if name == DATE else 1))
    if isinstance(value, float):
        return java_number(value, is_single=schema is not None and schema.type == "float32")
    if isinstance(value, int) or name == DECIMAL:
        return str(value)
    raise ValueError(f"{type(value).__name__} is no value of a header")


def _collection_text(schema: ConnectSchema | None, value: Any) -> str:
    """Return the text of a list or a map."""
    key_schema, value_schema = (None, None) if schema is None else (schema.key_schema, schema.value_schema)
    if isinstance(value, list):
        return f"[{','.join(_simple_text(value_schema, item, True) for item in value)}]"
    if schema is not None and schema.type != "map":
        raise ValueError("a struct is no value of a header")
    entries = (
        f"{_simple_text(key_schema, key, True)}:{_simple_text(value_schema, member, True)}"
        for key, member in value.items()
    )
    return f"{{{','.join(entries)}}}"


def _date_text(milliseconds: int) -> str:
    """Return a time by the form that `Values` takes for it: of the first day in 1970 it is the time alone."""
    days, time_of_day = divmod(milliseconds, _DAY_MS)
    seconds, part = divmod(time_of_day, 1000)
    time = f"{seconds // 3600:02}:{seconds // 60 % 60:02}:{seconds % 60:02}.{part:03}Z"
    if milliseconds < _DAY_MS:
        return time
    year, month, day = calendar_date(days)
    date = f"{year:04}-{month:02}-{day:02}"
    return date if not time_of_day else f"{date}T{time}"
