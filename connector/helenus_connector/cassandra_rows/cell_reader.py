"""Rows read as their cells: with write times and TTLs, as an event's field `cells` has them.

    SELECT v, WRITETIME(v), TTL(v) … WHERE k = ? → Cells(cells=(Cell("v", written, value, ttl, expires),), …)

CQL does not show all that a node keeps. Of the row itself there is no write time: it is guessed to be that of the
newest cell, and to expire with the last cell, if all of them do. Of a list there are no paths: its elements have their
places in the list as `read_path`s. Elements of unfrozen columns have write times from Cassandra 5.0 on.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from typing import Any, NamedTuple

from cassandra import (
    DriverException,
    InvalidRequest,
    OperationTimedOut,
    ReadFailure,
    ReadTimeout,
    Unavailable,
)
from cassandra.cluster import NoHostAvailable
from cassandra.connection import ConnectionException
from cassandra.query import BoundStatement

from helenus_connector.cassandra_rows._requests import answered
from helenus_connector.cassandra_rows.budget import ReadBudget
from helenus_connector.config.connector import ConnectorSettings
from helenus_schemas.codec.key import Key
from helenus_schemas.cql.table import Column, Table
from helenus_schemas.cql.types import quote
from helenus_schemas.errors import HelenusError, Kind
from helenus_schemas.event.cells import Cell, Cells, Liveness, read_path
from helenus_schemas.event.change import Scope

_ADVICE = "set snapshot.mode=never, and have the agents send cells: or leave the column out with `columns`"


class ReadRow(NamedTuple):
    """A row: its live cells, with a guess of when it was written itself, and when it was read by Cassandra's clock, ms
    since the epoch.
    """

    cells: Cells
    at: int


class UnreadableKey(NamedTuple):
    """Why a key can't be read now, though others can. `is_away`: its replicas did not answer, which others share."""

    reason: str
    is_away: bool


class CellReader:
    """Reads rows of one table as cells, through a session whose rows are CQL bytes. Rows are taken from a `budget`, if
    there is one.
    """

    def __init__(
        self, session: Any, table: Table, settings: ConnectorSettings, budget: ReadBudget | None = None
    ) -> None:
        self._session = session
        self._budget = budget
        self._table = table
        self._settings = settings
        self._schema = bytes.fromhex(table.schema_id)
        self._made: dict[Scope, Any] = {}

    def read(self, keys: Sequence[tuple[Key, Scope]], consistency: int) -> Iterator[ReadRow | UnreadableKey | None]:
        """Of each key, of the scope ROW or STATIC, what is there; None if there is no such row. A STATIC one has the
        values of the partition key alone. Raises HelenusError CASSANDRA_READ for what no key can be read for, and
        TABLE_UNSUPPORTED where Cassandra does not show the write times of a column; then some keys may have been
        answered.
        """
        try:
            answers = self._answers(self._bound(key, scope, consistency) for key, scope in keys)
            for (_, scope), rows in zip(keys, answers, strict=True):
                if isinstance(rows, UnreadableKey):
                    yield rows
                    continue
                row = next(iter(rows), None)
                yield None if row is None else self._cells(row, scope)
        except InvalidRequest as error:
            raise HelenusError(Kind.TABLE_UNSUPPORTED, f"Cassandra says: {error}", self._table.full_name) from None
        except (DriverException, NoHostAvailable, ConnectionException) as error:
            raise HelenusError(Kind.CASSANDRA_READ, f"cannot read rows: {error}", self._table.full_name) from None

    def _answers(self, statements: Iterable[BoundStatement]) -> Iterator[Any]:
        """The rows of each, in order, a bounded number asked for at once."""
        waiting = deque[Any]()
        for statement in statements:
            if self._budget is not None:
                self._budget.take(1)
            waiting.append(self._session.execute_async(statement))
            if len(waiting) >= self._settings.query_concurrency:
                yield self._answer(waiting.popleft())
        while waiting:
            yield self._answer(waiting.popleft())

    def _answer(self, future: Any) -> Any:
        """The rows of a statement, or why its replicas did not give them."""
        try:
            return answered(future)
        except (ReadTimeout, OperationTimedOut) as error:
            if self._budget is not None:
                self._budget.timed_out()
            return UnreadableKey(str(error), False)
        except ReadFailure as error:  # too many tombstones, say
            return UnreadableKey(str(error), False)
        except (Unavailable, NoHostAvailable) as error:
            return UnreadableKey(str(error), True)

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
        read = [part for name in columns for part in (name, f"WRITETIME({name})", f"TTL({name})")]
        of_key = self._table.partition_key if scope is Scope.STATIC else self._table.primary_key
        names = [quote(column.name) for column in of_key]
        distinct = "DISTINCT " if scope is Scope.STATIC else ""
        table = f"{quote(self._table.keyspace)}.{quote(self._table.name)}"
        where = " AND ".join(f"{name} = ?" for name in names)
        # TTLs count from Cassandra's own time.
        asked = [*names, *read, "toUnixTimestamp(now())"]
        text = f"SELECT {distinct}{', '.join(asked)} FROM {table} WHERE {where}"
        try:
            return self._session.prepare(text)
        except InvalidRequest as error:
            many = [column.name for column in self._columns(scope) if column.type.multicell]
            what = f"Cassandra does not show the write times of {', '.join(many) or 'its columns'}: {error}"
            raise HelenusError(Kind.TABLE_UNSUPPORTED, what, self._table.full_name, _ADVICE) from None

    def _cells(self, row: Sequence[bytes | None], scope: Scope) -> ReadRow:
        width = len(self._table.partition_key if scope is Scope.STATIC else self._table.primary_key)
        cells: list[Cell] = []
        at = int.from_bytes(row[-1] or b"", "big")
        now = at // 1000
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
            liveness = _liveness(cells, at)
        columns = {column.name: column.type for column in self._columns(scope)}
        return ReadRow(Cells(self._table.id.bytes, self._schema, columns, liveness, cells=tuple(cells)), at)


def _cell(name: str, written: int, value: bytes, path: bytes | None, left: int | None, now: int) -> Cell:
    return Cell(name, written, value, path, left, None if left is None else now + left)


def _liveness(cells: Sequence[Cell], at: int) -> Liveness:
    if not cells:
        return Liveness(at * 1000)
    newest = max(cell.write_time for cell in cells)
    expires = [cell.expires for cell in cells if cell.expires is not None]
    if len(expires) < len(cells):
        return Liveness(newest)
    last = max(expires)
    return Liveness(newest, max(1, last - at // 1000), last)


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
        elements = [(read_path(n), part) for n, part in enumerate(parts)]
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
