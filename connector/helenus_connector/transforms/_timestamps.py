"""Kafka's TimestampConverter: between timestamps, dates, times, text, and numbers since the epoch."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

from helenus_connector.connect_data.java_dates import DAY_MS, DateFormat
from helenus_connector.connect_data.record import ConnectRecord
from helenus_connector.connect_data.schema import DATE, TIME, TIMESTAMP, ConnectSchema, SchemaField
from helenus_connector.connect_data.times import from_milliseconds, to_milliseconds
from helenus_connector.transforms._record_part import REPLACE_NULL, RecordPart, SchemaCache, copy_basics, field_value
from helenus_connector.transforms.contract import ConfigKey, TransformError

_LOGICAL = {"Date": DATE, "Time": TIME, "Timestamp": TIMESTAMP}
_PER_SECOND = {"seconds": 1, "milliseconds": 1000, "microseconds": 1_000_000, "nanoseconds": 1_000_000_000}
_LONGEST = (1 << 63) - 1


def _check_format(pattern: str) -> None:
    if pattern.strip():
        DateFormat(pattern)


class TimestampConverter:
    """Converts a field, or the whole key or value."""

    KEYS: ClassVar[Sequence[ConfigKey]] = (
        ConfigKey("field", "STRING", "The field; the whole key or value if empty.", default="", importance="HIGH"),
        ConfigKey(
            "target.type",
            "STRING",
            "What it becomes.",
            importance="HIGH",
            choices=("string", "unix", "Date", "Time", "Timestamp"),
        ),
        ConfigKey(
            "format",
            "STRING",
            "How text is written, and read, as of Java's SimpleDateFormat.",
            default="",
            check=_check_format,
        ),
        ConfigKey(
            "unix.precision",
            "STRING",
            "The unit of numbers since the epoch.",
            default="milliseconds",
            importance="LOW",
            choices=("nanoseconds", "microseconds", "milliseconds", "seconds"),
        ),
        REPLACE_NULL,
    )

    def __init__(self, settings: Mapping[str, Any], part: RecordPart) -> None:
        self._part = part
        self._field: str = settings["field"]
        self._target: str = settings["target.type"]
        pattern: str = settings["format"]
        if self._target == "string" and not pattern.strip():
            raise ValueError("target.type=string needs format")
        self._format = DateFormat(pattern) if pattern.strip() else None
        self._per_second = _PER_SECOND[settings["unix.precision"]]
        self._with_default: bool = settings[REPLACE_NULL.name]
        self._schemas = SchemaCache(self._make_schema)

    def apply(self, record: ConnectRecord) -> ConnectRecord:
        schema, value = self._part.schema(record), self._part.value(record)
        if schema is None:
            if value is None:
                return record
            raise TransformError(f"converting timestamps: the {self._part.name} has no schema")
        if not self._field:
            return self._part.replace(record, self._target_schema(schema), self._convert(schema, value))
        if value is None:
            return self._part.replace(record, self._schemas.get(schema), None)
        schema = self._part.struct_schema(record, "converting timestamps")
        return self._part.replace(record, self._schemas.get(schema), self._convert_struct(schema, value))

    def _convert_struct(self, schema: ConnectSchema, struct: Mapping[str, Any]) -> dict[str, Any]:
        values = {field.name: field_value(struct, field, self._with_default) for field in schema.fields}
        field = schema.find_field(self._field)
        if field is not None:
            values[field.name] = self._convert(field.schema, values[field.name])
        return values

    def _make_schema(self, schema: ConnectSchema) -> ConnectSchema:
        fields = tuple(
            SchemaField(field.name, self._target_schema(field.schema)) if field.name == self._field else field
            for field in schema.fields
        )
        default = None if schema.default is None else self._convert_struct(schema, schema.default)
        return copy_basics(schema, is_optional=schema.is_optional, default=default, fields=fields)

    def _target_schema(self, schema: ConnectSchema) -> ConnectSchema:
        match self._target:
            case "string":
                return ConnectSchema("string", schema.is_optional)
            case "unix":
                return ConnectSchema("int64", schema.is_optional)
        kind = "int64" if self._target == "Timestamp" else "int32"
        return ConnectSchema(kind, schema.is_optional, _LOGICAL[self._target], 1)  # type: ignore[arg-type]

    def _convert(self, schema: ConnectSchema, value: Any) -> Any:
        """Return a value in the target's form. Raises TransformError for one that is no timestamp."""
        if schema.name not in _LOGICAL.values() and schema.type not in ("string", "int64"):
            raise TransformError(f"converting timestamps: a {schema.type} is none")
        if value is None:
            return None
        milliseconds = self._read(schema, value)
        match self._target:
            case "string":
                assert self._format is not None
                return self._format.format(milliseconds)
            case "unix":
                return self._to_unix(milliseconds)
            case "Date":
                return from_milliseconds(milliseconds // DAY_MS * DAY_MS, DATE)
            case "Time":
                return from_milliseconds(milliseconds % DAY_MS, TIME)
        return from_milliseconds(milliseconds, TIMESTAMP)

    def _read(self, schema: ConnectSchema, value: Any) -> int:
        if schema.name in _LOGICAL.values():
            return to_milliseconds(value, schema.name)
        if schema.type == "string":
            if self._format is None:
                raise TransformError("converting timestamps: text needs format")
            return self._format.parse(value)
        if self._per_second >= 1000:
            return _cut(value, self._per_second // 1000)
        return _saturate(value * 1000)

    def _to_unix(self, milliseconds: int) -> int:
        if self._per_second < 1000:
            return _cut(milliseconds, 1000)
        return _saturate(milliseconds * (self._per_second // 1000))


def _cut(value: int, divisor: int) -> int:
    """Return a quotient, rounded towards zero as Java's."""
    return abs(value) // divisor * (1 if value >= 0 else -1)


def _saturate(value: int) -> int:
    return max(-_LONGEST - 1, min(value, _LONGEST))
