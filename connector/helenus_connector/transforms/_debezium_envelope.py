"""Debezium's ExtractNewRecordState, and what its transforms know of envelopes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, ClassVar

from helenus_connector.connect_data.record import ConnectHeader, ConnectRecord
from helenus_connector.connect_data.schema import ConnectSchema, SchemaField
from helenus_connector.transforms._record_part import (
    KEY,
    REPLACE_NULL,
    VALUE,
    RecordPart,
    SchemaCache,
    Struct,
    check_unique,
    copy_basics,
    field_value,
)
from helenus_connector.transforms.contract import ConfigKey, TransformError

_MODES = ("drop", "tombstone", "rewrite", "rewrite-with-tombstone", "delete-to-tombstone")
_OPERATION = "op"
_OF_ENVELOPE = frozenset((_OPERATION, "ts_ms", "ts_us", "ts_ns"))
_OF_TRANSACTION = frozenset(("id", "data_collection_order", "total_order"))
_DELETED = SchemaField("__deleted", ConnectSchema("string", is_optional=True))
_LISTED_FIELDS = "version, source.ts_ms or ts_ms:changed_at, as FIELD, STRUCT.FIELD and FIELD:NAME"


def is_envelope(schema: ConnectSchema | None) -> bool:
    """Return whether a schema is that of Debezium's envelopes, which their name says."""
    return schema is not None and schema.name is not None and schema.name.endswith(".Envelope")


class EnvelopeField:
    """A field of an envelope, or of a struct in it, that is added to a row as another field or a header.

    `op` is `__op`, `source.ts_ms` is `__source_ts_ms`, `ts_ms:at` is `__at`. Raises ValueError for more than that.
    """

    def __init__(self, text: str, prefix: str) -> None:
        path, colon, name = text.partition(":")
        if ":" in name or not path:
            raise ValueError(f"give fields as {_LISTED_FIELDS}, and not {text}")
        struct, _, field = path.rpartition(".")
        self.field = field
        if not struct and field not in _OF_ENVELOPE:
            self._struct = "transaction" if field in _OF_TRANSACTION else "source"
        else:
            self._struct = struct
        self.name = prefix + (name if colon else f"{struct}_{field}" if struct else field)

    def schema(self, envelope: ConnectSchema) -> ConnectSchema | None:
        """Return the schema of the added field; None if the envelope has no such field."""
        parent = envelope
        if self._struct:
            struct = envelope.find_field(self._struct)
            if struct is None:
                raise TransformError(f"the envelope has no field {self._struct}")
            parent = struct.schema
        field = parent.find_field(self.field) or envelope.find_field(self.field)
        return None if field is None else copy_basics(field.schema, is_optional=True)

    def value(self, envelope: Struct) -> Any:
        """Return the value of the added field."""
        parent = envelope[self._struct] if self._struct else envelope
        if parent is None:
            return None
        return parent[self.field] if self.field in parent else envelope[self.field]


