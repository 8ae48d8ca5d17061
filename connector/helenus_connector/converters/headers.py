"""Header converters: values of headers, as `ConnectHeader` has them, to bytes.

`SimpleHeaderConverter` writes text that it can read again, `StringConverter` text, `JsonConverter` JSON with a schema.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

from helenus_connector.connect_data.converter import ConnectJson, PlainText
from helenus_connector.connect_data.java_text import header_bytes
from helenus_connector.connect_data.schema import ConnectSchema
from helenus_schemas.errors import HelenusError, Kind

SIMPLE = "org.apache.kafka.connect.storage.SimpleHeaderConverter"
"""Connect's default."""
HeaderConverter = Callable[["ConnectSchema | None", Any], "bytes | None"]
"""Returns the bytes of a header's value; None for none. Raises HelenusError POISON_EVENT."""


def header_converter(class_name: str) -> HeaderConverter:
    """Return the converter of headers that a class's name says. Raises HelenusError CONFIG for another class."""
    if class_name not in _CONVERTERS:
        problem = f"header.converter={class_name}: there is no such header converter"
        raise HelenusError(Kind.CONFIG, problem, "", f"give one of {', '.join(_CONVERTERS)}")
    return _CONVERTERS[class_name]


def check_header_converter(class_name: str) -> str:
    """Return the name. Raises ValueError for a class that is no header converter."""
    try:
        header_converter(class_name)
    except HelenusError as error:
        raise ValueError(f"there is no such header converter: {error.advice}") from None
    return class_name


def simple_header(schema: ConnectSchema | None, value: Any) -> bytes | None:
    """Return a value as Connect's `Values.convertToString` writes it, bytes without a schema as they are."""
    if value is None:
        return None
    try:
        return header_bytes(schema, value)
    except (ValueError, LookupError, TypeError) as error:
        raise HelenusError(Kind.POISON_EVENT, f"a header has no such form: {error}") from None


_CONVERTERS: dict[str, HeaderConverter] = {
    SIMPLE: simple_header,
    "org.apache.kafka.connect.storage.StringConverter": partial(PlainText().to_bytes, "a header"),
    "org.apache.kafka.connect.json.JsonConverter": partial(ConnectJson(True, keeps_nulls=True).to_bytes, "a header"),
}
HEADER_CLASSES = tuple(_CONVERTERS)
"""The names of the classes that `header_converter` knows."""
