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
from helenus_connector.shape.encoding.forms import Avro, Form, Json, frame, json_of, keys_of
from helenus_connector.shape.encoding.registry import SchemaIds
from helenus_connector.shape.row._row_records import BAD_BYTES, GONE, NO_LOG, OF_SNAPSHOT, READ, RowRecords
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
"""As `Form.value`."""


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
        self._schema_id = ("schema_id", table.schema_id.encode()) if "schema_id" in settings.headers else None
        self._write_time = "writetime" in settings.headers
        self._expires = "expires" in settings.headers
        self._origin = "origin" in settings.headers
        self._op = "op" in settings.headers
        self._source = [name for name in ("node", "segpos", "digest") if name in settings.headers]
        self._rows: RowRecords | None = None
        if form is None and isinstance(self._form, Avro) and self._form.is_plain and not self._source:
            frame, encode = self._form.key_frame, self._form.row
            self._rows = RowRecords(frame, encode, self._schema_id, settings.headers, _origin_headers)
        self._exact_key = settings.key_compat != "exact"
        self._encode_key = b64encode if registry is None else bytes  # what keeps schemas has text for headers
        self._codec = KeyCodec(table)
        columns = avro.value_columns(table)
        self._names = [c.name for c in columns]
        self._emptiable = [c.type.name not in EMPTY_IS_A_VALUE for c in columns]

    def records(self, resolved: ResolvedKey) -> Iterable[ShapedRecord | None]:
        if resolved.read_rows is not None:
            return self._marked(resolved)
        return (self.of_row(resolved, resolved.after, None if resolved.op is None else resolved.op.encode()),)

    def rows(self, resolved: Sequence[ResolvedKey]) -> Sequence[Record | None]:
        return [None] * len(resolved) if self._rows is None else self._rows.records(resolved)

    def of_row(
        self, resolved: ResolvedKey, after: Image | None, op: bytes | None = None, value: Encode | None = None
    ) -> ShapedRecord:
        """The record of a row as it is after what was resolved; `op` is the kind of operation if the change says it,
        and `value` makes its value's bytes, else the form.
        """
        key, write_time, expires, values = resolved.key, resolved.write_time, resolved.expires, resolved.values
        event = resolved.event.value if resolved.event else None
        return _shaped(lambda image: self.row(key, image, write_time, event, expires, values, op, value), key, after)

    def of_marker(self, resolved: ResolvedKey) -> ShapedRecord:
        """The record of the marker of a partition, or a range."""
        marker = partial(
            self.marker,
            resolved.key,
            write_time=resolved.write_time,
            event=resolved.event.value if resolved.event else None,
            bounds=resolved.bounds,
            values=resolved.values,
        )
        return _shaped(marker, resolved.key, resolved.after)

    def _marked(self, resolved: ResolvedKey) -> Iterator[ShapedRecord | None]:
        """The records of a delete marker and of the rows that live in its scope."""
        key, event = resolved.key, resolved.event.value if resolved.event else None
        if resolved.scope is Scope.TABLE:
            if not resolved.continues:
                yield _shaped(lambda _: self.truncation(resolved.write_time, event), key, None)
        else:
            yield self.of_marker(resolved)
        for own, values, image in resolved.rows():
            if own is None:
                yield None
                continue
            row = partial(self.row, own, write_time=image.write_time, expires=image.expires, values=values)
            yield _shaped(row, own, image)

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
        """The record of a row, or of its absence.

        `key` is the event's Avro, `values` are its CQL bytes; `write_time` in µs. `event` is the value of the event
        that asked for the row, None if none did by itself; `expires` in s, when the first cell of its changes does.
        `op` is the kind of operation, where more is known of it than whether the row is there.
        """
        op = GONE if image is None and op is None else op
        headers = self.headers(key, write_time, event, expires, op)
        hollow: Key = ()
        if b"" in values or (image is not None and b"" in image.values):
            headers += self._empty_header(values, image)
            hollow = values if self._codec.stand_in_indexes(values) else ()
        try:
            if image is None:
                return Record(self._form.key(key, hollow), self._form.gone, headers)
            encode = value or self._form.value
            try:
                data = encode(key, image.values)
            except BAD_BYTES:
                image, left_out = self._publishable(image)
                if not left_out:
                    raise
                headers.append(_left_out(left_out))
                data = encode(key, image.values)
            return Record(self._form.key(key, hollow), data, headers)
        except BAD_BYTES as error:
            where = self._where(image)
            raise HelenusError(Kind.POISON_EVENT, f"a value cannot be published: {error}", where) from None

    def marker(
        self,
        key: bytes,
        image: Image | None,
        write_time: int | None,
        event: bytes | None = None,
        bounds: Bounds | None = None,
        values: Key = (),
    ) -> Record:
        """The record that says: the rows of this partition, within `bounds` if given, are gone; those that live follow.

        Key and value are those of the partition's static columns, if it has any.
        """
        record = self.row(key, image, write_time, event, values=values, op=GONE)
        scope = ("scope", b"partition" if bounds is None else b"range")
        try:
            limits = [(name, self._limit(b)) for name, b in zip(("start", "end"), bounds or (), strict=False) if b]
        except BAD_BYTES as error:
            raise HelenusError(
                Kind.POISON_EVENT, f"a bound cannot be published: {error}", self._table.full_name
            ) from None
        return Record(record.key, record.value, [*record.headers, scope, *limits])

    def truncation(self, write_time: int | None, event: bytes | None = None) -> Record:
        """The record that says: all rows of the table up to `write_time` are gone; those that live follow."""
        headers = self._common_headers(write_time, event, _TRUNCATED)
        return Record(self._form.truncation(), None, [*headers, ("scope", b"table")])

    def smaller(self, image: Image) -> Iterator[tuple[Image, tuple[str, bytes]]]:
        """The image without its largest column, without its two largest and so on, and the header that names them."""
        image, left_out = self._publishable(image)
        sizes = sorted(((len(v), i) for i, v in enumerate(image.values) if v), reverse=True)
        values = list(image.values)
        for _, at in sizes if self._table.values else ():
            values[at] = None
            left_out.append(self._names[at])
            yield Image(tuple(values), image.write_time), _left_out(left_out)

    def _publishable(self, image: Image) -> tuple[Image, list[str]]:
        """The image without the columns that hold what no record can, see `is_unpublishable`, and their names."""
        columns = avro.value_columns(self._table)
        kept = len(avro.required_columns(self._table))
        pairs = list(zip(columns, image.values, strict=True))
        left_out = {c.name for c, v in pairs[kept:] if v and is_unpublishable(c.type, v)}
        values = tuple(None if c.name in left_out else v for c, v in pairs)
        return Image(values, image.write_time), [c.name for c in columns if c.name in left_out]

    def headers(
        self, key: bytes, write_time: int | None, event: bytes | None, expires: int | None, op: bytes | None
    ) -> list[tuple[str, bytes]]:
        """The headers of a row's record, whatever the row is. The arguments are those of `row`."""
        headers = self._common_headers(write_time, event, op)
        if expires is not None and self._expires:
            headers.append(("expires", b"%d" % expires))
        if self._exact_key:
            headers.append(("exact_key", self._encode_key(key)))
        return headers

    def _common_headers(self, write_time: int | None, event: bytes | None, op: bytes | None) -> list[tuple[str, bytes]]:
        headers = [] if self._schema_id is None else [self._schema_id]
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

    def _limit(self, bound: Bound) -> bytes:
        """A bound as JSON: `{"inclusive": true, "values": {"column": value, ...}, "descending": ["column", ...]}`.

        A prefix of the clustering key says where a range begins only to whoever knows which of its columns descend.
        """
        columns = self._table.clustering[: len(bound.values)]
        values = json_of(columns)(bound.values)
        descending = json.dumps([c.name for c in columns if c.reversed], separators=(",", ":"))
        inclusive = "true" if bound.inclusive else "false"
        return f'{{"inclusive":{inclusive},"values":{values},"descending":{descending}}}'.encode()

    def _source_headers(self, event: bytes) -> list[tuple[str, bytes]]:
        """Where a change of the row was read. An agent that is not ours says less."""
        _, bare = without_frames(None, event)
        try:
            change = decode(bare)
        except ValueError:  # its key and digest were enough
            return []
        found = {
            "node": change.node,
            "segpos": None if change.segment < 0 or change.node is None else f"{change.segment}:{change.position}",
            "digest": change.digest,
        }
        return [(name, value.encode()) for name in self._source if (value := found[name])]

    def _empty_header(self, key: Key, image: Image | None) -> list[tuple[str, bytes]]:
        """Names the columns that are shown as null and hold a value of no bytes."""
        names = [c.name for c, v in zip(self._table.primary_key, key, strict=False) if _is_hollow(c.type, v)]
        if image is not None and self._table.values:
            values = zip(self._names, self._emptiable, image.values, strict=True)
            names += [name for name, emptiable, value in values if emptiable and value == b""]
        return [("empty", json.dumps(names, ensure_ascii=False).encode())] if names else []

    def _where(self, image: Image | None) -> str:
        """The table, and the first column whose bytes are bad."""
        columns = avro.value_columns(self._table)
        for column, value in zip(columns, image.values if image else (), strict=False):
            try:
                to_avro.optionals([column.type])([value])
                jsonform.objects([column.name], [column.type])([value])
            except BAD_BYTES:
                return f"{self._table.full_name}, column {column.name}"
        return self._table.full_name


