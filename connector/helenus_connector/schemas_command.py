"""The schemas that a connector's topics have now, for a registry, or a Pulsar, that is filled by other means."""

from __future__ import annotations

import json
from collections.abc import Iterator

from helenus_connector.config.connector import ConnectorSettings
from helenus_connector.config.worker import WorkerSettings
from helenus_connector.control.tables import chosen, missing, read
from helenus_connector.shape.encoding.forms import nullable_schema
from helenus_connector.shape.row.row import shown_table
from helenus_connector.shape.schemas import record_schemas, topic_schemas
from helenus_schemas.avro import build as avro
from helenus_schemas.cql.table import Table
from helenus_schemas.errors import HelenusError, Kind
from helenus_schemas.event import datastax
from helenus_sinks.log import DeclaredSchemas


def subjects(worker: WorkerSettings, settings: ConnectorSettings) -> Iterator[str]:
    """Yield JSON objects of `subject` and `schema` by table: of its keys, of its values, of the delete markers of
    TRUNCATE, and of keys with a value of no bytes in a composite partition key. For topics on Pulsar yield objects of
    `topic` and `schema`: as its admin API takes it, and `pulsar-admin schemas upload`.

    Raises HelenusError: as `connect`, TABLE_MISSING, TABLE_UNSUPPORTED, CONFIG for a connector with transforms.
    """
    tables = read(settings)
    for name in chosen(settings, tables):
        table_settings = settings.of_table(name)
        if name not in tables:
            raise missing(table_settings, tables)
        if table_settings.has_transforms:
            problem = "schemas of transformed records are known only when a record is transformed"
            advice = "let the connector register them: value.converter.auto.register.schemas=true"
            raise HelenusError(Kind.CONFIG, problem, settings.name, advice)
        if worker.log == "pulsar":
            key = datastax.key_schema(tables[name])
            yield _upload(
                table_settings.events, DeclaredSchemas(key, datastax.VALUE, value_properties=datastax.VALUE_PROPERTIES)
            )
        if worker.log_of_data == "pulsar":
            yield _upload(table_settings.data, topic_schemas(shown_table(tables[name], table_settings), table_settings))
            continue
        table = shown_table(tables[name], table_settings)
        schemas = {
            part: avro.text(s)
            for part, s in zip(("key", "value"), record_schemas(table, table_settings), strict=True)
            if s
        }
        if table_settings.output_format != "debezium-cassandra" and table_settings.key_compat != "cep44":
            schemas |= _extra_schemas(table, table_settings)
        for part, schema in schemas.items():
            yield json.dumps(
                {"subject": f"{table_settings.subject_prefix(table_settings.data)}-{part}", "schema": schema}
            )


def _extra_schemas(table: Table, settings: ConnectorSettings) -> dict[str, str]:
    """Return the schemas of keys of TRUNCATE's markers, and of parts with a key that has no bytes."""
    schemas = {"truncation": avro.TRUNCATION}
    if len(table.partition_key) > 1:
        parts = ("key", "value") if avro.required_columns(table) and not settings.is_envelope else ("key",)
        schemas.update({f"{part}-nullable": nullable_schema(table, settings, part) for part in parts})
    return schemas


def _upload(topic: str, schemas: DeclaredSchemas) -> str:
    from helenus_sinks.pulsar.wire import payload_of

    return json.dumps({"topic": topic, "schema": payload_of(schemas)}, ensure_ascii=False)
