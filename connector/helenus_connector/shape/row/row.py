"""The shape `row`: key, full row, and what stands for a row that is gone. In Avro or JSON, by `output.format`.

Avro is in the Confluent wire format: a zero byte, the schema's id as 4 bytes, Avro; the key's Avro is the event's, byte
for byte. A Log that keeps schemas itself has the Avro alone. JSON carries no schema. `docs/records.md` says what each
holds.
"""

from __future__ import annotations

import json
from base64 import b64encode
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import lru_cache, partial

from helenus_connector.config.column_names import check_columns
from helenus_connector.config.connector import ConnectorSettings
from helenus_connector.interfaces.image import Bounds, Image
from helenus_connector.interfaces.resolved_key import ResolvedKey
from helenus_connector.interfaces.shape import Record, ShapedRecord
from helenus_connector.shape.encoding.forms import Avro, Form, Json, json_encoder, register_key_schemas
from helenus_connector.shape.encoding.frames import frame
from helenus_connector.shape.encoding.registry import SchemaIds
from helenus_connector.shape.row._row_headers import NO_LOG, OF_SNAPSHOT, READ, RowHeaders
from helenus_connector.shape.row._row_records import BAD_BYTES, GONE, RowRecords
from helenus_schemas.avro import build as avro
from helenus_schemas.codec import to_avro
from helenus_schemas.codec import to_json as jsonform
from helenus_schemas.codec.key import Key, KeyCodec
from helenus_schemas.codec.unpublishable import is_unpublishable
from helenus_schemas.cql.table import Table
from helenus_schemas.cql.types import CqlType
from helenus_schemas.cql.values import EMPTY_IS_A_VALUE, MAY_BE_EMPTY
from helenus_schemas.errors import HelenusError, Kind
from helenus_schemas.event.change import Bound, Origin, Scope
from helenus_schemas.event.wire import decode, without_frames

_SNAPSHOT = {Origin.SNAPSHOT: b"true", Origin.SNAPSHOT_FIRST: b"first", Origin.SNAPSHOT_LAST: b"last"}
_TRUNCATED = b"t"
Encode = Callable[[bytes, Sequence["bytes | None"]], bytes]
"""A function as `Form.value`."""


