"""The shape `debezium`: a change in the envelope of Debezium's connectors. In Avro or JSON.

    UPDATE t SET v = 1 WHERE k = 7
    → {before: null, after: {k: 7, v: 1}, source: {...}, op: u, ts_ms: ..., written: {columns: [v], ...}}

Keys, headers and rows are those of the shape `row`. Of a row that was read `after` has all columns; of a change that
was `written`, those that it writes. `docs/envelope.md` has the whole of it.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import Any

from helenus_connector.config.connector import ConnectorSettings
from helenus_connector.interfaces.image import Image
from helenus_connector.interfaces.resolved_key import ResolvedKey
from helenus_connector.interfaces.shape import Record, ShapedRecord
from helenus_connector.shape.debezium._envelope_layout import avro_layout, json_layout
from helenus_connector.shape.encoding.forms import Avro, Form, Json, register_frame, register_key_schemas
from helenus_connector.shape.encoding.registry import SchemaIds
from helenus_connector.shape.envelope.avro_bytes import WRITTEN_FIELDS, op_bytes, optional_text, text_bytes
from helenus_connector.shape.envelope.change_source import ChangeSource, nanoseconds, now_ms
from helenus_connector.shape.envelope.direct_records import DirectRecords
from helenus_connector.shape.envelope.envelope_shape import EnvelopeShape
from helenus_connector.shape.envelope.parsed_cells import BAD_BYTES, ParsedCells, ParsedChange
from helenus_connector.shape.row.row import RowShape, row_schemas
from helenus_schemas import __version__
from helenus_schemas.avro import build as avro
from helenus_schemas.codec import to_avro
from helenus_schemas.codec.avro_long import long_bytes
from helenus_schemas.codec.key import KeyCodec
from helenus_schemas.cql.table import Table
from helenus_schemas.errors import HelenusError, Kind
from helenus_schemas.event.cells import Cells
from helenus_schemas.event.change import Scope
from helenus_schemas.names import avro_name

_TABLE = Scope.TABLE  # an enum's members are slow to look up
_READ = "r"
"""The operation of a row that was read, of which it is not known what it was before. Readers that make changes of
records, such as Flink, take it for the row, as of a snapshot. They refuse a `u` without `before`."""

Pack = Callable[["bytes | None", "bytes | None", str, ChangeSource, "ParsedCells | None"], bytes]
"""A record's value, from the bytes of the row before and after the change, the operation, and where it was read."""


