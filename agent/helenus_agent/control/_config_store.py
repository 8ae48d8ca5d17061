"""The tables of the control plane: `configs`, as CEP-44 has it, and `agents`, a row for each node."""

from __future__ import annotations

import uuid
from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import ClassVar

from helenus_agent.config import AgentSettings
from helenus_agent.control_keyspace import ControlKeyspace
from helenus_schemas.errors import HelenusError, Kind

_MAX_AHEAD_MS = 10_000  # ms by which nodes' clocks may differ
_LAST_MS = 253_402_300_799_999  # the end of the year 9999: a datetime has no later time
_CONFIGS = "service text PRIMARY KEY, config map<text, text>"
_AGENTS = (
    "host_id uuid PRIMARY KEY, address text, data_center text, version text, cassandra_version text, status text, "
    "trouble text, tables frozen<list<text>>, oldest_unsent_ms bigint, segments_pending int, cdc_raw_bytes bigint, "
    "cdc_raw_headroom_bytes bigint, last_error text, interval_ms int, reported_at timestamp"
)
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


class ConfigStore(ControlKeyspace):
    """The tables `configs` and `agents`, over a session of its own, which several threads use. Raises HelenusError."""

    tables: ClassVar[Mapping[str, str]] = _TABLES
    """The columns of the tables that are made where they are missing."""

    def __init__(self, settings: AgentSettings) -> None:
        super().__init__(settings, self.tables, "config.store=cassandra")

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
