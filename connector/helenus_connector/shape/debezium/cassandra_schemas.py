"""Schemas of Debezium's Cassandra records in Avro, with what Kafka Connect calls a type in the properties that
Confluent's and Apicurio's AvroConverter read.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from typing import Any

from helenus_connector.config.connector import ConnectorSettings
from helenus_connector.shape.debezium._cassandra_values import field_names, is_text, short_class
from helenus_schemas.avro import build as avro
from helenus_schemas.codec.key import KeyCodec
from helenus_schemas.cql.table import Table
from helenus_schemas.cql.types import CqlType
from helenus_schemas.errors import HelenusError, Kind
from helenus_schemas.names import avro_name

_NAMESPACE = "io.debezium.connector.cassandra"
_SNAPSHOTS = "true,first,first_in_data_collection,last_in_data_collection,last,false,incremental"
CELL = ("value", "deletion_ts", "set")
RANGE_END = ("method", "values")
BOUND = ("name", "value", "type")
RANGE = ("_range_start", "_range_end")
ENVELOPE = ("ts_ms", "op", "source", "after", "written")
SOURCE = (
    *("version", "connector", "name", "ts_ms", "snapshot", "db", "sequence", "ts_us", "ts_ns"),
    *("cluster", "file", "pos", "keyspace", "table", "node"),
)
WRITTEN = ("columns", "replaced", "removed", "exact")


def prefix(settings: ConnectorSettings) -> str:
    """Return the topic's prefix: what is before the keyspace in its name, or the connector's name if nothing is."""
    suffix = f".{settings.keyspace}.{settings.table}"
    return settings.data.removesuffix(suffix) if settings.data.endswith(suffix) else settings.name


def cassandra_schemas(table: Table, settings: ConnectorSettings) -> tuple[str, str]:
    """Return the Avro schemas of a table's keys and values, as text. Raises HelenusError TABLE_UNSUPPORTED."""
    try:
        if table.unsupported:
            raise ValueError(table.unsupported)
        KeyCodec(table)
        return avro.text(_key_schema(table, settings)), avro.text(_value_schema(table, settings))
    except ValueError as error:
        raise HelenusError(Kind.TABLE_UNSUPPORTED, str(error), table.full_name) from None


def _key_schema(table: Table, settings: ConnectorSettings) -> Any:
    name, namespace = _names(table, settings)
    schemas = DebeziumSchemas(table.keyspace, namespace)
    keys = {c.name: schemas.optional(key_type(c.type, settings)) for c in table.primary_key}
    return {**schemas.record("Key", keys, {"connect.name": f"{name}.Key"}), avro.TABLE_ID: str(table.id)}


def _value_schema(table: Table, settings: ConnectorSettings) -> Any:
    name, namespace = _names(table, settings)
    schemas = DebeziumSchemas(table.keyspace, namespace)
    columns = [*((c.name, key_type(c.type, settings)) for c in table.primary_key)]
    columns += [(c.name, c.type) for c in table.values]
    if reserved := [column for column, _ in columns if column in RANGE]:
        raise ValueError(f"column {reserved[0]}: Debezium's records have a field of this name: see column.exclude.list")
    after: dict[str, Any] = {column: ["null", schemas.cell(t)] for column, t in columns}
    bound = schemas.record("clustering_value", dict.fromkeys(BOUND, "string"), {"connect.version": 1})
    for end in RANGE:
        values = {"type": "array", "items": bound, "connect.name": "clustering_values", "connect.version": 1}
        members = dict(zip(RANGE_END, ("string", values), strict=True))
        after[end] = ["null", schemas.record(end, members, {"connect.name": end, "connect.version": 1})]
        bound = f"{namespace}.clustering_value"
    texts = {"type": "array", "items": "string"}
    optional = {kind: ["null", kind] for kind in ("string", "long")}
    source = dict.fromkeys(SOURCE, "string") | {
        "ts_ms": "long",
        "snapshot": {
            "type": "string",
            "connect.version": 1,
            "connect.name": "io.debezium.data.Enum",
            "connect.parameters": {"allowed": _SNAPSHOTS},
        },
        "sequence": optional["string"],
        "ts_us": optional["long"],
        "ts_ns": optional["long"],
        "pos": "int",
        "node": optional["string"],
    }
    written = {
        **dict.fromkeys(("columns", "replaced"), texts),
        "removed": {"type": "map", "values": texts},
        "exact": {"type": "map", "values": "string"},
    }
    members = {
        "ts_ms": "long",
        "op": "string",
        "source": schemas.record("source", source, {"connect.name": "source"}),
        "after": schemas.record("after", after, {"connect.name": "after", "connect.version": 1}),
        "written": ["null", schemas.record("written", written, {"connect.name": "written"})],
    }
    return schemas.record("Envelope", members, {"connect.name": f"{name}.Envelope"})