class Envelope(EnvelopeShape):
    """Makes the records of one version of a table. Registers its schemas, if there is a registry: raises as
    `Registry.register`, and HelenusError TABLE_UNSUPPORTED. `cluster` is the name of Cassandra's.
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
        key, value = row_schemas(table, settings)
        form: Form
        if settings.is_avro:
            keys = register_key_schemas(table, settings, registry, topic, key, value)
            value_frame = register_frame(registry, f"{topic}-value", envelope_schema(table))
            self._pack = _avro_pack(value_frame, table, settings, cluster)
            form = _Rows(table, settings, *keys)
            layout = avro_layout(table, value_frame, *_constant_fields(table, settings, cluster))
        else:
            self._pack = _json_pack(table, settings, cluster)
            form = Json(table, settings, has_key_columns=True, has_truncations=registry is not None)
            constants = _json_constants(table, settings, cluster)
            layout = json_layout(table, *constants, has_keys=settings.key_compat == "exact")
        super().__init__(table, RowShape(table, settings, registry, topic, form), settings.tombstones_on_delete)
        if table.values:
            self._direct = DirectRecords(table, layout)
        self._form, self._codec, self._nulls = form, KeyCodec(table), (None,) * len(table.values)
        self._regulars = tuple(c.name for c in table.regulars)
        self._unfrozen = tuple(c.name for c in table.regulars if c.type.multicell)

    def _written_records(
        self, resolved: ResolvedKey, cells: Cells, change: ParsedChange, source: ChangeSource
    ) -> Iterator[ShapedRecord]:
        op, columns, changed, _ = change
        if columns is None:
            return self._envelopes(self._rows.shaped_row(resolved, None, op.encode()), op, source)
        if cells.deletion is not None:  # what the row had in other columns is gone
            changed = changed._replace(columns=self._regulars, replaced=self._unfrozen)
        row = self._rows.shaped_row(resolved, self._written_image(resolved, columns), op.encode())
        return self._envelopes(row, op, source, changed)

    def _read_records(self, resolved: ResolvedKey, source: ChangeSource) -> Iterator[ShapedRecord]:
        try:
            before = None if resolved.before is None else self._form.value(resolved.key, resolved.before.values)
        except BAD_BYTES:  # what no record can show, none has shown
            before = None
        op = resolved.op or ("d" if resolved.after is None else _READ)
        if op == "u" and before is None:
            op = _READ
        header = None if resolved.op is None else resolved.op.encode()
        return self._envelopes(self._rows.shaped_row(resolved, resolved.after, header), op, source, before=before)

    def _deletion_records(
        self, resolved: ResolvedKey, marker: ShapedRecord, source: ChangeSource
    ) -> Iterator[ShapedRecord]:
        return self._envelopes(marker, "t" if resolved.scope is _TABLE else "d", source)

    def _live_records(self, row: ShapedRecord, source: ChangeSource, is_static: bool) -> Iterator[ShapedRecord]:  # noqa: ARG002
        return self._envelopes(row, _READ, source)

    def _envelopes(
        self,
        row: ShapedRecord,
        op: str,
        source: ChangeSource,
        changed: ParsedCells | None = None,
        before: bytes | None = None,
    ) -> Iterator[ShapedRecord]:
        """Return the record of a row in its envelope, with the row `before` if it was read; after a deletion a second
        record follows.
        """
        is_gone = op in "dt"

        def envelope(record: Record, _: Image | None) -> Record:
            # Sinks expect the key in `before` of a delete.
            row_before = self._key_only_row(row.key) if before is None and op == "d" else before
            after = None if is_gone else record.value
            return record._replace(value=self._pack(row_before, after, op, source, changed))

        def content(record: Record) -> bytes:
            return b"\0" if is_gone else b"\1" + (record.value or b"")

        return self._wrap(row, row.image, envelope, content, has_tombstone=op == "d")

    def _key_only_row(self, key: bytes) -> bytes:
        """Return a row of nothing but its key."""
        return self._form.value(key, self._nulls or self._codec.decode(key))


def envelope_schema(table: Table) -> str:
    """Return the Avro schema of a table's envelopes, as text. Raises HelenusError TABLE_UNSUPPORTED."""
    try:
        row = avro.row_schema(table)
    except ValueError as error:
        raise HelenusError(Kind.TABLE_UNSUPPORTED, str(error), table.full_name) from None
    namespace = f"{avro_name(table.keyspace)}.{avro_name(table.name)}"
    name = f"{row['namespace']}.{row['name']}"

    def record(record_name: str, /, **fields: Any) -> dict[str, Any]:
        schema_fields = [
            {"name": n, "type": t, **({"default": None} if isinstance(t, list) else {})} for n, t in fields.items()
        ]
        return {"type": "record", "name": record_name, "namespace": namespace, "fields": schema_fields}

    optional = {kind: ["null", kind] for kind in ("string", "long")}
    source = record(
        "Source",
        **dict.fromkeys(("version", "connector", "name"), "string"),
        **dict.fromkeys(("ts_ms", "ts_us", "ts_ns"), "long"),
        **dict.fromkeys(("snapshot", "db"), "string"),
        cluster=optional["string"],
        **dict.fromkeys(("keyspace", "table"), "string"),
        file=optional["string"],
        pos=optional["long"],
        node=optional["string"],
    )
    written = {"type": "record", "name": "Written", "namespace": namespace, "fields": WRITTEN_FIELDS}
    return avro.text(
        record(
            "Envelope",
            before=["null", row],
            after=["null", name],
            source=source,
            op="string",
            ts_ms=optional["long"],
            written=["null", written],
        )
    )


