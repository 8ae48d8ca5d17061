"""How a change becomes envelopes. This is the same in the shapes `debezium`, `debezium-cassandra` and `cep44`:

    what the resolver gives           its records, in order                                      made by
    a change as it was written        of what it deletes, and of what it writes                  _written_records
    a row that was read               of the row, or its absence                                 _read_records
    a delete marker, read or written  of the marker                                              _deletion_records
      and of one that was read        of the static columns, and of each row, that still live    _live_records

Key, headers and the row inside the envelope are made by a `RowShape`. `_wrap` puts that row into its envelope.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import partial

from helenus_connector.interfaces.image import Image
from helenus_connector.interfaces.resolved_key import ResolvedKey
from helenus_connector.interfaces.shape import Record, ShapedRecord
from helenus_connector.shape.envelope._direct_rows import DirectRows
from helenus_connector.shape.envelope.change_source import ChangeSource, change_source, now_ms, row_source
from helenus_connector.shape.envelope.direct_records import DirectRecords
from helenus_connector.shape.envelope.parsed_cells import BAD_BYTES, ParsedChange, parse_cells, unreadable_record
from helenus_connector.shape.row.row import RowShape
from helenus_schemas.cql.table import Table
from helenus_schemas.event.cells import Cells
from helenus_schemas.event.change import Scope

_new = tuple.__new__
_UNTIMED = Image((), None)[2:]
_TABLE, _ROW, _STATIC = Scope.TABLE, Scope.ROW, Scope.STATIC  # an enum's members are slow to look up


class EnvelopeShape(ABC):
    """A `Shape` whose records are envelopes, for one version of a table. `rows` makes their keys, headers, and the rows
    inside; with `tombstones` the envelope of a deletion is followed by a record without value.

    A subclass fills in the four methods without a body: they choose the operation and the fields of each envelope, and
    return what `_wrap` makes of it. `source` says where the change was read, with the record's write time.
    """

    _shows_removed = False
    """As in `parse_cells`."""
    _unreadable = "a change"
    """What cannot be published if an envelope cannot be encoded, for the error's message."""
    _direct: DirectRecords | None = None
    """What makes the records of the most frequent changes, if a subclass has set it."""
    _direct_rows: DirectRows | None = None
    _headers: Sequence[tuple[str, bytes]] = ()
    """What such a record has beside the headers of its row."""

    def __init__(self, table: Table, rows: RowShape, tombstones: bool) -> None:
        self._table, self._rows, self._tombstones = table, rows, tombstones
        self._names = [c.name for c in table.values]
        self._published = frozenset(self._names)

    def records(self, resolved: ResolvedKey) -> Iterable[ShapedRecord | None]:
        direct = self._direct
        if direct is not None and (record := self._rows_by(direct).record(resolved, now_ms())) is not None:
            image = _new(Image, (direct.row_values(), resolved.write_time, *_UNTIMED))
            rebuild = partial(self._rebuild_record, resolved)
            return (_new(ShapedRecord, (record, None, resolved.key, image, rebuild, None, None)),)
        if (written := resolved.written) is not None:
            return self._change_records(resolved, written)
        if resolved.read_rows is not None:
            return self._marker_records(resolved, self._source(resolved))
        return self._read_records(resolved, self._source(resolved))

    def rows(self, resolved: Sequence[ResolvedKey]) -> Sequence[Record | None]:
        direct = self._direct
        if direct is None:
            return [None] * len(resolved)
        return self._rows_by(direct).records(resolved, now_ms())

    def smaller(self, image: Image) -> Iterator[tuple[Image, tuple[str, bytes]]]:
        return self._rows.smaller(image)

    @abstractmethod
    def _written_records(
        self, resolved: ResolvedKey, cells: Cells, change: ParsedChange, source: ChangeSource
    ) -> Iterator[ShapedRecord]:
        """Return the records of a row, or of static columns, as a change wrote it: `change` is what its `cells` say."""

    @abstractmethod
    def _read_records(self, resolved: ResolvedKey, source: ChangeSource) -> Iterator[ShapedRecord]:
        """Return the records of `resolved.after`: a row, or static columns, as a read or the state has it."""

    @abstractmethod
    def _deletion_records(
        self, resolved: ResolvedKey, marker: ShapedRecord, source: ChangeSource
    ) -> Iterator[ShapedRecord]:
        """Return the records of the deletion of a partition, a range or all rows of a table; also of a partition that
        is one row.
        """

    @abstractmethod
    def _live_records(self, row: ShapedRecord, source: ChangeSource, is_static: bool) -> Iterator[ShapedRecord]:
        """Return the records of a row, or of static columns, that a read found after a deletion. The write time of
        `source` is its own.
        """

    def _rows_by(self, direct: DirectRecords) -> DirectRows:
        """Return what makes whole records by `direct`."""
        if self._direct_rows is None:
            self._direct_rows = DirectRows(direct, self._rows.key, self._rows.row_headers, self._headers)
        return self._direct_rows

    def _rebuild_record(self, resolved: ResolvedKey, image: Image | None) -> Record:
        """Return the record of another image of a row whose record `_direct` made."""
        assert resolved.written is not None
        return next(self._change_records(resolved, resolved.written)).make(image)

    def _source(self, resolved: ResolvedKey) -> ChangeSource:
        return change_source(resolved)

    def _change_records(self, resolved: ResolvedKey, cells: Cells) -> Iterator[ShapedRecord]:
        """Return the records of a change that was not read."""
        source = self._source(resolved)
        if resolved.scope not in (_ROW, _STATIC):
            has_rows = len(self._table.clustering) > 0
            marker = self._rows.shaped_marker(resolved) if has_rows else self._rows.shaped_row(resolved, None)
            return self._deletion_records(resolved, marker, source)
        try:
            change = parse_cells(cells, self._published, self._shows_removed)
        except BAD_BYTES as error:
            return iter([unreadable_record(resolved.key, self._table, error)])
        return self._written_records(resolved, cells, change, source)

    def _marker_records(self, resolved: ResolvedKey, source: ChangeSource) -> Iterator[ShapedRecord | None]:
        """Yield the records of a delete marker, of the static columns of its partition, and of the rows in its scope.
        None stands for a row whose key can't be encoded.
        """
        rows = iter(self._rows.records(resolved))
        if resolved.scope is not _TABLE or not resolved.continues:
            marker = next(rows)
            assert marker is not None
            yield from self._deletion_records(resolved, _without_expiry(marker), source)
            statics = marker.image
            if statics is not None and any(value is not None for value in statics.values):
                row = self._rows.shaped_row(resolved, statics)
                yield from self._live_records(row, row_source(source, statics), is_static=True)
        for shaped in rows:
            if shaped is None:
                yield None
            else:
                yield from self._live_records(shaped, row_source(source, shaped.image), is_static=False)

    def _written_image(self, resolved: ResolvedKey, columns: Mapping[str, bytes | None]) -> Image:
        """Return the row of the columns that a change writes; a table of key columns only has these."""
        return Image(tuple(map(columns.get, self._names)) if self._names else resolved.values, resolved.write_time)

    def _wrap(
        self,
        row: ShapedRecord,
        image: Image | None,
        envelope: Callable[[Record, Image | None], Record],
        content: Callable[[Record], bytes],
        has_tombstone: bool = False,
    ) -> Iterator[ShapedRecord]:
        """Yield the record of a row in its envelope, and after it the one without value, if it `has_tombstone`.

        `envelope` makes it of the row's record and its `image`, or a smaller one; `content` is what counts as the
        record's content in a digest, beside its key.
        """
        if row.cause is not None:
            yield row
            return
        record, make = row.record, row.make
        try:
            wrapped = envelope(record, image)
            alike = b"%d\0%b%b" % (len(record.key or b""), record.key or b"", content(record))
        except BAD_BYTES as error:
            yield unreadable_record(row.key, self._table, error, self._unreadable)
            return
        yield ShapedRecord(wrapped, None, row.key, image, lambda smaller: envelope(make(smaller), smaller), alike)
        if has_tombstone and self._tombstones:
            tombstone = Record(record.key, None, [])
            yield ShapedRecord(tombstone, None, row.key, None, lambda _: tombstone)


def _without_expiry(marker: ShapedRecord) -> ShapedRecord:
    """Return a marker without when its static columns expire: these have an envelope of their own."""

    def strip(record: Record) -> Record:
        return record._replace(headers=[header for header in record.headers if header[0] != "expires"])

    make = marker.make
    return marker._replace(record=strip(marker.record), make=lambda image: strip(make(image)))
