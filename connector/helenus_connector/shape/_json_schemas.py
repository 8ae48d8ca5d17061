"""JSON records that carry their schema, as Kafka Connect's JsonConverter writes and reads them.

{"k": 7} → {"schema": {"type": "struct", "fields": [{"type": "int32", "optional": true, "field": "k"}],
            "optional": false, "name": "ks.t"}, "payload": {"k": 7}}
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import partial
from typing import Any

from helenus_connector.config.connector import ConnectorSettings
from helenus_connector.interfaces.image import Image
from helenus_connector.interfaces.resolved_key import ResolvedKey
from helenus_connector.interfaces.shape import Record, Shape, ShapedRecord
from helenus_connector.shape.encoding.forms import truncation_key
from helenus_connector.shape.schemas import TRUNCATION, record_schemas
from helenus_schemas.cql.table import Table

_KINDS = {"int": "int32", "long": "int64", "float": "float", "double": "double", "enum": "string"}
_LOGICAL = {
    "timestamp-millis": ("org.apache.kafka.connect.data.Timestamp", 1),
    "date": ("org.apache.kafka.connect.data.Date", 1),
}
_ENUM = "io.debezium.data.Enum"
_CONNECT = {"connect.name": "name", "connect.version": "version", "connect.parameters": "parameters"}


def with_schemas(shape: Shape, table: Table, settings: ConnectorSettings) -> Shape:
    """Return the shape, with schemas in its records if the settings ask for them. Raises HelenusError
    TABLE_UNSUPPORTED.
    """
    key_has_schema, value_has_schema = settings.json_schemas
    if not (key_has_schema or value_has_schema):
        return shape
    key, value = record_schemas(table, settings)
    is_debezium = settings.output_format == "debezium-cassandra"
    opening = partial(_opening, adapt=_adapt_to_debezium if is_debezium else None)
    return WithSchemas(
        shape,
        opening(key if key_has_schema else None),
        opening(value if value_has_schema else None),
        truncation_key(table),
    )


class WithSchemas:
    """The records of another shape, in JSON, with the schema of keys, of values or of both: `key` and `value` are what
    goes before a payload, empty without a schema.

    `truncation` is the key of the marker that concerns the whole table, whose schema is another.
    """

    def __init__(self, shape: Shape, key: bytes, value: bytes, truncation: bytes) -> None:
        self._shape = shape
        self._key, self._value = key, value
        self._truncation = truncation
        self._truncation_opening = _opening(TRUNCATION if key else None)

    def records(self, resolved: ResolvedKey) -> Iterable[ShapedRecord | None]:
        return map(self._with_schemas, self._shape.records(resolved))

    def rows(self, resolved: Sequence[ResolvedKey]) -> Sequence[Record | None]:
        return [None if record is None else self._add_schemas(record) for record in self._shape.rows(resolved)]

    def smaller(self, image: Image) -> Iterator[tuple[Image, tuple[str, bytes]]]:
        return self._shape.smaller(image)

    def _with_schemas(self, shaped: ShapedRecord | None) -> ShapedRecord | None:
        if shaped is None or shaped.cause is not None:
            return shaped
        make = shaped.make
        return shaped._replace(
            record=self._add_schemas(shaped.record), make=lambda image: self._add_schemas(make(image))
        )

    def _add_schemas(self, record: Record) -> Record:
        key, value = record.key, record.value
        if key is not None:
            opening = self._truncation_opening if key == self._truncation else self._key
            key = opening + key + b"}" if opening else key
        if value is not None and self._value:
            value = self._value + value + b"}"
        return record._replace(key=key, value=value)


def connect_schema(schema: Any) -> dict[str, Any]:
    """Convert an Avro schema to Kafka Connect's, in the form of JsonConverter. The names in CQL and in Debezium are in
    the properties `cql_name` and `connect.name`.
    """
    return _connect_type(schema, {})


def _opening(schema: Any, adapt: Callable[[dict[str, Any]], dict[str, Any]] | None = None) -> bytes:
    """Return what goes before a payload; nothing if it gets no schema. `adapt` changes Kafka Connect's schema."""
    if schema is None:
        return b""
    connect = connect_schema(schema)
    text = json.dumps(adapt(connect) if adapt else connect, ensure_ascii=False, separators=(",", ":"))
    return f'{{"schema":{text},"payload":'.encode()


def _adapt_to_debezium(schema: dict[str, Any]) -> dict[str, Any]:
    """Adapt a schema where Debezium's differs from the Avro one of the same records: `source` has a version, `snapshot`
    and maps' keys are optional, and a range's values have a name without a namespace.
    """
    adapted = dict(schema)
    if adapted.get("name") == "source":
        adapted["version"] = 1
    elif adapted.get("field") == "snapshot" and adapted.get("name") == _ENUM:
        adapted |= {"optional": True, "default": "false"}
    elif adapted.get("name", "").endswith(".clustering_value") and "version" in adapted:
        adapted["name"] = "clustering_value"
    for part in ("items", "keys", "values"):
        if part in adapted:
            adapted[part] = _adapt_to_debezium(adapted[part])
    if "keys" in adapted:
        adapted["keys"]["optional"] = True
    if "fields" in adapted:
        adapted["fields"] = [_adapt_to_debezium(field) for field in adapted["fields"]]
    return adapted


def _connect_type(schema: Any, named: dict[str, Any], optional: bool = False) -> dict[str, Any]:
    if isinstance(schema, list):
        (inner,) = (part for part in schema if part != "null")
        return _connect_type(inner, named, "null" in schema)
    if isinstance(schema, str) and schema in named:
        schema = named[schema]
    if not isinstance(schema, Mapping):
        return {"type": _KINDS.get(schema, schema), "optional": optional}
    kind = schema["type"]
    connect: dict[str, Any] = {"type": schema.get("connect.type", _KINDS.get(kind, kind)), "optional": optional}
    if kind == "record":
        full = f"{schema['namespace']}.{schema['name']}"
        named[full] = schema
        fields = [
            {**_connect_type(field["type"], named), "field": field.get("cql_name", field["name"])}
            for field in schema["fields"]
        ]
        connect |= {"type": "struct", "fields": fields, "name": full}
    elif kind == "array" and _is_entry(schema["items"], named):
        key, value = (_connect_type(field["type"], named) for field in _resolved(schema["items"], named)["fields"])
        connect |= {"type": "map", "keys": key, "values": value}
    elif kind == "array":
        connect["items"] = _connect_type(schema["items"], named)
    elif kind == "map":
        connect |= {"keys": {"type": "string", "optional": False}, "values": _connect_type(schema["values"], named)}
    if (logical := _LOGICAL.get(schema.get("logicalType", ""))) is not None:
        connect["name"], connect["version"] = logical
    return connect | {ours: schema[theirs] for theirs, ours in _CONNECT.items() if theirs in schema}


def _resolved(schema: Any, named: dict[str, Any]) -> Any:
    return named.get(schema, schema) if isinstance(schema, str) else schema


def _is_entry(schema: Any, named: dict[str, Any]) -> bool:
    """Return whether an array's items are a map's entries, as Confluent's AvroConverter writes them."""
    entry = _resolved(schema, named)
    is_entry = isinstance(entry, Mapping) and entry.get("connect.internal.type") == "MapEntry"
    if is_entry:
        named.setdefault(f"{entry['namespace']}.{entry['name']}", entry)
    return is_entry