class _Rows(Avro):
    """Encodes keys, and whole rows as `avro.row_schema` has them, without a frame."""

    def __init__(
        self,
        table: Table,
        settings: ConnectorSettings,
        key_frame: bytes,
        truncation: Callable[[], bytes | None],
        nullable: Callable[[str], bytes] | None,
    ) -> None:
        super().__init__(table, settings, key_frame, b"", truncation, nullable)
        self._decode = KeyCodec(table).decode
        self._encode_key = to_avro.optionals([c.type for c in table.primary_key], key=True)
        self._encode_values = to_avro.optionals([c.type for c in table.values])
        self._only_key = not table.values

    def value(self, key: bytes, values: Sequence[bytes | None]) -> bytes:
        if self._only_key:
            return self._encode_key(values)
        return self._encode_key(self._decode(key)) + self._encode_values(values)


def _json_pack(table: Table, settings: ConnectorSettings, cluster: str | None) -> Pack:
    text = partial(json.dumps, ensure_ascii=False, separators=(",", ":"))
    constants, constants_after_snapshot = _json_constants(table, settings, cluster)

    def pack(
        before: bytes | None, after: bytes | None, op: str, source: ChangeSource, changed: ParsedCells | None
    ) -> bytes:
        write_time = source.write_time
        file = None if source.segment is None else str(source.segment)
        log_position = text({"file": file, "pos": source.position, "node": source.node})[1:-1]
        before_json, after_json = ("null" if data is None else data.decode() for data in (before, after))
        return (
            f'{{"before":{before_json},"after":{after_json},"source":{constants},"ts_ms":{write_time // 1000},'
            f'"ts_us":{write_time},"ts_ns":{nanoseconds(write_time)},"snapshot":"{source.snapshot}",'
            f'{constants_after_snapshot},{log_position}}},"op":"{op}",'
            f'"ts_ms":{now_ms()},"written":{text(changed and changed._asdict())}}}'
        ).encode()

    return pack


def _json_constants(table: Table, settings: ConnectorSettings, cluster: str | None) -> tuple[str, str]:
    """Return the same as `_constant_fields` in JSON."""
    text = partial(json.dumps, ensure_ascii=False, separators=(",", ":"))
    constants = text({"version": __version__, "connector": "cassandra", "name": settings.name})[:-1]
    table_names = {"cluster": cluster, "keyspace": table.keyspace, "table": table.name}
    return constants, text({"db": table.keyspace, **table_names})[1:-1]


def _constant_fields(table: Table, settings: ConnectorSettings, cluster: str | None) -> tuple[bytes, bytes]:
    """Return the fields of `source` that are the same in all records: the first ones, and those after `snapshot`."""
    db, table_names = text_bytes(table.keyspace), text_bytes(table.keyspace) + text_bytes(table.name)
    return b"".join(map(text_bytes, (__version__, "cassandra", settings.name))), db + optional_text(
        cluster
    ) + table_names


def _avro_pack(schema_frame: bytes, table: Table, settings: ConnectorSettings, cluster: str | None) -> Pack:
    constants, constants_after_snapshot = _constant_fields(table, settings, cluster)

    def pack(
        before: bytes | None, after: bytes | None, op: str, source: ChangeSource, changed: ParsedCells | None
    ) -> bytes:
        write_time = source.write_time
        return b"".join(
            (
                schema_frame,
                b"\0" if before is None else b"\2" + before,
                b"\0" if after is None else b"\2" + after,
                constants,
                long_bytes(write_time // 1000),
                long_bytes(write_time),
                long_bytes(nanoseconds(write_time)),
                text_bytes(source.snapshot),
                constants_after_snapshot,
                optional_text(None if source.segment is None else str(source.segment)),
                b"\0" if source.position is None else b"\2" + long_bytes(source.position),
                optional_text(source.node),
                text_bytes(op),
                b"\2" + long_bytes(now_ms()),
                b"\0" if changed is None else b"\2" + op_bytes(changed),
            )
        )

    return pack
