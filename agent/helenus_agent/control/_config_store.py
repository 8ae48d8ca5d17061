"""The keyspace of the control plane: the table `configs`, as CEP-44 has it, and `agents`, a row for each node.

Statements go to the agent's own node. Write times are Cassandra's, so that the age of a row is measured by the nodes'
clocks, which Cassandra needs to agree, and not by those of agents.
"""

from __future__ import annotations

import contextlib
import threading
import uuid
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from typing import Any, ClassVar

from cassandra import ConsistencyLevel, DriverException, InvalidRequest, Unauthorized
from cassandra.cluster import NoHostAvailable
from cassandra.policies import WhiteListRoundRobinPolicy
from cassandra.query import SimpleStatement

from helenus_agent.config import AgentSettings
from helenus_schemas.errors import HelenusError, Kind
from helenus_schemas.service.cassandra import connect

_MAX_AHEAD_MS = 10_000  # ms by which nodes' clocks may differ
_LAST_MS = 253_402_300_799_999  # the end of the year 9999: a datetime has no later time
_CLOSE_S = 1.0  # s that closing waits for a connection that is being made
_REPLICAS = 3  # of a data centre with as many nodes: one may be down for a quorum
_NAMESPACE = uuid.UUID("7f2c6a5e-9d0c-5c0e-8f53-0d6f5a3b6f10")
_CONFIGS = "service text PRIMARY KEY, config map<text, text>"
_AGENTS = (
    "host_id uuid PRIMARY KEY, address text, data_center text, version text, cassandra_version text, status text, "
    "trouble text, tables frozen<list<text>>, oldest_unsent_ms bigint, segments_pending int, cdc_raw_bytes bigint, "
    "cdc_raw_headroom_bytes bigint, last_error text, interval_ms int, reported_at timestamp"
)
_WITH_ID = " WITH id = "
_TABLES = {"configs": _CONFIGS, "agents": _AGENTS}


@dataclass(frozen=True)
class AgentReport:
    """What an agent writes of itself. `status` is `publishing`, `starting`, `disabled` or `failing`, `trouble` says
    why it is not healthy; `last_error` is the last one that there was. `cdc_raw_headroom_bytes` is None if it is not
    known.
    """

    host_id: uuid.UUID
    address: str
    data_center: str
    version: str
    cassandra_version: str
    status: str
    trouble: str
    tables: tuple[str, ...]
    oldest_unsent_ms: int
    segments_pending: int
    cdc_raw_bytes: int
    cdc_raw_headroom_bytes: int | None
    last_error: str
    interval_ms: int


@dataclass(frozen=True)
class StoredReport:
    """An agent's report, and how long ago Cassandra took it: `age_ms`, at `written_at_ms` of its clock."""

    report: AgentReport
    age_ms: int
    written_at_ms: int

    @property
    def is_alive(self) -> bool:
        """Return whether the agent has missed fewer than three reports. A time in the future says nothing."""
        return -_MAX_AHEAD_MS < self.age_ms < 3 * self.report.interval_ms


class NotApplied(HelenusError):
    """A change that a read does not find: of two at the same time the other one counts, or it has a later write time,
    because the clock of the node that took it is ahead.
    """

    def __init__(self, service: str, where: str) -> None:
        advice = "read it, repeat the change, and compare the nodes' clocks if that does not help"
        super().__init__(
            Kind.CASSANDRA_READ, f"the change of service {service} is not what is read then", where, advice
        )


