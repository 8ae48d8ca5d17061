"""Read which incarnation of a table exists now, and its definition, for snapshots."""

from __future__ import annotations

import time
from contextlib import suppress
from typing import Any

from cassandra import DriverException, InvalidRequest, OperationTimedOut, ReadFailure, ReadTimeout, Unavailable
from cassandra.cluster import NoHostAvailable
from cassandra.connection import ConnectionException
from cassandra.protocol import SyntaxException
from cassandra.query import BoundStatement

from helenus_connector.cassandra_rows.raw_rows import RawProtocolHandler, row_factory
from helenus_connector.cassandra_rows.table_definition import read_definition
from helenus_connector.config.connector import ConnectorSettings
from helenus_schemas.cql.table import Table
from helenus_schemas.cql.types import quote
from helenus_schemas.errors import HelenusError, Kind
from helenus_schemas.service.cassandra import connect

_CACHED_S = 5.0
_CHECK_S = 2.0
_IDS = "SELECT table_name, id FROM system_schema.tables WHERE keyspace_name = %s"


class SnapshotTables:
    """Keeps a session for each Cassandra that connectors name. One thread uses it at a time."""

    def __init__(self) -> None:
        self._sessions: dict[tuple[object, ...], Any] = {}
        self._ids: dict[tuple[object, ...], tuple[float, dict[str, str]]] = {}

    def table_id(self, settings: ConnectorSettings, is_now: bool = False) -> str | None:
        """Return the id of a table, None if there is no such table; as it was some seconds ago, unless `is_now`.

        Raises HelenusError as `connect`, and CASSANDRA_READ.
        """
        name = (*settings.server, settings.keyspace)
        read_at, ids = self._ids.get(name, (0.0, {}))
        if is_now or time.monotonic() - read_at > _CACHED_S:
            try:
                rows = self._session(settings).execute(_IDS, (settings.keyspace,))
                ids = {row.table_name: str(row.id) for row in rows}
            except (DriverException, NoHostAvailable, ConnectionException) as error:
                self._forget(settings)
                problem = f"cannot read the schema: {error}"
                raise HelenusError(Kind.CASSANDRA_READ, problem, settings.keyspace) from None
            self._ids[name] = time.monotonic(), ids
        return ids.get(settings.table)

    def read_definition(self, settings: ConnectorSettings) -> Table:
        """Read a table's definition as it is now. Raises as `read_definition`."""
        try:
            definition = read_definition(self._session(settings), settings)
        except HelenusError as error:
            if error.kind is Kind.CASSANDRA_READ:
                self._forget(settings)
            raise
        assert definition is not None
        return definition[1]

    def check(self, settings: ConnectorSettings, table: Table, where: str) -> None:
        """Raise HelenusError CONFIG if Cassandra refuses a `where`: for an empty value, say, or one of another type."""
        columns = ", ".join(quote(column.name) for column in table.partition_key)
        name = f"{quote(table.keyspace)}.{quote(table.name)}"
        try:
            session = self._session(settings)
            bound = BoundStatement(session.prepare(f"SELECT {columns} FROM {name} WHERE {where}"))
            bound.fetch_size = 1  # what is wrong with a key is found only when it is read
            with suppress(ReadTimeout, ReadFailure, Unavailable, OperationTimedOut):  # the scan tries that again
                session.execute_async(bound, timeout=_CHECK_S).result()
        except (InvalidRequest, SyntaxException) as error:
            advice = "give values of the columns' types"
            raise HelenusError(Kind.CONFIG, f"Cassandra refuses {where}: {error}", table.full_name, advice) from None
        except (DriverException, NoHostAvailable, ConnectionException) as error:
            self._forget(settings)
            raise HelenusError(Kind.CASSANDRA_READ, f"cannot ask for keys: {error}", table.full_name) from None

    def close(self) -> None:
        for session in self._sessions.values():
            session.cluster.shutdown()
        self._sessions.clear()

    def _session(self, settings: ConnectorSettings) -> Any:
        if settings.server not in self._sessions:
            self._sessions[settings.server] = connect(
                settings, protocol_handler=RawProtocolHandler, row_factory=row_factory, metadata=True
            )
        return self._sessions[settings.server]

    def _forget(self, settings: ConnectorSettings) -> None:
        session = self._sessions.pop(settings.server, None)
        if session is not None:
            with suppress(Exception):
                session.cluster.shutdown()
