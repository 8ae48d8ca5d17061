"""Which connectors have a `KeysQuery` now: those with state that run, once their tables' topics are there."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import structlog

from helenus_connector.config.connector import ConnectorSettings
from helenus_connector.config.worker import WorkerSettings
from helenus_connector.control.connectors import Connectors
from helenus_connector.control.status import Connector
from helenus_connector.state.keys._query import KeysQuery

_log = structlog.get_logger(__name__)


class KeysQueries:
    """The followers of a worker. One thread, the worker's, calls its methods."""

    def __init__(self, worker: WorkerSettings, connectors: Connectors, directory: Path, spark: Any) -> None:
        self._worker = worker
        self._connectors = connectors
        self._directory = directory
        self._spark = spark
        self._followers: dict[str, KeysQuery] = {}

    def turn(self) -> None:
        """Start and end followers as connectors and their tables come and go; have their tasks say what is wrong."""
        connectors = self._connectors.all()
        for name, follower in list(self._followers.items()):
            tables = _followed(connectors[name]) if name in connectors else {}
            if tables != follower.tables and follower.failure is None:
                follower.stop()
            if follower.is_over:
                del self._followers[name]
            if name in connectors:
                _tell(connectors[name], follower)
        for name, connector in connectors.items():
            if name not in self._followers and (tables := _followed(connector)):
                follower = KeysQuery(self._worker, name, tables, self._directory)
                self._followers[name] = follower
                follower.start(self._spark)

    def stop(self) -> None:
        """Ask all to end."""
        for follower in self._followers.values():
            follower.stop()

    def join(self) -> None:
        """Wait for their end."""
        for follower in self._followers.values():
            follower.join()


def _followed(connector: Connector) -> dict[str, ConnectorSettings]:
    """The settings of the tables of a connector that are to be followed, by table."""
    if connector.settings.state != "keys" or connector.wanted == "STOPPED":
        return {}
    tasks = list(connector.tasks.values())
    return {task.table: task.settings for task in tasks if task.ready and not task.error}


def _tell(connector: Connector, follower: KeysQuery) -> None:
    """A follower that has failed fails its tasks: or else deletes would go on without it."""
    for task in list(connector.tasks.values()):
        task.of_state = follower.trouble
        if follower.failure is not None and task.error is None:
            task.error = follower.failure
            task.last_error = time.time(), str(follower.failure)
