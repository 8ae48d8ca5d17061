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
from helenus_connector.control._refusals import NotStopped as NotStopped
from helenus_connector.control._refusals import UnderWay as UnderWay
from helenus_connector.control._refusals import UnknownConnector as UnknownConnector
from helenus_connector.control.conflict import conflict, matching
from helenus_connector.control.documents import ConnectorFile, Document
from helenus_connector.control.positions import BrokerPositions, HeldPositions
from helenus_connector.control.status import Connector, ConnectorStatus, Task, Wanted, no_tables
from helenus_connector.gate.waiting import WaitingChanges
from helenus_connector.log.events import Offsets
from helenus_connector.unconfirmed.keys import UnconfirmedKeys
from helenus_schemas.errors import HelenusError
from helenus_schemas.settings.properties import ConfigError, Problem

_log = structlog.get_logger(__name__)
_LAST_BATCH_S = 30.0
_TURN_S = 0.2
DELETED = "DELETED"
"""Stands for a connector from a file that was deleted over REST: the same file does not bring it back."""


class Connectors:
    """All connectors of a worker, saved in `document`, a file by default. Its methods may be called from any thread,
    and no call waits once the worker is `ending`. Methods that take a name raise UnknownConnector. `on_delete` is
    called with the name of a deleted connector. `files` returns what `all_with_files` adds, `earliest` topics' first
    offsets; `set_aside` is saved of connectors that are not there; `broker_positions` are with the brokers, `term`
    names a leader's time.
    """

    def __init__(self, worker: WorkerSettings, earliest: Callable[[Sequence[str]], Offsets]) -> None:
        self._directory = worker.checkpoint_dir.absolute()
        self.document: Document = ConnectorFile(self._directory)
        self.earliest = earliest
        self.model = worker.model
        self.log = worker.log
        self._connectors: dict[str, Connector] = {}
        self.set_aside: dict[str, dict[str, Any]] = {}
        self._held_positions: dict[str, HeldPositions] = {}
        self._unconfirmed: dict[str, UnconfirmedKeys] = {}
        self._waiting: dict[str, WaitingChanges] = {}
        self._written_topics: dict[str, set[str]] = {}
        self.lock = threading.RLock()
        self._batch_ended = threading.Condition(self.lock)
        self.changed = threading.Event()
        self.on_delete: Callable[[str], None] | None = None
        self.broker_positions: BrokerPositions | None = None
        self.term = ""
        self.files: Callable[[], Mapping[str, Connector]] = dict
        self.ending = False

    def load(
        self, files: Mapping[str, Mapping[str, str]], sources: Mapping[str, Mapping[str, str]] | None = None
    ) -> None:
        """Load the connectors that an earlier worker saved, and the properties of files by name, and those of data
        sources, which stand for a file each. Raises ConfigError for a file.

        A file replaces the saved configuration, unless it is the same as when its connector was changed over REST.
        """
        saved = dict(self.document.read())
        sources = sources or {}
        kept_names = {*files, *sources}
        self.set_aside = {
            name: former for name, former in saved.items() if former["file"] is None or name in kept_names
        }
        for name, properties in files.items():
            self._load_file(name, properties, saved.pop(name, None))
        for name, properties in sources.items():
            try:
                self._load_file(name, properties, saved.pop(name, None))
            except ConfigError as error:
                _log.error("connector.invalid", connector=name, error=str(error))
        for name, former in ((name, former) for name, former in saved.items() if former["file"] is None):
            try:
                self.put(name, former["config"], former["state"], saves=False)
            except ConfigError as error:
                # Accepted by an older version: it is kept until it gets another configuration.
                _log.error("connector.invalid", connector=name, error=str(error))
        if self._connectors:
            self.save()

    def _load_file(self, name: str, properties: Mapping[str, str], former: Mapping[str, Any] | None) -> None:
        group = former["config"].get("query.group", "default") if former is not None else None
        same = former is not None and former["file"] == properties
        if former is not None and same and former["state"] == DELETED:
            advice = "change its file, or make it over REST, to have it again"
            _log.warning("connector.deleted", connector=name, reason="it was deleted over REST", advice=advice)
            return
        if former is not None and same:
            try:
                self.put(name, former["config"], former["state"], dict(properties), saves=False)
                return
            except ConfigError as error:
                # Accepted by an older version, or by a worker that allowed more: the file counts again.
                _log.error("connector.invalid", connector=name, error=str(error))
        state = former["state"] if former is not None and former["state"] != DELETED else None
        self.put(name, properties, state, dict(properties), group, saves=False)

    def add_from_files(self, files: Mapping[str, Mapping[str, str]]) -> None:
        """Add the connectors of files by name that are not there yet, and were not deleted over REST."""
        for name, properties in files.items():
            with self.lock:
                if name in self._connectors or name in self.set_aside:
                    continue
                try:
                    self.put(name, properties, file=dict(properties))
                except ConfigError as error:  # another connector has its topic
                    _log.error("connector.invalid", connector=name, error=str(error))

    def names(self) -> list[str]:
        with self.lock:
            return sorted(self._connectors)

    def all(self) -> dict[str, Connector]:
        """Return the connectors by name: for the worker, which scans their tables."""
        with self.lock:
            return dict(self._connectors)

    def all_with_files(self) -> dict[str, Connector]:
        """Return the connectors by name, and with them the files of several keyspaces that wait or failed."""
        with self.lock:
            return {**self.files(), **self._connectors}

    def config(self, name: str) -> dict[str, str]:
        """Return a connector's configuration as it was given: `${…}` is not resolved."""
        with self.lock:
            return dict(self._get_with_files(name).config)

    def file(self, name: str) -> dict[str, str]:
        """Return the properties of the file that a connector comes from; none if it has no file."""
        with self.lock:
            connector = self._connectors.get(name)
            return dict(connector.file or {}) if connector else {}

    def put(
        self,
        name: str,
        config: Mapping[str, str],
        state: Wanted | None = None,
        file: dict[str, str] | None = None,
        group: str | None = None,
        saves: bool = True,
    ) -> bool:
        """Create a connector, or give it another configuration; returns whether it is new. Raises ConfigError.

        `group` is its `query.group` until now, if the connector is new here. A connector that changes its group keeps
        its positions; it has to be stopped, and its last batch is waited for. Only properties that its `file` has as
        well may refer to secrets that the worker does not allow to all. With `saves` false, the caller saves.
        """
        settings = self.model.read_settings({**config, "name": name}, name, file or self.file(name))
        if settings.has_keyspaces:
            reason = "name one keyspace: only a worker's file may have a pattern"
            raise ConfigError([Problem(name, "keyspace", settings.keyspace, reason)])
        config = {"connector.class": settings.connector_class, **config, "name": name}
        with self.lock:
            self._await_last_batch(name, settings)
            existing = self._connectors.get(name)
            connector = existing or Connector({}, settings, file=file or self.set_aside.get(name, {}).get("file"))
            tables = dict.fromkeys([*settings.tables, *(t for t in _allowed(connector) if settings.matches(t))])
            for table in tables:
                self._refuse_conflict(settings.of_table(table))
            former_group = existing.settings.query_group if existing else group or settings.query_group
            moved_topics: set[str] = set()
            if former_group != settings.query_group:
                moved_topics = {settings.of_table(table).events for table in [*tables, *_allowed(connector)]}
                # While the tables of a pattern are not known, another connector may have some: those stay there.
                assigned = moved_topics | {task.events for c in self._connectors.values() for task in c.tasks.values()}
                other = matching(settings, self.held_positions(former_group).read_offsets()) - assigned
                self._move_topics(name, moved_topics | other, former_group, settings.query_group)
            connector.config, connector.settings = config, settings
            connector.wanted = state or connector.wanted
            connector.error = connector.trouble = connector.waiting = None
            connector.next_scan_at, connector.is_scanned = 0.0, False
            former_tasks, connector.tasks = connector.tasks, {}
            for table in tables:
                self._add_task(connector, table, former_tasks.get(table))
            self._connectors[name] = connector
            self.set_aside.pop(name, None)
            if saves or moved_topics:
                self.save()
            if moved_topics:
                self.unconfirmed_keys(former_group).drop(moved_topics, time.time())
                self.waiting_changes(former_group).drop(moved_topics)
            return existing is None

    def _await_last_batch(self, name: str, settings: ConnectorSettings) -> None:
        """Wait for the last batch of a connector that is to change its group. Raises ConfigError."""

        def moving() -> Connector | None:
            connector = self._connectors.get(name)
            is_moving = connector is not None and connector.settings.query_group != settings.query_group
            return connector if is_moving else None

        def has_ended() -> bool:
            connector = moving()
            if connector is None or connector.wanted != "STOPPED":
                return True
            return not self.topics_in_batch(connector)

        reason = None
        for _ in range(int(_LAST_BATCH_S / _TURN_S)):
            if has_ended() or self.ending:
                break
            self._batch_ended.wait(_TURN_S)
        if not has_ended():
            reason = "its last batch has not ended yet: try again"
        elif (connector := moving()) and connector.wanted != "STOPPED":
            reason = "stop the connector before it changes its group: its last batch is to end first"
        if reason is not None:
            raise ConfigError([Problem(name, "query.group", settings.query_group, reason)])

    def topics_in_batch(self, connector: Connector) -> set[str]:
        """Return the data topics that tasks of a connector may write just now; the caller has `lock`."""
        written = self._written_topics.get(connector.settings.query_group, set())
        return written.intersection(task.data for task in connector.tasks.values())

    def _move_topics(self, name: str, topics: set[str], former_group: str, group: str) -> None:
        """Move topics to another group: their positions, unconfirmed keys and waiting changes, and the time from which
        a start steps back. Until the new configuration is saved, the former group has all of it, too.
        """
        offsets = self.held_positions(former_group).read_offsets()
        self.unconfirmed_keys(group).take(*self.unconfirmed_keys(former_group).give(topics), time.time())
        self.waiting_changes(group).import_changes(self.waiting_changes(former_group).export_changes(topics))
        for topic in topics:
            if own_offsets := self.held_positions(former_group).owners.position_of(name, topic, offsets):
                self.held_positions(group).move(topic, own_offsets, name)

    def delete(self, name: str) -> None:
        """Delete a connector. Its positions stay, for a later one of its name."""
        with self.lock:
            connector = self.get(name)
            del self._connectors[name]
            if connector.file is not None:
                self.set_aside[name] = {"config": connector.config, "state": DELETED, "file": connector.file}
            self.save()
            if self.on_delete is not None:
                self.on_delete(name)

    def set_wanted(self, name: str, state: Wanted) -> None:
        """Pause, stop or resume a connector."""
        with self.lock:
            self.get(name).wanted = state
            self.save()

    def restart(
        self, name: str, task: int | None = None, include_tasks: bool = True, only_failed: bool = False
    ) -> None:
        """Retry what failed: one task, or the connector or file and, if wanted, its tasks."""
        with self.lock:
            connector = self._get_with_files(name)
            if task is not None:
                self._restart_task(self._task(name, task))
            else:
                if connector.error is not None or not only_failed:
                    connector.error = connector.trouble = None
                    connector.next_scan_at, connector.restarted = 0.0, True
                for table_task in connector.tasks.values() if include_tasks else ():
                    if table_task.error is not None or not only_failed:
                        self._restart_task(table_task)
            self.save()

    def status(self, name: str) -> ConnectorStatus:
        with self.lock:
            return self._get_with_files(name).status()

    def tasks(self, name: str) -> list[dict[str, str]]:
        """Return the configuration of each task: the connector's, with one table. Empty while it is stopped."""
        with self.lock:
            connector = self.get(name)
            tables = [] if connector.wanted == "STOPPED" else list(connector.tasks)
            return [{**connector.config, "table": table} for table in tables]

    def topics(self, name: str) -> list[str]:
        """Return the data topics of tables whose changes were published since the last `reset_topics`."""
        with self.lock:
            connector = self.get(name)
            used = [task.data for task in connector.tasks.values() if task.ready]
            return [topic for topic in used if topic not in connector.reset_data_topics]

    def reset_topics(self, name: str) -> None:
        with self.lock:
            connector = self.get(name)
            connector.reset_data_topics.update(self.topics(name))

    def held_positions(self, group: str) -> HeldPositions:
        """Return the held positions of a query, by its `query.group`. Raises HelenusError(STATE)."""
        with self.lock:
            if group not in self._held_positions:
                self._held_positions[group] = HeldPositions(self._directory / group)
            return self._held_positions[group]

    def offsets_of_task(self, task: Task) -> dict[str, int]:
        """Return the next offset of each partition of a task's events topic. Raises HelenusError(STATE)."""
        return self.held_positions(task.settings.query_group).read_offsets().get(task.events, {})

    def unconfirmed_keys(self, group: str) -> UnconfirmedKeys:
        """Return the unconfirmed keys of a query, by its `query.group`. Raises HelenusError(STATE)."""
        with self.lock:
            if group not in self._unconfirmed:
                keys = UnconfirmedKeys({}, {}, self._directory / group / "unconfirmed", time.monotonic)
                keys.load(time.time())
                self._unconfirmed[group] = keys
            return self._unconfirmed[group]

    def waiting_changes(self, group: str) -> WaitingChanges:
        """Return the changes that wait at the gates of a query, by its `query.group`. Raises HelenusError(STATE)."""
        with self.lock:
            if group not in self._waiting:
                changes = WaitingChanges(self._directory / group / "gate.waiting")
                if not changes.load():
                    self.unconfirmed_keys(group).read_all_again(time.time())
                self._waiting[group] = changes
            return self._waiting[group]

    def note_written_topics(self, group: str, data: Iterable[str]) -> None:
        """Note the data topics that a group's tasks may write, until the next call for the group."""
        with self.lock:
            self._written_topics[group] = set(data)
            self._batch_ended.notify_all()

    def fail_group(self, group: str, error: HelenusError) -> None:
        """Fail the connectors of a group whose query can't run, until they are restarted."""
        with self.lock:
            for name, connector in self._connectors.items():
                if connector.settings.query_group == group and connector.error is None:
                    connector.error = error
                    _log.error("connector.failed", connector=name, error=str(error))

    def apply_scan(self, name: str, settings: ConnectorSettings, errors: Mapping[str, HelenusError | None]) -> None:
        """Apply the result of a table scan: each table that the connector has now, with its error."""
        with self.lock:
            connector = self._connectors.get(name)
            if connector is None or connector.settings is not settings:
                return  # it was changed meanwhile
            connector.trouble = None
            connector.is_scanned = True
            for table, error in errors.items():
                if table not in connector.tasks:
                    self._add_task(connector, table)
                    self._restart_task(connector.tasks[table])
                connector.tasks[table].apply_table_check(error, time.monotonic())
            connector.remove_absent(errors, time.monotonic())
            connector.waiting = None if connector.tasks else no_tables(settings)
            self.changed.set()

    def note_hindrance(self, group: str, reason: HelenusError | str | None, idle: bool = False) -> None:
        """Note why a group's query runs no batches just now, or None; and if it is `idle` since its last start."""
        for connector in self.all().values():
            if connector.settings.query_group == group:
                connector.hindered, connector.idle = reason, idle

    def running_tasks(self, group: str, now: float) -> dict[str, Task]:
        """Return the tasks in a group's next batch, by events topic; those whose data topic another group may write
        wait.
        """
        with self.lock:
            others = {topic: g for g, topics in self._written_topics.items() if g != group for topic in topics}
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

    def first_obstacle(self) -> str | None:
        """Return what hinders the first hindered connector that is to run, or None."""
        with self.lock:
            running = ((name, c) for name, c in self.all_with_files().items() if c.wanted == "RUNNING")
            obstacles = ((name, c.status().obstacle) for name, c in running)
            return next((f"{name}: {reason}" for name, reason in obstacles if reason is not None), None)

    def get(self, name: str) -> Connector:
        """Return a connector; the caller has `lock`."""
        if name not in self._connectors:
            raise UnknownConnector(name)
        return self._connectors[name]

    def _get_with_files(self, name: str) -> Connector:
        """Return a connector, or a file of several keyspaces that waits or failed."""
        return self._connectors.get(name) or self.files().get(name) or self.get(name)

    def _task(self, name: str, task: int) -> Task:
        for table_task in self.get(name).tasks.values():
            if table_task.id == task:
                return table_task
        raise UnknownConnector(name, task)

    def get_stopped(self, name: str) -> Connector:
        """Return a connector that is stopped. Raises NotStopped."""
        connector = self.get(name)
        if connector.wanted != "STOPPED":
            raise NotStopped(name)
        return connector

    @staticmethod
    def _add_task(connector: Connector, table: str, former: Task | None = None) -> None:
        free_id = max((t.id for t in connector.tasks.values()), default=-1) + 1
        settings = connector.settings.of_table(table)
        connector.tasks[table] = Task(free_id if former is None else former.id, settings)

    def _restart_task(self, task: Task) -> None:
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

    def save(self) -> None:
        """Save all connectors. Raises HelenusError as `document` does."""
        saved = {n: {"config": c.config, "state": c.wanted, "file": c.file} for n, c in self._connectors.items()}
        self.document.save({**self.set_aside, **saved})
        self.changed.set()


def _allowed(connector: Connector) -> list[str]:
    """Return the tables of a connector that conflict with no other connector's."""
    return [table for table, task in connector.tasks.items() if not task.refused]
