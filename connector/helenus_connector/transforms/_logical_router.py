"""Debezium's ByLogicalTableRouter: several tables' records in one topic, told apart by a field of the key."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, ClassVar

from helenus_connector.connect_data.record import ConnectRecord
from helenus_connector.connect_data.schema import ConnectSchema, SchemaField
from helenus_connector.transforms._debezium_envelope import is_envelope
from helenus_connector.transforms._java_regex import compile_regex, replace_first
from helenus_connector.transforms._record_part import KEY, VALUE, SchemaCache, field_value
from helenus_connector.transforms.contract import ConfigKey

_IMAGES = ("before", "after")


class ByLogicalTableRouter:
    """Renames topics whose whole name matches, and the schemas of their records."""

    KEYS: ClassVar[Sequence[ConfigKey]] = (
        ConfigKey("topic.regex", "STRING", "Regular expression for a topic.", importance="LOW", check=compile_regex),
        ConfigKey("topic.replacement", "STRING", "The topic's new name; $1 is a group.", importance="LOW"),
        ConfigKey(
            "key.enforce.uniqueness",
            "BOOLEAN",
            "Whether the key gets a field that names the table.",
            default=True,
            importance="LOW",
        ),
        ConfigKey(
            "key.field.name",
            "STRING",
            "Name of that field.",
            default="__dbz__physicalTableIdentifier",
            importance="LOW",
        ),
        ConfigKey(
            "key.field.regex",
            "STRING",
            "Regular expression for a topic, of whose match that field is made; default: the topic's name.",
            default=None,
            importance="LOW",
            check=compile_regex,
        ),
        ConfigKey(
            "key.field.replacement", "STRING", "What the field is; $1 is a group.", default=None, importance="LOW"
        ),
        ConfigKey(
            "schema.name.adjustment.mode",
            "STRING",
            "Whether the schemas' names are made legal in Avro.",
            default="none",
            importance="LOW",
            choices=("none", "avro", "avro_unicode"),
            ignores_case=True,
        ),
        ConfigKey("logical.table.cache.size", "INT", "No size is needed.", default=16, importance="LOW"),
    )

    def __init__(self, settings: Mapping[str, Any]) -> None:
        self._regex = compile_regex(settings["topic.regex"])
        self._replacement: str = settings["topic.replacement"]
        self._field = settings["key.field.name"] if settings["key.enforce.uniqueness"] else None
        key_regex = (settings["key.field.regex"] or "").strip()
        self._key_regex = compile_regex(key_regex) if key_regex else None
        self._key_replacement: str = settings["key.field.replacement"] or ""
        if key_regex and not self._key_replacement.strip():
            raise ValueError("key.field.regex needs key.field.replacement")
        mode = settings["schema.name.adjustment.mode"].lower()
        if mode == "avro_unicode":
            raise ValueError("schema.name.adjustment.mode: give none or avro")
        self._is_avro = mode == "avro"
        # By topic: a record's schemas have its name.
        self._schemas: dict[str, tuple[SchemaCache[ConnectSchema], SchemaCache[ConnectSchema]]] = {}

    def apply(self, record: ConnectRecord) -> ConnectRecord:
        if not self._regex.fullmatch(record.topic):
            return record
        topic = replace_first(self._regex, self._replacement, record.topic)
        if not topic:
            return record
        if topic not in self._schemas:
            self._schemas[topic] = self._caches(topic)
        keys, values = self._schemas[topic]
        routed = replace(record, topic=topic)
        if record.key is not None:
            schema = KEY.struct_schema(record, "naming the table in the key")
            key = dict(record.key) if self._field is None else {**record.key, self._field: self._table(record.topic)}
            routed = KEY.replace(routed, keys.get(schema), key)
        if record.value is None or record.value_schema is None or not is_envelope(record.value_schema):
            return routed
        envelope = {field.name: field_value(record.value, field) for field in record.value_schema.fields}
        return VALUE.replace(routed, values.get(record.value_schema), envelope)

    def _table(self, topic: str) -> str:
        """Return what the key says of the table."""
        if self._key_regex is None or not self._key_regex.fullmatch(topic):
            return topic
        return replace_first(self._key_regex, self._key_replacement, topic)

    def _caches(self, topic: str) -> tuple[SchemaCache[ConnectSchema], SchemaCache[ConnectSchema]]:
        name = re.sub(r"[^A-Za-z0-9_.]", "_", topic) if self._is_avro else topic

        def key_schema(schema: ConnectSchema) -> ConnectSchema:
            added = () if self._field is None else (SchemaField(self._field, ConnectSchema("string")),)
            return replace(schema, name=f"{name}.Key", default=None, fields=(*schema.fields, *added))

        def envelope_schema(schema: ConnectSchema) -> ConnectSchema:
            image = next(filter(None, map(schema.find_field, _IMAGES)), None)
            row = None if image is None else replace(image.schema, name=f"{name}.Value", default=None)
            fields = tuple(
                SchemaField(field.name, row) if row is not None and field.name in _IMAGES else field
                for field in schema.fields
            )
            return replace(schema, name=f"{name}.Envelope", default=None, fields=fields)

        return SchemaCache(key_schema), SchemaCache(envelope_schema)
