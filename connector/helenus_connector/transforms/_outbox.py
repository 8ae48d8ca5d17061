"""Debezium's EventRouter: the rows of an outbox table become events in topics of their own.

row {id: 1, aggregatetype: order, aggregateid: 7, payload: "..."} → topic outbox.event.order, key 7, value "...",
header id: 1
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, ClassVar, NamedTuple

import structlog

from helenus_connector.connect_data.record import ConnectHeader, ConnectRecord
from helenus_connector.connect_data.schema import TIMESTAMP, ConnectSchema, SchemaField
from helenus_connector.connect_data.times import to_milliseconds
from helenus_connector.transforms._debezium_envelope import is_envelope
from helenus_connector.transforms._java_regex import compile_regex, replace_first
from helenus_connector.transforms._record_part import Struct, field_value
from helenus_connector.transforms.contract import ConfigKey, TransformError

_log = structlog.get_logger(__name__)
_UNITS_PER_MS = {
    "io.debezium.time.Timestamp": 1,
    "io.debezium.time.MicroTimestamp": 1000,
    "io.debezium.time.NanoTimestamp": 1_000_000,
}
_CACHED_SCHEMAS = 1000


class AdditionalField(NamedTuple):
    """A column that goes into the event's value, or a header."""

    column: str
    is_header: bool
    name: str


def _parse_placement(texts: Sequence[str]) -> list[AdditionalField]:
    """Read `column:header:name` or `column:envelope`. Raises ValueError."""
    additional = []
    for text in texts:
        column, *more = (part.strip() for part in text.split(":"))
        if not 1 <= len(more) <= 2 or more[0].lower() not in ("header", "envelope", "partition"):
            raise ValueError(f"give column:header:name or column:envelope:name, and not {text}")
        if more[0].lower() == "partition":
            raise ValueError("a record's partition is that of its row's key, which keeps the order per key")
        additional.append(AdditionalField(column, more[0].lower() == "header", more[1] if len(more) == 2 else column))
    return additional


def _check_expansion(value: bool) -> None:
    if value:
        raise ValueError("a payload is not expanded: its schema would change with each event")


def _text(name: str, documentation: str, default: Any, importance: Any = "LOW", **more: Any) -> ConfigKey:
    return ConfigKey(name, "STRING", documentation, default=default, importance=importance, **more)


