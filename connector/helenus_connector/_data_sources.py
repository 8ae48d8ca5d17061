"""Makes a connector for each data source that a statement created (`helenus-agent sql`), and removes it when one
dropped it.

The rows are in Cassandra, where whoever may write to these tables has written them: they choose among the tables that
the template's login can read, and of a record's form what `CONNECTOR_PARAMETERS` names. A connector is removed because
a row says that its source was dropped, never because a row is not there: a table that is lost removes none.
"""

from __future__ import annotations

import re
import time
from collections.abc import Mapping
from concurrent.futures import Future
from dataclasses import dataclass
from typing import Any

import structlog
from cassandra import ConsistencyLevel, DriverException, InvalidRequest, Unauthorized
from cassandra.cluster import NoHostAvailable
from cassandra.query import SimpleStatement

from helenus_connector import metrics
from helenus_connector._threads import run_in_thread
from helenus_connector.config.connector import ConnectorSettings
from helenus_connector.config.files import read_template
from helenus_connector.config.worker import WorkerSettings
from helenus_connector.control.backoff import ReasonLog
from helenus_connector.control.connectors import Connectors
from helenus_connector.control.source_connectors import put_source, remove_source
from helenus_connector.control.status import Connector
from helenus_schemas.errors import HelenusError, Kind
from helenus_schemas.service.cassandra import connect
from helenus_schemas.settings.data_sink import CONNECTOR_PARAMETERS, AddressError, connector_name, parse_sink_address
from helenus_schemas.settings.properties import ConfigError

_log = structlog.get_logger(__name__)
_POLL_S = 3.0  # s between two reads of two small tables
_MAX_SOURCES = 1000  # as many as connectors over REST
_NAME = re.compile(r"\w{1,48}", re.ASCII)
_SYSTEM = re.compile(r"system(_.*)?|dse.*", re.ASCII)
_TABLES = "data sources"


@dataclass(frozen=True)
class SourceRow:
    """A row of `data_sources` with the address of its sink: `sink` is None if the source was dropped, `address` if
    there is no such sink.
    """

    keyspace: str
    table: str
    sink: str | None
    address: str | None

    @property
    def connector(self) -> str:
        return connector_name(self.keyspace, self.table)


