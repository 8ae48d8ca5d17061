"""The converters without schemas: bytes as they are, and numbers as Kafka's own serializers write them."""

from __future__ import annotations

import struct
from typing import Any

from helenus_connector.connect_data.schema import ConnectSchema
from helenus_connector.converters._values import unfit

_FORMATS = {"int16": ">h", "int32": ">i", "int64": ">q", "float32": ">f", "float64": ">d"}


class ByteArrayConverter:
    """As `org.apache.kafka.connect.converters.ByteArrayConverter`: values of bytes, and no others."""

    def to_bytes(self, topic: str, schema: ConnectSchema | None, value: Any) -> bytes | None:
        if schema is not None and schema.type != "bytes":
            raise unfit(f"ByteArrayConverter takes bytes, not {schema.type}", topic)
        if value is not None and not isinstance(value, bytes):
            raise unfit(f"ByteArrayConverter takes bytes, not {type(value).__name__}", topic)
        return value


class NumberConverter:
    """As Connect's converters for one type of number, and for booleans: big-endian, of the type's width."""

    def __init__(self, name: str, connect_type: str) -> None:
        self._name = name
        self._type = connect_type
        self._format = _FORMATS.get(connect_type)

    def to_bytes(self, topic: str, schema: ConnectSchema | None, value: Any) -> bytes | None:
        if value is None and self._format is not None:
            return None  # of any schema: only that of booleans is looked at
        if schema is not None and schema.type != self._type:
            raise unfit(f"{self._name} takes {self._type}, not {schema.type}", topic)
        if value is None:
            return None
        is_boolean = isinstance(value, bool)
        if self._format is None:
            if not is_boolean:
                raise unfit(f"{self._name} takes booleans, not {type(value).__name__}", topic)
            return b"\1" if value else b"\0"
        try:
            if is_boolean or (self._type.startswith("int") and not isinstance(value, int)):
                raise TypeError
            return struct.pack(self._format, value)
        except (struct.error, OverflowError, TypeError):
            raise unfit(f"{self._name} takes {self._type}, not {str(value)[:40]}", topic) from None
