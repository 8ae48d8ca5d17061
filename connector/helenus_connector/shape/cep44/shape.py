"""The shape `cep44`: a change in the envelope of CEP-44, as Cassandra's Sidecar publishes it. In Avro or JSON.

    UPDATE t SET v = 1 WHERE k = 7
    → {timestampMicros: ..., sourceTable: t, ..., operationType: UPDATE, isPartial: true, updateFields: [k, v],
       range: null, ttl: null, payload: {k: 7, v: 1, w: null}, written: {columns: [v], ...}}

Keys and headers are those of the shape `row`. The payload is a change's columns, or the whole row where it was read.
`docs/cep44.md` has the whole of it.
"""

from __future__ import annotations

import json
from collections.abc import Iterator

from helenus_connector.config.connector import ConnectorSettings
from helenus_connector.interfaces.image import Image
from helenus_connector.interfaces.resolved_key import ResolvedKey
from helenus_connector.interfaces.shape import Record, ShapedRecord
from helenus_connector.shape.cep44._form import AvroRows, JsonRows, PayloadRows
from helenus_connector.shape.cep44._layout import avro_layout, json_layout
from helenus_connector.shape.cep44._pack import EnvelopeHead, avro_pack, json_pack, schema_uuid
from helenus_connector.shape.cep44.predicates import ranges
from helenus_connector.shape.cep44.schema import envelope_schema
from helenus_connector.shape.encoding.forms import register_frame, register_key_schemas
from helenus_connector.shape.encoding.registry import SchemaIds
from helenus_connector.shape.envelope.change_source import ChangeSource, record_time
from helenus_connector.shape.envelope.direct_records import DirectRecords
from helenus_connector.shape.envelope.envelope_shape import EnvelopeShape
from helenus_connector.shape.envelope.parsed_cells import ParsedCells, ParsedChange
from helenus_connector.shape.row.row import row_schemas
from helenus_schemas.cql.table import Table
from helenus_schemas.event.cells import Cells
from helenus_schemas.event.change import Scope

_TABLE, _ROW, _STATIC, _RANGE = Scope.TABLE, Scope.ROW, Scope.STATIC, Scope.RANGE  # members are slow to look up