class DataSources:
    """The data sources that a worker follows: none without a template. The worker's thread calls all methods but
    `failed_connectors`. `files` are the properties of the worker's other connectors by name. Raises ConfigError for
    a wrong template.
    """

    def __init__(self, worker: WorkerSettings, connectors: Connectors, files: Mapping[str, Mapping[str, str]]) -> None:
        self._worker = worker
        self._connectors = connectors
        self._file_names = frozenset(files)
        self._template = read_template(worker)
        self._brokers = _broker_set(worker.bootstrap_servers)
        self._session: Any = None
        self._read: Future[list[SourceRow]] | None = None
        self._read_at = 0.0
        self._has_sources = False
        self._failed: dict[str, Connector] = {}
        self._reasons = ReasonLog()

    def saved_sources(self, saved: Mapping[str, Mapping[str, Any]]) -> dict[str, dict[str, str]]:
        """Return the properties by name of the connectors that data sources made, as a worker saved them: by the
        template as it is now, and by what the sinks said then.
        """
        sources: dict[str, dict[str, str]] = {}
        if self._template is None:
            return sources
        for name, former in saved.items():
            file = former["file"] or {}
            keyspace, table = file.get("keyspace", ""), file.get("table", "")
            if name in self._file_names or not file or name != connector_name(keyspace, table):
                continue
            parameters = {key: text for key, text in file.items() if key in CONNECTOR_PARAMETERS}
            sources[name] = self._properties(keyspace, table, parameters)
        self._has_sources = bool(sources)
        return sources

    def failed_connectors(self) -> dict[str, Connector]:
        """Return the sources by their connectors' names whose connectors can't be made, as connectors that failed."""
        return dict(self._failed)

    def turn(self) -> None:
        """Apply what was read, and read again when it is time."""
        if self._template is None:
            return
        if self._read is not None:
            if not self._read.done():
                return
            read, self._read = self._read, None
            self._note_read(read)
        if time.monotonic() - self._read_at >= _POLL_S or not self._read_at:
            self._read_at = time.monotonic()
            self._read = run_in_thread(self._read_rows)

    def close(self) -> None:
        """Disconnect, unless a read goes on."""
        if self._session is not None and (self._read is None or self._read.done()):
            self._session.cluster.shutdown()

    def _note_read(self, read: Future[list[SourceRow]]) -> None:
        try:
            rows = read.result()
        except HelenusError as error:
            metrics.ERRORS.labels(error.kind.value).inc()
            if self._reasons.is_due(_TABLES, str(error)):
                _log.warning("data_sources.unread", reason=str(error), then="connectors stay as they are")
            return
        self._reasons.forget(_TABLES)
        self.apply(rows)

    def apply(self, rows: list[SourceRow]) -> None:
        """Make, change and remove connectors as rows say."""
        failed: dict[str, Connector] = {}
        self._has_sources = self._has_sources or bool(rows)
        for row in rows:
            if not _NAME.fullmatch(row.keyspace) or not _NAME.fullmatch(row.table):
                self._log_refusal(row.connector[:200], "its keyspace or table has no name that one can have")
            elif row.sink is None:
                self._remove(row)
            elif (error := self._put(row)) is not None:
                self._log_refusal(row.connector, str(error))
                if row.connector not in self._connectors.names():
                    failed[row.connector] = self._failed_connector(row, error)
            else:
                self._reasons.forget(row.connector)
        self._failed = failed

    def _put(self, row: SourceRow) -> HelenusError | None:
        """Make a source's connector, or change it. Return why that can't be."""
        name = row.connector
        with self._connectors.lock:
            names = self._connectors.names()
            if name in names and not self._is_own(row):
                return HelenusError(Kind.CONFIG, "another connector has this name", name, "delete that one")
            if name not in names and len(names) >= _MAX_SOURCES:
                advice = "drop data sources, or delete connectors"
                return HelenusError(Kind.CONFIG, f"the worker has {_MAX_SOURCES} connectors", name, advice)
            try:
                if put_source(self._connectors, name, self._properties(row.keyspace, row.table, self._parameters(row))):
                    _log.info("data_source.created", connector=name, sink=row.sink)
            except ConfigError as error:
                reasons = "; ".join(map(str, error.problems))
                advice = "DROP the data source and create it with another sink, or correct the worker's template"
                return HelenusError(Kind.CONFIG, reasons, name, advice)
            except HelenusError as error:
                if error.kind is not Kind.CONFIG:
                    raise
                return error
        return None

    def _remove(self, row: SourceRow) -> None:
        with self._connectors.lock:
            if self._is_own(row) and remove_source(self._connectors, row.connector):
                then = "its topics and positions stay"
                _log.info("data_source.dropped", connector=row.connector, then=then)

    def _is_own(self, row: SourceRow) -> bool:
        """Return whether the connector of this name is of a data source, or there is none."""
        if row.connector in self._file_names:
            return False
        file = self._connectors.file(row.connector)
        is_there = row.connector in self._connectors.names()
        return not is_there or (file.get("keyspace"), file.get("table")) == (row.keyspace, row.table)

    def _parameters(self, row: SourceRow) -> dict[str, str]:
        """Return what a sink's address says of records. Raises HelenusError CONFIG for a sink that this worker can't
        write to.
        """
        if _SYSTEM.fullmatch(row.keyspace) or row.keyspace == self._worker.data_source_keyspace:
            raise HelenusError(Kind.CONFIG, "its table is Cassandra's own, or the agents'", row.connector, "DROP it")
        if row.address is None:
            raise HelenusError(Kind.CONFIG, f"there is no data sink {row.sink}", row.connector, "CREATE DATA_SINK")
        try:
            sink = parse_sink_address(row.address)
        except AddressError as error:
            advice = "DROP DATA_SINK, and create it anew"
            raise HelenusError(
                Kind.CONFIG, f"the address of data sink {row.sink} is wrong: {error}", row.connector, advice
            ) from None
        if not sink.broker_set & self._brokers:
            message = f"data sink {row.sink} is {sink.brokers}, and this worker's bootstrap.servers are others"
            advice = "name at least one broker in both by the same host:port"
            raise HelenusError(Kind.CONFIG, message, row.connector, advice)
        return sink.connector_parameters

    def _properties(self, keyspace: str, table: str, parameters: Mapping[str, str]) -> dict[str, str]:
        """Return the properties of a source's connector: what the worker's operator set counts more than the sink."""
        own = {"name": connector_name(keyspace, table), "keyspace": keyspace, "table": table}
        return {**parameters, **(self._template or {}), **own}

    def _failed_connector(self, row: SourceRow, error: HelenusError) -> Connector:
        properties = self._properties(row.keyspace, row.table, {})
        settings = self._worker.model.read_settings(properties, row.connector, properties)
        return Connector({"connector.class": settings.connector_class, **properties}, settings, error=error)

    def _log_refusal(self, name: str, reason: str) -> None:
        if self._reasons.is_due(name, reason):
            _log.error("data_source.refused", connector=name, reason=reason)

    def _read_rows(self) -> list[SourceRow]:
        """Read all data sources. Raises HelenusError."""
        keyspace = self._worker.data_source_keyspace
        try:
            if self._session is None:
                self._session = connect(self._login())
            sinks = {row.name: row.address for row in self._select(f"SELECT name, address FROM {keyspace}.data_sinks")}
            columns = "keyspace_name, table_name, service, sink"
            return [
                SourceRow(row.keyspace_name, row.table_name, row.sink, sinks.get(row.sink))
                for row in self._select(f"SELECT {columns} FROM {keyspace}.data_sources")
                if row.service == "cdc"
            ]
        except InvalidRequest as error:
            if not self._has_sources:
                return []  # no statement was executed yet: the first one makes the tables
            advice = "somebody dropped the tables: delete the connectors over REST, or create the sources anew"
            raise HelenusError(Kind.CASSANDRA_READ, f"no data sources: {error}", keyspace, advice) from None
        except Unauthorized as error:
            advice = f"GRANT SELECT ON {keyspace}.data_sinks, and on {keyspace}.data_sources, TO the template's role"
            raise HelenusError(Kind.CASSANDRA_AUTH, f"Cassandra refuses: {error}", keyspace, advice) from None
        except (DriverException, NoHostAvailable) as error:
            if self._session is not None:
                self._session.cluster.shutdown()
                self._session = None
            raise HelenusError(Kind.CASSANDRA_UNREACHABLE, f"Cassandra does not answer: {error}", keyspace) from None

    def _login(self) -> ConnectorSettings:
        """Return the settings of the template, for its `cassandra.*`. No table is asked for."""
        properties = self._properties("ks", "t", {})
        return self._worker.model.read_settings(properties, str(self._worker.data_source_template), properties)

    def _select(self, query: str) -> list[Any]:
        return list(self._session.execute(SimpleStatement(query, consistency_level=ConsistencyLevel.LOCAL_QUORUM)))


def _broker_set(servers: str) -> frozenset[str]:
    """Return the worker's brokers as an address of a sink has them."""
    hosts = (re.sub(r"^\w+://", "", server.strip().lower()) for server in servers.split(","))
    return frozenset(host if re.search(r":\d+$", host) else f"{host}:9092" for host in hosts)