def _left_out(names: list[str]) -> tuple[str, bytes]:
    return ("left_out", json.dumps(names, ensure_ascii=False).encode())


def _is_hollow(t: CqlType, value: bytes | None) -> bool:
    return value == b"" and t.name not in MAY_BE_EMPTY


def shown_table(table: Table, settings: ConnectorSettings) -> Table:
    """The table as its records show it: some of its columns, their types in the forms that were asked for.

    Raises HelenusError CONFIG as `check_columns`: every way to a record leads through here.
    """
    check_columns(table, settings)
    return table.select_columns(settings.published).with_forms(settings.forms)


def row_schemas(table: Table, settings: ConnectorSettings) -> tuple[str, str]:
    """The Avro schemas of a table's key and value, as text. Raises HelenusError TABLE_UNSUPPORTED.

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
        return Json(table, settings, whole=settings.output_format == "json", marks=registry is not None)
    if registry is None:
        return Avro(table, settings, b"", b"", lambda: None, None)
    # A value by the key's schema keeps it as the key does: a column that is not nullable cannot get another name.
    keeps = bool(avro.required_columns(table))
    key_frame, truncation, nullable = keys_of(table, settings, registry, topic, key, value)
    shown_by = registry.keep(f"{topic}-value", value, value) if keeps else registry.register(f"{topic}-value", value)
    return Avro(table, settings, key_frame, frame(shown_by), truncation, nullable)


def is_marker(record: Record) -> bool:
    """Whether it is a delete marker."""
    return any(name == "scope" for name, _ in record.headers)


def without_scope(record: Record) -> Record:
    """A delete marker as no more than the record of its partition's static columns."""
    return record._replace(
        headers=[header for header in record.headers if header[0] not in ("scope", "start", "end", "op")]
    )


def _shaped(make: Callable[[Image | None], Record], key: bytes, image: Image | None) -> ShapedRecord:
    """The record of an image; or what stands for it in a digest, and why it can't be published."""
    try:
        return ShapedRecord(make(image), None, key, image, make)
    except HelenusError as error:
        if error.kind is not Kind.POISON_EVENT:
            raise
        return ShapedRecord(Record(None, str(error).encode(), ()), error, key, image, make)


@lru_cache(16)
def _origin_headers(event: bytes) -> tuple[tuple[str, bytes], ...]:
    """Why a row is published that did not change. Cached: a snapshot's events are all alike."""
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