class ExtractNewRecordState:
    """Replaces an envelope by the row after the change."""

    KEYS: ClassVar[Sequence[ConfigKey]] = (
        ConfigKey(
            "delete.tombstone.handling.mode",
            "STRING",
            "What becomes of deletes and the tombstones after them.",
            default="tombstone",
            choices=_MODES,
            ignores_case=True,
        ),
        ConfigKey("route.by.field", "STRING", "Field whose value is the topic.", default="", importance="LOW"),
        ConfigKey("add.fields.prefix", "STRING", "Prefix of added fields.", default="__", importance="LOW"),
        ConfigKey(
            "add.fields", "LIST", f"Fields of the envelope to add: {_LISTED_FIELDS}.", default=(), importance="LOW"
        ),
        ConfigKey("add.headers.prefix", "STRING", "Prefix of added headers.", default="__", importance="LOW"),
        ConfigKey("add.headers", "LIST", "Headers to add, as add.fields.", default=(), importance="LOW"),
        ConfigKey(
            "drop.fields.header.name", "STRING", "Header that lists fields to drop.", default=None, importance="LOW"
        ),
        ConfigKey(
            "drop.fields.from.key", "BOOLEAN", "Whether they leave the key too.", default=False, importance="LOW"
        ),
        ConfigKey(
            "drop.fields.keep.schema.compatible",
            "BOOLEAN",
            "Whether only optional fields are dropped.",
            default=True,
            importance="LOW",
        ),
        replace(REPLACE_NULL, importance="LOW"),
    )

    def __init__(self, settings: Mapping[str, Any]) -> None:
        self._mode: str = settings["delete.tombstone.handling.mode"].lower()
        self._rewrites = self._mode.startswith("rewrite")
        self._route_by: str = settings["route.by.field"]
        self._fields = [EnvelopeField(text, settings["add.fields.prefix"]) for text in settings["add.fields"]]
        self._headers = [EnvelopeField(text, settings["add.headers.prefix"]) for text in settings["add.headers"]]
        self._drop_header: str | None = settings["drop.fields.header.name"]
        self._drops_from_key: bool = settings["drop.fields.from.key"]
        self._drops_optional_alone: bool = settings["drop.fields.keep.schema.compatible"]
        self._with_default: bool = settings[REPLACE_NULL.name]
        self._after_schemas = SchemaCache(lambda envelope: self._row_schema(envelope, "after"))
        self._before_schemas = SchemaCache(lambda envelope: self._row_schema(envelope, "before"))

    def apply(self, record: ConnectRecord) -> ConnectRecord | None:
        schema, envelope = record.value_schema, record.value
        if envelope is None:
            record = replace(record, headers=(*record.headers, *self._tombstone_headers()))
            return record if self._mode == "rewrite-with-tombstone" else None
        if schema is None or not is_envelope(schema):
            return record
        record = replace(record, headers=(*record.headers, *self._envelope_headers(schema, envelope)))
        after = self._image(schema, envelope, "after")
        if after is not None:
            return self._row(record, schema, envelope, after)
        if envelope[_OPERATION] == "t":
            return None
        return self._delete(record, schema, envelope)

    def _image(self, schema: ConnectSchema, envelope: Struct, name: str) -> Struct | None:
        """Return the row before or after the change."""
        field = schema.find_field(name)
        return None if field is None else field_value(envelope, field)

    def _row(
        self, record: ConnectRecord, schema: ConnectSchema, envelope: Struct, after: Struct
    ) -> ConnectRecord | None:
        row = self._after_schemas.get(schema)
        changed = VALUE.replace(record, row, self._row_values(row, envelope, after, "false"))
        return self._without_dropped(self._routed(changed, after))

    def _delete(self, record: ConnectRecord, schema: ConnectSchema, envelope: Struct) -> ConnectRecord | None:
        before = self._image(schema, envelope, "before")
        if self._mode == "drop":
            return None
        if not self._rewrites or before is None:
            after = schema.find_field("after")
            keeps_schema = self._mode != "delete-to-tombstone" and after is not None
            changed = VALUE.replace(record, after.schema if after is not None and keeps_schema else None, None)
            return self._routed(changed, before)
        row = self._before_schemas.get(schema)
        changed = VALUE.replace(record, row, self._row_values(row, envelope, before, "true"))
        return self._without_dropped(self._routed(changed, before))

    def _row_schema(self, envelope: ConnectSchema, name: str) -> ConnectSchema:
        image = envelope.find_field(name)
        if image is None:
            raise TransformError(f"the envelope has no field {name}")
        added = [SchemaField(field.name, schema) for field in self._fields if (schema := field.schema(envelope))]
        deleted = [_DELETED] if self._rewrites else []
        fields = (*image.schema.fields, *deleted, *added)
        check_unique(fields)
        return copy_basics(image.schema, fields=fields)

    def _row_values(self, row: ConnectSchema, envelope: Struct, image: Struct, deleted: str) -> dict[str, Any]:
        added = {field.name: field for field in self._fields}
        values: dict[str, Any] = {}
        for field in row.fields:
            if field.name in image and field.name not in added:
                values[field.name] = (
                    field_value(image, field, self._with_default) if self._rewrites else image[field.name]
                )
            elif field.name in added:
                values[field.name] = added[field.name].value(envelope)
            else:
                values[field.name] = deleted
        return values

    def _routed(self, record: ConnectRecord, image: Struct | None) -> ConnectRecord:
        if not self._route_by:
            return record
        if image is None:
            raise TransformError(f"the record has no row, whose field {self._route_by} is to be the topic")
        topic = image.get(self._route_by)
        if topic is not None and not isinstance(topic, str):
            raise TransformError(f"the field {self._route_by}, which is to be the topic, is no text")
        return replace(record, topic=topic) if topic and topic.strip() else record

    def _tombstone_headers(self) -> list[ConnectHeader]:
        text = ConnectSchema("string")
        return [ConnectHeader(field.name, text, "d") for field in self._headers if field.field == _OPERATION]

    def _envelope_headers(self, schema: ConnectSchema, envelope: Struct) -> list[ConnectHeader]:
        schemas = ((field, field.schema(schema)) for field in self._headers)
        return [ConnectHeader(field.name, own, field.value(envelope)) for field, own in schemas if own is not None]

    def _without_dropped(self, record: ConnectRecord) -> ConnectRecord:
        """Return a record without the fields that the header lists."""
        header = next((header for header in record.headers if header.name == self._drop_header), None)
        if header is None or not header.value:
            return record
        if not isinstance(header.value, list):
            raise TransformError(f"the header {header.name} is no list of fields")
        names = frozenset(header.value)
        if self._drops_from_key and record.key is not None:
            record = self._drop(record, KEY, names)
        return self._drop(record, VALUE, names)

    def _drop(self, record: ConnectRecord, part: RecordPart, names: frozenset[str]) -> ConnectRecord:
        schema = part.struct_schema(record, "dropping fields")
        fields = tuple(
            field
            for field in schema.fields
            if field.name not in names or (self._drops_optional_alone and not field.schema.is_optional)
        )
        if fields == schema.fields:
            return record
        struct = part.value(record)
        values = {field.name: field_value(struct, field) for field in fields}
        return part.replace(record, copy_basics(schema, fields=fields), values)
