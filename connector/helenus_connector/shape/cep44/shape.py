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
from helenus_connector.shape.encoding.forms import frame_of, keys_of
from helenus_connector.shape.encoding.parsed_cells import BAD_BYTES, ParsedCells, parse_cells, unreadable
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
                frame_of(registry, f"{topic}-value", envelope_schema(table, settings)), table, settings
            )
            keys = (b"", None, None) if settings.key_compat == "cep44" else None
            self._form = AvroRows(table, settings, *(keys or keys_of(table, settings, registry, topic, key, value)))
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
            return self._written(resolved, resolved.written)
        if resolved.read_rows is not None:
            return self._marked(resolved)
        op_bytes = None if resolved.op is None else resolved.op.encode()
        return self._read(resolved, self._rows.of_row(resolved, resolved.after, op_bytes), record_time(resolved))

    def rows(self, resolved: Sequence[ResolvedKey]) -> Sequence[Record | None]:
        return [None] * len(resolved)

    def smaller(self, image: Image) -> Iterator[tuple[Image, tuple[str, bytes]]]:
        return self._rows.smaller(image)

    def _read(self, resolved: ResolvedKey, row: ShapedRecord, at: int) -> Iterator[ShapedRecord]:
        """The records of a row as it was read, or of a partition's static columns."""
        if resolved.scope is _STATIC:
            return self._enveloped(row, EnvelopeHead("UPDATE", at, self._statics))
        if row.image is None:
            return self._deleted(row, EnvelopeHead("DELETE", at, self._key, has_row=False))
        kind = "INSERT" if resolved.op == "c" else "UPDATE"
        return self._enveloped(row, EnvelopeHead(kind, at, self._all, partial=False))

    def _marked(self, resolved: ResolvedKey) -> Iterator[ShapedRecord | None]:
        """The records of a delete marker, of the static columns of its partition, and of the rows in its scope."""
        at = record_time(resolved)
        rows = iter(self._rows.records(resolved))
        if resolved.scope is not _TABLE:
            marker = next(rows)
            assert marker is not None
            yield from self._scope_deleted(resolved, marker, at)
            if marker.image is not None and any(value is not None for value in marker.image.values):
                statics = self._rows.of_row(resolved, marker.image)
                written = at if marker.image.write_time is None else marker.image.write_time
                yield from self._enveloped(statics, EnvelopeHead("UPDATE", written, self._statics))
        elif not resolved.continues:
            yield next(rows)  # the envelope has no kind of operation for it
        for shaped in rows:
            if shaped is None:
                yield None
                continue
            own = shaped.image.write_time if shaped.image else None
            yield from self._enveloped(
                shaped, EnvelopeHead("UPDATE", at if own is None else own, self._all, partial=False)
            )

    def _written(self, resolved: ResolvedKey, cells: Cells) -> Iterator[ShapedRecord]:
        at = record_time(resolved)
        if resolved.scope not in (_ROW, _STATIC):
            has_rows = len(self._table.clustering) > 0
            marker = self._rows.of_marker(resolved) if has_rows else self._rows.of_row(resolved, None)
            yield from self._scope_deleted(resolved, marker, at)
            return
        try:
            op, columns, changed = parse_cells(cells, self._published)
        except BAD_BYTES as error:
            yield unreadable(resolved.key, self._table, error)
            return
        # A mutation may delete a row and write it: that is two records, as the envelope says one thing at once.
        if (gone := cells.deletion) is not None:
            row = self._rows.of_row(resolved, None)
            head = EnvelopeHead("DELETE", gone.write_time, self._key, has_row=False)
            yield from self._deleted(row, head) if columns is None else self._enveloped(row, head)
        if columns is None:
            return
        is_row = cells.liveness is not None and (gone is None or cells.liveness.write_time > gone.write_time)
        keys = self._key if resolved.scope is _ROW else self._partition
        head = EnvelopeHead(
            _kind(is_row, columns, changed), at, keys + changed.columns, ttl=_ttl(cells), changed=changed
        )
        values = tuple(map(columns.get, self._names)) if self._names else resolved.values
        image = Image(values, resolved.write_time)
        yield from self._enveloped(self._rows.of_row(resolved, image, b"c" if op == "c" else b"u"), head)

    def _scope_deleted(self, resolved: ResolvedKey, marker: ShapedRecord, at: int) -> Iterator[ShapedRecord]:
        """The records of a partition's or a range's deletion: as many as its range takes."""
        if resolved.scope is not _RANGE:
            yield from self._deleted(marker, EnvelopeHead("DELETE_PARTITION", at, self._partition, has_row=False))
            return
        start, end = resolved.bounds or (None, None)
        heads = [
            EnvelopeHead("DELETE_RANGE", at, self._partition, range=predicates, has_row=False)
            for predicates in ranges(self._table.clustering, start, end)
        ]
        for head in heads[:-1]:
            yield from self._enveloped(marker, head)
        yield from self._deleted(marker, heads[-1])

    def _deleted(self, shaped: ShapedRecord, head: EnvelopeHead) -> Iterator[ShapedRecord]:
        """The record of a deletion, and the one without value."""
        (made,) = self._enveloped(shaped, head)
        yield made
        if self._tombstones and made.cause is None:
            tombstone = Record(shaped.record.key, None, [])
            yield ShapedRecord(tombstone, None, shaped.key, None, lambda _: tombstone)

    def _enveloped(self, shaped: ShapedRecord, head: EnvelopeHead) -> Iterator[ShapedRecord]:
        """The record of a row in its envelope."""
        if shaped.cause is not None:
            yield shaped
            return
        whole = shaped.image if head.has_row else None

        def payload(record: Record) -> bytes:
            if head.has_row and record.value is not None and whole is not None:
                return record.value
            return self._form.of_key(shaped.key)

        def wrapped(record: Record, image: Image | None) -> Record:
            left_out = _left_out(record)
            if image is not whole and image is not None and whole is not None:
                pairs = zip(self._names, whole.values, image.values, strict=False)
                left_out |= {name for name, before, now in pairs if before is not None and now is None}
            truncated = tuple(name for name in self._names if name in left_out) if left_out else ()
            value = self._pack(head, payload(record), truncated)
            return record._replace(value=value, headers=[*record.headers, *self._named])

        record, make = shaped.record, shaped.make
        try:
            made = wrapped(record, whole)
            row = payload(record) if head.has_row else head.kind.encode()
        except BAD_BYTES as error:  # of a key, or a bound
            yield unreadable(shaped.key, self._table, error)
            return
        alike = b"%d\0%b%b" % (len(record.key or b""), record.key or b"", row)
        yield ShapedRecord(made, None, shaped.key, whole, lambda image: wrapped(make(image), image), alike)


def _kind(is_row: bool, columns: dict[str, bytes | None], changed: ParsedCells) -> str:
    """As the Sidecar names it; DELETE of columns only where a change does nothing else."""
    if changed.removed:
        return "COMPLEX_ELEMENT_DELETE"
    if is_row:
        return "INSERT"
    is_gone = changed.columns and all(columns[name] is None and name in changed.replaced for name in changed.columns)
    return "DELETE" if is_gone else "UPDATE"


def _ttl(cells: Cells) -> tuple[int, int] | None:
    """Of the first cell that expires, or of the row itself."""
    for cell in cells.cells:
        if cell.ttl is not None:
            return cell.ttl, cell.expires or 0
    row = cells.liveness
    return None if row is None or row.ttl is None else (row.ttl, row.expires or 0)


def _left_out(record: Record) -> set[str]:
    return {name for key, value in record.headers if key == "left_out" and value for name in json.loads(value)}
