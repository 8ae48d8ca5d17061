"""What a worker says of all its connectors: their lag and the states of their tasks in its metrics, every few seconds;
in its log, which tasks have their topics.
"""

from __future__ import annotations

import contextlib
import math
import time
from collections.abc import Mapping

import structlog

from helenus_connector import metrics
from helenus_connector.control.connectors import Connectors
from helenus_connector.control.status import Task
from helenus_connector.control.topics import TopicQueries
from helenus_connector.log.events import Offsets, behind, pace_s
from helenus_connector.query.query_runner import QueryRunner
from helenus_schemas.errors import HelenusError

_log = structlog.get_logger(__name__)
_LEAVING_S = 600.0
_MAX_READINGS = 360


class TopicEnds:
    """Earlier ends of an events topic, with the times at which they were read: those alone that a reader has not come
    to.
    """

    def __init__(self) -> None:
        self._readings: list[tuple[float, Mapping[str, int]]] = []

    def lag(self, topic: str, read_offsets: Mapping[str, int], ends: Mapping[str, int], now: float) -> float:
        """Return for how long, s, the oldest event after `read_offsets` has been seen; 0 if there is none. `now` is
        monotonic.
        """
        if not self._readings or self._readings[-1][1] != ends:
            self._readings.append((now, dict(ends)))
        self._readings = [reading for reading in self._readings if behind(topic, read_offsets, reading[1])]
        if len(self._readings) > _MAX_READINGS:
            del self._readings[1::2]  # the oldest one stays
        return now - self._readings[0][0] if self._readings else 0.0


class ConnectorReports:
    """Keeps the series of connectors and tables. One thread uses it at a time.

    `away` is why the message broker did not answer when it was last asked for lag, or None. `lag_every_s` is how often
    to ask for it, by how many partitions there were the last time.
    """

    def __init__(self, connectors: Connectors) -> None:
        self._connectors = connectors
        self._tables: set[metrics.Labels] = set()
        self._names: set[str] = set()
        self._left_at: dict[metrics.Labels, float] = {}
        self._ends: dict[metrics.Labels, TopicEnds] = {}
        self._reasons: set[tuple[str, ...]] = set()
        self.away: HelenusError | None = None
        self.lag_every_s = pace_s(0)

    def note_hindrances(self, queries: Mapping[str, QueryRunner], starting: str) -> None:
        """Note with the connectors of each group why its query runs no batches: `starting` where there is none yet."""
        for group in {c.settings.query_group for c in self._connectors.all().values()}:
            query = queries.get(group)
            if query is None:
                self._connectors.note_hindrance(group, starting, idle=True)
            else:
                self._connectors.note_hindrance(group, query.trouble(), not query.has_done_batches)

    def report_lag(self, topics: TopicQueries) -> None:
        """Report how far each table is behind the end of its events topic."""
        connectors = self._connectors.all().values()
        offsets_by_group: dict[str, Offsets] = {}
        for group in {c.settings.query_group for c in connectors}:
            with contextlib.suppress(HelenusError):  # of files that can't be read: its connectors say so
                offsets_by_group[group] = self._connectors.held_positions(group).read_offsets()
        # Of a connector that failed before its tables were looked at: tables of an earlier run lag, too.
        tasks = [
            task
            for connector in connectors
            for task in list(connector.tasks.values())
            if task.ready or (connector.error and task.events in offsets_by_group.get(task.settings.query_group, {}))
        ]
        try:
            latest = topics.latest([task.events for task in tasks])
        except HelenusError as error:
            # A planner that gets no answer makes no batches, and so nothing else would notice.
            metrics.ERRORS.labels(error.kind.value).inc()
            if self.away is None:
                _log.warning("broker.away", error=str(error))
            self.away = error
            self.lag_every_s = pace_s(0)
            for task in tasks:
                metrics.LAG.labels(*task.labels).set(math.nan)
                metrics.LAG_SECONDS.labels(*task.labels).set(math.nan)
                task.waiting = error
            return
        self.lag_every_s = pace_s(sum(map(len, latest.values())))
        if self.away is not None:
            _log.info("broker.back")
            self.away = None
        for task in tasks:
            if task.ready:
                task.waiting = None
            topic = task.events
            read_offsets = offsets_by_group.get(task.settings.query_group, {}).get(topic, {})
            # Unknown for a topic that is gone, or that alone can't be asked.
            report_lag = sum(topics.sizes(behind(topic, read_offsets, latest[topic]))) if topic in latest else math.nan
            metrics.LAG.labels(*task.labels).set(report_lag)
            seconds = math.nan
            if topic in latest:
                seconds = self._ends.setdefault(task.labels, TopicEnds()).lag(
                    topic, read_offsets, latest[topic], time.monotonic()
                )
            metrics.LAG_SECONDS.labels(*task.labels).set(seconds)
        current_labels = {task.labels for task in tasks}
        self._ends = {labels: ends for labels, ends in self._ends.items() if labels in current_labels}

    def report_states(self) -> None:
        """Report the states of connectors and their tasks. The series of those that left are ended."""
        tables: set[metrics.Labels] = set()
        reasons: set[tuple[str, ...]] = set()
        connectors = self._connectors.all_with_files()
        for name, connector in connectors.items():
            status = connector.status()
            metrics.connector_state(name, status.state)
            task_states = {task.id: task for task in status.tasks}
            if status.kind is not None:
                reasons.add((name, "", "", status.kind))
            for task in list(connector.tasks.values()):
                if task.labels not in self._tables:
                    metrics.begin(task.labels, task.id)
                # Over REST they are UNASSIGNED then, as in Kafka Connect; alerts must see that none is published.
                shown = task_states.get(task.id)
                now = "FAILED" if status.state == "FAILED" else shown.state if shown else connector.wanted
                if shown and shown.kind is not None:
                    reasons.add((*task.labels, shown.kind))
                metrics.state(task.labels, now)
                tables.add(task.labels)
        # A running batch may still count for a table that has just left: its series are ended again for a while.
        now_s = time.monotonic()
        self._left_at.update(dict.fromkeys(self._tables - tables, now_s))
        recent = {labels: left_at for labels, left_at in self._left_at.items() if now_s - left_at < _LEAVING_S}
        self._left_at = {labels: left_at for labels, left_at in recent.items() if labels not in tables}
        for labels in self._left_at:
            metrics.forget(labels)
        for name in self._names - connectors.keys():
            metrics.connector_state(name, None)
        metrics.reasons(self._reasons, reasons)
        self._reasons = reasons
        self._tables, self._names = tables, set(connectors)


def log_topics(task: Task, missing_topics: set[metrics.Labels]) -> None:
    """Log whether a task that waited for its topics has them now: that its events topic is missing only once, which
    `missing_topics` notes.
    """
    where = {"connector": task.connector, "table": task.table}
    if task.ready:
        _log.info("task.ready", **where)
        for warning in task.settings.warnings:
            _log.warning("task.warning", **where, reason=warning)
    elif task.error:
        _log.error("task.failed", **where, error=str(task.error))
    elif task.labels not in missing_topics:
        missing_topics.add(task.labels)
        advice = "start the agent; it makes the topic"
        _log.warning("events.missing", connector=task.connector, topic=task.events, advice=advice)
