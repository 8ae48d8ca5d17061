"""The status of a connector and its tasks."""

from __future__ import annotations

import math
import time
from collections.abc import Container
from dataclasses import dataclass, field
from functools import cached_property
from typing import Literal

import structlog

from helenus_connector.config.connector import ConnectorSettings
from helenus_connector.config.state import marker_topic
from helenus_connector.control.backoff import pause
from helenus_schemas.errors import Action, HelenusError, Kind

_log = structlog.get_logger(__name__)
Wanted = Literal["RUNNING", "PAUSED", "STOPPED"]
_MISSING_S = 30.0
_FIRST_PAUSE_S = 0.5
_RECREATED = (Kind.TABLE_MISSING, Kind.CDC_DISABLED)
"""Errors that a table has for a while when it is dropped and recreated."""


@dataclass(frozen=True)
class TaskStatus:
    """A task as Kafka Connect's status shows it; `trace` says why it failed, what it waits for, or why keys wait.

    `kind` is the kind of error that `trace` is about, or `waiting`. `runs`: it goes on all the same.
    """

    id: int
    state: str
    trace: str | None = None
    kind: str | None = None
    runs: bool = False


@dataclass(frozen=True)
class ConnectorStatus:
    """A connector as Kafka Connect's status shows it; `trace` says why it failed, or what it waits for."""

    state: str
    trace: str | None
    tasks: list[TaskStatus]
    kind: str | None = None

    @property
    def obstacle(self) -> str | None:
        """Return why not all of the connector runs: its own reason, or else that of the first such task."""
        return self.trace or next((task.trace for task in self.tasks if task.trace and not task.runs), None)


@dataclass(eq=False)
class Task:
    """One table of a connector, and how it fares: a task as Kafka Connect has them, not one of Spark's. `settings` are
    of this table alone.

    It is `ready` when its topics are there, as far as is known. `error` ended it, or it is `refused` because of another
    connector's; `trouble` may pass, and it is tried again at `retry_at`, monotonic s. `unread` is why some of its
    keys can't be read, while it runs; `state_error` what its state lacks just now. `waiting` is
    what it waits for without having tried: its events topic, or brokers that are away. `held_back_by` is the group
    whose last batch may still write its data topic. `changed_at` is when a change of a commit log was last published,
    monotonic s. `last_error` is when an attempt last failed, s since the epoch, and why; it stays when all is well
    again.
    """

    id: int
    settings: ConnectorSettings
    ready: bool = False
    refused: bool = False
    error: HelenusError | None = None
    trouble: HelenusError | None = None
    unread: HelenusError | None = None
    state_error: HelenusError | None = None
    waiting: HelenusError | str | None = None
    held_back_by: str | None = None
    retry_at: float = 0.0
    changed_at: float = -math.inf
    last_error: tuple[float, str] | None = None
    _failures: int = 0
    _failing_since: float = 0.0
    _missing_since: float | None = None
    _unusable_since: float | None = None

    # Of all tables these are asked for some times a second.
    @cached_property
    def connector(self) -> str:
        return self.settings.name

    @cached_property
    def table(self) -> str:
        return f"{self.settings.keyspace}.{self.settings.table}"

    @cached_property
    def events(self) -> str:
        """Return the topic that is read."""
        return self.settings.events

    @cached_property
    def data(self) -> str:
        """Return the topic that is written."""
        return self.settings.data

    @property
    def data_topics(self) -> list[str]:
        """Return all topics that are written but for those of dead letters, which connectors may share."""
        return [self.data] if self.settings.markers else [self.data, marker_topic(self.data)]

    @cached_property
    def labels(self) -> tuple[str, str, str]:
        """Return connector, keyspace and table, as metrics have them."""
        return self.settings.name, self.settings.keyspace, self.settings.table

    @property
    def misses_table(self) -> bool:
        """Return whether the task failed because its table was missing, or without `cdc`."""
        return self.error is not None and self.error.kind in _RECREATED

    def note_failure(self, error: HelenusError, now: float) -> None:
        """Note that an attempt failed, `now` in monotonic s. A transient error is retried, after a growing pause."""
        self.last_error = time.time(), str(error)
        # A topic that is gone is recreated first.
        self.ready = self.ready and error.kind is not Kind.TOPIC_MISSING
        self._failing_since = self._failing_since if self._failures else now
        self._failures += 1
        for_s = now - self._failing_since
        timeout_ms = self.settings.errors_retry_timeout
        is_retried = error.action is Action.RETRY and not 0 <= timeout_ms <= for_s * 1000
        # A table that existed may be dropped to be recreated, and gets time for that, whatever failed before.
        if error.kind is not Kind.TABLE_MISSING:
            self._missing_since = None
        elif self._missing_since is None:
            self._missing_since = now
        if is_retried or (self._missing_since is not None and now - self._missing_since < _MISSING_S):
            longest_s = self.settings.errors_retry_delay_max_ms / 1000
            self.trouble, self.retry_at = error, now + pause(self._failures, _FIRST_PAUSE_S, longest_s, spread=True)
        else:
            self.error = error

    def apply_table_check(self, error: HelenusError | None, now: float) -> None:
        """Apply the result of a table scan. The table of a running task may be missing, or without `cdc`, while it is
        recreated; a task that failed for that goes on when the table is there again. `now` is in monotonic s.
        """
        if self.error is not None and self.error.kind is Kind.NOT_OWNER:
            return  # only an operator lets it run again
        if error is None:
            self._unusable_since = None
            if self.misses_table:
                self.restart()
            return
        self._unusable_since = self._unusable_since or now
        may_be_recreated = now - self._unusable_since < _MISSING_S
        if not (self.ready and may_be_recreated and error.kind in _RECREATED):
            self.error = error
            self.last_error = time.time(), str(error)

    def note_success(self) -> None:
        """Note that the task's part of a batch was done."""
        self.trouble, self.retry_at, self._failures, self._missing_since = None, 0.0, 0, None

    def restart(self) -> None:
        """Forget what failed, and retry: beginning with the topics."""
        self.error, self.waiting, self.ready, self.refused, self._unusable_since = None, None, False, False, None
        self.note_success()


