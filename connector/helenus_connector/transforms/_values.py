"""Kafka's transforms of what fields hold: InsertField, MaskField."""

from __future__ import annotations

import datetime
from collections.abc import Mapping, Sequence
from decimal import Decimal
from typing import Any, ClassVar, NamedTuple

from helenus_connector.connect_data import java_numbers as java
from helenus_connector.connect_data.record import ConnectRecord
from helenus_connector.connect_data.schema import TIMESTAMP, ConnectSchema, ConnectType, SchemaField
from helenus_connector.connect_data.times import from_milliseconds
from helenus_connector.transforms._record_part import (
    REPLACE_NULL,
    RecordPart,
    SchemaCache,
    copy_basics,
    field_value,
    put,
)
from helenus_connector.transforms.contract import ConfigKey, TransformError, check_not_empty

_OPTIONALITY = "! behind it makes the field required, ? optional, the default."
_METADATA: Mapping[str, ConnectType] = {"topic": "string", "partition": "int32", "timestamp": "int64"}


class InsertedField(NamedTuple):
    """A field to insert, and where its value is from."""

    source: str
    field: SchemaField


class InsertField:
    """Inserts fields of the record's topic, partition or timestamp, or with a fixed value."""

    KEYS: ClassVar[Sequence[ConfigKey]] = (
        ConfigKey("topic.field", "STRING", f"Field for the topic. {_OPTIONALITY}", default=None),
        ConfigKey("partition.field", "STRING", f"Field for the partition. {_OPTIONALITY}", default=None),
        ConfigKey("offset.field", "STRING", "Of sink connectors alone: refused.", default=None),
        ConfigKey("timestamp.field", "STRING", f"Field for the timestamp. {_OPTIONALITY}", default=None),
        ConfigKey("static.field", "STRING", f"Field for a fixed value. {_OPTIONALITY}", default=None),
        ConfigKey("static.value", "STRING", "The fixed value.", default=None),
        REPLACE_NULL,
    )

    def __init__(self, settings: Mapping[str, Any], part: RecordPart) -> None:
        self._part = part
        if settings["offset.field"] is not None:
            raise ValueError("offset.field: a record has its offset only when it is written: leave it out")
        sources = ("topic", "partition", "timestamp", "static")
        self._inserted = [_inserted(source, name) for source in sources if (name := settings[f"{source}.field"])]
        if not self._inserted:
            raise ValueError("set topic.field, partition.field, timestamp.field or static.field")
        self._static: str | None = settings["static.value"]
        if settings["static.field"] is not None and self._static is None:
            raise ValueError("static.field needs static.value")
        self._with_default: bool = settings[REPLACE_NULL.name]
        self._schemas = SchemaCache(self._make_schema)

    def apply(self, record: ConnectRecord) -> ConnectRecord:
        struct = self._part.value(record)
        if struct is None:
            return record
        schema = self._part.struct_schema(record, "inserting fields")
        values = {field.name: field_value(struct, field, self._with_default) for field in schema.fields}
        for source, field in self._inserted:
            values[field.name] = put(field.schema, field.name, self._value(source, record))
        return self._part.replace(record, self._schemas.get(schema), values)

    def _value(self, source: str, record: ConnectRecord) -> Any:
        if source == "topic":
            return record.topic
        if source == "static":
            return self._static
        if source == "partition":
            return record.partition
        return None if record.timestamp is None else from_milliseconds(record.timestamp, TIMESTAMP)

    def _make_schema(self, schema: ConnectSchema) -> ConnectSchema:
        names = {field.name for field in schema.fields}
        if present := [field.name for _, field in self._inserted if field.name in names]:
            raise TransformError(f"there is a field {present[0]} already")
        return copy_basics(schema, fields=(*schema.fields, *(inserted.field for inserted in self._inserted)))


def _inserted(source: str, name: str) -> InsertedField:
    is_optional = not name.endswith("!")
    kind = _METADATA.get(source, "string")
    is_timestamp = source == "timestamp"
    schema = ConnectSchema(
        kind, is_optional, name=TIMESTAMP if is_timestamp else None, version=1 if is_timestamp else None
    )
    return InsertedField(source, SchemaField(name[:-1] if name[-1] in "!?" else name, schema))


class MaskField:
    """Masks fields: with 0, an empty text and so on, or with a replacement."""

    KEYS: ClassVar[Sequence[ConfigKey]] = (
        ConfigKey("fields", "LIST", "Fields to mask.", importance="HIGH", check=check_not_empty),
        ConfigKey(
            "replacement",
            "STRING",
            "Text, or number, that all of them get, if they are text or numbers.",
            default=None,
            importance="LOW",
            check=check_not_empty,
        ),
        REPLACE_NULL,
    )

    def __init__(self, settings: Mapping[str, Any], part: RecordPart) -> None:
        self._part = part
        self._fields = frozenset(settings["fields"])
        self._replacement: str | None = settings["replacement"]
        self._with_default: bool = settings[REPLACE_NULL.name]

    def apply(self, record: ConnectRecord) -> ConnectRecord:
        schema = self._part.struct_schema(record, "masking fields")
        struct, values = self._part.value(record), {}
        for field in schema.fields:
            value = field_value(struct, field, self._with_default)
            values[field.name] = self._masked(field.schema, value) if field.name in self._fields else value
        return self._part.replace(record, schema, values)

    def _masked(self, schema: ConnectSchema, value: Any) -> Any:
        if value is None:
            return None
        if self._replacement is None:
            return _nothing(schema, value)
        if isinstance(value, str):
            return self._replacement
        is_number = isinstance(value, (int, float, Decimal)) and schema.type != "boolean"
        if not is_number:
            raise TransformError(f"masking: a {schema.type} gets no replacement")
        number = java.parse_decimal(self._replacement)
        if isinstance(value, Decimal):
            return number
        if isinstance(value, float):
            return java.to_float32(number) if schema.type == "float32" else java.to_float(number)
        return java.wrap(java.to_integer(number, "int64"), java.BITS[schema.type])


def _nothing(schema: ConnectSchema, value: Any) -> Any:
    """Return the value of a type that says nothing."""
    if isinstance(value, Decimal):
        return Decimal(0)
    if isinstance(value, datetime.datetime):
        return datetime.datetime(1970, 1, 1, tzinfo=datetime.timezone.utc)
    if isinstance(value, datetime.date):
        return datetime.date(1970, 1, 1)
    if isinstance(value, datetime.time):
        return datetime.time()
    if schema.type in ("bytes", "struct"):
        raise TransformError(f"masking: a field of the type {schema.type} can't be masked")
    return type(value)()
