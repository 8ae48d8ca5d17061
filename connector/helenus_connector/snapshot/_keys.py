"""The keys of a table, page by page, in the order of their tokens."""

from __future__ import annotations

import struct
from collections.abc import Iterator
from typing import Any, NamedTuple

from cassandra import (
    InvalidRequest,
    OperationTimedOut,
    ReadFailure,
    ReadTimeout,
    RequestExecutionException,
    Unauthorized,
)
from cassandra.cluster import NoHostAvailable
from cassandra.connection import ConnectionException
from cassandra.protocol import ProtocolException
from cassandra.query import BoundStatement

from helenus_connector.cassandra_rows.table_definition import GRANT
from helenus_connector.gate.replicas import routing_key
from helenus_connector.interfaces.resolver import SchemaChanged
from helenus_connector.snapshot._ring import TokenStretch
from helenus_schemas.cql.table import Table
from helenus_schemas.cql.types import quote
from helenus_schemas.errors import HelenusError, Kind
from helenus_schemas.service.cassandra import is_page_refused

_PAGE = 5000  # keys
_STATICS_PAGE = 200  # partitions, with the values of their static columns
_TOO_MUCH = (ReadTimeout, ReadFailure, OperationTimedOut)
_UNANSWERED = (NoHostAvailable, RequestExecutionException, ConnectionException, OperationTimedOut)
_token = struct.Struct(">q").pack


class KeyPage(NamedTuple):
    """A page, and the paging state after it, None after the last one. A row is the key columns and the token, as CQL
    bytes; of static columns it is the partition key, the token, and the columns.
    """

    rows: list[tuple[bytes | None, ...]]
    paging: bytes | None


class KeyReader:
    """Reads the keys of one version of a table. Keeps its statements."""

    def __init__(self, session: Any, table: Table, consistency: int) -> None:
        self._session = session
        self._table = table
        self._consistency = consistency
        self._prepared: dict[str, Any] = {}

    def pages(self, stretch: TokenStretch, where: str, most: int) -> Iterator[KeyPage]:
        """The keys of what is left of a stretch, or of what `where` asks for. The next page is asked for while one is
        worked on, at a replica of where that ends, unless these are `most` keys by then.

        Raises SchemaChanged for what the server refuses, and HelenusError CASSANDRA_READ or CASSANDRA_AUTH.
        """
        statement = self._statement(stretch.statics, where)
        values = [] if where else [_token(stretch.after), _token(stretch.until)]
        partition = len(self._table.partition_key)
        paging = bytes.fromhex(stretch.paging) if stretch.paging else None
        place: bytes | None = None
        asked, wanted = None, most
        most = min(most, _STATICS_PAGE if stretch.statics else _PAGE)
        while True:
            asked = asked or self._ask(statement, values, most, paging, place)
            rows, most, paging = self._answer(asked, statement, values, most, paging, place)
            asked, wanted = None, wanted - len(rows)
            if rows:
                place = routing_key(rows[-1][:partition])
            if paging is not None and wanted > 0:
                asked = self._ask(statement, values, most, paging, place)
            yield KeyPage(rows, paging)
            if paging is None:
                return

    def _statement(self, statics: bool, where: str) -> Any:
        of_partition = [quote(c.name) for c in self._table.partition_key]
        token = f"token({', '.join(of_partition)})"
        if statics:
            columns = [*of_partition, token, *(quote(c.name) for c in self._table.statics)]
        else:
            columns = [*(quote(c.name) for c in self._table.primary_key), token]
        name = f"{quote(self._table.keyspace)}.{quote(self._table.name)}"
        condition = where or f"{token} > ? AND {token} <= ?"
        cql = f"SELECT {'DISTINCT ' if statics else ''}{', '.join(columns)} FROM {name} WHERE {condition}"
        if cql not in self._prepared:
            try:
                self._prepared[cql] = self._session.prepare(cql)
            except InvalidRequest as error:
                raise SchemaChanged(str(error)) from None
            except (*_UNANSWERED, Unauthorized) as error:
                raise self._failed(error) from None
        return self._prepared[cql]

    def _ask(self, statement: Any, values: list[bytes], most: int, paging: bytes | None, place: bytes | None) -> Any:
        bound = BoundStatement(statement, consistency_level=self._consistency, routing_key=place)
        bound.values = values
        bound.consistency_level = self._consistency
        bound.is_idempotent = True
        bound.fetch_size = most
        return self._session.execute_async(bound, paging_state=paging)

    def _answer(
        self, asked: Any, statement: Any, values: list[bytes], most: int, paging: bytes | None, place: bytes | None
    ) -> tuple[list[Any], int, bytes | None]:
        """The rows of a page, how many to ask for next, and the paging state. What times out is asked for in smaller
        pages.
        """
        while True:
            try:
                answer = asked.result()
                return answer.current_rows, most, answer.paging_state
            except _TOO_MUCH as error:
                if most < 10:
                    raise self._failed(error) from None
                most //= 8
            except InvalidRequest as error:
                if not is_page_refused(error) or most < 2:
                    raise SchemaChanged(str(error)) from None
                most //= 2
            except ProtocolException as error:  # of a paging state that this server does not take
                raise SchemaChanged(str(error)) from None
            except (*_UNANSWERED, Unauthorized) as error:
                raise self._failed(error) from None
            asked = self._ask(statement, values, most, paging, place)

    def _failed(self, error: Exception) -> HelenusError:
        is_refused = isinstance(error, Unauthorized)
        kind, advice = (Kind.CASSANDRA_AUTH, GRANT) if is_refused else (Kind.CASSANDRA_READ, "")
        return HelenusError(kind, f"cannot read keys: {error}", self._table.full_name, advice)
