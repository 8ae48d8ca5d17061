"""The shape `debezium-cassandra`: the records of Debezium's connector for Cassandra, and what those leave out.

    UPDATE t USING TTL 60 SET v = 1 WHERE k = 7
    → {ts_ms: ..., op: u, source: {...}, after: {k: {value: 7, deletion_ts: null, set: true},
       v: {value: 1, deletion_ts: ..., set: true}, _range_start: null, _range_end: null}, written: {columns: [v], ...}}

A column that a change does not name is null, a cell of it `{value, deletion_ts, set}`. Of a row that was read all cells
are set. `docs/debezium-cassandra.md` has the whole of it.
"""

from __future__ import annotations

import json
from collections.abc import Iterator

from helenus_connector.config.connector import ConnectorSettings
from helenus_connector.interfaces.image import Image
from helenus_connector.interfaces.resolved_key import ResolvedKey
from helenus_connector.interfaces.shape import Record, ShapedRecord
from helenus_connector.shape.debezium._cassandra_records import DebeziumRecords
from helenus_connector.shape.debezium._cassandra_values import AVRO, JSON
from helenus_connector.shape.debezium.cassandra_schemas import cassandra_schemas
from helenus_connector.shape.encoding.forms import register_frame, register_key_schemas
from helenus_connector.shape.encoding.registry import SchemaIds
from helenus_connector.shape.envelope.change_source import ChangeSource
from helenus_connector.shape.envelope.direct_records import DirectRecords
from helenus_connector.shape.envelope.envelope_shape import EnvelopeShape
from helenus_connector.shape.envelope.parsed_cells import ParsedChange
from helenus_connector.shape.row.row import RowShape
from helenus_schemas.cql.table import Table
from helenus_schemas.event.cells import Cells
from helenus_schemas.event.change import Scope

_TABLE, _STATIC, _RANGE = Scope.TABLE, Scope.STATIC, Scope.RANGE  # slow to look up
_SECOND = 1_000_000


class DebeziumCassandra(EnvelopeShape):
    """Makes the records of one version of a table. Registers its schemas: raises as `Registry.register`, and
    HelenusError TABLE_UNSUPPORTED. `cluster` is the name of Cassandra's.
    """

    _shows_removed = True
    _unreadable = "a value"

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
        rows = RowShape(table, settings, registry, topic, self._values)
        super().__init__(table, rows, settings.tombstones_on_delete)
        if table.values:
            self._direct = DirectRecords(table, self._values.layout)

    def _written_records(
        self, resolved: ResolvedKey, cells: Cells, change: ParsedChange, source: ChangeSource
    ) -> Iterator[ShapedRecord]:
        if cells.deletion is not None:
            deletion_source = source._replace(write_time=cells.deletion.write_time)
            yield from self._deletion_envelopes(self._rows.shaped_row(resolved, None), "d", deletion_source, resolved)
        if (columns := change.columns) is None:
            return
        encode = self._values.cells_encoder(resolved.values, columns, _expiries(cells))
        row = self._rows.shaped_row(resolved, self._written_image(resolved, columns), change.op.encode(), encode)
        yield from self._row_envelopes(row, "i" if change.is_row else "u", source, change)

    def _read_records(self, resolved: ResolvedKey, source: ChangeSource) -> Iterator[ShapedRecord]:
        after = resolved.after
        if after is None and resolved.scope is _STATIC:
            after = Image((None,) * len(self._names), resolved.write_time)
        row = self._rows.shaped_row(resolved, after, None if resolved.op is None else resolved.op.encode())
        if after is None:
            return self._deletion_envelopes(row, "d", source, resolved)
        is_update = source.snapshot == "false" and resolved.op in (None, "u")
        return self._row_envelopes(row, "u" if is_update else "i", source)

    def _deletion_records(
        self, resolved: ResolvedKey, marker: ShapedRecord, source: ChangeSource
    ) -> Iterator[ShapedRecord]:
        op = "t" if resolved.scope is _TABLE else "r" if resolved.scope is _RANGE else "d"
        return self._deletion_envelopes(marker, op, source, resolved)

    def _live_records(self, row: ShapedRecord, source: ChangeSource, is_static: bool) -> Iterator[ShapedRecord]:  # noqa: ARG002
        return self._row_envelopes(row, "u", source)

    def _row_envelopes(
        self, row: ShapedRecord, op: str, source: ChangeSource, change: ParsedChange | None = None
    ) -> Iterator[ShapedRecord]:
        """Return the record of a row in its envelope; of a row that was read there is no `change`."""
        changed, columns = (None, None) if change is None else (change.changed, change.columns)

        def envelope(record: Record, _: Image | None) -> Record:
            return record._replace(value=self._values.envelope(record.value or b"", op, source, changed, columns))

        return self._wrap(row, row.image, envelope, lambda record: b"\1" + (record.value or b""))

    def _deletion_envelopes(
        self, row: ShapedRecord, op: str, source: ChangeSource, deleted: ResolvedKey
    ) -> Iterator[ShapedRecord]:
        """Return the record of a row, a partition (`d`), a range (`r`) or a table (`t`) that is `deleted`."""

        def envelope(record: Record, _: Image | None) -> Record:
            after = self._values.deleted_row(deleted.key, deleted.values, op, source.write_time, deleted.bounds)
            return record._replace(value=self._values.envelope(after, op, source))

        return self._wrap(row, row.image, envelope, lambda _: b"\0" + op.encode(), has_tombstone=op == "d")


def _after_schema(value: str) -> str:
    """Return the schema of `after` from a value's schema, as text."""
    return json.dumps(next(field["type"] for field in json.loads(value)["fields"] if field["name"] == "after"))


def _expiries(cells: Cells) -> dict[str, int]:
    """Return when the cells of a change expire, in µs, by column, for columns of one cell."""
    return {c.column: c.expires * _SECOND for c in cells.cells if c.expires is not None and c.path is None}
