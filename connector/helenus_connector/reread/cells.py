"""Rows read as their cells: with write times and TTLs, as an event's field `cells` has them.

    SELECT v, WRITETIME(v), TTL(v) … WHERE k = ? → Cells(cells=(Cell("v", written, value, ttl, expires),), …)

CQL does not show all that a node keeps. Of the row itself there is no write time: it is taken to be that of the newest
cell, and to expire with the last cell, if all of them do. So a row that was only ever written with UPDATE is taken to
stay when its last column is deleted. Of a list there are no paths: its elements get some, which lie between those of
elements that are prepended and appended later. Elements of unfrozen columns have write times from Cassandra 5.0 on.
"""

from __future__ import annotations

import time
import uuid
from collections.abc import Iterator, Sequence
from typing import Any

from cassandra import DriverException, InvalidRequest
from cassandra.cluster import NoHostAvailable
from cassandra.concurrent import execute_concurrent
from cassandra.connection import ConnectionException
from cassandra.query import BoundStatement

from helenus_connector.config.connector import ConnectorSettings
from helenus_schemas.codec.key import Key
from helenus_schemas.cql.table import Column, Table
from helenus_schemas.cql.types import quote
from helenus_schemas.errors import HelenusError, Kind
from helenus_schemas.event.cells import Cell, Cells, Liveness
from helenus_schemas.event.change import Scope

_MIDDLE = 0x1B21DD213814000 + 1_262_304_000 * 10**7
"""2010 in a timeuuid's time: Cassandra prepends before it, and appends after it (Lists.PrecisionTime)."""
_ADVICE = "set snapshot.mode=never, and have the agents send cells: or leave the column out with `columns`"


class CellReader:
    """Reads rows of one table as cells, through a session whose rows are CQL bytes."""

    def __init__(self, session: Any, table: Table, settings: ConnectorSettings) -> None:
        self._session = session
        self._table = table
        self._settings = settings
        self._schema = bytes.fromhex(table.schema_id)
        self._made: dict[Scope, Any] = {}

    def read(self, keys: Sequence[tuple[Key, Scope]], consistency: int) -> Iterator[Cells | None]:
        """Of each key, of the scope ROW or STATIC, its cells; None if there is no such row. A STATIC one has the
        values of the partition key alone. Raises HelenusError CASSANDRA_READ, and TABLE_UNSUPPORTED where Cassandra
        does not tell the write times of a column.
        """
        asked = [(self._bound(key, scope, consistency), None) for key, scope in keys]
        try:
            answers = execute_concurrent(
                self._session, asked, concurrency=self._settings.query_concurrency, raise_on_first_error=True
            )
            for (_, scope), (_, rows) in zip(keys, answers, strict=True):
                found = next(iter(rows), None)
                yield None if found is None else self._cells(found, scope)
        except InvalidRequest as error:
            raise HelenusError(Kind.TABLE_UNSUPPORTED, f"Cassandra says: {error}", self._table.full_name) from None
        except (DriverException, NoHostAvailable, ConnectionException) as error:
            raise HelenusError(Kind.CASSANDRA_READ, f"cannot read rows: {error}", self._table.full_name) from None

    def _columns(self, scope: Scope) -> Sequence[Column]:
        return self._table.statics if scope is Scope.STATIC else self._table.regulars

    def _bound(self, key: Key, scope: Scope, consistency: int) -> BoundStatement:
        if scope not in self._made:
            self._made[scope] = self._prepared(scope)
        bound = BoundStatement(self._made[scope], consistency_level=consistency)
        bound.values = list(key)
        bound.is_idempotent = True
        return bound

    def _prepared(self, scope: Scope) -> Any:
        columns = [quote(column.name) for column in self._columns(scope)]
        told = [part for name in columns for part in (name, f"WRITETIME({name})", f"TTL({name})")]
        of_key = self._table.partition_key if scope is Scope.STATIC else self._table.primary_key
        names = [quote(column.name) for column in of_key]
        distinct = "DISTINCT " if scope is Scope.STATIC else ""
        table = f"{quote(self._table.keyspace)}.{quote(self._table.name)}"
        where = " AND ".join(f"{name} = ?" for name in names)
        text = f"SELECT {distinct}{', '.join([*names, *told])} FROM {table} WHERE {where}"
        try:
            return self._session.prepare(text)
        except InvalidRequest as error:
            many = [column.name for column in self._columns(scope) if column.type.multicell]
            what = f"Cassandra does not tell the write times of {', '.join(many) or 'its columns'}: {error}"
            raise HelenusError(Kind.TABLE_UNSUPPORTED, what, self._table.full_name, _ADVICE) from None

    def _cells(self, row: Sequence[bytes | None], scope: Scope) -> Cells:
        width = len(self._table.partition_key if scope is Scope.STATIC else self._table.primary_key)
        cells: list[Cell] = []
        now = int(time.time())
        for n, column in enumerate(self._columns(scope)):
            value, written, ttl = row[width + 3 * n : width + 3 * n + 3]
            if value is None or written is None:
                continue
            if column.type.multicell:
                cells += _of_many(column, value, written, ttl, now)
            else:
                left = None if ttl is None else int.from_bytes(ttl, "big")
                cells.append(_cell(column.name, int.from_bytes(written, "big", signed=True), value, None, left, now))
        liveness = None
        if scope is Scope.ROW:
            liveness = _liveness(cells, now)
        columns = {column.name: column.type for column in self._columns(scope)}
        return Cells(self._table.id.bytes, self._schema, columns, liveness, cells=tuple(cells))