@dataclass(eq=False)
class Connector:
    """The wanted state of a connector, and its tasks by table. `file` has the properties of its file, if it has one.

    `error` ended all of it; `trouble` is a transient error. `waiting` is what it waits for: tables. `hindered` is why
    the query of its group runs no batches; it is `idle` while that query has done none since its last start. Its tables
    were last scanned at `last_scan_at`, monotonic s, and are scanned again at `next_scan_at`; `is_scanned` says
    that a scan has succeeded, `restarted` that somebody asked for a restart.
    """

    config: dict[str, str]
    settings: ConnectorSettings
    wanted: Wanted = "RUNNING"
    file: dict[str, str] | None = None
    tasks: dict[str, Task] = field(default_factory=dict)
    error: HelenusError | None = None
    trouble: HelenusError | None = None
    waiting: str | None = None
    hindered: HelenusError | str | None = None
    idle: bool = False
    next_scan_at: float = 0.0
    last_scan_at: float = 0.0
    is_scanned: bool = False
    restarted: bool = False
    reset_data_topics: set[str] = field(default_factory=set)

    def remove_absent(self, tables: Container[str], now: float) -> None:
        """Remove the tasks of tables that a pattern matched, and that are not among those there are: after as long as
        a table may be away that is recreated, `now` in monotonic s. A table's position stays, for one of its name.
        """
        for table, task in list(self.tasks.items()):
            if table in tables:
                continue
            task.apply_table_check(
                HelenusError(Kind.TABLE_MISSING, "there is no such table with cdc = true", task.table), now
            )
            if task.misses_table:
                del self.tasks[table]
                advice = "it was dropped, or altered to cdc = false: it joins again when it is back"
                _log.info("table.left", connector=task.connector, table=task.table, advice=advice)

    @property
    def is_as_in_file(self) -> bool:
        """Return whether the connector is as its file says: it was neither changed nor restarted over REST."""
        if self.file is None or self.restarted:
            return False
        added_keys = ("name", "connector.class")  # which are added where a file has none
        return all(
            self.config.get(key) == self.file.get(key)
            for key in self.config.keys() | self.file.keys()
            if key not in added_keys or key in self.file
        )

    @property
    def is_undecided(self) -> bool:
        """Return whether it is to run, and nobody knows yet which of its tables can be read."""
        if self.wanted != "RUNNING" or self.error or self.trouble or self.waiting:
            return False
        tasks = list(self.tasks.values())
        return not self.is_scanned or any(not (t.ready or t.error or t.trouble or t.waiting) for t in tasks)

    def failure(self) -> HelenusError | None:
        """Return an error, if nothing of the connector runs."""
        errors = [task.error for task in self.tasks.values()]
        return self.error or (errors[0] if errors and all(errors) else None)

    @property
    def has_lost_records(self) -> bool:
        """Return whether another worker writes records of one of its tables."""
        return any(task.error is not None and task.error.kind is Kind.NOT_OWNER for task in self.tasks.values())

    def status(self) -> ConnectorStatus:
        """Return its state, its tasks' and every reason, for REST, `/health/ready`, the page, `top` and metrics."""
        stopped = self.wanted == "STOPPED"
        state: str = "FAILED" if self.error and not stopped else self.wanted
        tasks = [] if stopped else [self._status(task) for task in self.tasks.values()]
        reason: HelenusError | str | None = self.error if state == "FAILED" else None
        if state == "RUNNING":
            # Tasks that say what they wait for need no batches.
            needed = not tasks or any(task.runs or not task.trace for task in tasks)
            hindered = self.hindered if needed else None
            reason = self.trouble or self.waiting or hindered
            if self.idle and hindered is not None:
                state = "UNASSIGNED"
        return ConnectorStatus(state, _trace(reason), tasks, _kind(reason))

    def _status(self, task: Task) -> TaskStatus:
        if task.error is not None:
            return TaskStatus(task.id, "FAILED", str(task.error), _kind(task.error))
        if self.wanted == "PAUSED":
            return TaskStatus(task.id, "PAUSED")
        state = "RUNNING" if task.ready and not self.error else "UNASSIGNED"
        reason: HelenusError | str | None = task.trouble
        if state == "UNASSIGNED":
            reason = self.error or self.trouble or task.trouble
        held_back = None
        if task.held_back_by is not None:
            held_back = f"waits for the last batch of query.group {task.held_back_by}: it may write {task.data}"
        reason = reason or task.waiting or held_back
        if self.idle and (self.hindered is not None or reason is not None):
            state = "UNASSIGNED"
        lesser_reason = task.unread or task.state_error if state == "RUNNING" and reason is None else None
        return TaskStatus(
            task.id, state, _trace(reason or lesser_reason), _kind(reason or lesser_reason), lesser_reason is not None
        )


def no_tables(settings: ConnectorSettings) -> str:
    """Return what a connector waits for whose patterns match no table."""
    return f"no table with cdc = true matches {settings.keyspace}.{settings.table}: ALTER TABLE … WITH cdc = true"


def _trace(reason: HelenusError | str | None) -> str | None:
    return None if reason is None else str(reason)


def _kind(reason: HelenusError | str | None) -> str | None:
    return reason.kind.value if isinstance(reason, HelenusError) else None if reason is None else "waiting"