class RowShape:
    """Makes the records of one version of a table. Registers its schemas, if there is a registry: raises as
    `Registry.register`.

    `table` is as `shown_table` gives it. Another `form` than its settings ask for has its schemas already. Raises
    HelenusError TABLE_UNSUPPORTED for a column that can't be, by name.
    """

    def __init__(
        self,
        table: Table,
        settings: ConnectorSettings,
        registry: SchemaIds | None,
        topic: str = "",
        form: Form | None = None,
    ) -> None:
        self._table = table
        self._form = form or _form(table, settings, registry, topic or settings.data)
        shown = settings.shown_headers
        of_table = {"table": table.full_name, "schema_id": table.schema_id}
        self._table_headers = [(name, text.encode()) for name, text in of_table.items() if name in shown]
        self._write_time = "writetime" in shown
        self._expires = "expires" in shown
        self._origin = "origin" in shown
        self._op = "op" in shown
        self._source = [name for name in ("node", "segpos", "digest") if name in shown]
        self._exact_key = settings.key_compat != "exact"
        self._ordinary_headers: RowHeaders | None = None
        if not self._source and not self._exact_key:
            self._ordinary_headers = RowHeaders(self._table_headers, shown, _origin_headers)
        self._rows: RowRecords | None = None
        if form is None and isinstance(self._form, Avro) and self._form.is_plain and self._ordinary_headers is not None:
            self._rows = RowRecords(self._form.key_frame, self._form.row, self._ordinary_headers)
        self._encode_key = b64encode if registry is None else bytes  # what keeps schemas has text for headers
        self._codec = KeyCodec(table)
        columns = avro.value_columns(table)
        self._names = [c.name for c in columns]
        self._emptiable = [c.type.name not in EMPTY_IS_A_VALUE for c in columns]

    def records(self, resolved: ResolvedKey) -> Iterable[ShapedRecord | None]:
        if resolved.read_rows is not None:
            return self._marker_records(resolved)
        return (self.shaped_row(resolved, resolved.after, None if resolved.op is None else resolved.op.encode()),)

    def rows(self, resolved: Sequence[ResolvedKey]) -> Sequence[Record | None]:
        return [None] * len(resolved) if self._rows is None else self._rows.records(resolved)

    def shaped_row(
        self, resolved: ResolvedKey, after: Image | None, op: bytes | None = None, value: Encode | None = None
    ) -> ShapedRecord:
        """Return the record of a row as it is after the change; `op` is the operation if the change says it, and
        `value` makes the value's bytes, by default the form.
        """
        key, write_time, expires, values = resolved.key, resolved.write_time, resolved.expires, resolved.values
        event = resolved.event.value if resolved.event else None
        return _shape_record(
            lambda image: self.row(key, image, write_time, event, expires, values, op, value), key, after
        )

    def shaped_marker(self, resolved: ResolvedKey) -> ShapedRecord:
        """Return the record of the marker of a partition, or a range."""
        marker = partial(
            self.marker,
            resolved.key,
            write_time=resolved.write_time,
            event=resolved.event.value if resolved.event else None,
            expires=resolved.expires,
            bounds=resolved.bounds,
            values=resolved.values,
        )
        return _shape_record(marker, resolved.key, resolved.after)

    def _marker_records(self, resolved: ResolvedKey) -> Iterator[ShapedRecord | None]:
        """Yield the records of a delete marker and of the rows that live in its scope."""
        key, event = resolved.key, resolved.event.value if resolved.event else None
        if resolved.scope is Scope.TABLE:
            if not resolved.continues:
                yield _shape_record(lambda _: self.truncation(resolved.write_time, event), key, None)
        else:
            yield self.shaped_marker(resolved)
        for row_key, values, image in resolved.rows():
            if row_key is None:
                yield None
                continue
            row = partial(self.row, row_key, write_time=image.write_time, expires=image.expires, values=values)
            yield _shape_record(row, row_key, image)

    def row(
        self,
        key: bytes,
        image: Image | None,
        write_time: int | None,
        event: bytes | None = None,
        expires: int | None = None,
        values: Key = (),
        op: bytes | None = None,
        value: Encode | None = None,
    ) -> Record:
        """Return the record of a row, or of its absence.

        `key` is the event's Avro, `values` are its CQL bytes; `write_time` in µs. `event` is the value of the event
        that asked for the row, None if none did by itself; `expires` in s, when the first cell of its changes does.
        `op` is the operation, if the event says more than whether the row exists.
        """
        op = GONE if image is None and op is None else op
        headers = self.headers(key, write_time, event, expires, op)
        hollow: Key = ()
        if b"" in values or (image is not None and b"" in image.values):
            headers += self._hollow_header(values, image)
            hollow = values if self._codec.stand_in_indexes(values) else ()
        try:
            if image is None:
                return Record(self._form.key(key, hollow), self._form.absent_value, headers)
            encode = value or self._form.value
            try:
                data = encode(key, image.values)
            except BAD_BYTES:
                image, left_out = self._without_unpublishable(image)
                if not left_out:
                    raise
                headers.append(_left_out_header(left_out))
                data = encode(key, image.values)
            return Record(self._form.key(key, hollow), data, headers)
        except BAD_BYTES as error:
            where = self._bad_column(image)
            raise HelenusError(Kind.POISON_EVENT, f"a value cannot be published: {error}", where) from None

    def marker(
        self,
        key: bytes,
        image: Image | None,
        write_time: int | None,
        event: bytes | None = None,
        bounds: Bounds | None = None,
        values: Key = (),
        expires: int | None = None,
    ) -> Record:
        """Return a delete marker: the rows of this partition, within `bounds` if given, are deleted; those that live
        follow.

        Key and value are those of the partition's static columns, if it has any; `expires` is of these.
        """
        record = self.row(key, image, write_time, event, expires, values, op=GONE)
        scope = ("scope", b"partition" if bounds is None else b"range")
        try:
            limits = [(name, self._bound_json(b)) for name, b in zip(("start", "end"), bounds or (), strict=False) if b]
        except BAD_BYTES as error:
            raise HelenusError(
                Kind.POISON_EVENT, f"a bound cannot be published: {error}", self._table.full_name
            ) from None
        return Record(record.key, record.value, [*record.headers, scope, *limits])

    def truncation(self, write_time: int | None, event: bytes | None = None) -> Record:
        """Return the marker of a truncation: all rows up to `write_time` are deleted; those that live follow."""
        headers = self._common_headers(write_time, event, _TRUNCATED)
        return Record(self._form.truncation(), None, [*headers, ("scope", b"table")])

    def smaller(self, image: Image) -> Iterator[tuple[Image, tuple[str, bytes]]]:
        """Yield the image without its largest column, without its two largest and so on, and the header that names
        them.
        """
        image, left_out = self._without_unpublishable(image)
        sizes = sorted(((len(v), i) for i, v in enumerate(image.values) if v), reverse=True)
        values = list(image.values)
        for _, index in sizes if self._table.values else ():
            values[index] = None
            left_out.append(self._names[index])
            yield Image(tuple(values), image.write_time), _left_out_header(left_out)

    def _without_unpublishable(self, image: Image) -> tuple[Image, list[str]]:
        """Return the image without the columns that no record can hold, see `is_unpublishable`, and their names."""
        columns = avro.value_columns(self._table)
        required_count = len(avro.required_columns(self._table))
        column_values = list(zip(columns, image.values, strict=True))
        left_out = {c.name for c, v in column_values[required_count:] if v and is_unpublishable(c.type, v)}
        values = tuple(None if c.name in left_out else v for c, v in column_values)
        return Image(values, image.write_time), [c.name for c in columns if c.name in left_out]

    def key(self, key: bytes) -> bytes:
        """Return a record's key, from the event's. Raises as `row`."""
        return self._form.key(key)

    def headers(
        self, key: bytes, write_time: int | None, event: bytes | None, expires: int | None, op: bytes | None
    ) -> list[tuple[str, bytes]]:
        """Return the headers of a row's record. The arguments are those of `row`."""
        headers = self._common_headers(write_time, event, op)
        if expires is not None and self._expires:
            headers.append(("expires", b"%d" % expires))
        if self._exact_key:
            headers.append(("exact_key", self._encode_key(key)))
        return headers

    def row_headers(self, resolved: ResolvedKey, op: bytes | None) -> list[tuple[str, bytes]]:
        """Return the headers of a record of this key, whose operation is `op`."""
        if self._ordinary_headers is not None:
            return self._ordinary_headers.row_headers(resolved, op)
        event = resolved.event
        value = None if event is None else event.value
        return self.headers(resolved.key, resolved.write_time, value, resolved.expires, op)

    def _common_headers(self, write_time: int | None, event: bytes | None, op: bytes | None) -> list[tuple[str, bytes]]:
        headers = list(self._table_headers)
        if write_time is not None and self._write_time:
            headers.append(("writetime", b"%d" % write_time))
        if event is not None:
            if self._source:
                headers += self._source_headers(event)
            if event.startswith(NO_LOG):
                origin = _origin_headers(event)
                if self._origin:
                    headers += origin
                if op is None and len(origin) == OF_SNAPSHOT:
                    op = READ
        if op is not None and self._op:
            headers.append(("op", op))
        return headers

    def _bound_json(self, bound: Bound) -> bytes:
        """Encode a bound: `{"inclusive": true, "values": {"column": value, ...}, "descending": ["column", ...]}`.

        Where a prefix of the clustering key begins depends on which of its columns descend.
        """
        columns = self._table.clustering[: len(bound.values)]
        values = json_encoder(columns)(bound.values)
        descending = json.dumps([c.name for c in columns if c.reversed], separators=(",", ":"))
        inclusive = "true" if bound.inclusive else "false"
        return f'{{"inclusive":{inclusive},"values":{values},"descending":{descending}}}'.encode()

    def _source_headers(self, event: bytes) -> list[tuple[str, bytes]]:
        """Return the headers that say where a change was read. Events of another agent say less."""
        _, bare = without_frames(None, event)
        try:
            change = decode(bare)
        except ValueError:  # its key and digest were enough
            return []
        source = {
            "node": change.node,
            "segpos": None if change.segment < 0 or change.node is None else f"{change.segment}:{change.position}",
            "digest": change.digest,
        }
        return [(name, value.encode()) for name in self._source if (value := source[name])]

    def _hollow_header(self, key: Key, image: Image | None) -> list[tuple[str, bytes]]:
        """Return the header that names the columns that are shown as null and hold a value of no bytes."""
        names = [c.name for c, v in zip(self._table.primary_key, key, strict=False) if _is_hollow(c.type, v)]
        if image is not None and self._table.values:
            values = zip(self._names, self._emptiable, image.values, strict=True)
            names += [name for name, emptiable, value in values if emptiable and value == b""]
        return [("empty", json.dumps(names, ensure_ascii=False).encode())] if names else []

    def _bad_column(self, image: Image | None) -> str:
        """Return the table, and the first column whose bytes are no value of its type."""
        columns = avro.value_columns(self._table)
        for column, value in zip(columns, image.values if image else (), strict=False):
            try:
                to_avro.optionals([column.type])([value])
                jsonform.objects([column.name], [column.type])([value])
            except BAD_BYTES:
                return f"{self._table.full_name}, column {column.name}"
        return self._table.full_name


