"""The topics of connectors, as the driver sees them: made as soon as they can be, and how far each is behind."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from confluent_kafka import KafkaException

from helenus_connector.config import WorkerSettings
from helenus_connector.kafka_events import Planner
from helenus_connector.positions import Offsets
from helenus_connector.states import Task
from helenus_schemas.errors import Action, HelenusError, Kind
from helenus_sinks.kafka import KafkaLog, broker_error


def reach(worker: WorkerSettings) -> None:
    """Fail early: raise what the brokers, or their client's library, say against reading or writing.

    Brokers that are away are no error if `startup.timeout.ms` gives them time. Raises HelenusError.
    """
    log = KafkaLog(worker.producer_config)
    try:
        Planner(worker.consumer_config)
        log.topics()
    except KafkaException as failure:
        raise broker_error(failure.args[0], worker.bootstrap_servers) from None
    except HelenusError as error:
        if error.action is not Action.RETRY or not worker.startup_timeout_ms:
            raise
    finally:
        log.close()


class Topics:
    """What is asked of the brokers outside batches."""

    def __init__(self, worker: WorkerSettings) -> None:
        self._where = worker.bootstrap_servers
        self._log = KafkaLog(worker.producer_config)
        self._consumer = worker.consumer_config
        self._planner: Planner | None = None

    def make(self, tasks: Iterable[Task]) -> None:
        """Make the topics of each task whose events topic is there by now: it is ready then, or has failed.

        The data topic has as many partitions as the events topic: one in, one out. Raises HelenusError if the broker is
        away.
        """
        counts = self._log.topics()
        for task in tasks:
            if task.settings.events in counts:
                try:
                    self._make(task, counts[task.settings.events])
                except HelenusError as error:
                    if error.action is Action.RETRY:
                        raise
                    task.error = error
                else:
                    task.ready = True

    def _make(self, task: Task, events: int) -> None:
        settings = task.settings
        data = self._log.create(settings.data, events, {"cleanup.policy": "compact"})
        if data != events:
            what = f"{settings.events} has {events} partitions, {settings.data} has {data}"
            raise HelenusError(Kind.PARTITIONS_CHANGED, what, settings.name)
        if settings.has_dead_letters:
            self._log.create(settings.dead_letters, 1, {})

    def earliest(self, topics: Sequence[str]) -> Offsets:
        """The first offset of every partition. Raises HelenusError if the broker is away."""
        return self._ask("earliest", topics)

    def latest(self, topics: Sequence[str]) -> Offsets:
        """The end of every partition. Raises as `earliest`."""
        return self._ask("latest", topics)

    def _ask(self, end: str, topics: Sequence[str]) -> Offsets:
        try:
            self._planner = self._planner or Planner(self._consumer)
            counts = self._planner.partitions(topics)
            found: Offsets = getattr(self._planner, end)({t: n for t, n in counts.items() if n})
        except KafkaException as failure:
            self._planner = None
            raise broker_error(failure.args[0], self._where) from None
        return found