def _names(table: Table, settings: ConnectorSettings) -> tuple[str, str]:
    """Return the prefix of the names of a table's key and envelope: Debezium's, and the one legal in Avro."""
    parts = (prefix(settings), table.keyspace, table.name)
    avro_parts = [avro_name(piece) for part in parts for piece in part.split(".")]
    return ".".join((_NAMESPACE, *parts)), ".".join((_NAMESPACE, *avro_parts))


def key_type(t: CqlType, settings: ConnectorSettings) -> CqlType:
    """Return the type of a key column: its decimals and varints are shown as those of other columns."""
    return t.with_forms(settings.forms)


def _connect(kind: str, name: str, **more: Any) -> dict[str, Any]:
    return {"type": kind, "connect.version": 1, "connect.name": name, **more}


_SCALARS: dict[str, Any] = {
    **dict.fromkeys(("ascii", "text", "inet"), "string"),
    **dict.fromkeys(("bigint", "counter", "time"), "long"),
    **{name: name for name in ("boolean", "float", "double", "int")},
    "blob": "bytes",
    "tinyint": {"type": "int", "connect.type": "int8"},
    "smallint": {"type": "int", "connect.type": "int16"},
    "date": _connect("int", "io.debezium.time.Date"),
    "timestamp": _connect("long", "io.debezium.time.Timestamp"),
    "duration": _connect("long", "io.debezium.time.NanoDuration"),
    "uuid": _connect("string", "io.debezium.data.Uuid"),
    "timeuuid": _connect("string", "io.debezium.data.Uuid"),
    "varint": _connect(
        "bytes",
        "org.apache.kafka.connect.data.Decimal",
        **{"logicalType": "decimal", "precision": 64, "scale": 0, "connect.parameters": {"scale": "0"}},
    ),
}
_SHOWN_AS: dict[str, Any] = {"microseconds": _connect("long", "io.debezium.time.MicroTime")}


class DebeziumSchemas:
    """Avro schemas of the types of one record: a named one is defined where it is first, and referred to after that.

    Kafka Connect allows types of one name that differ, Avro does not: a name of Debezium's that other types may have
    too ends here in a hash of the type, and the property `connect.name` has it as it is.
    """

    def __init__(self, keyspace: str, namespace: str) -> None:
        self._keyspace = keyspace
        self._namespace = namespace
        self._defined: set[str] = set()

    def cell(self, t: CqlType) -> Any:
        """Return the schema of a cell: its value, when it expires, and that it is written."""
        members = {"value": self.optional(t), "deletion_ts": ["null", "long"], "set": "boolean"}
        return self.record(f"cell_value_{_hash(t)}", members, {"connect.name": "cell_value", "connect.version": 1})

    def optional(self, t: CqlType) -> Any:
        """Return the union of null and a type. Raises ValueError for a type without a form."""
        return ["null", self._type_schema(t)]

    def record(self, name: str, members: Mapping[str, Any], properties: Mapping[str, Any], namespace: str = "") -> Any:
        """Return a record with these fields, and more `properties`."""
        full = f"{namespace or self._namespace}.{name}"
        if full in self._defined:
            return full
        self._defined.add(full)
        schema_fields = []
        for original, kind in members.items():
            field = {"name": avro_name(original), "type": kind, **({"default": None} if isinstance(kind, list) else {})}
            schema_fields.append(field if field["name"] == original else {**field, "cql_name": original})
        return {
            "type": "record",
            "name": name,
            "namespace": namespace or self._namespace,
            "fields": schema_fields,
            **properties,
        }

    def _type_schema(self, t: CqlType) -> Any:
        if t.shown_as:
            return _SHOWN_AS.get(t.shown_as, t.shown_as)
        if t.name in _SCALARS:
            return _SCALARS[t.name]
        if t.name == "decimal":
            members = {"scale": "int", "value": "bytes"}
            return self.record("VariableScaleDecimal", members, {"connect.version": 1}, "io.debezium.data")
        if t.name in ("list", "set", "vector"):
            return {"type": "array", "items": self.optional(t.args[0])}
        if t.name == "map":
            key, value = (self.optional(a) for a in t.args)
            if is_text(t.args[0]):
                return {"type": "map", "values": value}
            entry = self.record(
                f"entry_{_hash(t)}", {"key": key, "value": value}, {"connect.internal.type": "MapEntry"}
            )
            return {"type": "array", "items": entry}
        if t.name not in ("tuple", "udt"):
            raise ValueError(f"the type {t} has no form")
        members = {field: self.optional(a) for field, a in zip(field_names(t), t.args, strict=True)}
        if t.name == "udt":
            properties = {"connect.name": f"{self._keyspace}.{t.label}"}
            return self.record(avro_name(t.label), members, properties, avro_name(self._keyspace))
        name = f"{''.join(map(short_class, t.args))}Tuple"
        return self.record(f"{name}_{_hash(t)}", members, {"connect.name": name})


def _hash(t: CqlType) -> str:
    return hashlib.md5(f"{t} {t.shown_as}".encode(), usedforsecurity=False).hexdigest()[:8]
