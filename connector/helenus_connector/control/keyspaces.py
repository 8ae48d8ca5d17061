"""Files of several keyspaces: the connectors that they stand for, one for each keyspace that has tables for them."""

from __future__ import annotations

import math
import time
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

import structlog

from helenus_connector import metrics
from helenus_connector.config.connector import ConnectorSettings
from helenus_connector.config.model import Model
from helenus_connector.control.backoff import ReasonLog, pause
from helenus_connector.control.status import Connector, no_tables
from helenus_connector.control.tables import TableDefinitions
from helenus_schemas.errors import Action, HelenusError

_log = structlog.get_logger(__name__)
_FIRST_PAUSE_S = 1.0
_LONGEST_PAUSE_S = 30.0


@dataclass(eq=False)
class _File(Connector):
    """A file of several keyspaces, as a connector without tables. After `error` they are not searched for any more."""

    failures: int = 0

    def connector_for(self, keyspace: str) -> tuple[str, dict[str, str]]:
        """Return name and properties of the connector of a keyspace."""
        name = name_of(self.settings, keyspace)
        return name, {**self.config, "name": name, "keyspace": keyspace}


def name_of(settings: ConnectorSettings, keyspace: str) -> str:
    """Return the name of the connector of one keyspace of several."""
    return f"{settings.name}-{keyspace}"


def each(settings: ConnectorSettings, tables: TableDefinitions) -> list[ConnectorSettings]:
    """Return the settings of each connector that these stand for. Raises HelenusError."""
    if not settings.has_keyspaces:
        return [settings]
    return [
        settings.model_copy(update={"name": name_of(settings, keyspace), "keyspace": keyspace})
        for keyspace in tables.keyspaces(settings)
    ]


class Keyspaces:
    """The files of several keyspaces among a worker's. One thread searches at a time."""

    def __init__(self, model: Model, files: Mapping[str, Mapping[str, str]]) -> None:
        self.others: dict[str, Mapping[str, str]] = {}
        """The properties of the other files by name."""
        self._files: list[_File] = []
        self._waiting = ReasonLog()
        for name, properties in files.items():
            settings = model.read_settings(properties, name, properties)
            if settings.has_keyspaces:
                self._files.append(_File({**properties, "name": name}, settings))
            else:
                self.others[name] = properties

    def properties_of(self, names: Iterable[str]) -> dict[str, dict[str, str]]:
        """Return the properties by name of those of the named connectors that come from files of several keyspaces."""
        properties = {}
        for name in names:
            for file in self._files:
                keyspace = name.removeprefix(name_of(file.settings, ""))
                if keyspace != name and file.settings.matches_keyspace(keyspace):
                    properties[name] = file.connector_for(keyspace)[1]
        return properties

    def find_connectors(self, tables: TableDefinitions, may_wait: bool) -> dict[str, dict[str, str]]:
        """Ask Cassandra for the keyspaces of files whose time has come. Return the properties of their connectors by
        name.
        """
        connectors: dict[str, dict[str, str]] = {}
        for file in self._files:
            if time.monotonic() < file.next_scan_at:
                continue
            try:
                keyspaces = tables.keyspaces(file.settings)
            except HelenusError as error:
                if not may_wait or error.action is not Action.RETRY:
                    metrics.ERRORS.labels(error.kind.value).inc()
                if error.action is not Action.RETRY:
                    file.error, file.trouble, file.next_scan_at = error, None, math.inf
                    _log.error("connector.failed", connector=file.settings.name, error=str(error))
                    continue
                file.failures += 1
                file.next_scan_at = time.monotonic() + pause(file.failures, _FIRST_PAUSE_S, _LONGEST_PAUSE_S)
                file.trouble = error
                if self._waiting.is_due(file.settings.name, str(error)):
                    _log.info("connector.waiting", connector=file.settings.name, reason=str(error))
                continue
            self._waiting.forget(file.settings.name)
            file.failures, file.trouble = 0, None
            file.next_scan_at = time.monotonic() + file.settings.table_refresh_interval_ms / 1000
            if not keyspaces and file.waiting is None:
                _log.warning("tables.none", connector=file.settings.name, reason=no_tables(file.settings))
            file.waiting = None if keyspaces else no_tables(file.settings)
            connectors |= dict(file.connector_for(keyspace) for keyspace in keyspaces)
        return connectors

    def common_failure(self) -> HelenusError | None:
        """Return an error, if the keyspaces of no file can be found."""
        errors = [file.error for file in self._files]
        return errors[0] if errors and all(errors) else None

    def files_without_tables(self) -> dict[str, Connector]:
        """Return the files by name whose keyspaces can't be found, or that have none, as connectors without tables."""
        return {file.settings.name: file for file in self._files if file.error or file.trouble or file.waiting}