def _left_out_header(names: list[str]) -> tuple[str, bytes]:
    return ("left_out", json.dumps(names, ensure_ascii=False).encode())


def _is_hollow(t: CqlType, value: bytes | None) -> bool:
    return value == b"" and t.name not in MAY_BE_EMPTY


def shown_table(table: Table, settings: ConnectorSettings) -> Table:
    """Return the table as its records show it: the published columns, their types in the configured forms.

    Raises HelenusError CONFIG as `check_columns`: every way to a record leads through here.
    """
    check_columns(table, settings)
    return table.select_columns(settings.published).with_forms(settings.forms)


def row_schemas(table: Table, settings: ConnectorSettings) -> tuple[str, str]:
    """Return the Avro schemas of a table's key and value, as text. Raises HelenusError TABLE_UNSUPPORTED.

    What has no Avro form has no JSON form either.
    """
    if table.unsupported:
        raise HelenusError(Kind.TABLE_UNSUPPORTED, table.unsupported, table.full_name)
    try:
        key = {**avro.key_schema(table, settings.key_compat), avro.TABLE_ID: str(table.id)}
        texts = avro.text(key), avro.text(avro.value_schema(table))
        KeyCodec(table)
        return texts
    except ValueError as error:
        raise HelenusError(Kind.TABLE_UNSUPPORTED, str(error), table.full_name) from None