class EventRouter:
    """Makes an event of a row that was inserted into an outbox table; deletes are dropped."""

    KEYS: ClassVar[Sequence[ConfigKey]] = (
        _text("table.field.event.id", "Column of the event's id, which becomes the header id.", "id"),
        _text("table.field.event.key", "Column of the event's key.", "aggregateid"),
        _text("table.field.event.type", "Column of the event's type: place it with additional.placement.", "type"),
        _text("table.field.event.payload", "Column of the payload.", "payload"),
        _text("table.field.event.timestamp", "Column of the event's time.", None, "MEDIUM"),
        ConfigKey(
            "table.fields.additional.placement",
            "LIST",
            "More columns, as column:header:name or column:envelope:name.",
            default=(),
            importance="HIGH",
            check=_parse_placement,
        ),
        ConfigKey(
            "table.fields.additional.error.on.missing",
            "BOOLEAN",
            "Whether it is an error if the table has not such a column.",
            default=True,
        ),
        _text("table.field.event.schema.version", "Column of the version of the value's schema.", None),
        _text(
            "table.op.invalid.behavior",
            "What an update causes: a warning, an error in the log, or a failure.",
            "warn",
            "MEDIUM",
            choices=("warn", "error", "fatal"),
            ignores_case=True,
        ),
        ConfigKey("table.expand.json.payload", "BOOLEAN", "Not supported.", default=False, check=_check_expansion),
        _text("table.json.payload.null.behavior", "Of expanded payloads.", "ignore", "MEDIUM"),
        _text("route.by.field", "Column that the topic is made of.", "aggregatetype", "HIGH"),
        _text(
            "route.topic.regex",
            "Regular expression for its value.",
            "(?<routedByValue>.*)",
            check=compile_regex,
        ),
        _text("route.topic.replacement", "The topic.", "outbox.event.${routedByValue}", "HIGH"),
        ConfigKey(
            "route.tombstone.on.empty.payload",
            "BOOLEAN",
            "Whether an empty payload makes a record without a value.",
            default=False,
            importance="HIGH",
        ),
        _text("tracing.span.context.field", "There is no tracing.", "tracingspancontext", "HIGH"),
        _text("tracing.operation.name", "There is no tracing.", "debezium-read", "HIGH"),
        ConfigKey(
            "tracing.with.context.field.only", "BOOLEAN", "There is no tracing.", default=False, importance="HIGH"
        ),
    )

    def __init__(self, settings: Mapping[str, Any]) -> None:
        self._id: str = settings["table.field.event.id"]
        self._key: str = settings["table.field.event.key"]
        self._payload: str = settings["table.field.event.payload"]
        self._timestamp: str | None = settings["table.field.event.timestamp"]
        self._version: str | None = settings["table.field.event.schema.version"]
        self._additional = _parse_placement(settings["table.fields.additional.placement"])
        self._needs_all: bool = settings["table.fields.additional.error.on.missing"]
        self._on_update: str = settings["table.op.invalid.behavior"].lower()
        self._route_by: str = settings["route.by.field"]
        self._regex = compile_regex(settings["route.topic.regex"])
        self._replacement: str = settings["route.topic.replacement"]
        self._makes_tombstones: bool = settings["route.tombstone.on.empty.payload"]
        self._in_envelope = [field for field in self._additional if not field.is_header]
        self._schemas: dict[tuple[int, str, Any], tuple[ConnectSchema, ConnectSchema]] = {}

    def apply(self, record: ConnectRecord) -> ConnectRecord | None:
        schema, envelope = record.value_schema, record.value
        if envelope is None:
            return None
        if schema is None or not is_envelope(schema):
            return record
        if envelope["op"] == "u":
            self._refuse_update(record)
        if envelope["op"] in ("d", "u"):
            return None
        after = schema.find_field("after")
        row = None if after is None else field_value(envelope, after)
        if after is None or row is None:
            raise TransformError("an outbox event has no row")
        return self._event(record, after.schema, row)

    def _refuse_update(self, record: ConnectRecord) -> None:
        if self._on_update == "fatal":
            raise TransformError("a row of an outbox table was updated")
        log = _log.error if self._on_update == "error" else _log.warning
        log("outbox.updated", topic=record.topic)

    def _event(self, record: ConnectRecord, schema: ConnectSchema, row: Struct) -> ConnectRecord:
        payload_field = _field(schema, self._payload)
        payload = field_value(row, payload_field)
        routed_by = field_value(row, _field(schema, self._route_by))
        if not isinstance(routed_by, str):
            raise TransformError(f"the column {self._route_by}, which is to be the topic, is no text")
        key_field = _field(schema, self._key)
        value_schema, value = payload_field.schema, payload
        if self._in_envelope:
            value_schema = self._value_schema(schema, row, routed_by)
            value = {"payload": payload}
            for additional in self._in_envelope:
                if (field := self._additional_field(schema, additional)) is not None:
                    value[additional.name] = field_value(row, field)
        is_empty = payload is None or not str(payload).strip()
        if is_empty and self._makes_tombstones:
            value_schema, value = None, None  # type: ignore[assignment] # as a record without a value has it
        topic = routed_by
        if self._regex.fullmatch(topic):
            topic = replace_first(self._regex, self._replacement, topic)
        return replace(
            record,
            topic=topic,
            key_schema=key_field.schema,
            key=field_value(row, key_field),
            value_schema=value_schema,
            value=value,
            timestamp=self._event_time(record, schema, row),
            headers=(*record.headers, *self._headers(schema, row)),
        )

    def _headers(self, schema: ConnectSchema, row: Struct) -> list[ConnectHeader]:
        id_field = _field(schema, self._id)
        headers = [ConnectHeader("id", id_field.schema, field_value(row, id_field))]
        for additional in self._additional:
            field = self._additional_field(schema, additional) if additional.is_header else None
            if field is not None:
                headers.append(ConnectHeader(additional.name, field.schema, field_value(row, field)))
        return headers

    def _additional_field(self, schema: ConnectSchema, additional: AdditionalField) -> SchemaField | None:
        field = schema.find_field(additional.column)
        if field is None and self._needs_all:
            raise TransformError(f"the outbox table has no column {additional.column}")
        return field

    def _value_schema(self, schema: ConnectSchema, row: Struct, routed_by: str) -> ConnectSchema:
        version = None if self._version is None else field_value(row, _field(schema, self._version))
        cached = self._schemas.get((id(schema), routed_by, version))
        if cached is None:
            if len(self._schemas) >= _CACHED_SCHEMAS:
                self._schemas.clear()
            columns = ((added.name, self._additional_field(schema, added)) for added in self._in_envelope)
            fields = [SchemaField(name, field.schema) for name, field in columns if field is not None]
            fields.insert(0, SchemaField("payload", _field(schema, self._payload).schema))
            namespace, dot, name = (schema.name or "").rpartition(".")
            full = f"{namespace}{dot}{routed_by}.{name}" if name else routed_by
            cached = schema, ConnectSchema("struct", name=full, version=version, fields=tuple(fields))
            self._schemas[id(schema), routed_by, version] = cached
        return cached[1]

    def _event_time(self, record: ConnectRecord, schema: ConnectSchema, row: Struct) -> int | None:
        envelope_time: int | None = record.value.get("ts_ms")
        if self._timestamp is None:
            return envelope_time
        field = _field(schema, self._timestamp)
        value = field_value(row, field)
        if value is None:
            return envelope_time
        if field.schema.name == TIMESTAMP:
            return to_milliseconds(value, TIMESTAMP)
        if field.schema.name not in _UNITS_PER_MS:
            raise TransformError(f"the column {self._timestamp} is no timestamp")
        return int(value) // _UNITS_PER_MS[field.schema.name]


def _field(schema: ConnectSchema, name: str) -> SchemaField:
    field = schema.find_field(name)
    if field is None:
        raise TransformError(f"the outbox table has no column {name}")
    return field
