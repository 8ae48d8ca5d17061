"""Read the keys of a table, page by page, in the order of their tokens."""

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
_PAGE_TOO_LARGE = (ReadTimeout, ReadFailure, OperationTimedOut)
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

    def pages(self, stretch: TokenStretch, where: str, max_keys: int) -> Iterator[KeyPage]:
        """Yield the keys of the rest of a stretch, or of the partitions that `where` names. The next page is requested
        while the caller uses one, from a replica of its last partition, until there are `max_keys` keys.

        Raises SchemaChanged for what the server refuses, and HelenusError CASSANDRA_READ or CASSANDRA_AUTH.
        """
        statement = self._statement(stretch.statics, where)
        values = [] if where else [_token(stretch.after), _token(stretch.until)]
        partition_width = len(self._table.partition_key)
        paging = bytes.fromhex(stretch.paging) if stretch.paging else None
        partition_key: bytes | None = None
        request, remaining_keys = None, max_keys
        max_keys = min(max_keys, _STATICS_PAGE if stretch.statics else _PAGE)
        while True:
            request = request or self._request_page(statement, values, max_keys, paging, partition_key)
            rows, max_keys, paging = self._read_page(request, statement, values, max_keys, paging, partition_key)
            request, remaining_keys = None, remaining_keys - len(rows)
            if rows:
                partition_key = routing_key(rows[-1][:partition_width])
            if paging is not None and remaining_keys > 0:
                request = self._request_page(statement, values, max_keys, paging, partition_key)
            yield KeyPage(rows, paging)
            if paging is None:
                return

    def _statement(self, statics: bool, where: str) -> Any:
        partition_columns = [quote(c.name) for c in self._table.partition_key]
        token = f"token({', '.join(partition_columns)})"
        if statics:
            columns = [*partition_columns, token, *(quote(c.name) for c in self._table.statics)]
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
                raise self._read_error(error) from None
        return self._prepared[cql]

    def _request_page(
        self, statement: Any, values: list[bytes], page_size: int, paging: bytes | None, partition_key: bytes | None
    ) -> Any:
        bound = BoundStatement(statement, consistency_level=self._consistency, routing_key=partition_key)
        bound.values = values
        bound.consistency_level = self._consistency
        bound.is_idempotent = True
        bound.fetch_size = page_size
        return self._session.execute_async(bound, paging_state=paging)

    def _read_page(
        self,
        request: Any,
        statement: Any,
        values: list[bytes],
        page_size: int,
        paging: bytes | None,
        partition_key: bytes | None,
    ) -> tuple[list[Any], int, bytes | None]:
        """Return the rows of a page, the next page's size, and the paging state. After a timeout the page is requested
        again, smaller.
        """
        while True:
            try:
                answer = request.result()
                return answer.current_rows, page_size, answer.paging_state
            except _PAGE_TOO_LARGE as error:
                if page_size < 10:
                    raise self._read_error(error) from None
                page_size //= 8
            except InvalidRequest as error:
                if not is_page_refused(error) or page_size < 2:
                    raise SchemaChanged(str(error)) from None
                page_size //= 2
            except ProtocolException as error:  # of a paging state that this server does not take
                raise SchemaChanged(str(error)) from None
            except (*_UNANSWERED, Unauthorized) as error:
                raise self._read_error(error) from None
            request = self._request_page(statement, values, page_size, paging, partition_key)

    def _read_error(self, error: Exception) -> HelenusError:
        is_refused = isinstance(error, Unauthorized)
        kind, advice = (Kind.CASSANDRA_AUTH, GRANT) if is_refused else (Kind.CASSANDRA_READ, "")
        return HelenusError(kind, f"cannot read keys: {error}", self._table.full_name, advice)
