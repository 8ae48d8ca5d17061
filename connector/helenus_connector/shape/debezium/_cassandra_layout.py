"""Describe the records of `debezium-cassandra` for `DirectRecords`: with the form that makes them piece by piece."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from helenus_connector.config.connector import ConnectorSettings
from helenus_connector.shape.debezium._cassandra_values import DebeziumForm, Piece, exact_text, field_names, is_text
from helenus_connector.shape.debezium.cassandra_schemas import CELL, ENVELOPE, RANGE, SOURCE, WRITTEN, key_type
from helenus_connector.shape.envelope import direct_records as direct
from helenus_connector.shape.envelope.direct_records import ColumnSlot
from helenus_connector.shape.envelope.parsed_cells import ParsedCells
from helenus_connector.shape.envelope.record_layout import Marks, RecordLayout, member_heads
from helenus_connector.shape.envelope.value_writer import (
    ValuePart,
    array_part,
    entries_part,
    record_part,
    scalar_part,
)
from helenus_schemas.cql.table import Column, Table
from helenus_schemas.cql.types import CqlType


def record_layout(
    form: DebeziumForm,
    table: Table,
    settings: ConnectorSettings,
    frames: tuple[bytes, bytes],
    constants: Mapping[str, str],
    true: Piece,
) -> RecordLayout:
    """Return what the records of a table consist of; `constants` are the fields of `source` that all share."""
    is_json = isinstance(form.null, str)
    marks = Marks()

    def mark(part: int) -> Piece:
        text = marks.mark(part)
        return text if is_json else text.encode()

    present = form.present
    source: dict[str, Piece] = {name: form.text(constant) for name, constant in constants.items()}
    source |= {"ts_ms": mark(direct.WRITE_MS), "ts_us": present + mark(direct.WRITE_US)}
    source |= {"ts_ns": present + mark(direct.WRITE_NS), "snapshot": form.text("false"), "sequence": form.null}
    source |= {"file": mark(direct.SEGMENT), "pos": mark(direct.POSITION), "node": present + mark(direct.NODE)}
    row_end = form.struct(RANGE)([form.null, form.null])
    written = form.struct(WRITTEN)
    empty = form.array([])
    changed_mark = mark(direct.EXACT)
    _, written_end = _split(written([empty, empty, form.entries([], True), changed_mark]), changed_mark)

    def changed(parsed: ParsedCells) -> bytes:
        names = [form.array([form.text(name) for name in columns]) for columns in (parsed.columns, parsed.replaced)]
        removed = [
            (form.text(name), form.array([form.text(path) for path in paths])) for name, paths in parsed.removed.items()
        ]
        return _split(written([*names, form.entries(removed, True), changed_mark]), changed_mark)[0]

    value = form.struct(ENVELOPE)(
        [
            mark(direct.NOW),
            mark(direct.OPERATION),
            form.struct(SOURCE)([source[name] for name in SOURCE]),
            mark(direct.ROW) + (f",{row_end[1:]}" if is_json else row_end),
            present + mark(direct.CHANGED) + changed_mark + (written_end.decode() if is_json else written_end),
        ]
    )
    parts, end = marks.split(frames[1] + to_bytes(value))
    keys = [(c.name, value_part(form, key_type(c.type, settings), key=True)) for c in table.primary_key]
    heads = member_heads([*(name for name, _ in keys), *(c.name for c in table.values)], is_json)
    null = to_bytes(form.null)
    return RecordLayout(
        is_json,
        parts,
        end,
        row_keys=[_cell_slot(form, part, head, true) for (_, part), head in zip(keys, heads, strict=False)],
        columns=[
            _cell_slot(form, value_part(form, c.type), head, true, c)
            for c, head in zip(table.values, heads[len(keys) :], strict=True)
        ],
        operations=(to_bytes(form.text("u")), to_bytes(form.text("i"))),
        keys=[ColumnSlot(part, head + null, head) for (_, part), head in zip(keys, heads, strict=False)],
        key_head=frames[0],
        key_tail=b"}" if is_json else b"",
        segment=lambda segment: to_bytes(form.text(segment_file(segment))),
        changed=changed,
        exact=lambda entries: to_bytes(form.entries(entries, True)),
        shows_removed=True,
    )


def value_part(form: DebeziumForm, t: CqlType, key: bool = False, is_optional: bool = True) -> ValuePart:
    """Return how the values of a type are written."""
    is_json = isinstance(form.null, str)
    encode: Callable[[bytes], Piece] = form.optional(t, key) if is_optional else form.required(t, key)
    if not t.shown_as:
        if t.name in ("list", "set"):
            return array_part(value_part(form, t.args[0], key), encode, is_optional)
        if t.name == "map":
            has_texts = is_text(t.args[0])
            name, value = value_part(form, t.args[0], key, not has_texts), value_part(form, t.args[1], key)
            return entries_part(name, value, encode, has_texts, is_optional)
        if t.name in ("tuple", "udt"):
            fields = [value_part(form, a, key) for a in t.args]
            return record_part(fields, member_heads(field_names(t), is_json), encode, is_optional)
    return scalar_part(t, is_json, encode, is_optional, key)


def segment_file(segment: int) -> str:
    """Return the name of a commit log segment's file."""
    return f"CommitLog-7-{segment}.log"


def to_bytes(piece: Piece) -> bytes:
    """Return a piece as a record has it."""
    encoded: bytes = piece if isinstance(piece, bytes) else piece.encode()
    return encoded


def is_inexact(t: CqlType) -> bool:
    """Return whether a type's values are shown as others."""
    return t.name == "duration" or t.shown_as in ("double", "long")


def _cell_slot(
    form: DebeziumForm, part: ValuePart, head: bytes, true: Piece, column: Column | None = None
) -> ColumnSlot:
    """Return the slot of a cell; of a column of the key without `column`."""
    marks = Marks()
    value, expiry = marks.mark(0), marks.mark(1)
    pieces: Sequence[Piece] = (value, expiry) if isinstance(form.null, str) else (value.encode(), expiry.encode())
    cell = form.struct(CELL)
    ((start, _),), tail = marks.split(to_bytes(cell([pieces[0], form.null, true])))
    (_, (expiry_head, _)), expiry_tail = marks.split(to_bytes(cell([pieces[0], form.present + pieces[1], true])))
    absent, head = head + to_bytes(form.null), head + to_bytes(form.present) + start
    if column is None:
        return ColumnSlot(part, absent, head, tail)
    exact = _exact_entry(form, column) if is_inexact(column.type) else None
    return ColumnSlot(part, absent, head, tail, (expiry_head, expiry_tail), exact)


def _exact_entry(form: DebeziumForm, column: Column) -> Callable[[bytes], tuple[Piece, Piece] | None]:
    name = form.text(column.name)

    def entry(value: bytes) -> tuple[Piece, Piece] | None:
        text = exact_text(column.type, value)
        return None if text is None else (name, form.text(text))

    return entry


def _split(piece: Piece, mark: Piece) -> tuple[bytes, bytes]:
    start, end = piece.split(mark)
    return to_bytes(start), to_bytes(end)
