"""Return the schemas of a table's records, as Avro schemas, and as a topic on Pulsar is to declare them.

    output.format=debezium, JSON → key {k: int}, value {before, after: {k: int, b: bytes}, source, op, ...}

In JSON bytes are base64, and a topic that declares JSON has strings there; Kafka Connect's schema calls them bytes.
"""

from __future__ import annotations

import json
from typing import Any

from helenus_connector.config.connector import ConnectorSettings
from helenus_connector.shape.cep44 import schema
from helenus_connector.shape.debezium import cassandra_schemas, envelope
from helenus_connector.shape.row import row
from helenus_schemas.avro import build as avro
from helenus_schemas.cql.table import Table
from helenus_schemas.errors import HelenusError, Kind
from helenus_sinks.log import DeclaredSchemas

TRUNCATION: Any = json.loads(avro.TRUNCATION)
"""Schema of the key of the marker that concerns the whole table."""


def record_schemas(table: Table, settings: ConnectorSettings) -> tuple[Any, Any]:
    """Return the Avro schemas of a table's keys and values as its records are, in Avro or JSON; None for text keys.

    `table` is as it is `shown`. Raises HelenusError TABLE_UNSUPPORTED.
    """
    key, value = row.row_schemas(table, settings)
    form = settings.output_format
    if form == "debezium-cassandra":
        key, value = cassandra_schemas.cassandra_schemas(table, settings)
        return json.loads(key), json.loads(value)
    if form == "debezium":
        value = envelope.envelope_schema(table)
    elif form == "cep44":
        value = schema.envelope_schema(table, settings)
    if settings.is_avro:
        return None if settings.key_compat == "cep44" else json.loads(key), json.loads(value)
    try:
        if not settings.is_envelope:
            value = avro.text(avro.row_schema(table, "row" if form == "json" else "value"))
        is_text = settings.key_compat == "cep44"
        return None if is_text else avro.row_schema(table, "key", settings.key_compat), json.loads(value)
    except ValueError as error:
        raise HelenusError(Kind.TABLE_UNSUPPORTED, str(error), table.full_name) from None


def topic_schemas(table: Table, settings: ConnectorSettings) -> DeclaredSchemas:
    """Return the schemas of a topic that keeps them itself. Raises HelenusError TABLE_UNSUPPORTED."""
    key, value = record_schemas(table, settings)
    if settings.is_avro:
        return DeclaredSchemas(None if key is None else avro.text(key), avro.text(value))
    if settings.output_format == "json":
        key = None  # such a topic has keys that are text
    try:
        if "MapEntry" in avro.text(value):
            raise ValueError(f"{table.full_name}: no schema of JSON has maps with keys that are not text: take Avro")
        shown = [None if schema is None else avro.text(avro.json_schema(table, schema)) for schema in (key, value)]
    except ValueError as error:
        raise HelenusError(Kind.TABLE_UNSUPPORTED, str(error), table.full_name) from None
    return DeclaredSchemas(shown[0], shown[1] or "", "JSON")
