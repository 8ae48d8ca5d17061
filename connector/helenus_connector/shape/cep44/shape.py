"""The shape `cep44`: a change in the envelope of CEP-44, as Cassandra's Sidecar publishes it. In Avro or JSON.

    UPDATE t SET v = 1 WHERE k = 7
    → {timestampMicros: ..., sourceTable: t, ..., operationType: UPDATE, isPartial: true, updateFields: [k, v],
       range: null, ttl: null, payload: {k: 7, v: 1, w: null}, written: {columns: [v], ...}}

Keys and headers are those of the shape `row`. The payload is a change's columns, or the whole row where it was read.
`docs/cep44.md` has the whole of it.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Sequence

from helenus_connector.config.connector import ConnectorSettings
from helenus_connector.interfaces.image import Image
from helenus_connector.interfaces.resolved_key import ResolvedKey
from helenus_connector.interfaces.shape import Record, ShapedRecord
from helenus_connector.shape.cep44._form import AvroRows, JsonRows, PayloadRows
from helenus_connector.shape.cep44._pack import EnvelopeHead, avro_pack, json_pack, schema_uuid
from helenus_connector.shape.cep44._ranges import ranges
from helenus_connector.shape.cep44.schema import envelope_schema
from helenus_connector.shape.encoding.change_source import record_time
from helenus_connector.shape.encoding.forms import register_frame, register_key_schemas
from helenus_connector.shape.encoding.parsed_cells import BAD_BYTES, ParsedCells, parse_cells, unreadable_record
from helenus_connector.shape.encoding.registry import SchemaIds
from helenus_connector.shape.row.row import row_schemas
from helenus_schemas.cql.table import Table
from helenus_schemas.event.cells import Cells
from helenus_schemas.event.change import Scope

_TABLE, _ROW, _STATIC, _RANGE = Scope.TABLE, Scope.ROW, Scope.STATIC, Scope.RANGE  # members are slow to look up
_GONE = ("DELETE_PARTITION", "DELETE_RANGE")


class Cep44:
    """Makes the records of one version of a table. Registers its schemas: raises as `Registry.register`, and
    HelenusError TABLE_UNSUPPORTED.
    """

    def __init__(self, table: Table, settings: ConnectorSettings, registry: SchemaIds | None, topic: str = "") -> None:
        topic = topic or settings.data
        key, value = row_schemas(table, settings)
        self._table = table
        self._form: AvroRows | JsonRows
        if settings.is_avro:
            self._pack = avro_pack(
                register_frame(registry, f"{topic}-value", envelope_schema(table, settings)), table, settings
            )
            keys = (b"", None, None) if settings.key_compat == "cep44" else None
            self._form = AvroRows(
                table, settings, *(keys or register_key_schemas(table, settings, registry, topic, key, value))
            )
        else:
            self._pack = json_pack(table)
            self._form = JsonRows(table, settings)
        self._rows = PayloadRows(table, settings, registry, topic, self._form)
        named = {"keyspace": table.keyspace, "table": table.name, "schemaUuid": schema_uuid(table)}
        self._named = [(name, text.encode()) for name, text in named.items()]
        self._names = [c.name for c in table.values]
        self._published = frozenset(self._names)
        self._partition, self._key, self._all, self._statics = (
            tuple(c.name for c in columns)
            for columns in (
                table.partition_key,
                table.primary_key,
                (*table.primary_key, *table.values),
                (*table.partition_key, *table.statics),
            )
        )
        self._tombstones = settings.tombstones_on_delete and settings.key_compat != "cep44"

    def records(self, resolved: ResolvedKey) -> Iterable[ShapedRecord | None]:
        if resolved.written is not None:
            return self._change_records(resolved, resolved.written)
        if resolved.read_rows is not None:
            return self._marker_records(resolved)
        op_bytes = None if resolved.op is None else resolved.op.encode()
        return self._row_records(
            resolved, self._rows.shaped_row(resolved, resolved.after, op_bytes), record_time(resolved)
        )

    def rows(self, resolved: Sequence[ResolvedKey]) -> Sequence[Record | None]:
        return [None] * len(resolved)

    def smaller(self, image: Image) -> Iterator[tuple[Image, tuple[str, bytes]]]:
        return self._rows.smaller(image)

    def _row_records(self, resolved: ResolvedKey, row: ShapedRecord, write_time: int) -> Iterator[ShapedRecord]:
        """Yield the records of a row as it was read, or of a partition's static columns."""
        if resolved.scope is _STATIC:
            return self._wrap(row, EnvelopeHead("UPDATE", write_time, self._statics))
        if row.image is None:
            return self._wrap_deletion(row, EnvelopeHead("DELETE", write_time, self._key, has_row=False))
        kind = "INSERT" if resolved.op == "c" else "UPDATE"
        return self._wrap(row, EnvelopeHead(kind, write_time, self._all, partial=False))

    def _marker_records(self, resolved: ResolvedKey) -> Iterator[ShapedRecord | None]:
        """Yield the records of a delete marker, of the static columns of its partition, and of the rows in its
        scope.
        """
        write_time = record_time(resolved)
        rows = iter(self._rows.records(resolved))
        if resolved.scope is not _TABLE:
            marker = next(rows)
            assert marker is not None
            yield from self._deletion_records(resolved, marker, write_time)
            if marker.image is not None and any(value is not None for value in marker.image.values):
                statics = self._rows.shaped_row(resolved, marker.image)
                static_time = write_time if marker.image.write_time is None else marker.image.write_time
                yield from self._wrap(statics, EnvelopeHead("UPDATE", static_time, self._statics))
        elif not resolved.continues:
            yield next(rows)  # the envelope has no kind of operation for it
        for shaped in rows:
            if shaped is None:
                yield None
                continue
            row_time = shaped.image.write_time if shaped.image else None
            yield from self._wrap(
                shaped, EnvelopeHead("UPDATE", write_time if row_time is None else row_time, self._all, partial=False)
            )

    def _change_records(self, resolved: ResolvedKey, cells: Cells) -> Iterator[ShapedRecord]:
        write_time = record_time(resolved)
        if resolved.scope not in (_ROW, _STATIC):
            has_rows = len(self._table.clustering) > 0
            marker = self._rows.shaped_marker(resolved) if has_rows else self._rows.shaped_row(resolved, None)
            yield from self._deletion_records(resolved, marker, write_time)
            return
        try:
            op, columns, changed = parse_cells(cells, self._published)
        except BAD_BYTES as error:
            yield unreadable_record(resolved.key, self._table, error)
            return
        # A mutation may delete a row and write it: that is two records, as the envelope says one thing at once.
        if (deletion := cells.deletion) is not None:
            row = self._rows.shaped_row(resolved, None)
            head = EnvelopeHead("DELETE", deletion.write_time, self._key, has_row=False)
            yield from self._wrap_deletion(row, head) if columns is None else self._wrap(row, head)
        if columns is None:
            return
        is_row = cells.liveness is not None and (deletion is None or cells.liveness.write_time > deletion.write_time)
        keys = self._key if resolved.scope is _ROW else self._partition
        head = EnvelopeHead(
            _kind(is_row, columns, changed), write_time, keys + changed.columns, ttl=_ttl(cells), changed=changed
        )
        values = tuple(map(columns.get, self._names)) if self._names else resolved.values
        image = Image(values, resolved.write_time)
        yield from self._wrap(self._rows.shaped_row(resolved, image, b"c" if op == "c" else b"u"), head)

    def _deletion_records(self, resolved: ResolvedKey, marker: ShapedRecord, write_time: int) -> Iterator[ShapedRecord]:
        """Yield the records of a partition's or a range's deletion: one for each part of its range."""
        if resolved.scope is not _RANGE:
            yield from self._wrap_deletion(
                marker, EnvelopeHead("DELETE_PARTITION", write_time, self._partition, has_row=False)
            )
            return
        start, end = resolved.bounds or (None, None)
        heads = [
            EnvelopeHead("DELETE_RANGE", write_time, self._partition, range=predicates, has_row=False)
            for predicates in ranges(self._table.clustering, start, end)
        ]
        for head in heads[:-1]:
            yield from self._wrap(marker, head)
        yield from self._wrap_deletion(marker, heads[-1])

    def _wrap_deletion(self, shaped: ShapedRecord, head: EnvelopeHead) -> Iterator[ShapedRecord]:
        """Yield the record of a deletion, and the one without value."""
        (record,) = self._wrap(shaped, head)
        yield record
        if self._tombstones and record.cause is None:
            tombstone = Record(shaped.record.key, None, [])
            yield ShapedRecord(tombstone, None, shaped.key, None, lambda _: tombstone)

    def _wrap(self, shaped: ShapedRecord, head: EnvelopeHead) -> Iterator[ShapedRecord]:
        """Yield the record of a row in its envelope."""
        if shaped.cause is not None:
            yield shaped
            return
        row_image = shaped.image if head.has_row else None

        def payload(record: Record) -> bytes:
            if head.has_row and record.value is not None and row_image is not None:
                return record.value
            return self._form.key_only_value(shaped.key)

        def wrapped(record: Record, image: Image | None) -> Record:
            left_out = _left_out(record)
            if image is not row_image and image is not None and row_image is not None:
                pairs = zip(self._names, row_image.values, image.values, strict=False)
                left_out |= {name for name, before, now in pairs if before is not None and now is None}
            truncated = tuple(name for name in self._names if name in left_out) if left_out else ()
            value = self._pack(head, payload(record), truncated)
            return record._replace(value=value, headers=[*record.headers, *self._named])

        record, make = shaped.record, shaped.make
        try:
            made = wrapped(record, row_image)
            row = payload(record) if head.has_row else head.kind.encode()
        except BAD_BYTES as error:  # of a key, or a bound
            yield unreadable_record(shaped.key, self._table, error)
            return
        alike = b"%d\0%b%b" % (len(record.key or b""), record.key or b"", row)
        yield ShapedRecord(made, None, shaped.key, row_image, lambda image: wrapped(make(image), image), alike)


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
