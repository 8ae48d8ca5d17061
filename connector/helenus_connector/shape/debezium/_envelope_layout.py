"""Describe the envelopes of `debezium` for `DirectRecords`: those of a row that a change writes."""

from __future__ import annotations

import json
from collections.abc import Sequence

from helenus_connector.shape.envelope import direct_records as direct
from helenus_connector.shape.envelope.avro_bytes import op_bytes, text_bytes
from helenus_connector.shape.envelope.direct_records import ColumnSlot
from helenus_connector.shape.envelope.record_layout import Marks, RecordLayout, plain_slots
from helenus_schemas.cql.table import Table


def avro_layout(table: Table, schema_frame: bytes, constants: bytes, constants_after_snapshot: bytes) -> RecordLayout:
    """Return what envelopes in Avro consist of. `constants` are the fields of `source` before its write time, the other
    ones those after `snapshot`.
    """
    value = [
        (schema_frame + b"\0\2", direct.ROW),
        (constants, direct.WRITE_MS),
        (b"", direct.WRITE_US),
        (b"", direct.WRITE_NS),
        (text_bytes("false") + constants_after_snapshot + b"\2", direct.SEGMENT),
        (b"\2", direct.POSITION),
        (b"\2", direct.NODE),
        (b"", direct.OPERATION),
        (b"\2", direct.NOW),
        (b"\2", direct.CHANGED),
    ]
    row_keys, columns = row_slots(table, is_json=False)
    return RecordLayout(
        False,
        value,
        b"",
        row_keys,
        columns,
        operations=(text_bytes("u"), text_bytes("c")),
        segment=lambda segment: text_bytes(str(segment)),
        changed=op_bytes,
    )


def json_layout(table: Table, constants: str, constants_after_snapshot: str, has_keys: bool) -> RecordLayout:
    """Return what envelopes in JSON consist of, and with `has_keys` their keys too. The constants are as in
    `avro_layout`.
    """
    mark = (marks := Marks()).mark
    parts, end = marks.split(
        f'{{"before":null,"after":{mark(direct.ROW)}}},"source":{constants},"ts_ms":{mark(direct.WRITE_MS)},'
        f'"ts_us":{mark(direct.WRITE_US)},"ts_ns":{mark(direct.WRITE_NS)},"snapshot":"false",'
        f'{constants_after_snapshot},"file":"{mark(direct.SEGMENT)}","pos":{mark(direct.POSITION)},'
        f'"node":{mark(direct.NODE)}}},"op":{mark(direct.OPERATION)},'
        f'"ts_ms":{mark(direct.NOW)},"written":{mark(direct.CHANGED)}}}'.encode()
    )
    row_keys, columns = row_slots(table, is_json=True)
    return RecordLayout(
        True,
        parts,
        end,
        row_keys,
        columns,
        operations=(b'"u"', b'"c"'),
        keys=row_keys if has_keys else (),
        key_tail=b"}",
        segment=lambda segment: b"%d" % segment,
        changed=lambda changed: json.dumps(changed._asdict(), ensure_ascii=False, separators=(",", ":")).encode(),
    )


def row_slots(table: Table, is_json: bool) -> tuple[Sequence[ColumnSlot], Sequence[ColumnSlot]]:
    """Return the slots of the key's columns, and of the others, of a whole row."""
    names = [c.name for c in (*table.primary_key, *table.values)]
    row_keys = plain_slots(table.primary_key, is_json, names[: len(table.primary_key)], key=True)
    return row_keys, plain_slots(table.values, is_json, names)
