"""The scans of connectors' tables: which each has now, and what is wrong with them."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Sequence
from concurrent.futures import Future, wait
from functools import partial
from pathlib import Path

import structlog

from helenus_connector import metrics
from helenus_connector._threads import run_in_thread
from helenus_connector.config.connector import ConnectorSettings
from helenus_connector.control.backoff import ReasonLog, pause
from helenus_connector.control.connectors import Connectors
from helenus_connector.control.keyspaces import Keyspaces
from helenus_connector.control.status import Connector, no_tables
from helenus_connector.control.tables import TableDefinitions
from helenus_schemas.errors import Action, HelenusError, Kind

_log = structlog.get_logger(__name__)
_LEAVING_S = 5.0
"""The shortest time between two looks for a table that a pattern matched and that may have been dropped."""
_FIRST_PAUSE_S = 1.0
_LONGEST_PAUSE_S = 30.0
_MAY_COME = (Kind.TABLE_MISSING,)
"""Errors that stop a connector, but not while servers and tables come that are not there when the worker starts."""
_SLOW_S = 20.0  # a Cassandra of which no contact point answers takes ten for each, by default
_MAX_SCANS = 100  # at once: each takes a thread, and some more of the driver's


class TableScans:
    """Scans of a worker's connectors, and of its files that stand for several. `may_wait` says whether servers and
    tables that start together with the worker still have time, `stopping` that no more is to be scanned. `under_way`
    are the scans by the servers they ask.
    """

    def __init__(
        self,
        connectors: Connectors,
        keyspaces: Keyspaces,
        tables: TableDefinitions,
        may_wait: Callable[[], bool],
        stopping: Callable[[], bool],
    ) -> None:
        self._connectors = connectors
        self._keyspaces = keyspaces
        self.tables = tables
        self._may_wait = may_wait
        self._stopping = stopping
        self.under_way: dict[object, Future[None]] = {}
        self._failures: dict[str, int] = {}
        self._wait_reasons = ReasonLog()

    def scan(self, directory: Path) -> None:
        """Scan the tables of the connectors whose time has come: those with the same servers one after the other, in a
        thread beside others. Servers that do not answer delay the others for some seconds, and once.
        """
        self._connectors.add_from_files(self._keyspaces.find_connectors(self.tables, self._may_wait()))
        now = time.monotonic()
        due_connectors: dict[object, list[tuple[str, Connector]]] = {}
        for name, connector in self._connectors.all().items():
            if connector.wanted != "STOPPED" and not connector.error and now >= self._next_scan_at(connector):
                registry = connector.settings.value_converter_schema_registry_url
                due_connectors.setdefault((connector.settings.server, registry), []).append((name, connector))
        for servers, connectors in due_connectors.items():
            if servers not in self.under_way and len(self.under_way) < _MAX_SCANS:
                self.under_way[servers] = run_in_thread(partial(self._scan_in_turn, connectors, directory))
        wait(self.under_way.values(), _SLOW_S)
        for servers, scan in list(self.under_way.items()):
            if scan.done():
                del self.under_way[servers]
                scan.result()
            else:
                for _, connector in due_connectors.get(servers, ()):
                    if not connector.is_scanned:
                        connector.waiting = f"its servers have not answered for {_SLOW_S:.0f} s"

    def _scan_in_turn(self, connectors: Sequence[tuple[str, Connector]], directory: Path) -> None:
        """Scan the tables of connectors with the same servers, one after the other."""
        for name, connector in connectors:
            if self._stopping():
                return
            with self._connectors.lock:
                settings = connector.settings
                refresh_s = settings.table_refresh_interval_ms / 1000 if settings.has_patterns else math.inf
                # Before the look: a change during it needs another look at once.
                connector.next_scan_at, connector.last_scan_at = time.monotonic() + refresh_s, time.monotonic()
            try:
                errors = self.tables.scan(settings, directory)
                if self._may_wait():
                    missing = [error for error in errors.values() if error and error.kind is Kind.TABLE_MISSING]
                    if missing:
                        raise missing[0]
            except HelenusError as error:
                self._note_scan_failure(name, connector, settings, error)
                continue
            except Exception as error:
                # A bug of ours that one connector meets must not stop the others.
                fault = HelenusError(Kind.BATCH_FAILED, f"{type(error).__name__}: {error}", name)
                self._note_scan_failure(name, connector, settings, fault)
                continue
            self._failures.pop(name, None)
            self._wait_reasons.forget(name)
            if connector.is_scanned is False and not errors:
                _log.warning("tables.none", connector=name, reason=no_tables(settings))
            former_errors = {task.table: str(task.error) for task in list(connector.tasks.values())}
            self._connectors.apply_scan(name, settings, errors)
            for task in list(connector.tasks.values()):
                if task.error is not None and str(task.error) != former_errors.get(task.table):
                    _log.error("task.failed", connector=name, table=task.table, error=str(task.error))

    @staticmethod
    def _next_scan_at(connector: Connector) -> float:
        """Return when to scan a connector's tables, monotonic s. A dropped one may exist again; one that a
        pattern matched is to leave the connector soon.
        """
        missing = {task.settings.table for task in list(connector.tasks.values()) if task.misses_table}
        if not missing:
            return connector.next_scan_at
        is_named = missing <= {*connector.settings.tables}
        pause_s = connector.settings.table_refresh_interval_ms / 1000 if is_named else _LEAVING_S
        return min(connector.next_scan_at, connector.last_scan_at + pause_s)

    def _note_scan_failure(
        self, name: str, connector: Connector, settings: ConnectorSettings, error: HelenusError
    ) -> None:
        with self._connectors.lock:
            if connector.settings is not settings:
                return  # it was changed meanwhile
            may_come = self._may_wait() and error.kind in _MAY_COME
            if not self._may_wait() or not (may_come or error.action is Action.RETRY):
                metrics.ERRORS.labels(error.kind.value).inc()
            if may_come or error.action is Action.RETRY:
                self._failures[name] = self._failures.get(name, 0) + 1
                longest_s = _FIRST_PAUSE_S if self._may_wait() else _LONGEST_PAUSE_S
                connector.trouble = error
                connector.next_scan_at = time.monotonic() + pause(self._failures[name], _FIRST_PAUSE_S, longest_s)
                if self._wait_reasons.is_due(name, str(error)):
                    _log.info("connector.waiting", connector=name, reason=str(error))
            else:
                self._failures.pop(name, None)
                self._wait_reasons.forget(name)
                connector.error = error
                _log.error("connector.failed", connector=name, error=str(error))
