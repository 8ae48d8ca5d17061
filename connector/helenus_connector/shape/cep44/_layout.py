"""Describe the records of `cep44` for `DirectRecords`: those of a row that a change writes."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence

from helenus_connector.config.connector import ConnectorSettings
from helenus_connector.shape.cep44._pack import schema_uuid
from helenus_connector.shape.cep44._payload import payload_slots
from helenus_connector.shape.cep44.schema import KINDS, VERSION
from helenus_connector.shape.envelope import direct_records as direct
from helenus_connector.shape.envelope.avro_bytes import op_bytes, text_bytes, texts_bytes
from helenus_connector.shape.envelope.parsed_cells import ParsedCells
from helenus_connector.shape.envelope.record_layout import Marks, RecordLayout, plain_slots
from helenus_schemas.codec.avro_long import long_bytes
from helenus_schemas.cql.table import Table
from helenus_schemas.names import avro_name


def avro_layout(table: Table, settings: ConnectorSettings, value_frame: bytes) -> RecordLayout:
    """Return what envelopes in Avro consist of."""
    constants = b"".join(map(text_bytes, (table.name, table.keyspace, schema_uuid(table))))
    value = [
        (value_frame, direct.WRITE_US),
        (constants + b"\0\2" + text_bytes(VERSION), direct.OPERATION),
        (b"\1\2", direct.FIELDS),
        (b"\0", direct.TTL),
        (b"", direct.ROW),
        (b"\2", direct.CHANGED),
    ]
    update, insert, removal, clearing = (
        long_bytes(KINDS.index(kind)) for kind in ("UPDATE", "INSERT", "COMPLEX_ELEMENT_DELETE", "DELETE")
    )
    keys, partition = (
        tuple(avro_name(c.name) for c in columns) for columns in (table.primary_key, table.partition_key)
    )

    def fields(changed: ParsedCells, is_static: bool) -> bytes:
        return texts_bytes((partition if is_static else keys) + tuple(map(avro_name, changed.columns)))

    return RecordLayout(
        False,
        value,
        b"",
        payload_slots(table.primary_key),
        payload_slots(table.values),
        operations=(update, insert),
        changed=op_bytes,
        fields=fields,
        ttl=lambda ttl, expires: b"\2" + long_bytes(ttl) + long_bytes(expires),
        no_ttl=b"\0",
        removal=removal,
        clearing=clearing,
        sizes_row=settings.cep44_payload == "bytes",
    )


def json_layout(table: Table, has_keys: bool) -> RecordLayout:
    """Return what envelopes in JSON consist of, and with `has_keys` their keys too."""
    names = {"sourceTable": table.name, "sourceKeyspace": table.keyspace, "schemaUuid": schema_uuid(table)}
    mark = (marks := Marks()).mark
    parts, end = marks.split(
        f'{{"timestampMicros":{mark(direct.WRITE_US)},{_text(names)[1:-1]},"truncatedFields":[],"version":"{VERSION}",'
        f'"operationType":{mark(direct.OPERATION)},"isPartial":true,"updateFields":{mark(direct.FIELDS)},"range":null,'
        f'"ttl":{mark(direct.TTL)},"payload":{mark(direct.ROW)}}},"written":{mark(direct.CHANGED)}}}'.encode()
    )
    columns = [c.name for c in (*table.primary_key, *table.values)]
    keys, partition = columns[: len(table.primary_key)], columns[: len(table.partition_key)]
    row_keys = plain_slots(table.primary_key, True, keys, key=True)

    def fields(changed: ParsedCells, is_static: bool) -> bytes:
        return _text([*(partition if is_static else keys), *changed.columns]).encode()

    return RecordLayout(
        True,
        parts,
        end,
        row_keys,
        plain_slots(table.values, True, columns),
        operations=(b'"UPDATE"', b'"INSERT"'),
        keys=row_keys if has_keys else (),
        key_tail=b"}",
        changed=lambda changed: _text(changed._asdict()).encode(),
        fields=fields,
        ttl=lambda ttl, expires: b'{"ttl":%d,"deletedAt":%d}' % (ttl, expires),
        no_ttl=b"null",
        removal=b'"COMPLEX_ELEMENT_DELETE"',
        clearing=b'"DELETE"',
    )


def _text(value: Mapping[str, object] | Sequence[str]) -> str:
    return json.dumps(value, ensure_ascii=False, separators=(",", ":"))