def _cell(name: str, written: int, value: bytes, path: bytes | None, left: int | None, now: int) -> Cell:
    return Cell(name, written, value, path, left, None if left is None else now + left)


def _liveness(cells: Sequence[Cell], now: int) -> Liveness:
    if not cells:
        return Liveness(now * 1_000_000)
    newest = max(cell.write_time for cell in cells)
    expires = [cell.expires for cell in cells if cell.expires is not None]
    if len(expires) < len(cells):
        return Liveness(newest)
    last = max(expires)
    return Liveness(newest, max(1, last - now), last)


def _of_many(column: Column, value: bytes, written: bytes, ttl: bytes | None, now: int) -> list[Cell]:
    """The cells of an unfrozen collection or UDT. `written` and `ttl` are lists, in the order of its elements."""
    kind = column.type.name
    parts = _fields(value) if kind == "udt" else _elements(value)
    times = _elements(written)
    lefts = _elements(ttl) if ttl is not None else [None] * len(times)
    elements: list[tuple[bytes, bytes | None]] = []
    if kind == "map":
        elements = [(parts[n] or b"", parts[n + 1]) for n in range(0, len(parts), 2)]
    elif kind == "set":
        elements = [(part or b"", b"") for part in parts]
    elif kind == "list":
        elements = [(_path_of_list(n), part) for n, part in enumerate(parts)]
    else:
        elements = [(n.to_bytes(2, "big"), part) for n, part in enumerate(parts)]
    found = []
    for (path, element), at, left in zip(elements, times, lefts, strict=False):
        if element is not None and at is not None:
            seconds = None if left is None else int.from_bytes(left, "big")
            found.append(_cell(column.name, int.from_bytes(at, "big", signed=True), element, path, seconds, now))
    return found


def _elements(data: bytes) -> list[bytes | None]:
    """Of a CQL list, set or map, of which both keys and values are given. Source: native protocol v4 section 6."""
    return _fields(data[4:])


def _fields(data: bytes) -> list[bytes | None]:
    found: list[bytes | None] = []
    at = 0
    while at < len(data):
        size = int.from_bytes(data[at : at + 4], "big", signed=True)
        at += 4
        found.append(None if size < 0 else data[at : at + size])
        at += max(0, size)
    return found


def _path_of_list(n: int) -> bytes:
    """A timeuuid for the nth element."""
    at = _MIDDLE + n
    return uuid.UUID(fields=(at & 0xFFFFFFFF, at >> 32 & 0xFFFF, at >> 48 & 0xFFF | 0x1000, 0x80, 0, 0)).bytes
