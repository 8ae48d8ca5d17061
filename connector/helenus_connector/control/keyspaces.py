"""Files of several keyspaces: which connectors they stand for, one for each keyspace that has tables for them."""

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
    """A file of several keyspaces, as a connector without tables. `error` ended the looking for them."""

    failures: int = 0

    def of(self, keyspace: str) -> tuple[str, dict[str, str]]:
        """Name and properties of the connector of a keyspace."""
        name = name_of(self.settings, keyspace)
        return name, {**self.config, "name": name, "keyspace": keyspace}


def name_of(settings: ConnectorSettings, keyspace: str) -> str:
    """The name of the connector of one keyspace of several."""
    return f"{settings.name}-{keyspace}"


def each(settings: ConnectorSettings, tables: TableDefinitions) -> list[ConnectorSettings]:
    """The settings of each connector that these stand for. Raises HelenusError."""
    if not settings.has_keyspaces:
        return [settings]
    return [
        settings.model_copy(update={"name": name_of(settings, keyspace), "keyspace": keyspace})
        for keyspace in tables.keyspaces(settings)
    ]


class Keyspaces:
    """The files of several keyspaces among a worker's. One thread looks at a time."""

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

    def known(self, names: Iterable[str]) -> dict[str, dict[str, str]]:
        """Properties by name of those of the connectors with these names that come from files of several keyspaces."""
        found = {}
        for name in names:
            for file in self._files:
                keyspace = name.removeprefix(name_of(file.settings, ""))
                if keyspace != name and file.settings.matches_keyspace(keyspace):
                    found[name] = file.of(keyspace)[1]
        return found

    def look(self, tables: TableDefinitions, may_wait: bool) -> dict[str, dict[str, str]]:
        """Look at Cassandra for the files whose time has come: properties of their connectors by name."""
        found: dict[str, dict[str, str]] = {}
        for file in self._files:
            if time.time() < file.look_at:
                continue
            try:
                keyspaces = tables.keyspaces(file.settings)
            except HelenusError as error:
                if not may_wait or error.action is not Action.RETRY:
                    metrics.ERRORS.labels(error.kind.value).inc()
                if error.action is not Action.RETRY:
                    file.error, file.trouble, file.look_at = error, None, math.inf
                    _log.error("connector.failed", connector=file.settings.name, error=str(error))
                    continue
                file.failures += 1
                file.look_at = time.time() + pause(file.failures, _FIRST_PAUSE_S, _LONGEST_PAUSE_S)
                file.trouble = error
                if self._waiting.is_due(file.settings.name, str(error)):
                    _log.info("connector.waiting", connector=file.settings.name, reason=str(error))
                continue
            self._waiting.forget(file.settings.name)
            file.failures, file.trouble = 0, None
            file.look_at = time.time() + file.settings.table_refresh_interval_ms / 1000
            if not keyspaces and file.waiting is None:
                _log.warning("tables.none", connector=file.settings.name, reason=no_tables(file.settings))
            file.waiting = None if keyspaces else no_tables(file.settings)
            found |= dict(file.of(keyspace) for keyspace in keyspaces)
        return found

    def failure(self) -> HelenusError | None:
        """Why the keyspaces of no file can be found, if that is so."""
        errors = [file.error for file in self._files]
        return errors[0] if errors and all(errors) else None

    def without(self) -> dict[str, Connector]:
        """The files by name whose keyspaces can't be found, or that have none, as connectors without tables."""
        return {f.settings.name: f for f in self._files if f.error or f.trouble or f.waiting}
