"""The connectors of a worker: what they are to do, what became of it, and what an operator may do with them.

A connector is a name, a configuration and a wanted state; it has one task for each of its tables. Nothing here talks to
Spark: a worker looks at `tasks`, and the batches tell a task how it fares.
"""

from __future__ import annotations

import json
import os
import threading
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import structlog

from helenus_connector.config import ConnectorSettings, WorkerSettings
from helenus_connector.positions import Held, Offsets, adopt
from helenus_connector.states import Connector, Status, Task, Wanted
from helenus_schemas.config import ConfigError, Problem
from helenus_schemas.errors import HelenusError, Kind

_log = structlog.get_logger(__name__)


class Unknown(Exception):
    """There is no connector, or no task of one, with this name."""

    def __init__(self, name: str, task: int | None = None) -> None:
        super().__init__(name if task is None else f"{name}-{task}")
        self.name = name
        self.task = task


class NotStopped(Exception):
    """The positions of a connector can be changed only while it is stopped."""


class Connectors:
    """All connectors of a worker; kept in `store`, a file. Its methods may be called from any thread.

    `earliest` gives the first offsets of topics. Methods that take a name raise Unknown.
    """

    def __init__(self, worker: WorkerSettings, earliest: Callable[[Sequence[str]], Offsets]) -> None:
        self._directory = worker.checkpoint_dir.absolute()
        self._store = self._directory / "connectors.json"
        self._earliest = earliest
        self.model = worker.model
        self._log = worker.log
        self._connectors: dict[str, Connector] = {}
        self._aside: dict[str, dict[str, Any]] = {}
        self._held: dict[str, Held] = {}
        self.lock = threading.RLock()
        self.changed = threading.Event()

    def load(self, files: Mapping[str, Mapping[str, str]]) -> None:
        """Take over what an earlier worker kept, and the properties of files by name.

        A file goes before what was kept, unless it says the same as when its connector was changed over REST.
        """
        adopt(self._directory, self._directory / "default")
        kept = self._read()
        for name, properties in files.items():
            before = kept.pop(name, None)
            if before is not None and before["file"] == properties:
                try:
                    self.put(name, before["config"], before["state"], dict(properties))
                    continue
                except ConfigError as error:
                    # What an older version took, or a worker that allowed more: the file counts again.
                    _log.error("connector.invalid", connector=name, error=str(error))
            self.put(name, properties, before["state"] if before else None, dict(properties))
            if before is not None:
                self._follow(name, before["config"].get("query.group", "default"))
        self._aside = {name: before for name, before in kept.items() if before["file"] is None}
        for name, before in list(self._aside.items()):
            try:
                self.put(name, before["config"], before["state"])
            except ConfigError as error:
                # What an older version took: it is kept, until somebody gives it another configuration.
                _log.error("connector.invalid", connector=name, error=str(error))

    def names(self) -> list[str]:
        with self.lock:
            return sorted(self._connectors)

    def all(self) -> dict[str, Connector]:
        """The connectors by name: for the worker, which looks at their tables."""
        with self.lock:
            return dict(self._connectors)

    def config(self, name: str) -> dict[str, str]:
        """The configuration as it was given: `${…}` is not resolved."""
        with self.lock:
            return dict(self._get(name).config)

    def file(self, name: str) -> dict[str, str]:
        """The properties of the file that a connector comes from; none if it comes over REST, or there is none."""
        with self.lock:
            there = self._connectors.get(name)
            return dict(there.file or {}) if there else {}

    def put(
        self, name: str, config: Mapping[str, str], state: Wanted | None = None, file: dict[str, str] | None = None
    ) -> bool:
        """Make a connector, or give it another configuration; returns whether it is new. Raises ConfigError.

        Only what is the same in its `file` may refer to secrets that the worker does not allow to all.
        """
        settings = self.model.of({**config, "name": name}, name, file or self.file(name))
        config = {"connector.class": settings.connector_class, **config, "name": name}
        with self.lock:
            there = self._connectors.get(name)
            connector = there or Connector({}, settings, file=file)
            tables = dict.fromkeys([*settings.tables, *(t for t in _allowed(connector) if settings.matches(t))])
            for table in tables:
                self._refuse_twice(settings.of_table(table))
            moved = there is not None and settings.query_group != there.settings.query_group
            if moved and connector.wanted != "STOPPED":
                why = "stop the connector before it changes its group: its last batch is to end first"
                raise ConfigError([Problem(name, "query.group", settings.query_group, why)])
            stood = self.offsets(name) if moved else {}
            connector.config, connector.settings = config, settings
            connector.wanted = state or connector.wanted
            connector.error = connector.trouble = None
            connector.look_at, connector.looked = 0.0, False
            before, connector.tasks = connector.tasks, {}
            for table in tables:
                self._add(connector, table, before.get(table))
            self._connectors[name] = connector
            self._aside.pop(name, None)
            for topic, offsets in stood.items():
                self.held(settings.query_group).move(topic, {str(p): o for p, o in offsets.items()})
            self._changed()
            return there is None

    def delete(self, name: str) -> None:
        """End a connector. Its positions stay, for one that is made anew with its topics."""
        with self.lock:
            self._get(name)
            del self._connectors[name]
            self._changed()

    def want(self, name: str, state: Wanted) -> None:
        """Pause, stop or resume a connector."""
        with self.lock:
            self._get(name).wanted = state
            self._changed()

    def restart(
        self, name: str, task: int | None = None, include_tasks: bool = True, only_failed: bool = False
    ) -> None:
        """Try again what failed: one task, or the connector and, if wanted, its tasks."""
        with self.lock:
            connector = self._get(name)
            if task is not None:
                self._restart(self._task(name, task))
            else:
                if connector.error is not None or not only_failed:
                    connector.error = connector.trouble = None
                    connector.look_at = 0.0
                for of_table in connector.tasks.values() if include_tasks else ():
                    if of_table.error is not None or not only_failed:
                        self._restart(of_table)
            self._changed()

    def status(self, name: str) -> Status:
        with self.lock:
            return self._get(name).status()

    def tasks(self, name: str) -> list[dict[str, str]]:
        """The configuration of each task: the connector's, with one table. Empty while it is stopped."""
        with self.lock:
            connector = self._get(name)
            tables = [] if connector.wanted == "STOPPED" else list(connector.tasks)
            return [{**connector.config, "table": table} for table in tables]

    def offsets(self, name: str) -> dict[str, dict[int, int]]:
        """Where a connector stands: the next offset by events topic and partition, of the topics it has read."""
        with self.lock:
            connector = self._get(name)
            where = self.held(connector.settings.query_group).where()
            topics = [task.settings.events for task in connector.tasks.values()]
            return {t: {int(p): o for p, o in sorted(where[t].items())} for t in topics if where.get(t)}

    def alter(self, name: str, offsets: Mapping[str, Mapping[int, int | None]]) -> None:
        """Let a stopped connector go on from elsewhere; None is the topic's first event.

        Raises NotStopped, HelenusError CONFIG for a topic or partition that is not its own and for an offset that no
        topic can have, and the broker's errors.
        """
        first = self._earliest(self._events_of(name))
        with self.lock:
            held = self.held(self._stopped(name).settings.query_group)
            for topic, wanted in offsets.items():
                for partition, offset in wanted.items():
                    if str(partition) not in first.get(topic, {}):
                        what = f"topic {topic}, partition {partition} is none of its events topics"
                        raise HelenusError(Kind.CONFIG, what, name)
                    if offset is not None and not self._is_offset(offset):
                        raise HelenusError(Kind.CONFIG, f"topic {topic}: no offset {offset}", name)
            where = held.where()
            for topic, wanted in offsets.items():
                # Of all partitions: a batch that is under way has no say in any of them any more.
                moved = {str(p): first[topic][str(p)] if o is None else o for p, o in wanted.items()}
                held.move(topic, {**first[topic], **where.get(topic, {}), **moved})

    def reset(self, name: str) -> None:
        """Let a stopped connector begin at the first event of its topics. Raises as `alter`."""
        first = self._earliest(self._events_of(name))
        with self.lock:
            held = self.held(self._stopped(name).settings.query_group)
            for topic, offsets in first.items():
                held.move(topic, offsets)

    def topics(self, name: str) -> list[str]:
        """The data topics of tables that are being told, since the connector was made or `reset_topics`."""
        with self.lock:
            connector = self._get(name)
            used = [task.settings.data for task in connector.tasks.values() if task.ready]
            return [topic for topic in used if topic not in connector.forgotten]

    def reset_topics(self, name: str) -> None:
        with self.lock:
            connector = self._get(name)
            connector.forgotten.update(self.topics(name))

    def held(self, group: str) -> Held:
        """The positions of a query, by its `query.group`."""
        with self.lock:
            if group not in self._held:
                self._held[group] = Held(self._directory / group)
            return self._held[group]

    def looked(self, name: str, settings: ConnectorSettings, found: Mapping[str, HelenusError | None]) -> None:
        """Take over a look at the tables of a connector: each that it has now, with what speaks against it."""
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
            self.changed.set()

    def running(self, group: str, now: float) -> dict[str, Task]:
        """The tasks of a group that take part in its next batch, by events topic."""
        with self.lock:
            return {
                task.settings.events: task
                for connector in self._connectors.values()
                if connector.wanted == "RUNNING" and not connector.error and connector.settings.query_group == group
                for task in connector.tasks.values()
                if task.ready and not task.error and task.retry_at <= now
            }

    def trouble(self) -> str | None:
        """What goes wrong with any connector that is to run, or None."""
        for name, connector in self.all().items():
            if connector.wanted == "RUNNING":
                of_tasks = (t.error or t.trouble for t in list(connector.tasks.values()))
                told = connector.error or connector.trouble or next(filter(None, of_tasks), None)
                if told is not None:
                    return f"{name}: {told}"
        return None

    def _is_offset(self, offset: int) -> bool:
        """Whether a topic can have it: Kafka's are longs; Pulsar's begin with a long, and end with an int."""
        if self._log == "kafka":
            return 0 <= offset < 1 << 63
        return 0 <= offset < 1 << 127 and offset & 0xFFFFFFFF < 1 << 31

    def _get(self, name: str) -> Connector:
        if name not in self._connectors:
            raise Unknown(name)
        return self._connectors[name]

    def _task(self, name: str, task: int) -> Task:
        for of_table in self._get(name).tasks.values():
            if of_table.id == task:
                return of_table
        raise Unknown(name, task)

    def _events_of(self, name: str) -> list[str]:
        with self.lock:
            return [task.settings.events for task in self._stopped(name).tasks.values()]

    def _stopped(self, name: str) -> Connector:
        connector = self._get(name)
        if connector.wanted != "STOPPED":
            raise NotStopped(name)
        return connector

    @staticmethod
    def _add(connector: Connector, table: str, before: Task | None = None) -> None:
        free = max((t.id for t in connector.tasks.values()), default=-1) + 1
        settings = connector.settings.of_table(table)
        connector.tasks[table] = Task(free if before is None else before.id, settings)

    def _follow(self, name: str, group: str) -> None:
        """A connector that was of another group when the worker ended goes on where it stood there."""
        settings = self._connectors[name].settings
        if settings.query_group == group:
            return
        held = self.held(settings.query_group)
        there, stood = held.where(), self.held(group).where()
        for task in self._connectors[name].tasks.values():
            topic = task.settings.events
            if topic in stood and topic not in there:
                held.move(topic, stood[topic])

    def _restart(self, task: Task) -> None:
        """Try a task again, if the tables of others let it be one."""
        try:
            self._refuse_twice(task.settings)
            task.restart()
        except ConfigError as error:
            task.error, task.refused = error, True

    def _refuse_twice(self, settings: ConnectorSettings) -> None:
        """Raise ConfigError if a table of another connector leaves no room for this one."""
        others = [c for name, c in self._connectors.items() if name != settings.name]
        for task in (other.tasks[table] for other in others for table in _allowed(other)):
            if problem := twice(settings, task.settings):
                raise ConfigError([problem])

    def _changed(self) -> None:
        kept = {n: {"config": c.config, "state": c.wanted, "file": c.file} for n, c in self._connectors.items()}
        kept = {**self._aside, **kept}
        self._directory.mkdir(parents=True, exist_ok=True)
        new = self._store.with_suffix(".new")
        # A configuration may hold passwords.
        with open(os.open(new, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), "w") as out:
            json.dump(kept, out, indent=1)
        new.replace(self._store)
        self.changed.set()

    def _read(self) -> dict[str, dict[str, Any]]:
        try:
            return dict(json.loads(self._store.read_text()))
        except FileNotFoundError:
            return {}


