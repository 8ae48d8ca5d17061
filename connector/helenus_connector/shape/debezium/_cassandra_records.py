"""Encode Debezium's Cassandra records: keys, `after`, and the envelope."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from uuid import uuid4

from helenus_connector.config.connector import ConnectorSettings
from helenus_connector.interfaces.image import Bounds
from helenus_connector.shape.debezium._cassandra_layout import is_inexact, record_layout, segment_file, to_bytes
from helenus_connector.shape.debezium._cassandra_range import range_end
from helenus_connector.shape.debezium._cassandra_values import DebeziumForm, Piece, exact_text
from helenus_connector.shape.debezium.cassandra_schemas import (
    BOUND,
    CELL,
    ENVELOPE,
    RANGE,
    RANGE_END,
    SOURCE,
    WRITTEN,
    key_type,
    prefix,
)
from helenus_connector.shape.envelope.change_source import ChangeSource, nanoseconds, now_ms
from helenus_connector.shape.envelope.parsed_cells import ParsedCells
from helenus_connector.shape.row.row import Encode
from helenus_schemas import __version__
from helenus_schemas.codec.key import Key, KeyCodec
from helenus_schemas.cql.table import Table


class DebeziumRecords:
    """Encodes keys and values in one form: the methods of `forms.Form`, and the pieces of an envelope."""

    absent_value = None

    def __init__(
        self,
        form: DebeziumForm,
        table: Table,
        settings: ConnectorSettings,
        cluster: str | None,
        frames: tuple[bytes, bytes],
        true: Piece,
    ) -> None:
        self._form = form
        self._frames = frames
        self._codec, self._table = KeyCodec(table), table
        keys = [(c.name, key_type(c.type, settings)) for c in table.primary_key]
        self._keys = [form.optional(t, key=True) for _, t in keys]
        self._key = form.struct([name for name, _ in keys])
        self._partition = len(table.partition_key)
        self._columns = [(c.name, form.optional(c.type), c.kind == "static") for c in table.values]
        self._after = form.struct([*(name for name, _ in keys), *(c.name for c in table.values), *RANGE])
        cell = form.struct(CELL)
        self._permanent_cell = _fill_constants(form, cell, [None, form.null, true])
        self._expiring_cell = _fill_constants(form, cell, [None, None, true])
        self._range_end, self._bound = form.struct(RANGE_END), form.struct(BOUND)
        self._envelope, self._written = form.struct(ENVELOPE), form.struct(WRITTEN)
        constants = {"version": __version__, "connector": "cassandra", "name": prefix(settings), "db": "NULL"}
        constants |= {"cluster": cluster or "", "keyspace": table.keyspace, "table": table.name}
        self.layout = record_layout(form, table, settings, frames, constants, true)
        source_pieces: list[Piece] = [form.text(constants[name]) if name in constants else None for name in SOURCE]
        source_pieces[SOURCE.index("sequence")] = form.null
        self._source = _fill_constants(form, form.struct(SOURCE), source_pieces)
        self._inexact = {c.name: c.type for c in table.values if is_inexact(c.type)}

    def key(self, key: bytes, values: Key = ()) -> bytes:
        return self._frames[0] + to_bytes(self._key_piece(values or self._codec.decode(key)))

    def value(self, key: bytes, values: Sequence[bytes | None]) -> bytes:
        """Return `after` of a row that was read: its cells are set, or those of the static columns of a partition."""
        keys = self._codec.decode(key)
        is_static = self._partition < len(keys) and keys[self._partition] is None
        cells = [
            self._cell(encode(value)) if of_partition is is_static else self._form.null
            for (_, encode, of_partition), value in zip(self._columns, values, strict=False)
        ]
        return to_bytes(self._row(keys, cells))

    def truncation(self) -> bytes:
        return self._frames[0] + to_bytes(self._key_piece((None,) * len(self._keys)))

    def cells_encoder(self, keys: Key, columns: Mapping[str, bytes | None], expiries: Mapping[str, int]) -> Encode:
        """Return a function that makes `after` of a key, the columns that a change writes, and when they expire, µs
        since the epoch.

        A column that has a value in the change and none in the image, as the record was too large, is left out.
        """

        def encode(_: bytes, values: Sequence[bytes | None]) -> bytes:
            null = self._form.null
            cells = []
            for (name, encoder, _is_static), value in zip(self._columns, values, strict=False):
                if name not in columns or (value is None and columns[name] is not None):
                    cells.append(null)
                else:
                    cells.append(self._cell(encoder(value), expiries.get(name)))
            return to_bytes(self._row(keys, cells))

        return encode

    def deleted_row(self, key: bytes, values: Key, op: str, deleted_at: int, bounds: Bounds | None) -> bytes:
        """Return `after` of a row, a partition, a range (`r`) or a whole table (`t`); `deleted_at` in µs."""
        form = self._form
        if op == "t":
            return to_bytes(self._row((None,) * len(self._keys), [form.null] * len(self._columns)))
        keys = values or self._codec.decode(key)
        if op == "d":
            deleted = self._cell(form.null, deleted_at)
            return to_bytes(self._row(keys, [deleted] * len(self._columns), deleted))
        start, end = bounds or (None, None)
        ends = [
            self._range_end(
                [
                    form.text(method),
                    form.array([self._bound([form.text(part) for part in value]) for value in bound_values]),
                ]
            )
            for method, bound_values in (range_end(self._table, start, "START"), range_end(self._table, end, "END"))
        ]
        row = self._row(keys, [form.null] * len(self._columns), None, [form.present + part for part in ends])
        return to_bytes(row)

    def envelope(
        self,
        after: bytes,
        op: str,
        source: ChangeSource,
        changed: ParsedCells | None = None,
        columns: Mapping[str, bytes | None] | None = None,
    ) -> bytes:
        form, write_time = self._form, source.write_time
        present, null, number, text = form.present, form.null, form.number, form.text
        file = "" if source.segment is None else segment_file(source.segment)
        source_piece = self._source(
            (
                number(write_time // 1000),
                text("false" if source.snapshot == "false" else "true"),
                present + number(write_time),
                present + number(nanoseconds(write_time)),
                text(file),
                number(-1 if source.position is None else source.position),
                null if source.node is None else present + text(source.node),
            )
        )
        written = null if changed is None else present + self._written_piece(changed, columns or {})
        row = after if isinstance(null, bytes) else after.decode()
        return self._frames[1] + to_bytes(self._envelope([number(now_ms()), text(op), source_piece, row, written]))

    def _written_piece(self, changed: ParsedCells, columns: Mapping[str, bytes | None]) -> Piece:
        form = self._form

        def texts(names: Iterable[str]) -> Piece:
            return form.array([form.text(name) for name in names])

        exact = []
        for name, t in self._inexact.items():
            value = columns.get(name)
            text = exact_text(t, value) if value else None
            if text is not None:
                exact.append((form.text(name), form.text(text)))
        removed = [(form.text(name), texts(parts)) for name, parts in changed.removed.items()]
        pieces = [texts(changed.columns), texts(changed.replaced), form.entries(removed, True)]
        return self._written([*pieces, form.entries(exact, True)])

    def _key_piece(self, keys: Key) -> Piece:
        return self._key([encode(value) for encode, value in zip(self._keys, keys, strict=True)])

    def _row(self, keys: Key, cells: list[Piece], deleted: Piece | None = None, ends: Sequence[Piece] = ()) -> Piece:
        """Return `after`. Columns of the key are cells; those that are null are `deleted`, or null without it."""
        null = self._form.null
        key_cells = [
            self._cell(encode(value)) if value is not None else null if deleted is None else deleted
            for encode, value in zip(self._keys, keys, strict=True)
        ]
        return self._after([*key_cells, *cells, *(ends or (null, null))])

    def _cell(self, value: Piece, expires_at: int | None = None) -> Piece:
        present = self._form.present
        if expires_at is None:
            return present + self._permanent_cell((value,))
        return present + self._expiring_cell((value, present + self._form.number(expires_at)))


def _fill_constants(
    form: DebeziumForm, struct: Callable[[Sequence[Piece]], Piece], values: Sequence[Piece]
) -> Callable[..., Piece]:
    """Return a function from the values that are None here, in order, to the whole struct. The constant parts are
    encoded once.
    """
    text = uuid4().hex
    mark = text.encode() if isinstance(form.null, bytes) else text
    start, *gaps = struct([mark if value is None else value for value in values]).split(mark)

    def fill(pieces: Sequence[Piece]) -> Piece:
        filled = start
        for value, piece in zip(pieces, gaps, strict=True):
            filled += value + piece
        return filled

    return fill
