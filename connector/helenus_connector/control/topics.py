"""The topics of connectors, as the driver sees them: creates them as soon as possible, and reads their offsets."""

from __future__ import annotations

import threading
from collections.abc import Collection, Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress

from helenus_connector.config.connector import ConnectorSettings
from helenus_connector.config.state import marker_topic
from helenus_connector.config.worker import WorkerSettings
from helenus_connector.control import _rights
from helenus_connector.control.status import Task
from helenus_connector.log.choice import data_log, events_log, planner
from helenus_connector.log.events import OffsetRange, Offsets, Planner
from helenus_schemas.errors import Action, HelenusError, Kind
from helenus_schemas.names import counted
from helenus_sinks.chunks import chunk_topic
from helenus_sinks.log import Log


def reach(worker: WorkerSettings) -> None:
    """Raise the errors of the brokers, or of their client's library, for reading or writing, before the worker starts.

    Unavailable brokers are no error if `startup.timeout.ms` gives them time. Raises HelenusError.
    """
    planner(worker).close()
    for log in _logs(worker):
        try:
            log.topics()
        except HelenusError as error:
            if error.action is not Action.RETRY or not worker.startup_timeout_ms:
                raise
        finally:
            log.close()


class TopicQueries:
    """Questions to the brokers outside batches. Any thread may call `earliest`, only the worker's the others."""

    def __init__(self, worker: WorkerSettings) -> None:
        self._worker = worker
        self._events, *other = _logs(worker)
        self._data = other[0] if other else self._events
        self._planner: Planner | None = None
        self._lock = threading.RLock()  # of the planner, which is for one thread at a time

    def create_topics(self, tasks: Iterable[Task]) -> None:
        """Create the topics of each task whose events topic exists by now: then the task is ready, or has failed.

        The data topic has as many partitions as the events topic: one in, one out. Raises HelenusError if the broker is
        away.
        """
        waiting = list(tasks)
        # Not by a listing: of a topic that is being created it may show only some partitions.
        counts = self._partitions([task.events for task in waiting])
        readable = self._topics_with_ends([topic for topic, partitions in counts.items() if partitions])
        transient_error: HelenusError | None = None
        for task in waiting:
            if partitions := counts[task.events]:
                try:
                    if task.events not in readable:
                        self.latest([task.events])  # this says why
                    self._create_topics(task, partitions)
                except HelenusError as error:
                    if error.action is Action.RETRY:
                        transient_error = error
                    else:
                        task.error = error
                else:
                    task.ready = True
        if transient_error is not None:
            raise transient_error

    def _topics_with_ends(self, topics: Sequence[str]) -> Collection[str]:
        """Return those of the topics whose ends can be read: one request for hundreds of topics."""
        with suppress(HelenusError):
            return self.latest(topics).keys() if topics else ()
        return ()

    def _create_topics(self, task: Task, events: int) -> None:
        settings = task.settings
        data = self._data.create(settings.data, events, *settings.data_creation)
        if data != events:
            raise _unequal(settings, events, data)
        if not settings.markers:
            self._data.create(
                marker_topic(settings.data),
                events,
                {"cleanup.policy": "delete"},
                settings.data_creation.replication_factor,
            )
        if settings.has_chunks:
            partitions = settings.chunk_partitions(events)
            self._data.create(chunk_topic(settings.data), partitions, *settings.chunk_creation(settings.data))
        if settings.has_dead_letters:
            self._data.create(settings.dead_letters, 1, {})

    def earliest(self, topics: Sequence[str]) -> Offsets:
        """Return the first offset of every partition. Raises HelenusError if the broker is away."""
        return self._read_offsets("earliest", topics)

    def latest(self, topics: Sequence[str]) -> Offsets:
        """Return the end of every partition. Raises as `earliest`."""
        return self._read_offsets("latest", topics)

    def sizes(self, ranges: Sequence[OffsetRange]) -> list[int]:
        """Return about how many events are in each range."""
        with self._lock:
            planner = self._get_planner()
            return [planner.size(offset_range) for offset_range in ranges]

    def refusals(self, tables: Sequence[ConnectorSettings]) -> list[HelenusError]:
        """Return what prevents publishing to tables' topics as they are, and the missing rights on them; creates none.
        Raises as `earliest`.
        """
        events, data = self._partitions([table.events for table in tables]), self._data.topics()
        pairs = [(table, events[table.events], data.get(table.data, 0)) for table in tables]
        unequal = [
            _unequal(table, event_partitions, data_partitions)
            for table, event_partitions, data_partitions in pairs
            if event_partitions and data_partitions not in (0, event_partitions)
        ]
        return [*unequal, *_rights.refusals(self._worker, tables, events)]

    def hurry(self, seconds: float) -> None:
        """Limit every later wait for topics to `seconds`; used at shutdown."""
        for log in (self._events, self._data):
            log.hurry(seconds)

    def close(self) -> None:
        """Close the connections to the brokers."""
        for log in {id(log): log for log in (self._events, self._data)}.values():
            log.close()
        with self._lock:
            self._close_planner()

    def _partitions(self, topics: Sequence[str]) -> dict[str, int]:
        with self._planner_in_use() as planner:
            return planner.partitions(topics)

    def _read_offsets(self, end: str, topics: Sequence[str]) -> Offsets:
        with self._planner_in_use() as planner:
            counts = planner.partitions(topics)
            offsets: Offsets = getattr(planner, end)({topic: count for topic, count in counts.items() if count})
            return offsets

    @contextmanager
    def _planner_in_use(self) -> Iterator[Planner]:
        with self._lock:
            try:
                yield self._get_planner()
            except HelenusError:
                self._close_planner()
                raise

    def _get_planner(self) -> Planner:
        self._planner = self._planner or planner(self._worker)
        return self._planner

    def _close_planner(self) -> None:
        if self._planner is not None:
            self._planner.close()
            self._planner = None


def _unequal(settings: ConnectorSettings, events: int, data: int) -> HelenusError:
    problem = f"{settings.events} has {counted(events, 'partition')}, {settings.data} has {data}"
    advice = "choose another data.topic, or delete that one if it is not needed; the worker makes it again"
    return HelenusError(Kind.PARTITIONS_CHANGED, problem, settings.name, advice)


def _logs(worker: WorkerSettings) -> list[Log]:
    """Return the Log of the events, and that of the data if it is another."""
    logs = [events_log(worker)]
    return logs if worker.log_of_data == worker.log else [*logs, data_log(worker)]
