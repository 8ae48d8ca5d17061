"""Kafka's transforms of headers: DropHeaders, HeaderFrom, InsertHeader."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from decimal import ROUND_CEILING, ROUND_FLOOR, Decimal
from typing import Any, ClassVar

from helenus_connector.connect_data import java_numbers as java
from helenus_connector.connect_data.java_dates import DateFormat
from helenus_connector.connect_data.record import ConnectHeader, ConnectRecord
from helenus_connector.connect_data.schema import DATE, DECIMAL, TIME, TIMESTAMP, ConnectSchema
from helenus_connector.connect_data.times import from_milliseconds
from helenus_connector.transforms._record_part import REPLACE_NULL, RecordPart, SchemaCache, copy_basics, field_value
from helenus_connector.transforms.contract import ConfigKey, TransformError, check_not_empty

_TEMPORAL: Mapping[int, tuple[ConnectSchema, DateFormat]] = {
    13: (ConnectSchema("int32", name=TIME, version=1), DateFormat("HH:mm:ss.SSS'Z'")),
    24: (ConnectSchema("int64", name=TIMESTAMP, version=1), DateFormat("yyyy-MM-dd'T'HH:mm:ss.SSS'Z'")),
    10: (ConnectSchema("int32", name=DATE, version=1), DateFormat("yyyy-MM-dd")),
}
"""By length of the text."""


class DropHeaders:
    """Drops headers."""

    KEYS: ClassVar[Sequence[ConfigKey]] = (
        ConfigKey("headers", "LIST", "Names of the headers to drop.", importance="HIGH", check=check_not_empty),
    )

    def __init__(self, settings: Mapping[str, Any]) -> None:
        self._names = frozenset(settings["headers"])

    def apply(self, record: ConnectRecord) -> ConnectRecord:
        return replace(record, headers=tuple(header for header in record.headers if header.name not in self._names))


class HeaderFrom:
    """Moves or copies fields to headers."""

    KEYS: ClassVar[Sequence[ConfigKey]] = (
        ConfigKey("fields", "LIST", "Fields to move or copy.", importance="HIGH", check=check_not_empty),
        ConfigKey(
            "headers", "LIST", "Names of the headers, in the order of fields.", importance="HIGH", check=check_not_empty
        ),
        ConfigKey(
            "operation", "STRING", "Whether the fields leave the record.", importance="HIGH", choices=("move", "copy")
        ),
        REPLACE_NULL,
    )

    def __init__(self, settings: Mapping[str, Any], part: RecordPart) -> None:
        self._part = part
        self._names: dict[str, str] = {}
        fields, headers = settings["fields"], settings["headers"]
        if len(fields) != len(headers):
            raise ValueError("headers: name as many headers as fields")
        self._pairs = list(zip(fields, headers, strict=True))
        self._moves = settings["operation"] == "move"
        self._with_default: bool = settings[REPLACE_NULL.name]
        self._schemas = SchemaCache(self._make_schema)

    def apply(self, record: ConnectRecord) -> ConnectRecord:
        schema, struct = self._part.struct_schema(record, "fields to headers"), self._part.value(record)
        headers = list(record.headers)
        for name, header in self._pairs:
            field = schema.find_field(name)
            if field is None:
                raise TransformError(f"the {self._part.name} has no field {name}")
            headers.append(ConnectHeader(header, field.schema, field_value(struct, field, self._with_default)))
        record = replace(record, headers=tuple(headers))
        if not self._moves:
            return record
        remaining = self._schemas.get(schema)
        values = {field.name: field_value(struct, field, self._with_default) for field in remaining.fields}
        return self._part.replace(record, remaining, values)

    def _make_schema(self, schema: ConnectSchema) -> ConnectSchema:
        moved = {name for name, _ in self._pairs}
        return copy_basics(schema, fields=tuple(field for field in schema.fields if field.name not in moved))


class InsertHeader:
    """Adds a header with a fixed value."""

    KEYS: ClassVar[Sequence[ConfigKey]] = (
        ConfigKey("header", "STRING", "The header's name.", importance="HIGH"),
        ConfigKey("value.literal", "STRING", "The header's value.", importance="HIGH"),
    )

    def __init__(self, settings: Mapping[str, Any]) -> None:
        self._header = ConnectHeader(settings["header"], *parse_literal(settings["value.literal"]))

    def apply(self, record: ConnectRecord) -> ConnectRecord:
        return replace(record, headers=(*record.headers, self._header))


def parse_literal(text: str) -> tuple[ConnectSchema | None, Any]:
    """Return the schema and value that a text stands for, as Connect's `Values.parseString`: null, a boolean, a number
    of the smallest type, a date, time or timestamp, or else the text. Arrays and maps stay text.
    """
    word = text.strip()
    if word == "null":
        return None, None
    if word in ("true", "false"):
        return ConnectSchema("boolean"), word == "true"
    if word[:1].isdigit() and (temporal := _TEMPORAL.get(len(word))) is not None:
        schema, date_format = temporal
        try:
            return schema, from_milliseconds(date_format.parse(word), schema.name or "")
        except ValueError:
            pass
    if word[:1].isdigit() or word[:1] in ("+", "-"):
        try:
            return _parse_number(java.parse_decimal(word))
        except ValueError:
            pass
    return ConnectSchema("string"), word or text


def _parse_number(number: Decimal) -> tuple[ConnectSchema, Any]:
    """Return a number in the smallest type that holds it."""
    if number == number.to_integral_value(ROUND_FLOOR) == number.to_integral_value(ROUND_CEILING):
        whole = int(number)
        for kind, bits in java.BITS.items():
            if -(1 << (bits - 1)) <= whole < 1 << (bits - 1):
                return ConnectSchema(kind), whole  # type: ignore[arg-type]
    exponent = number.as_tuple().exponent
    scale = -exponent if isinstance(exponent, int) else 0
    if scale and abs(java.to_float32(number)) != float("inf"):
        return ConnectSchema("float32"), java.to_float32(number)
    if scale and abs(java.to_float(number)) != float("inf"):
        return ConnectSchema("float64"), java.to_float(number)
    return ConnectSchema("bytes", name=DECIMAL, version=1, parameters=(("scale", str(scale)),)), number
