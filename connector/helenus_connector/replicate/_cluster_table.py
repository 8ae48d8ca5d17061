"""A table of one of the two clusters: its definition, and its rows as cells with write times and TTLs."""

from __future__ import annotations

import struct
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from cassandra import ConsistencyLevel
from cassandra.metadata import Murmur3Token
from cassandra.query import BoundStatement

from helenus_connector.cassandra_rows.cell_reader import CellProjection
from helenus_connector.cassandra_rows.raw_rows import RawProtocolHandler, row_factory
from helenus_connector.config.replication import for_target
from helenus_connector.gate.replicas import routing_key
from helenus_connector.interfaces.resolver import SchemaChanged
from helenus_connector.replicate._requests import DRIVER_ERRORS, RequestSender, request_error
from helenus_schemas.codec.key import Key, KeyCodec
from helenus_schemas.cql.table import Table, read_tables
from helenus_schemas.cql.types import quote
from helenus_schemas.errors import HelenusError, Kind
from helenus_schemas.event.cells import Cells, Liveness
from helenus_schemas.event.change import Scope
from helenus_schemas.event.placement import LEAST_TOKEN, MOST_TOKEN
from helenus_schemas.service.cassandra import connect
from helenus_schemas.settings.shared import CassandraSettings

_KEY_ROW_AGE_US = 3_600_000_000
_PAGE_ROWS = 1_000  # rows may be wide
_UNREAD_ADVICE = "upgrade that cluster to Cassandra 5.0; or copy its SSTables, and follow without --snapshot"
RowKey = tuple[Key, Scope]
"""A row's key and ROW, or a partition's with None for its clustering columns and STATIC."""


def row_key(key: Key, scope: Scope) -> RowKey:
    """Return the key of an event as that of a row: a clustering value of no bytes is null in an event."""
    return (tuple(value or b"" for value in key) if scope is Scope.ROW else key), scope


class RowImage:
    """The live cells of a row, of which there may be none. `read_at_ms` is by the node's clock, ms since the epoch."""

    __slots__ = ("cells", "read_at_ms")

    def __init__(self, cells: Cells, read_at_ms: int) -> None:
        self.cells = cells
        self.read_at_ms = read_at_ms


@dataclass(frozen=True)
class TokenSpan:
    """Rows of tokens above `after`, up to `until`."""

    rows: Mapping[RowKey, RowImage]
    until: int


def open_session(settings: CassandraSettings, is_target: bool) -> Any:
    """Return a session that returns rows as CQL bytes. Raises as `connect`."""
    try:
        return connect(settings, protocol_handler=RawProtocolHandler, row_factory=row_factory)
    except HelenusError as error:
        raise (for_target(error) if is_target else error) from None


