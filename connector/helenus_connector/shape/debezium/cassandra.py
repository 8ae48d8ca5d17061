"""The shape `debezium-cassandra`: the records of Debezium's connector for Cassandra, and what those leave out.

    UPDATE t USING TTL 60 SET v = 1 WHERE k = 7
    → {ts_ms: ..., op: u, source: {...}, after: {k: {value: 7, deletion_ts: null, set: true},
       v: {value: 1, deletion_ts: ..., set: true}, _range_start: null, _range_end: null}, written: {columns: [v], ...}}

A column that a change does not name is null, a cell of it `{value, deletion_ts, set}`. Of a row that was read all cells
are set. `docs/debezium-cassandra.md` has the whole of it.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence

from helenus_connector.config.connector import ConnectorSettings
from helenus_connector.interfaces.image import Image
from helenus_connector.interfaces.resolved_key import ResolvedKey
from helenus_connector.interfaces.shape import Record, ShapedRecord
from helenus_connector.shape.debezium._cassandra_records import DebeziumRecords
from helenus_connector.shape.debezium._cassandra_values import AVRO, JSON
from helenus_connector.shape.debezium.cassandra_schemas import cassandra_schemas
from helenus_connector.shape.encoding.change_source import ChangeSource, change_source, row_source
from helenus_connector.shape.encoding.forms import register_frame, register_key_schemas
from helenus_connector.shape.encoding.parsed_cells import BAD_BYTES, ParsedCells, parse_cells, unreadable_record
from helenus_connector.shape.encoding.registry import SchemaIds
from helenus_connector.shape.row.row import RowShape
from helenus_schemas.cql.table import Table
from helenus_schemas.errors import HelenusError, Kind
from helenus_schemas.event.cells import Cells
from helenus_schemas.event.change import Scope

_TABLE, _ROW, _STATIC, _RANGE = Scope.TABLE, Scope.ROW, Scope.STATIC, Scope.RANGE  # slow to look up
_SECOND = 1_000_000


class DebeziumCassandra:
    """Makes the records of one version of a table. Registers its schemas: raises as `Registry.register`, and
    HelenusError TABLE_UNSUPPORTED. `cluster` is the name of Cassandra's.
    """

    def __init__(
        self,
        table: Table,
        settings: ConnectorSettings,
        registry: SchemaIds | None,
        topic: str = "",
        cluster: str | None = None,
    ) -> None:
        topic = topic or settings.data
        key, value = cassandra_schemas(table, settings)
        if settings.is_avro:
            # The bytes of a key in a topic of Debezium's stay what they are there, with the id of its schema.
            key_frame, _, _ = register_key_schemas(table, settings, registry, topic, key, _after_schema(value))
            frames = key_frame, register_frame(registry, f"{topic}-value", value)
            self._values = DebeziumRecords(AVRO, table, settings, cluster, frames, b"\1")
        else:
            self._values = DebeziumRecords(JSON, table, settings, cluster, (b"", b""), "true")
        self._rows = RowShape(table, settings, registry, topic, self._values)
        self._table = table
        self._names = [c.name for c in table.values]
        self._published = frozenset(self._names)
        self._tombstones = settings.tombstones_on_delete

    def records(self, resolved: ResolvedKey) -> Iterable[ShapedRecord | None]:
        if resolved.written is not None:
            return self._change_records(resolved, resolved.written)
        return self._row_records(resolved) if resolved.read_rows is None else self._marker_records(resolved)

    def rows(self, resolved: Sequence[ResolvedKey]) -> Sequence[Record | None]:
        return [None] * len(resolved)

    def smaller(self, image: Image) -> Iterator[tuple[Image, tuple[str, bytes]]]:
        return self._rows.smaller(image)

    def _row_records(self, resolved: ResolvedKey) -> Iterator[ShapedRecord]:
        source, after = change_source(resolved), resolved.after
        if after is None and resolved.scope is _STATIC:
            after = Image((None,) * len(self._names), resolved.write_time)
        op = "d" if after is None else "u" if source.snapshot == "false" and resolved.op in (None, "u") else "i"
        op_bytes = None if resolved.op is None else resolved.op.encode()
        return self._wrap(self._rows.shaped_row(resolved, after, op_bytes), op, source, resolved)

    def _marker_records(self, resolved: ResolvedKey) -> Iterator[ShapedRecord | None]:
        """Yield the records of a delete marker, of the static columns of its partition, and of the rows in its
        scope.
        """
        source = change_source(resolved)
        rows = iter(self._rows.records(resolved))
        if resolved.scope is not _TABLE or not resolved.continues:
            marker = next(rows)
            assert marker is not None
            op = "t" if resolved.scope is _TABLE else "r" if resolved.bounds else "d"
            yield from self._wrap(marker, op, source, resolved)
            image = marker.image
            if image is not None and any(value is not None for value in image.values):
                yield from self._wrap(self._rows.shaped_row(resolved, image), "u", row_source(source, image))
        for shaped in rows:
            if shaped is None:
                yield None
                continue
            yield from self._wrap(shaped, "u", row_source(source, shaped.image))

    def _change_records(self, resolved: ResolvedKey, cells: Cells) -> Iterator[ShapedRecord]:
        source = change_source(resolved)
        if resolved.scope not in (_ROW, _STATIC):
            has_rows = len(self._table.clustering) > 0
            marker = self._rows.shaped_marker(resolved) if has_rows else self._rows.shaped_row(resolved, None)
            yield from self._wrap(marker, "r" if resolved.scope is _RANGE else "d", source, resolved)
            return
        try:
            kind, columns, changed = parse_cells(cells, self._published, shows_removed=True)
        except BAD_BYTES as error:
            yield unreadable_record(resolved.key, self._table, error)
            return
        deleted_at = None if cells.deletion is None else cells.deletion.write_time
        if deleted_at is not None:
            deletion_source = source._replace(write_time=deleted_at)
            yield from self._wrap(self._rows.shaped_row(resolved, None), "d", deletion_source, resolved)
        if columns is None:
            return
        is_row = cells.liveness is not None and (deleted_at is None or cells.liveness.write_time > deleted_at)
        values = tuple(map(columns.get, self._names)) if self._names else resolved.values
        image = Image(values, resolved.write_time)
        encode = self._values.cells_encoder(resolved.values, columns, _expiries(cells))
        shaped = self._rows.shaped_row(resolved, image, kind.encode(), encode)
        yield from self._wrap(shaped, "i" if is_row else "u", source, changed=changed, columns=columns)

    def _wrap(
        self,
        shaped: ShapedRecord,
        op: str,
        source: ChangeSource,
        deleted: ResolvedKey | None = None,
        changed: ParsedCells | None = None,
        columns: Mapping[str, bytes | None] | None = None,
    ) -> Iterator[ShapedRecord]:
        """Yield the record of a row in its envelope; or of what is `deleted`, and after a delete the one without
        value.
        """
        if shaped.cause is not None:
            yield shaped
            return
        is_gone = op in "drt"

        def wrapped(record: Record) -> Record:
            if not is_gone:
                return record._replace(value=self._values.envelope(record.value or b"", op, source, changed, columns))
            assert deleted is not None
            after = self._values.deleted_row(deleted.key, deleted.values, op, source.write_time, deleted.bounds)
            return record._replace(value=self._values.envelope(after, op, source))

        try:
            record, make = wrapped(shaped.record), shaped.make
        except BAD_BYTES as error:
            cause = HelenusError(Kind.POISON_EVENT, f"a value cannot be published: {error}", self._table.full_name)
            yield shaped._replace(record=Record(None, str(cause).encode(), ()), cause=cause)
            return
        key = record.key or b""
        row = b"\0" + op.encode() if is_gone else b"\1" + (shaped.record.value or b"")
        alike = b"%d\0%b%b" % (len(key), key, row)
        yield ShapedRecord(record, None, shaped.key, shaped.image, lambda image: wrapped(make(image)), alike)
        if op == "d" and self._tombstones:
            tombstone = Record(record.key, None, [])
            yield ShapedRecord(tombstone, None, shaped.key, None, lambda _: tombstone)


def _after_schema(value: str) -> str:
    """Return the schema of `after` from a value's schema, as text."""
    return json.dumps(next(field["type"] for field in json.loads(value)["fields"] if field["name"] == "after"))


def _expiries(cells: Cells) -> dict[str, int]:
    """Return when the cells of a change expire, in µs, by column, for columns of one cell."""
    return {c.column: c.expires * _SECOND for c in cells.cells if c.expires is not None and c.path is None}