def _allowed(connector: Connector) -> list[str]:
    """The tables of a connector that no other one keeps it from."""
    return [table for table, task in connector.tasks.items() if not task.refused]


def twice(settings: ConnectorSettings, other: ConnectorSettings, source: str = "") -> Problem | None:
    """Why one table can't be told as `settings` say beside another, which another connector has; None if it can.

    Two that read a topic in one query would get a part of it each; where two write a topic, order per key is lost.
    """
    source = source or settings.name
    same_data = settings.data == other.data
    if settings.query_group == other.query_group and settings.events == other.events:
        advice = f"give one of them another query.group{' and another data.topic' if same_data else ''}"
        why = f"connector {other.name} reads {settings.events} already; {advice}"
        return Problem(source, "table", settings.table, why)
    if same_data:
        why = f"connector {other.name} writes {settings.data} already; give one of them another data.topic"
        return Problem(source, "data.topic", settings.data_topic or None, why)
    return None


def beside(connectors: Iterable[tuple[str, ConnectorSettings]]) -> None:
    """Raise ConfigError if connectors, each of a source, can't run beside each other, as far as they name tables."""
    problems: list[Problem] = []
    seen: list[ConnectorSettings] = []
    for source, settings in connectors:
        tables = [settings.of_table(table) for table in settings.tables]
        found = (twice(table, other, source) for table in tables for other in seen)
        problems += [problem for problem in found if problem]
        seen += tables
    if problems:
        raise ConfigError(problems)
