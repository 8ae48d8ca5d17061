"""The `KeysQuery` of each connector with state that runs, once its tables' topics exist."""

from __future__ import annotations

import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import structlog

from helenus_connector.config.connector import ConnectorSettings
from helenus_connector.config.worker import WorkerSettings
from helenus_connector.control.connectors import Connectors
from helenus_connector.control.status import Connector
from helenus_connector.group.state_directories import StateDirectories

if TYPE_CHECKING:
    from helenus_connector.state.keys._query import KeysQuery

_log = structlog.get_logger(__name__)


class KeysQueries:
    """The queries of a worker, whose group has their `states`. One thread, the worker's, calls its methods."""

    def __init__(
        self,
        worker: WorkerSettings,
        connectors: Connectors,
        directory: Path,
        spark: Any,
        states: StateDirectories | None = None,
    ) -> None:
        self._worker = worker
        self._connectors = connectors
        self._directory = directory
        self._spark = spark
        self._states = states
        self._queries: dict[str, KeysQuery] = {}

    def turn(self) -> None:
        """Start and stop queries as connectors and their tables come and go; report to their tasks what is wrong."""
        connectors = self._connectors.all()
        for name, query in list(self._queries.items()):
            tables = _followed_tables(connectors[name]) if name in connectors else {}
            if tables != query.tables and query.failure is None:
                query.stop()
            if query.is_over:
                del self._queries[name]
            if name in connectors:
                _report_failure(connectors[name], query)
        for name, connector in connectors.items():
            if name not in self._queries and (tables := _followed_tables(connector)):
                from helenus_connector.state.keys._query import KeysQuery  # with Arrow, which others need not load

                query = KeysQuery(self._worker, name, tables, self._directory, self._connectors.term, self._states)
                self._queries[name] = query
                query.start(self._spark)

    def stop(self) -> None:
        """Have all queries stop."""
        for query in self._queries.values():
            query.stop()

    def join(self) -> None:
        """Wait until all queries have ended."""
        for query in self._queries.values():
            query.join()


def _followed_tables(connector: Connector) -> dict[str, ConnectorSettings]:
    """Return the settings of a connector's tables that are to be followed, by table."""
    if connector.settings.state != "keys" or connector.wanted == "STOPPED":
        return {}
    tasks = list(connector.tasks.values())
    return {task.table: task.settings for task in tasks if task.ready and not task.error}


def _report_failure(connector: Connector, query: KeysQuery) -> None:
    """Fail the tasks of a query that has failed: otherwise deletes would go on without it."""
    for task in list(connector.tasks.values()):
        task.state_error = query.last_error
        if query.failure is not None and task.error is None:
            task.error = query.failure
            task.last_error = time.time(), str(query.failure)