class ConfigStore:
    """The keyspace, over a session of its own, which several threads use. Raises HelenusError."""

    tables: ClassVar[Mapping[str, str]] = _TABLES
    """The columns of the tables that are made where they are missing."""

    def __init__(self, settings: AgentSettings) -> None:
        self._settings = settings
        self._keyspace = settings.config_store_keyspace
        self._level = ConsistencyLevel.name_to_value[settings.config_store_consistency]
        self._where = f"{settings.cassandra_contact_points[0]}:{settings.cassandra_port}, {self._keyspace}"
        self._lock = threading.Lock()
        self._session: Any = None
        self._tables_exist = False

    def read(self) -> dict[str, dict[str, str]]:
        """Return all rows of `configs`."""
        rows = self._execute(f"SELECT service, config FROM {self._keyspace}.configs")
        return {row.service: {key: text or "" for key, text in (row.config or {}).items()} for row in rows}

    def write(self, service: str, config: Mapping[str, str]) -> None:
        """Replace a row of `configs`. Raises NotApplied if a read finds another one then."""
        statement = f"INSERT INTO {self._keyspace}.configs (service, config) VALUES (%s, %s)"
        self._execute(statement, (service, dict(config)))
        # Cassandra has no empty map: a row without keys is none of its cells, and its key alone.
        if self.read().get(service) != dict(config):
            raise NotApplied(service, self._where)

    def delete(self, service: str) -> bool:
        """Delete a row of `configs`. Return False if there is none. Raises NotApplied if a read finds it then."""
        if service not in self.read():
            return False
        self._execute(f"DELETE FROM {self._keyspace}.configs WHERE service = %s", (service,))
        if service in self.read():
            raise NotApplied(service, self._where)
        return True

    def report(self, report: AgentReport) -> None:
        """Replace the agent's row of `agents`."""
        names = [field.name for field in fields(AgentReport)]
        values = [getattr(report, name) for name in names]
        values = [list(value) if isinstance(value, tuple) else value for value in values]
        statement = (
            f"INSERT INTO {self._keyspace}.agents ({', '.join(names)}, reported_at) "
            f"VALUES ({', '.join(['%s'] * len(names))}, toTimestamp(now()))"
        )
        self._execute(statement, values)

    def reports(self) -> list[StoredReport]:
        """Return all rows of `agents`, by data centre and address."""
        columns = [field.name for field in fields(AgentReport)]
        query = (
            f"SELECT {', '.join(columns)}, WRITETIME(interval_ms) AS written_at, toUnixTimestamp(now()) AS read_at "
            f"FROM {self._keyspace}.agents"
        )
        stored = []
        for row in self._execute(query):
            if None in (row.interval_ms, row.address, row.status, row.written_at):
                continue  # a row that somebody else wrote a part of
            written_at_ms = row.written_at // 1000
            if not 0 <= written_at_ms <= _LAST_MS:
                continue  # somebody else gave a write time that is none
            values = {name: getattr(row, name) for name in columns}
            values["tables"] = tuple(values["tables"] or ())
            stored.append(StoredReport(AgentReport(**values), row.read_at - written_at_ms, written_at_ms))
        return sorted(stored, key=lambda row: (row.report.data_center or "", row.report.address or ""))

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

    def _execute(self, statement: str, values: Sequence[Any] | None = None) -> list[Any]:
        session = self._connected()
        try:
            self._make_tables(session)
            return self._rows(session, statement, values, self._level)
        except (DriverException, NoHostAvailable) as error:
            raise self._error(error) from None

    def _rows(
        self, session: Any, statement: str, values: Sequence[Any] | None = None, level: int = ConsistencyLevel.ONE
    ) -> list[Any]:
        return list(session.execute(SimpleStatement(statement, consistency_level=level), values))

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
            statements = [self._table_statement(name) for name in self.tables if name not in existing]
            if not existing:
                statements.insert(0, self._keyspace_statement(session))
            for number, statement in enumerate(statements):
                try:
                    self._make(session, statement)
                except Unauthorized as error:
                    advice = f"execute as another role: {'; '.join(statements[number:])};"
                    message = f"the agent's role may not make what config.store=cassandra needs: {error}"
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
        return f"CREATE TABLE IF NOT EXISTS {full_name} ({self.tables[name]}){_WITH_ID}{table_id}"

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
