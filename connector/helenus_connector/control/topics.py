"""The topics of connectors, as the driver sees them: made as soon as they can be, and how far each is behind."""

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
from helenus_sinks.log import Log


def reach(worker: WorkerSettings) -> None:
    """Fail early: raise the errors of the brokers, or of their client's library, for reading or writing.

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

    def make(self, tasks: Iterable[Task]) -> None:
        """Make the topics of each task whose events topic is there by now: it is ready then, or has failed.

        The data topic has as many partitions as the events topic: one in, one out. Raises HelenusError if the broker is
        away.
        """
        waiting = list(tasks)
        # Not by a listing: of a topic that is being created it may show only some partitions.
        counts = self._partitions([task.events for task in waiting])
        readable = self._readable([topic for topic, partitions in counts.items() if partitions])
        passing: HelenusError | None = None
        for task in waiting:
            if partitions := counts[task.events]:
                try:
                    if task.events not in readable:
                        self.latest([task.events])  # this says why
                    self._make(task, partitions)
                except HelenusError as error:
                    if error.action is Action.RETRY:
                        passing = error
                    else:
                        task.error = error
                else:
                    task.ready = True
        if passing is not None:
            raise passing

    def _readable(self, topics: Sequence[str]) -> Collection[str]:
        """Those of these topics whose ends can be asked for: of hundreds it is one question."""
        with suppress(HelenusError):
            return self.latest(topics).keys() if topics else ()
        return ()

    def _make(self, task: Task, events: int) -> None:
        settings = task.settings
        data = self._data.create(settings.data, events, {"cleanup.policy": settings.cleanup_policy})
        if data != events:
            raise _unequal(settings, events, data)
        if not settings.markers:
            self._data.create(marker_topic(settings.data), events, {"cleanup.policy": "delete"})
        if settings.has_dead_letters:
            self._data.create(settings.dead_letters, 1, {})

    def earliest(self, topics: Sequence[str]) -> Offsets:
        """The first offset of every partition. Raises HelenusError if the broker is away."""
        return self._ask("earliest", topics)

    def latest(self, topics: Sequence[str]) -> Offsets:
        """The end of every partition. Raises as `earliest`."""
        return self._ask("latest", topics)

    def sizes(self, ranges: Sequence[OffsetRange]) -> list[int]:
        """About how many events are in each."""
        with self._lock:
            broker = self._broker()
            return [broker.size(place) for place in ranges]

    def refusals(self, tables: Sequence[ConnectorSettings]) -> list[HelenusError]:
        """What speaks against tables' topics as they are, and the rights on them that are missing; it makes none.
        Raises as `earliest`.
        """
        events, data = self._partitions([table.events for table in tables]), self._data.topics()
        pairs = [(table, events[table.events], data.get(table.data, 0)) for table in tables]
        unequal = [
            _unequal(table, read, written) for table, read, written in pairs if read and written not in (0, read)
        ]
        return [*unequal, *_rights.refusals(self._worker, tables, events)]

    def hurry(self, seconds: float) -> None:
        """Limit every later wait for topics to `seconds`; used at shutdown."""
        for log in (self._events, self._data):
            log.hurry(seconds)

    def close(self) -> None:
        """Let go of the brokers."""
        for log in {id(log): log for log in (self._events, self._data)}.values():
            log.close()
        with self._lock:
            self._forget()

    def _partitions(self, topics: Sequence[str]) -> dict[str, int]:
        with self._asking() as broker:
            return broker.partitions(topics)

    def _ask(self, end: str, topics: Sequence[str]) -> Offsets:
        with self._asking() as broker:
            counts = broker.partitions(topics)
            found: Offsets = getattr(broker, end)({t: n for t, n in counts.items() if n})
            return found

    @contextmanager
    def _asking(self) -> Iterator[Planner]:
        with self._lock:
            try:
                yield self._broker()
            except HelenusError:
                self._forget()
                raise

    def _broker(self) -> Planner:
        self._planner = self._planner or planner(self._worker)
        return self._planner

    def _forget(self) -> None:
        if self._planner is not None:
            self._planner.close()
            self._planner = None


def _unequal(settings: ConnectorSettings, events: int, data: int) -> HelenusError:
    what = f"{settings.events} has {events} partitions, {settings.data} has {data}"
    advice = "choose another data.topic, or delete that one if it is not needed; the worker makes it again"
    return HelenusError(Kind.PARTITIONS_CHANGED, what, settings.name, advice)


def _logs(worker: WorkerSettings) -> list[Log]:
    """That of the events, and that of the data if it is another."""
    found = [events_log(worker)]
    return found if worker.log_of_data == worker.log else [*found, data_log(worker)]