class Cep44(EnvelopeShape):
    """Makes the records of one version of a table. Registers its schemas: raises as `Registry.register`, and
    HelenusError TABLE_UNSUPPORTED.
    """

    def __init__(self, table: Table, settings: ConnectorSettings, registry: SchemaIds | None, topic: str = "") -> None:
        topic = topic or settings.data
        key, value = row_schemas(table, settings)
        self._form: AvroRows | JsonRows
        if settings.is_avro:
            frame = register_frame(registry, f"{topic}-value", envelope_schema(table, settings))
            self._pack = avro_pack(frame, table, settings)
            layout = avro_layout(table, settings, frame)
            keys = (b"", None, None) if settings.key_compat == "cep44" else None
            self._form = AvroRows(
                table, settings, *(keys or register_key_schemas(table, settings, registry, topic, key, value))
            )
        else:
            self._pack = json_pack(table)
            self._form = JsonRows(table, settings)
            layout = json_layout(table, has_keys=settings.key_compat == "exact")
        rows = PayloadRows(table, settings, registry, topic, self._form)
        super().__init__(table, rows, settings.tombstones_on_delete and settings.key_compat != "cep44")
        named = {"keyspace": table.keyspace, "table": table.name, "schemaUuid": schema_uuid(table)}
        self._headers = [(name, text.encode()) for name, text in named.items()]
        if table.values:
            self._direct = DirectRecords(table, layout)
        self._partition, self._key, self._all, self._statics = (
            tuple(c.name for c in columns)
            for columns in (
                table.partition_key,
                table.primary_key,
                (*table.primary_key, *table.values),
                (*table.partition_key, *table.statics),
            )
        )

    def _source(self, resolved: ResolvedKey) -> ChangeSource:
        return ChangeSource(record_time(resolved))  # the envelope says no more than the time

    def _written_records(
        self, resolved: ResolvedKey, cells: Cells, change: ParsedChange, source: ChangeSource
    ) -> Iterator[ShapedRecord]:
        op, columns, changed, is_row = change
        # A mutation may delete a row and write it: that is two records, as the envelope says one thing at once.
        if cells.deletion is not None:
            head = EnvelopeHead("DELETE", cells.deletion.write_time, self._key, has_row=False)
            yield from self._envelopes(self._rows.shaped_row(resolved, None), head, has_tombstone=columns is None)
        if columns is None:
            return
        keys = self._key if resolved.scope is _ROW else self._partition
        kind = _kind(is_row, columns, changed)
        head = EnvelopeHead(kind, source.write_time, keys + changed.columns, ttl=_ttl(cells), changed=changed)
        image = self._written_image(resolved, columns)
        yield from self._envelopes(self._rows.shaped_row(resolved, image, b"c" if op == "c" else b"u"), head)

    def _read_records(self, resolved: ResolvedKey, source: ChangeSource) -> Iterator[ShapedRecord]:
        op = None if resolved.op is None else resolved.op.encode()
        row = self._rows.shaped_row(resolved, resolved.after, op)
        if resolved.scope is _STATIC:
            return self._envelopes(row, EnvelopeHead("UPDATE", source.write_time, self._statics))
        if row.image is None:
            head = EnvelopeHead("DELETE", source.write_time, self._key, has_row=False)
            return self._envelopes(row, head, has_tombstone=True)
        kind = "INSERT" if resolved.op == "c" else "UPDATE"
        return self._envelopes(row, EnvelopeHead(kind, source.write_time, self._all, partial=False))

    def _deletion_records(
        self, resolved: ResolvedKey, marker: ShapedRecord, source: ChangeSource
    ) -> Iterator[ShapedRecord]:
        """Yield the records of a deletion: of a range one for each part of it."""
        if resolved.scope is _TABLE:
            yield marker  # the envelope has no kind of operation for it
            return
        head = EnvelopeHead("DELETE_PARTITION", source.write_time, self._partition, has_row=False)
        heads = [head]
        if resolved.scope is _RANGE:
            start, end = resolved.bounds or (None, None)
            parts = ranges(self._table.clustering, start, end)
            heads = [head._replace(kind="DELETE_RANGE", range=predicates) for predicates in parts]
        for number, head in enumerate(heads, 1):
            yield from self._envelopes(marker, head, has_tombstone=number == len(heads))

    def _live_records(self, row: ShapedRecord, source: ChangeSource, is_static: bool) -> Iterator[ShapedRecord]:
        fields = self._statics if is_static else self._all
        return self._envelopes(row, EnvelopeHead("UPDATE", source.write_time, fields, partial=is_static))

    def _envelopes(self, row: ShapedRecord, head: EnvelopeHead, has_tombstone: bool = False) -> Iterator[ShapedRecord]:
        """Return the record of a row in its envelope."""
        row_image = row.image if head.has_row else None

        def payload(record: Record) -> bytes:
            if record.value is not None and row_image is not None:
                return record.value
            return self._form.key_only_value(row.key)

        def envelope(record: Record, image: Image | None) -> Record:
            left_out = _left_out(record)
            if image is not row_image and image is not None and row_image is not None:
                pairs = zip(self._names, row_image.values, image.values, strict=False)
                left_out |= {name for name, before, now in pairs if before is not None and now is None}
            truncated = tuple(name for name in self._names if name in left_out) if left_out else ()
            value = self._pack(head, payload(record), truncated)
            return record._replace(value=value, headers=[*record.headers, *self._headers])

        def content(record: Record) -> bytes:
            return payload(record) if head.has_row else head.kind.encode()

        return self._wrap(row, row_image, envelope, content, has_tombstone)


def _kind(is_row: bool, columns: dict[str, bytes | None], changed: ParsedCells) -> str:
    """Return the operation as the Sidecar names it; DELETE of columns only if a change does nothing else."""
    if changed.removed:
        return "COMPLEX_ELEMENT_DELETE"
    if is_row:
        return "INSERT"
    is_gone = changed.columns and all(columns[name] is None and name in changed.replaced for name in changed.columns)
    return "DELETE" if is_gone else "UPDATE"


def _ttl(cells: Cells) -> tuple[int, int] | None:
    """Return TTL and expiry of the first cell that expires, or of the row itself."""
    for cell in cells.cells:
        if cell.ttl is not None:
            return cell.ttl, cell.expires or 0
    row = cells.liveness
    return None if row is None or row.ttl is None else (row.ttl, row.expires or 0)


def _left_out(record: Record) -> set[str]:
    return {name for key, value in record.headers if key == "left_out" and value for name in json.loads(value)}
