"""The connectors of a worker: their configuration, their state, and what an operator may do with them.

A connector is a name, a configuration and a wanted state; it has one task for each of its tables. Nothing here talks to
Spark: a worker looks at `tasks`, and the batches note in a task how it fares.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import structlog

from helenus_connector.config.connector import ConnectorSettings
from helenus_connector.config.worker import WorkerSettings
from helenus_connector.control import _connector_file
from helenus_connector.control.conflict import conflict, matching
from helenus_connector.control.positions import HeldPositions
from helenus_connector.control.status import Connector, ConnectorStatus, Task, Wanted, no_tables
from helenus_connector.gate.waiting import WaitingChanges
from helenus_connector.log.events import Offsets
from helenus_connector.unconfirmed.keys import UnconfirmedKeys
from helenus_schemas.errors import HelenusError, Kind
from helenus_schemas.settings.properties import ConfigError, Problem

_log = structlog.get_logger(__name__)
_LAST_BATCH_S = 30.0
_TURN_S = 0.2
DELETED = "DELETED"
"""Stands for a connector from a file that was deleted over REST: the same file does not bring it back."""


class UnknownConnector(Exception):
    """There is no connector, or no task of one, with this name."""

    def __init__(self, name: str, task: int | None = None) -> None:
        super().__init__(name if task is None else f"{name}-{task}")
        self.name = name
        self.task = task


class NotStopped(Exception):
    """The positions of a connector can be changed only while it is stopped."""


class UnderWay(HelenusError):
    """What is asked for is being done for the same table: wait for that, or stop it."""

    def __init__(self, what: str, where: str) -> None:
        super().__init__(Kind.CONFIG, what, where, "wait for it, or stop it")


class Connectors:
    """All connectors of a worker; kept in `store`, a file. Its methods may be called from any thread, and no call waits
    once the worker is `ending`. `on_delete` is called with the name of a connector that was deleted. `files` gives what
    is `shown` beside them.

    `earliest` gives the first offsets of topics. Methods that take a name raise Unknown.
    """

    def __init__(self, worker: WorkerSettings, earliest: Callable[[Sequence[str]], Offsets]) -> None:
        self._directory = worker.checkpoint_dir.absolute()
        self._store = self._directory / "connectors.json"
        self.earliest = earliest
        self.model = worker.model
        self.log = worker.log
        self._connectors: dict[str, Connector] = {}
        self._aside: dict[str, dict[str, Any]] = {}
        self._held: dict[str, HeldPositions] = {}
        self._unconfirmed: dict[str, UnconfirmedKeys] = {}
        self._waiting: dict[str, WaitingChanges] = {}
        self._written: dict[str, set[str]] = {}
        self.lock = threading.RLock()
        self._batch_ended = threading.Condition(self.lock)
        self.changed = threading.Event()
        self.on_delete: Callable[[str], None] | None = None
        self.files: Callable[[], Mapping[str, Connector]] = dict
        self.ending = False

    def load(self, files: Mapping[str, Mapping[str, str]]) -> None:
        """Load the connectors that an earlier worker saved, and the properties of files by name.

        A file replaces the saved configuration, unless it is the same as when its connector was changed over REST.
        """
        kept = _connector_file.read(self._store)
        self._aside = {name: before for name, before in kept.items() if before["file"] is None or name in files}
        for name, properties in files.items():
            before = kept.pop(name, None)
            group = before["config"].get("query.group", "default") if before is not None else None
            same = before is not None and before["file"] == properties
            if before is not None and same and before["state"] == DELETED:
                advice = "change its file, or make it over REST, to have it again"
                _log.warning("connector.deleted", connector=name, reason="it was deleted over REST", advice=advice)
                continue
            if before is not None and same:
                try:
                    self.put(name, before["config"], before["state"], dict(properties), saves=False)
                    continue
                except ConfigError as error:
                    # Accepted by an older version, or by a worker that allowed more: the file counts again.
                    _log.error("connector.invalid", connector=name, error=str(error))
            state = before["state"] if before is not None and before["state"] != DELETED else None
            self.put(name, properties, state, dict(properties), group, saves=False)
        for name, before in kept.items():
            if before["file"] is not None:
                continue
            try:
                self.put(name, before["config"], before["state"], saves=False)
            except ConfigError as error:
                # Accepted by an older version: it is kept until it gets another configuration.
                _log.error("connector.invalid", connector=name, error=str(error))
        if self._connectors:
            self._save()

    def saved(self) -> list[str]:
        """The names of the connectors that an earlier worker saved. Raises HelenusError(STATE)."""
        return list(_connector_file.read(self._store))

    def join(self, files: Mapping[str, Mapping[str, str]]) -> None:
        """Add the connectors of files by name that are not there yet, and were not deleted over REST."""
        for name, properties in files.items():
            with self.lock:
                if name in self._connectors or name in self._aside:
                    continue
                try:
                    self.put(name, properties, file=dict(properties))
                except ConfigError as error:  # another connector has its topic
                    _log.error("connector.invalid", connector=name, error=str(error))

    def names(self) -> list[str]:
        with self.lock:
            return sorted(self._connectors)

    def all(self) -> dict[str, Connector]:
        """The connectors by name: for the worker, which looks at their tables."""
        with self.lock:
            return dict(self._connectors)

    def shown(self) -> dict[str, Connector]:
        """The same, and by their names the files of several keyspaces that wait or failed."""
        with self.lock:
            return {**self.files(), **self._connectors}

    def config(self, name: str) -> dict[str, str]:
        """The configuration as it was given: `${…}` is not resolved."""
        with self.lock:
            return dict(self._shown(name).config)

    def file(self, name: str) -> dict[str, str]:
        """The properties of the file that a connector comes from; none if it comes over REST, or there is none."""
        with self.lock:
            there = self._connectors.get(name)
            return dict(there.file or {}) if there else {}

    def put(
        self,
        name: str,
        config: Mapping[str, str],
        state: Wanted | None = None,
        file: dict[str, str] | None = None,
        group: str | None = None,
        saves: bool = True,
    ) -> bool:
        """Make a connector, or give it another configuration; returns whether it is new. Raises ConfigError.

        `group` is its `query.group` until now, if the connector is new here. A connector that changes its group keeps
        its positions; it has to be stopped, and its last batch is waited for. Only properties that its `file` has as
        well may refer to secrets that the worker does not allow to all. If it is not to be saved, the caller does so.
        """
        settings = self.model.read_settings({**config, "name": name}, name, file or self.file(name))
        if settings.has_keyspaces:
            reason = "name one keyspace: only a worker's file may have a pattern"
            raise ConfigError([Problem(name, "keyspace", settings.keyspace, reason)])
        config = {"connector.class": settings.connector_class, **config, "name": name}
        with self.lock:
            self._let_end(name, settings)
            there = self._connectors.get(name)
            connector = there or Connector({}, settings, file=file or self._aside.get(name, {}).get("file"))
            tables = dict.fromkeys([*settings.tables, *(t for t in _allowed(connector) if settings.matches(t))])
            for table in tables:
                self._refuse_conflict(settings.of_table(table))
            before = there.settings.query_group if there else group or settings.query_group
            topics: set[str] = set()
            if before != settings.query_group:
                topics = {settings.of_table(table).events for table in [*tables, *_allowed(connector)]}
                # While the tables of a pattern are not known, another connector may have some: those stay there.
                known = topics | {task.events for c in self._connectors.values() for task in c.tasks.values()}
                unknown = matching(settings, self.held(before).where()) - known
                self._take_along(name, topics | unknown, before, settings.query_group)
            connector.config, connector.settings = config, settings
            connector.wanted = state or connector.wanted
            connector.error = connector.trouble = connector.waiting = None
            connector.look_at, connector.looked = 0.0, False
            of_before, connector.tasks = connector.tasks, {}
            for table in tables:
                self._add(connector, table, of_before.get(table))
            self._connectors[name] = connector
            self._aside.pop(name, None)
            if saves or topics:
                self._save()
            if topics:
                self.unconfirmed(before).drop(topics, time.time())
                self.waiting(before).drop(topics)
            return there is None

    def _let_end(self, name: str, settings: ConnectorSettings) -> None:
        """Wait for the last batch of a connector that is to change its group. Raises ConfigError."""

        def moving() -> Connector | None:
            there = self._connectors.get(name)
            return there if there is not None and there.settings.query_group != settings.query_group else None

        def has_ended() -> bool:
            of = moving()
            data = {task.data for task in of.tasks.values()} if of else set()
            return of is None or of.wanted != "STOPPED" or not data & self._written.get(of.settings.query_group, set())

        why = None
        for _ in range(int(_LAST_BATCH_S / _TURN_S)):
            if has_ended() or self.ending:
                break
            self._batch_ended.wait(_TURN_S)
        if not has_ended():
            why = "its last batch has not ended yet: try again"
        elif (there := moving()) and there.wanted != "STOPPED":
            why = "stop the connector before it changes its group: its last batch is to end first"
        if why is not None:
            raise ConfigError([Problem(name, "query.group", settings.query_group, why)])

    def _take_along(self, name: str, topics: set[str], before: str, group: str) -> None:
        """Hand topics to another group: their positions, unconfirmed keys and waiting changes, and the time from which
        a start steps back. Until the new configuration is saved, the former group has all of it, too.
        """
        stood = self.held(before).where()
        self.unconfirmed(group).take(*self.unconfirmed(before).give(topics), time.time())
        self.waiting(group).import_changes(self.waiting(before).export_changes(topics))
        for topic in topics:
            if own := self.held(before).owners.position_of(name, topic, stood):
                self.held(group).move(topic, own, name)

    def delete(self, name: str) -> None:
        """Delete a connector. Its positions stay, for a later one of its name."""
        with self.lock:
            connector = self.get(name)
            del self._connectors[name]
            if connector.file is not None:
                self._aside[name] = {"config": connector.config, "state": DELETED, "file": connector.file}
            self._save()
            if self.on_delete is not None:
                self.on_delete(name)

    def want(self, name: str, state: Wanted) -> None:
        """Pause, stop or resume a connector."""
        with self.lock:
            self.get(name).wanted = state
            self._save()

    def restart(
        self, name: str, task: int | None = None, include_tasks: bool = True, only_failed: bool = False
    ) -> None:
        """Try again what failed: one task, or the connector or file and, if wanted, its tasks."""
        with self.lock:
            connector = self._shown(name)
            if task is not None:
                self._restart(self._task(name, task))
            else:
                if connector.error is not None or not only_failed:
                    connector.error = connector.trouble = None
                    connector.look_at, connector.restarted = 0.0, True
                for of_table in connector.tasks.values() if include_tasks else ():
                    if of_table.error is not None or not only_failed:
                        self._restart(of_table)
            self._save()

    def status(self, name: str) -> ConnectorStatus:
        with self.lock:
            return self._shown(name).status()

    def tasks(self, name: str) -> list[dict[str, str]]:
        """The configuration of each task: the connector's, with one table. Empty while it is stopped."""
        with self.lock:
            connector = self.get(name)
            tables = [] if connector.wanted == "STOPPED" else list(connector.tasks)
            return [{**connector.config, "table": table} for table in tables]

    def topics(self, name: str) -> list[str]:
        """The data topics of tables whose changes are published, since the connector was made or `reset_topics`."""
        with self.lock:
            connector = self.get(name)
            used = [task.data for task in connector.tasks.values() if task.ready]
            return [topic for topic in used if topic not in connector.forgotten]

    def reset_topics(self, name: str) -> None:
        with self.lock:
            connector = self.get(name)
            connector.forgotten.update(self.topics(name))

    def held(self, group: str) -> HeldPositions:
        """The positions of a query, by its `query.group`. Raises HelenusError(STATE)."""
        with self.lock:
            if group not in self._held:
                self._held[group] = HeldPositions(self._directory / group)
            return self._held[group]

    def at(self, task: Task) -> dict[str, int]:
        """Where a task is in its events topic: the next offset of each partition. Raises HelenusError(STATE)."""
        return self.held(task.settings.query_group).where().get(task.events, {})

    def unconfirmed(self, group: str) -> UnconfirmedKeys:
        """The unconfirmed keys of a query, by its `query.group`. Raises HelenusError(STATE)."""
        with self.lock:
            if group not in self._unconfirmed:
                keys = UnconfirmedKeys({}, {}, self._directory / group / "unconfirmed", time.monotonic)
                keys.load(time.time())
                self._unconfirmed[group] = keys
            return self._unconfirmed[group]

    def waiting(self, group: str) -> WaitingChanges:
        """What waits at the gates of a query, by its `query.group`. Raises HelenusError(STATE)."""
        with self.lock:
            if group not in self._waiting:
                changes = WaitingChanges(self._directory / group / "gate.waiting")
                if not changes.load():
                    self.unconfirmed(group).read_all_again(time.time())
                self._waiting[group] = changes
            return self._waiting[group]

    def writes(self, group: str, data: Iterable[str]) -> None:
        """A group's tasks may write these data topics, until the next call for the group."""
        with self.lock:
            self._written[group] = set(data)
            self._batch_ended.notify_all()

    def failed(self, group: str, error: HelenusError) -> None:
        """The query of a group can't run: its connectors fail, until they are started again."""
        with self.lock:
            for name, connector in self._connectors.items():
                if connector.settings.query_group == group and connector.error is None:
                    connector.error = error
                    _log.error("connector.failed", connector=name, error=str(error))

    def looked(self, name: str, settings: ConnectorSettings, found: Mapping[str, HelenusError | None]) -> None:
        """Apply the result of a table scan: each table that the connector has now, with its error."""
        with self.lock:
            connector = self._connectors.get(name)
            if connector is None or connector.settings is not settings:
                return  # it was changed meanwhile
            connector.trouble = None
            connector.looked = True
            for table, error in found.items():
                if table not in connector.tasks:
                    self._add(connector, table)
                    self._restart(connector.tasks[table])
                connector.tasks[table].looked(error, time.time())
            connector.remove_absent(found, time.time())
            connector.waiting = None if connector.tasks else no_tables(settings)
            self.changed.set()

    def hindered(self, group: str, reason: HelenusError | str | None, idle: bool = False) -> None:
        """Why the query of a group makes no batches just now, or None. It is `idle` if it has done none since its last
        start.
        """
        for connector in self.all().values():
            if connector.settings.query_group == group:
                connector.hindered, connector.idle = reason, idle

    def running(self, group: str, now: float) -> dict[str, Task]:
        """The tasks of a group that take part in its next batch, by events topic. Those whose data topic another group
        may still write are left out, and their status says so.
        """
        with self.lock:
            others = {topic: other for other, topics in self._written.items() if other != group for topic in topics}
            tasks = [
                task
                for connector in self._connectors.values()
                if connector.wanted == "RUNNING" and not connector.error and connector.settings.query_group == group
                for task in connector.tasks.values()
            ]
            for task in tasks:
                task.held_back_by = others.get(task.data)
            return {
                task.events: task
                for task in tasks
                if task.ready and not task.error and task.retry_at <= now and task.held_back_by is None
            }

    def trouble(self) -> str | None:
        """What goes wrong with any connector that is to run, or None."""
        with self.lock:
            obstacles = ((name, c.status().obstacle) for name, c in self.shown().items() if c.wanted == "RUNNING")
            return next((f"{name}: {reason}" for name, reason in obstacles if reason is not None), None)

    def get(self, name: str) -> Connector:
        """A connector as it is now; the caller has `lock`."""
        if name not in self._connectors:
            raise UnknownConnector(name)
        return self._connectors[name]

    def _shown(self, name: str) -> Connector:
        """As `get`, of those that are shown."""
        return self._connectors.get(name) or self.files().get(name) or self.get(name)

    def _task(self, name: str, task: int) -> Task:
        for of_table in self.get(name).tasks.values():
            if of_table.id == task:
                return of_table
        raise UnknownConnector(name, task)

    def stopped(self, name: str) -> Connector:
        """A connector that is stopped. Raises NotStopped."""
        connector = self.get(name)
        if connector.wanted != "STOPPED":
            raise NotStopped(name)
        return connector

    @staticmethod
    def _add(connector: Connector, table: str, before: Task | None = None) -> None:
        free = max((t.id for t in connector.tasks.values()), default=-1) + 1
        settings = connector.settings.of_table(table)
        connector.tasks[table] = Task(free if before is None else before.id, settings)

    def _restart(self, task: Task) -> None:
        """Try a task again, unless it conflicts with another connector's table."""
        try:
            self._refuse_conflict(task.settings)
            task.restart()
        except ConfigError as error:
            task.error, task.refused = error, True

    def _refuse_conflict(self, settings: ConnectorSettings) -> None:
        """Raise ConfigError if a table of another connector conflicts with this one."""
        others = [c for name, c in self._connectors.items() if name != settings.name]
        data, events = settings.data, settings.events
        for other in (task.settings for c in others for task in c.tasks.values() if not task.refused):
            is_near = other.data == data or other.events == events  # of hundreds, hardly any
            if is_near and (problem := conflict(settings, other)):
                raise ConfigError([problem])

    def _save(self) -> None:
        kept = {n: {"config": c.config, "state": c.wanted, "file": c.file} for n, c in self._connectors.items()}
        _connector_file.save(self._store, {**self._aside, **kept})
        self.changed.set()


def _allowed(connector: Connector) -> list[str]:
    """The tables of a connector that conflict with no other connector's."""
    return [table for table, task in connector.tasks.items() if not task.refused]
