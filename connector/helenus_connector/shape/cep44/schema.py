"""The Avro schema of CEP-44's envelope, whose names are those of Cassandra's Sidecar."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from helenus_connector.config.connector import ConnectorSettings
from helenus_connector.shape.cep44 import _payload as payload
from helenus_connector.shape.cep44.predicates import SYMBOLS
from helenus_connector.shape.envelope.avro_bytes import TEXT_ARRAY, WRITTEN_FIELDS
from helenus_schemas.avro import build as avro
from helenus_schemas.cql.table import Table
from helenus_schemas.errors import HelenusError, Kind

VERSION = "2"
KINDS = ("INSERT", "UPDATE", "DELETE", "COMPLEX_ELEMENT_DELETE", "DELETE_RANGE", "DELETE_PARTITION")
_NAMESPACE = "org.apache.cassandra"


def envelope_schema(table: Table, settings: ConnectorSettings) -> str:
    """Return the schema of a table's envelopes, as text; `payload` is a record, or bytes whose schema is a property of
    the field. Raises HelenusError TABLE_UNSUPPORTED.

    `written` is an addition, and the last field: readers of the envelope without it can read the bytes before it.
    """
    try:
        row = payload.payload_schema(table) if settings.is_avro else avro.row_schema(table)
    except ValueError as error:
        raise HelenusError(Kind.TABLE_UNSUPPORTED, str(error), table.full_name) from None
    predicate = _record(
        "RangePredicate",
        _field("field", "string"),
        _field("rangePredicateType", _enum("RangePredicateType", SYMBOLS)),
        _field("value", "bytes" if settings.is_avro else _bound(table)),
    )
    ttl = _record("TTL", _field("ttl", "int"), _field("deletedAt", "long"))
    is_in_bytes = settings.cep44_payload == "bytes"
    return avro.text(
        _record(
            "CassandraCDC",
            _field("timestampMicros", "long"),
            _field("sourceTable", "string"),
            _field("sourceKeyspace", "string"),
            _field("schemaUuid", "string"),
            _field("truncatedFields", TEXT_ARRAY),
            _optional("version", "string"),
            _field("operationType", _enum("OperationType", KINDS)),
            {**_field("isPartial", "boolean"), "default": False},
            _optional("updateFields", TEXT_ARRAY),
            _optional("range", {"type": "array", "items": predicate}),
            _optional("ttl", ttl),
            {**_field("payload", "bytes"), "schema": row} if is_in_bytes else _field("payload", row),
            _optional(
                "written", {"type": "record", "name": "Written", "namespace": "helenus", "fields": WRITTEN_FIELDS}
            ),
        )
    )


def _bound(table: Table) -> Any:
    """Return the schema of a predicate's value in JSON, which has one of these columns."""
    columns = replace(table, columns=table.clustering)
    return {**avro.row_schema(columns, "key"), "name": "Bound", "namespace": f"{_NAMESPACE}.bound"}


def _field(name: str, type_schema: Any) -> dict[str, Any]:
    return {"name": name, "type": type_schema}


def _optional(name: str, type_schema: Any) -> dict[str, Any]:
    return {"name": name, "type": ["null", type_schema], "default": None}


def _enum(name: str, symbols: tuple[str, ...]) -> dict[str, Any]:
    return {"type": "enum", "name": name, "namespace": _NAMESPACE, "symbols": list(symbols)}


def _record(name: str, *fields: dict[str, Any]) -> dict[str, Any]:
    return {"type": "record", "name": name, "namespace": _NAMESPACE, "fields": list(fields)}
