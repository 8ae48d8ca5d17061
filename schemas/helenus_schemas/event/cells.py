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
from collections.abc import Mapping
from functools import lru_cache
from typing import Any, NamedTuple

from helenus_schemas.codec.avro_long import read_long
from helenus_schemas.cql.types import CqlType, parse
from helenus_schemas.cql.values import Malformed
from helenus_schemas.event.change import Scope

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
_NEVER = -0x8000000000000000


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


def described(columns: list[tuple[str, CqlType]]) -> str:
    """Columns as the field `columns` has them, their types' types included."""
    types: dict[str, list[list[str]]] = {}

    def add(t: CqlType) -> None:
        for arg in t.args:
            add(arg)
        if t.name == "udt":
            types[t.label] = [[name, str(arg)] for name, arg in zip(t.fields, t.args, strict=True)]

    for _, of_column in columns:
        add(of_column)
    found: dict[str, Any] = {"columns": [[name, str(t)] for name, t in columns]}
    return json.dumps({**found, "types": types} if types else found, ensure_ascii=False, separators=(",", ":"))


def decode_cells(data: bytes, scope: Scope) -> Cells:
    """Read the field `cells` of a Change of this scope. Raises Malformed."""
    try:
        return _decoded(data, scope)
    except Malformed:
        raise
    except (IndexError, ValueError, LookupError, TypeError, RecursionError) as error:
        raise Malformed(f"not the cells of an event: {type(error).__name__}: {error}") from None


def _decoded(data: bytes, scope: Scope) -> Cells:
    version, at = read_long(data, 0)
    if version != VERSION:
        raise Malformed(f"cells of version {version}, where {VERSION} is known: an agent that is newer than this")
    table, schema, at = data[at : at + 16], data[at + 16 : at + 32], at + 32
    size, at = read_long(data, at)
    if not 0 <= size <= len(data) - at:
        raise Malformed(f"not the cells of an event: a length of {size}")
    columns, types = _columns(data[at : at + size])
    low, at = read_long(data, at + size)
    low_deletion, at = read_long(data, at)
    low_ttl, at = read_long(data, at)
    size, at = read_long(data, at)
    if at + size != len(data):
        raise Malformed(f"not the cells of an event: data of {size} bytes, {len(data) - at} are there")
    row = _Row(data, at, low, low_deletion, low_ttl)
    found = Cells(table, schema, types)
    if scope in (Scope.PARTITION, Scope.RANGE):
        deletion = row.deletion()
        row.end()
        return found._replace(deletion=deletion)
    return row.read(found, columns)


class _Row:
    """Reads a row's bytes."""

    def __init__(self, data: bytes, at: int, low: int, low_deletion: int, low_ttl: int) -> None:
        self._data = data
        self._at = at
        self._low, self._low_deletion, self._low_ttl = low, low_deletion, low_ttl

    def read(self, found: Cells, columns: tuple[tuple[str, CqlType], ...]) -> Cells:
        flags = self._byte()
        liveness = deletion = None
        if flags & 4:
            time = self._time()
            ttl, expires = (self._ttl(), self._seconds()) if flags & 8 else (None, None)
            liveness = Liveness(time, ttl, expires)
        if flags & 16:
            deletion = self.deletion()
        if not flags & 32:
            columns = self._subset(columns)
        deletions: dict[str, Deletion] = {}
        cells: list[Cell] = []
        for name, of_column in columns:
            if not of_column.multicell:
                cells.append(self._cell(name, of_column.width, _is_nothing(of_column), liveness, False))
                continue
            if flags & 64:
                gone = self.deletion()
                if gone.write_time != _NEVER:
                    deletions[name] = gone
            cells.extend(self._cell(name, 0, False, liveness, True) for _ in range(self._vint()))
        self.end()
        return Cells(found.table, found.schema, found.columns, liveness, deletion, deletions, tuple(cells))

    def deletion(self) -> Deletion:
        return Deletion(self._time(), self._seconds())

    def end(self) -> None:
        if self._at != len(self._data):
            raise Malformed(f"not the cells of an event: {len(self._data) - self._at} bytes after them")

    def _cell(self, column: str, width: int, is_nothing: bool, liveness: Liveness | None, has_path: bool) -> Cell:
        flags = self._byte()
        if flags & (8 | 16) and liveness is None:
            raise Malformed("not the cells of an event: a cell with the times of a row that has none")
        time = liveness.write_time if flags & 8 and liveness else self._time()
        ttl = expires = deleted_at = None
        if flags & 16 and liveness:
            ttl, expires = liveness.ttl, liveness.expires
        elif flags & 1:
            deleted_at = self._seconds()
            if flags & 2:
                self._ttl()
        elif flags & 2:
            expires = self._seconds()
            ttl = self._ttl()
        path = self._bytes(self._vint()) if has_path else None
        value: bytes | None = b"" if flags & 4 or is_nothing else self._bytes(width or self._vint())
        return Cell(column, time, None if flags & 1 else value, path, ttl, expires, deleted_at)

    def _subset(self, columns: tuple[tuple[str, CqlType], ...]) -> tuple[tuple[str, CqlType], ...]:
        missing, count = self._vint(), len(columns)
        if count < 64:
            return tuple(column for at, column in enumerate(columns) if not missing >> at & 1)
        if missing > count:
            raise Malformed("not the cells of an event: more columns missing than there are")
        is_few = count - missing < count // 2
        named = {self._vint() for _ in range(count - missing if is_few else missing)}
        return tuple(column for at, column in enumerate(columns) if (at in named) == is_few)

    def _time(self) -> int:
        time = self._low + self._vint() & 0xFFFFFFFFFFFFFFFF
        return time - (1 << 64) if time >> 63 else time

    def _seconds(self) -> int:
        return self._low_deletion + self._vint() & 0xFFFFFFFF

    def _ttl(self) -> int:
        return self._low_ttl + self._vint() & 0xFFFFFFFF

    def _byte(self) -> int:
        value = self._data[self._at]
        self._at += 1
        return value

    def _vint(self) -> int:
        first = self._byte()
        if first < 0x80:
            return first
        size = 8 - (first ^ 0xFF).bit_length()
        rest = self._bytes(size)
        return (first & 0x7F >> size) << 8 * size | int.from_bytes(rest, "big")

    def _bytes(self, size: int) -> bytes:
        start, end = self._at, self._at + size
        if end > len(self._data):
            raise Malformed(f"not the cells of an event: {size} bytes where {len(self._data) - start} are left")
        self._at = end
        return self._data[start:end]


@lru_cache(256)
def _columns(text: bytes) -> tuple[tuple[tuple[str, CqlType], ...], Mapping[str, CqlType]]:
    """The columns of an update, in its order and by name. Cached: a table's updates name the same few."""
    found = json.loads(text)
    types = _Types(found.get("types", {}))
    columns = tuple((str(name), parse(of_column, types)) for name, of_column in found["columns"])
    return columns, dict(columns)


class _Types(dict[str, CqlType]):
    """UDTs by name, each resolved when a type names it."""

    def __init__(self, fields: Mapping[str, list[tuple[str, str]]]) -> None:
        self._fields = fields

    def __contains__(self, name: object) -> bool:
        return name in self._fields

    def __missing__(self, name: str) -> CqlType:
        fields = self._fields[name]
        args = tuple(parse(text, self) for _, text in fields)
        self[name] = CqlType("udt", args, label=name, fields=tuple(str(field) for field, _ in fields))
        return self[name]


def _is_nothing(of_column: CqlType) -> bool:
    """Whether values have no bytes, not even a length."""
    return of_column.name == "custom" and of_column.label.endswith("EmptyType")