class ClusterTable:
    """One version of a table of one cluster. `level` is the consistency level of reads."""

    def __init__(self, session: Any, table: Table, sender: RequestSender, level: str) -> None:
        self.session = session
        self.table = table
        self.level = level
        self.sender = sender
        self._projection = CellProjection(session, table)
        self._codec = KeyCodec(table)

    def read(self, keys: Sequence[RowKey], level: str = "") -> dict[RowKey, RowImage]:
        """Return the rows of these keys that there are."""
        statements = []
        for key, scope in keys:
            columns = self.table.primary_key if scope is Scope.ROW else self.table.partition_key
            where = " AND ".join(f"{quote(c.name)} = ?" for c in columns)
            values = [value or b"" for value in key[: len(columns)]]
            statements.append(self._bind(where, scope, values, level, key))
        answers = self.sender.send(statements)
        rows: dict[RowKey, RowImage] = {}
        for row_key, answer in zip(keys, answers, strict=True):
            for _, image in self._images(answer, row_key[1]):
                rows[row_key] = image
        return rows

    def read_partitions(self, keys: Sequence[Key], level: str = "") -> dict[RowKey, RowImage]:
        """Return all rows of the partitions of these keys."""
        width = len(self.table.partition_key)
        where = " AND ".join(f"{quote(c.name)} = ?" for c in self.table.partition_key)
        rows: dict[RowKey, RowImage] = {}
        for scope in self.scopes:
            values = [[value or b"" for value in key[:width]] for key in keys]
            statements = [self._bind(where, scope, v, level, k) for v, k in zip(values, keys, strict=True)]
            for answer in self.sender.send(statements):
                rows.update(self._images(answer, scope))
        return rows

    @property
    def scopes(self) -> tuple[Scope, ...]:
        """Return the scopes of the table's rows."""
        return (Scope.ROW, Scope.STATIC) if self.table.statics else (Scope.ROW,)

    def span(self, after: int, until: int, max_rows: int, level: str = "") -> TokenSpan:
        """Return the rows of the tokens above `after`, up to `until`, or of the first of them, whole partitions of
        together about `max_rows` rows at most.
        """
        rows: dict[RowKey, RowImage] = {}
        for scope in self.scopes:
            read: dict[RowKey, RowImage] = {}
            last_token = None
            for key_scope, image in self._stream(after, until, scope, level):
                token = self.token(key_scope[0])
                if len(read) >= max_rows and token != last_token:
                    until = last_token if last_token is not None else until
                    break
                read[key_scope] = image
                last_token = token
            rows.update(read)
        return TokenSpan({key: image for key, image in rows.items() if self.token(key[0]) <= until}, until)

    def token(self, key: Key) -> int:
        """Return the Murmur3 token of a key's partition."""
        token: int = Murmur3Token.hash_fn(routing_key(key[: len(self.table.partition_key)]))
        return MOST_TOKEN if token == LEAST_TOKEN else token

    def _stream(self, after: int, until: int, scope: Scope, level: str) -> Iterator[tuple[RowKey, RowImage]]:
        token = f"token({', '.join(quote(c.name) for c in self.table.partition_key)})"
        bound = self._bind(
            f"{token} > ? AND {token} <= ?", scope, [struct.pack(">q", after), struct.pack(">q", until)], level, None
        )
        bound.fetch_size = min(_PAGE_ROWS, self.session.default_fetch_size)
        try:
            for row in self.session.execute(bound):
                yield from self._images([row], scope)
        except DRIVER_ERRORS as error:
            raise request_error(error, self.table.full_name) from None

    def _bind(self, where: str, scope: Scope, values: list[bytes], level: str, key: Key | None) -> BoundStatement:
        try:
            prepared = self._projection.select(where, scope)
        except SchemaChanged as error:
            raise HelenusError(Kind.SCHEMA_BEHIND, f"Cassandra refuses a read: {error}", self.table.full_name) from None
        except HelenusError as error:
            advice = _UNREAD_ADVICE if error.kind is Kind.TABLE_UNSUPPORTED else error.advice
            raise HelenusError(error.kind, error.what, error.where, advice) from None
        routing = None if key is None else routing_key(key[: len(self.table.partition_key)])
        level_number = getattr(ConsistencyLevel, level or self.level)
        bound = BoundStatement(prepared, consistency_level=level_number, routing_key=routing)
        bound.values = values
        bound.is_idempotent = True
        return bound

    def _images(self, raw_rows: Sequence[Any], scope: Scope) -> Iterator[tuple[RowKey, RowImage]]:
        width = len(self.table.primary_key if scope is Scope.ROW else self.table.partition_key)
        no_row = (None,) * (len(self.table.primary_key) - width)
        for raw_row in raw_rows:
            key = tuple(raw_row[:width])
            if None in key:  # a partition with static columns alone
                continue
            projection = self._projection
            row = projection.static_row(raw_row) if scope is Scope.STATIC else projection.rows([raw_row])[0]
            cells = row.cells
            if scope is Scope.STATIC and not cells.cells:
                continue
            if scope is Scope.ROW:
                cells = cells._replace(liveness=_liveness(cells, row.read_at_ms))
            yield (self._codec.normalize(key + no_row), scope), RowImage(cells, row.read_at_ms)


def _liveness(cells: Cells, read_at_ms: int) -> Liveness:
    """Return the row's own write time as far as it can be guessed, as CQL does not show it: with its first cell, if it
    came by INSERT. Of a row without cells it is taken for an hour old: a delete that comes meanwhile is newer.
    """
    guessed = cells.liveness
    assert guessed is not None
    oldest = min((cell.write_time for cell in cells.cells), default=read_at_ms * 1000 - _KEY_ROW_AGE_US)
    return guessed._replace(write_time=oldest)


def read_truncation(session: Any, table: Table) -> int:
    """Return when a table was truncated last, µs since the epoch, as the node knows that is asked; 0 if it was not."""
    try:
        answer = session.execute("SELECT truncated_at FROM system.local WHERE key = 'local'").one()
    except DRIVER_ERRORS as error:
        raise request_error(error, table.full_name) from None
    note = (answer.truncated_at or {}).get(table.id)
    return 0 if note is None else 1000 * int.from_bytes(note[-8:], "big")  # after the position in the commit log


def read_table(session: Any, keyspace: str, name: str, cluster: str) -> Table:
    """Return a table's definition. Raises HelenusError TABLE_MISSING, and TABLE_UNSUPPORTED of one that can't be
    replicated.
    """
    where = f"{cluster} {keyspace}.{name}"
    try:
        tables = read_tables(session, keyspace, name).values()
    except DRIVER_ERRORS as error:
        raise request_error(error, where) from None
    table = next(iter(tables), None)
    if table is None:
        advice = "create it there with the source's definition" if cluster == "target" else ""
        raise HelenusError(Kind.TABLE_MISSING, "there is no such table", where, advice)
    if table.unsupported:
        raise HelenusError(Kind.TABLE_UNSUPPORTED, table.unsupported, where)
    if counters := [c.name for c in table.values if c.type.name == "counter"]:
        problem = f"counters can't be replicated, as what they were incremented by can't be written twice: {counters}"
        advice = "copy this table while nobody writes to it, and leave it out here"
        raise HelenusError(Kind.TABLE_UNSUPPORTED, problem, where, advice)
    return table
