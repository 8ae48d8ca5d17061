"""The keyspace of our own tables in Cassandra: made on demand, with ids that are the same on every node.

Statements go to the agent's own node. Write times are Cassandra's, so that the age of a row is measured by the nodes'
clocks, which Cassandra needs to agree, and not by those of agents.
"""

from __future__ import annotations

import contextlib
import threading
import uuid
from collections.abc import Mapping, Sequence
from typing import Any

from cassandra import ConsistencyLevel, DriverException, InvalidRequest, Unauthorized
from cassandra.cluster import NoHostAvailable
from cassandra.policies import WhiteListRoundRobinPolicy
from cassandra.query import SimpleStatement

from helenus_agent.config import AgentSettings
from helenus_schemas.errors import HelenusError, Kind
from helenus_schemas.service.cassandra import connect

_CLOSE_S = 1.0  # s that closing waits for a connection that is being made
_REPLICAS = 3  # of a data centre with as many nodes: one may be down for a quorum
_NAMESPACE = uuid.UUID("7f2c6a5e-9d0c-5c0e-8f53-0d6f5a3b6f10")
_WITH_ID = " WITH id = "


class ControlKeyspace:
    """The keyspace `config.store.keyspace` and some tables of it, over a session that several threads use. Raises
    HelenusError.

    `tables` are columns and key by a table's name, `purpose` is the setting that needs them.
    """

    def __init__(self, settings: AgentSettings, tables: Mapping[str, str], purpose: str) -> None:
        self._settings = settings
        self._tables = tables
        self._purpose = purpose
        self._keyspace = settings.config_store_keyspace
        self._level = ConsistencyLevel.name_to_value[settings.config_store_consistency]
        self._where = f"{settings.cassandra_contact_points[0]}:{settings.cassandra_port}, {self._keyspace}"
        self._lock = threading.Lock()
        self._session: Any = None
        self._tables_exist = False

    def close(self) -> None:
        """Disconnect."""
        if not self._lock.acquire(timeout=_CLOSE_S):
            return  # a thread connects just now: it ends with the process
        try:
            if self._session is not None:
                self._session.cluster.shutdown()
                self._session = None
        finally:
            self._lock.release()

    def _execute(self, statement: str, values: Sequence[Any] | None = None, level: int | None = None) -> list[Any]:
        """Return a statement's rows. What it compares and sets counts within the local data centre."""
        session = self._connected()
        try:
            self._make_tables(session)
            return self._rows(session, statement, values, self._level if level is None else level)
        except (DriverException, NoHostAvailable) as error:
            raise self._error(error) from None

    def _rows(
        self, session: Any, statement: str, values: Sequence[Any] | None = None, level: int = ConsistencyLevel.ONE
    ) -> list[Any]:
        query = SimpleStatement(
            statement, consistency_level=level, serial_consistency_level=ConsistencyLevel.LOCAL_SERIAL
        )
        return list(session.execute(query, values))

    def _connected(self) -> Any:
        with self._lock:
            if self._session is None:
                try:
                    policy = WhiteListRoundRobinPolicy(list(self._settings.cassandra_contact_points))
                except (OSError, UnicodeError) as error:
                    message = f"no contact point has an address: {error}"
                    raise HelenusError(Kind.CASSANDRA_UNREACHABLE, message, self._where) from None
                self._session = connect(self._settings, policy)
                self._session.use_client_timestamp = False  # write times are the node's
            return self._session

    def _make_tables(self, session: Any) -> None:
        """Make the keyspace and the tables that are missing. Raises CASSANDRA_AUTH, with the CQL, if the agent's role
        may not.
        """
        with self._lock:
            if self._tables_exist:
                return
            query = f"SELECT table_name FROM system_schema.tables WHERE keyspace_name = '{self._keyspace}'"
            existing = {row.table_name for row in self._rows(session, query)}
            statements = [self._table_statement(name) for name in self._tables if name not in existing]
            if not existing:
                statements.insert(0, self._keyspace_statement(session))
            for number, statement in enumerate(statements):
                try:
                    self._make(session, statement)
                except Unauthorized as error:
                    advice = f"execute as another role: {'; '.join(statements[number:])};"
                    message = f"the agent's role may not make what {self._purpose} needs: {error}"
                    raise HelenusError(Kind.CASSANDRA_AUTH, message, self._where, advice) from None
            self._tables_exist = True

    def _make(self, session: Any, statement: str) -> None:
        try:
            self._rows(session, statement)
        except InvalidRequest:
            without_id = statement.partition(_WITH_ID)[0]
            if without_id == statement:
                raise
            self._rows(session, without_id)  # a Cassandra that gives ids by itself, and to one table one

    def _keyspace_statement(self, session: Any) -> str:
        replication = self._settings.config_store_replication
        if not replication:
            nodes = self._rows(session, "SELECT data_center FROM system.local")
            nodes += self._rows(session, "SELECT data_center FROM system.peers")
            replication = self._default_replication([row.data_center for row in nodes if row.data_center])
        return f"CREATE KEYSPACE IF NOT EXISTS {self._keyspace} WITH replication = {replication}"

    def _default_replication(self, data_centers: Sequence[str]) -> str:
        """Return three replicas in the data centre of each node. Raises CONFIG if one has fewer nodes: it may be that
        the others are yet to come, and the replication would stay as it is.
        """
        names = sorted(set(data_centers))
        if few := [name for name in names if data_centers.count(name) < _REPLICAS]:
            counts = {name: min(_REPLICAS, data_centers.count(name)) for name in names}
            advice = f"set config.store.replication, for these nodes {_topology(counts)}, or wait for the others"
            message = (
                f"keyspace {self._keyspace} is not made: fewer than {_REPLICAS} nodes are seen in {', '.join(few)}"
            )
            raise HelenusError(Kind.CONFIG, message, self._where, advice)
        return _topology(dict.fromkeys(names, _REPLICAS))

    def _table_statement(self, name: str) -> str:
        """Return the statement that makes a table. Its id is always the same: agents of several nodes may make it at
        the same time, and two ids for one name would be two tables to Cassandra.
        """
        full_name = f"{self._keyspace}.{name}"
        table_id = uuid.uuid5(_NAMESPACE, full_name)
        return f"CREATE TABLE IF NOT EXISTS {full_name} ({self._tables[name]}){_WITH_ID}{table_id}"

    def _error(self, error: Exception) -> HelenusError:
        if isinstance(error, Unauthorized):
            advice = f"GRANT SELECT, MODIFY ON KEYSPACE {self._keyspace} TO the agent's role"
            return HelenusError(Kind.CASSANDRA_AUTH, f"Cassandra refuses: {error}", self._where, advice)
        if isinstance(error, NoHostAvailable) and not error.errors:
            with contextlib.suppress(HelenusError):
                self.close()  # the driver may miss that the node came up again: the next statement connects anew
        with self._lock:
            self._tables_exist = False  # somebody may have dropped the keyspace
        return HelenusError(Kind.CASSANDRA_UNREACHABLE, f"Cassandra does not answer: {error}", self._where)


def _topology(counts: Mapping[str, int]) -> str:
    entries = ", ".join(f"'{name}': {count}" for name, count in counts.items())
    return f"{{'class': 'NetworkTopologyStrategy', {entries}}}"