def _form(table: Table, settings: ConnectorSettings, registry: SchemaIds | None, topic: str) -> Form:
    key, value = row_schemas(table, settings)
    if settings.output_format != "key-value-avro":
        return Json(
            table, settings, has_key_columns=settings.output_format == "json", has_truncations=registry is not None
        )
    if registry is None:
        return Avro(table, settings, b"", b"", lambda: None, None)
    # A value by the key's schema keeps it as the key does: a column that is not nullable cannot get another name.
    has_required_columns = bool(avro.required_columns(table))
    key_frame, truncation, nullable = register_key_schemas(table, settings, registry, topic, key, value)
    value_schema_id = (
        registry.keep(f"{topic}-value", value, value)
        if has_required_columns
        else registry.register(f"{topic}-value", value)
    )
    return Avro(table, settings, key_frame, frame(value_schema_id), truncation, nullable)


def is_marker(record: Record) -> bool:
    """Return whether a record is a delete marker."""
    return any(name == "scope" for name, _ in record.headers)


def without_scope(record: Record) -> Record:
    """Return a delete marker as the record of its partition's static columns alone."""
    return record._replace(
        headers=[header for header in record.headers if header[0] not in ("scope", "start", "end", "op")]
    )


def _shape_record(make: Callable[[Image | None], Record], key: bytes, image: Image | None) -> ShapedRecord:
    """Make the record of an image; or what stands for it in a digest, and why it can't be published."""
    try:
        return ShapedRecord(make(image), None, key, image, make)
    except HelenusError as error:
        if error.kind is not Kind.POISON_EVENT:
            raise
        return ShapedRecord(Record(None, str(error).encode(), ()), error, key, image, make)


@lru_cache(16)
def _origin_headers(event: bytes) -> tuple[tuple[str, bytes], ...]:
    """Return the headers that say why an unchanged row is published. Cached: a snapshot's events are all alike."""
    try:
        origin = decode(without_frames(None, event)[1]).origin
    except ValueError:  # of an agent that is not ours
        return ()
    if origin is Origin.LOG:
        return ()
    snapshot = _SNAPSHOT.get(origin)
    if snapshot is not None:
        return ("origin", b"snapshot"), ("snapshot", snapshot)
    return (("origin", b"state" if origin is Origin.STATE else b"repair"),)
