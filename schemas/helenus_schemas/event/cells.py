"""The cells of a Change: what its mutation says, as the commit log has it, with all that is needed to read it.

`INSERT INTO t (k, v) VALUES (1, 'x') USING TTL 60` is a Change of scope ROW with

    Cells(..., columns={"v": text}, liveness=Liveness(write_time, 60, expires),
          cells=(Cell("v", write_time, b"x", ttl=60, expires=expires),))

An agent adds them to the events of the tables that `cells.include.list` names. They come as the field `cells` of the
event's value, an Avro record (`AVRO`): a version; the ids of the table and of its definition; the columns of the update
as JSON, `{"columns": [["v", "text"], ["a", "frozen<addr>"]], "types": {"addr": [["street", "text"]]}}`; the lowest
times of the update; and `data`, bytes of the commit log, which say times as differences to those. So an event says by
itself what its columns were when it was written, whatever became of the table since.

    data of ROW, STATIC       = byte flags, and the row after its clustering
    data of PARTITION, RANGE  = vint write time, vint local deletion time

The grammar of a row is Cassandra's (UnfilteredSerializer, Cell.serializer, commit log version 7). Numbers are vints, of
Cassandra's kind: as many leading one bits in the first byte as bytes follow.

    flags  = 4 write time, 8 expires, 16 deletion, 32 has all columns, 64 a whole column is deleted
    row    = [4] vint write time; [8] vint ttl, vint expiry; [16] deletion; [not 32] subset; per column: cell or cells
    subset = vint: bits of the missing columns; of 64 columns or more: vint how many are missing, then as vints the
             present ones if they are less than half, else the missing ones
    cell   = byte flags: 1 tombstone, 2 expires, 4 no bytes, 8 the row's write time, 16 the row's ttl and expiry;
             [not 8] vint write time; [1 or 2, not 16] vint local deletion time or expiry; [2, not 16] vint ttl;
             [of many cells] vint length, path; [not 4] value: fixed by the column's type, or vint length, bytes
    cells  = of an unfrozen collection or UDT: [row's 64] deletion; vint n, n cells
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple

from helenus_schemas.codec.avro_long import read_long
from helenus_schemas.cql.types import CqlType, parse, walk
from helenus_schemas.cql.values import Malformed
from helenus_schemas.event.change import Scope
from helenus_schemas.event.row_cursor import NO_DELETION, RowCursor

VERSION = 1
AVRO: dict[str, Any] = {
    "type": "record",
    "name": "Cells",
    "namespace": "helenus",
    "fields": [
        {"name": "version", "type": "int"},
        {"name": "table", "type": {"type": "fixed", "name": "Id", "size": 16}},
        {"name": "schema", "type": "Id"},
        {"name": "columns", "type": "string"},
        {"name": "writeTime", "type": "long"},
        {"name": "deletionTime", "type": "long"},
        {"name": "ttl", "type": "int"},
        {"name": "data", "type": "bytes"},
    ],
}
"""Times in µs since the epoch, `deletionTime` and `ttl` in s."""
_READ_PATH_SUFFIX = bytes.fromhex("0000 1000 8000 000000000000")  # the time in its low bits; no clock sequence, no node
_new = tuple.__new__
_Column = tuple[str, int, bool]  # its name, the width of its values or -1, whether it has many cells


class Deletion(NamedTuple):
    """A tombstone: its write time, µs since the epoch, and when a node deleted, s since the epoch."""

    write_time: int
    deleted_at: int


class Liveness(NamedTuple):
    """That a row itself was written, as by INSERT: when, in µs; with its TTL and when it expires, in s."""

    write_time: int
    ttl: int | None = None
    expires: int | None = None


class Cell(NamedTuple):
    """A cell. `value`: CQL bytes, None for a tombstone, which has `deleted_at`, s since the epoch. `path`: of a column
    of many cells, the CQL bytes of a map's or set's element, a list's timeuuid, the number of a UDT's field as 2 bytes.
    `ttl` and `expires` in s.
    """

    column: str
    write_time: int
    value: bytes | None
    path: bytes | None = None
    ttl: int | None = None
    expires: int | None = None
    deleted_at: int | None = None


class Cells(NamedTuple):
    """What a Change says. `table` and `schema`: 16 bytes each, the table's id and the MD5 of its definition.

    `columns`: those of the update with their types of then, in its order: a row may have fewer. `liveness` is None of
    an UPDATE. `deletion` is the row's, the partition's or the range's; `deletions` are those of whole columns, which
    come before the column's cells.
    """

    table: bytes
    schema: bytes
    columns: Mapping[str, CqlType]
    liveness: Liveness | None = None
    deletion: Deletion | None = None
    deletions: Mapping[str, Deletion] = {}
    cells: tuple[Cell, ...] = ()


def read_path(n: int) -> bytes:
    """Return the path of a list's nth element where a read found it, since CQL does not show paths: a timeuuid that no
    node makes.
    """
    return n.to_bytes(4, "big") + _READ_PATH_SUFFIX


def is_read_path(path: bytes | None) -> bool:
    """Return whether an element of a list has no path but its place in a read."""
    return path is not None and path[4:] == _READ_PATH_SUFFIX


Described = tuple[str, Mapping[str, str]]
"""A column as JSON, and the members of `types` that its type needs, by name."""


def described(name: str, t: CqlType) -> Described:
    """Return a column as the field `columns` has it."""
    types: dict[str, str] = {}
    for udt in walk([t]):
        if udt.name == "udt":
            fields = [[field, str(arg)] for field, arg in zip(udt.fields, udt.args, strict=True)]
            types[udt.label] = f"{_json(udt.label)}:{_json(fields)}"
    return _json([name, str(t)]), types


def columns_text(columns: Iterable[Described]) -> str:
    """Return the field `columns`, of these."""
    types: dict[str, str] = {}
    texts = []
    for text, needed in columns:
        texts.append(text)
        if needed:
            types.update(needed)
    more = f',"types":{{{",".join(types.values())}}}' if types else ""
    return f'{{"columns":[{",".join(texts)}]{more}}}'


def _json(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False, separators=(",", ":"))


def decode_cells(data: bytes, scope: Scope) -> Cells:
    """Read the field `cells` of a Change of this scope. Raises Malformed."""
    try:
        return _decode_fields(data, scope)
    except Malformed:
        raise
    except (ValueError, LookupError, TypeError, RecursionError) as error:
        raise Malformed(f"not the cells of an event: {type(error).__name__}: {error}") from None


def head_of(data: bytes) -> bytes:
    """Return the first part of the field `cells`, which is the same in alike changes: the version, the ids and the
    columns. Raises Malformed.
    """
    size, offset = _locate_columns(data)
    return data[: offset + size]


def columns_of(data: bytes) -> bytes:
    """Return the text of the columns in the field `cells`. Raises Malformed."""
    size, offset = _locate_columns(data)
    return data[offset : offset + size]


def _locate_columns(data: bytes) -> tuple[int, int]:
    try:
        size, offset = read_long(data, 33)
    except IndexError as error:
        raise Malformed(f"not the cells of an event: {type(error).__name__}: {error}") from None
    if not 0 <= size <= len(data) - offset:
        raise Malformed(f"not the cells of an event: a length of {size}")
    return size, offset


def _decode_fields(data: bytes, scope: Scope) -> Cells:
    version, offset = read_long(data, 0)
    if version != VERSION:
        raise Malformed(f"cells of version {version}, where {VERSION} is known: an agent that is newer than this")
    ids = offset
    size, offset = read_long(data, offset + 32)
    if not 0 <= size <= len(data) - offset:
        raise Malformed(f"not the cells of an event: a length of {size}")
    columns, types = _cached_columns(data[offset : offset + size])
    low, offset = read_long(data, offset + size)
    low_deletion, offset = read_long(data, offset)
    low_ttl, offset = read_long(data, offset)
    size, offset = read_long(data, offset)
    if offset + size != len(data):
        raise Malformed(f"not the cells of an event: data of {size} bytes, {len(data) - offset} are there")
    cursor = RowCursor()
    cursor.begin_row(data, offset, low, low_deletion, low_ttl)
    cells = Cells(data[ids : ids + 16], data[ids + 16 : ids + 32], types)
    if scope in (Scope.PARTITION, Scope.RANGE):
        cells = cells._replace(deletion=Deletion(cursor.read_deletion(), cursor.deleted_at))
    else:
        cells = _read_row(cursor, cells, columns)
    if cursor.offset != len(data):
        raise Malformed(f"not the cells of an event: {len(data) - cursor.offset} bytes after them")
    return cells


def _read_row(cursor: RowCursor, head: Cells, columns: tuple[_Column, ...]) -> Cells:
    """Return the cells of a row."""
    cursor.read_head(len(columns))
    liveness = Liveness(cursor.write_time, cursor.ttl, cursor.expires) if cursor.has_write_time else None
    deletion = Deletion(cursor.deletion_time, cursor.deleted_at) if cursor.is_deleted else None
    deletions: dict[str, Deletion] = {}
    cells: list[Cell] = []
    for number, (name, width, is_many) in enumerate(columns):
        if cursor.is_missing(number):
            continue
        count = cursor.read_column(is_many)
        if is_many and cursor.column_deletion != NO_DELETION:
            deletions[name] = Deletion(cursor.column_deletion, cursor.deleted_at)
        for _ in range(count):
            cursor.read_cell(width, is_many)
            cells.append(_new(Cell, cursor.cell_fields(name)))
    return Cells(head.table, head.schema, head.columns, liveness, deletion, deletions, tuple(cells))


_Columns = tuple[tuple[_Column, ...], Mapping[str, CqlType]]
_columns_by_text: dict[bytes, _Columns] = {}  # by their text, in this process: a table's updates name the same few
_MAX_CACHED_BYTES = 1 << 20  # of the cached texts; their columns take some 30 times as many
_text_bytes = 0


def _cached_columns(text: bytes) -> _Columns:
    """Return the columns of an update, in its order and by name."""
    global _text_bytes
    columns = _columns_by_text.get(text)
    if columns is None:
        columns = _parse_columns(text)
        if _text_bytes + len(text) > _MAX_CACHED_BYTES:
            _columns_by_text.clear()
            _text_bytes = 0
        _columns_by_text[text] = columns
        _text_bytes += len(text)
    return columns


def _parse_columns(text: bytes) -> _Columns:
    content = json.loads(text)
    if not isinstance(content, dict):
        raise TypeError(f"columns that are a {type(content).__name__}")
    types = _Types(content.get("types", {}), _EXTRA_PARTS + len(text))
    columns: dict[str, CqlType] = {}
    for name, type_text in content["columns"]:
        columns[_check_name(name)] = parse(_check_name(type_text), types)
        types.count(columns[name])
    return tuple((name, width_of(t), t.multicell) for name, t in columns.items()), columns


def width_of(t: CqlType) -> int:
    """Return bytes of the value of a cell of a column of this type; -1: as many as stand before them."""
    if t.multicell:
        return -1
    if t.name == "custom" and t.label.endswith("EmptyType"):
        return 0
    return t.width or -1


def _check_name(value: Any) -> str:
    """Return a text of JSON's. Raises TypeError for another value, and ValueError: JSON can say characters that are
    none.
    """
    if not isinstance(value, str):
        raise TypeError(f"a name that is a {type(value).__name__}")
    value.encode()
    return value


_MAX_DEPTH = 64  # of types within types
_EXTRA_PARTS = 4_000


class _Types(dict[str, CqlType]):
    """UDTs by name, each resolved when a type names it.

    A UDT that two fields of another have, which two fields of a third have, and so on, is a type of many parts in few
    bytes: what goes through a type takes time and memory for each. So there may be `most` of them. A table of Cassandra
    itself has few more than its definition has bytes.
    """

    def __init__(self, fields: Mapping[str, list[tuple[str, str]]], max_parts: int) -> None:
        self._fields = fields
        self._remaining_parts = max_parts
        self._max_parts = max_parts
        self._sizes: dict[str, tuple[int, int]] = {}

    def __contains__(self, name: object) -> bool:
        return name in self._fields

    def __missing__(self, name: str) -> CqlType:
        fields = self._fields[name]
        args = tuple(parse(_check_name(text), self) for _, text in fields)
        names = tuple(_check_name(field) for field, _ in fields)
        sizes = [self._size(arg) for arg in args]
        parts, depth = 1 + sum(size[0] for size in sizes), 1 + max((size[1] for size in sizes), default=0)
        self._check(parts, depth)
        self._sizes[name] = parts, depth
        self[name] = CqlType("udt", args, label=_check_name(name), fields=names)
        return self[name]

    def count(self, column: CqlType) -> None:
        """Count a column's type. Raises ValueError if these are too many parts."""
        parts, depth = self._size(column)
        self._remaining_parts -= parts
        self._check(self._max_parts - self._remaining_parts, depth)

    def _size(self, t: CqlType) -> tuple[int, int]:
        """Return how many parts a type has, all types within it counted as often as they are there, and how deep they
        are.
        """
        if t.name == "udt":
            return self._sizes[t.label]
        sizes = [self._size(arg) for arg in t.args]
        return 1 + sum(size[0] for size in sizes), 1 + max((size[1] for size in sizes), default=0)

    def _check(self, parts: int, depth: int) -> None:
        if parts > self._max_parts or depth > _MAX_DEPTH:
            raise ValueError(f"columns of {parts} types, {depth} within each other")
