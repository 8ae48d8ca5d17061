"""The Log of events and of records, as the worker's file says: only this module chooses Kafka or Pulsar."""

from __future__ import annotations

from collections.abc import Callable, Collection, Generator, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from importlib import import_module
from typing import TYPE_CHECKING, cast

from helenus_connector.config.worker import WorkerSettings
from helenus_connector.log import _kafka_planner, _kafka_reader
from helenus_connector.log.events import Message, OffsetRange, Planner
from helenus_schemas.cql.table import Table
from helenus_schemas.errors import HelenusError, Kind
from helenus_schemas.event import datastax
from helenus_schemas.settings.shared import NO_PULSAR
from helenus_sinks.kafka.log import KafkaLog
from helenus_sinks.kafka.owned_log import OwnedKafkaLog
from helenus_sinks.kafka.owners import RecordsOwner
from helenus_sinks.log import DeclaredSchemas, Log

if TYPE_CHECKING:
    from types import ModuleType

    from helenus_connector.log._pulsar_fenced_topics import FencedTopics
    from helenus_sinks.pulsar.config import PulsarConfig
    from helenus_sinks.pulsar.log import PulsarLog

_OF_WHOLE_BATCHES = {"transaction.timeout.ms": "900000", "message.max.bytes": "1040000"}
"""As long as brokers allow unless set (`transaction.max.timeout.ms`); and some more than librdkafka's million, which
events may have, but not more than topics take.
"""
_LINGER_S = 0.1  # until the flush of a batch, which does not wait for it


def events_log(worker: WorkerSettings) -> Log:
    """Return the Log for appending to events topics. Raises HelenusError(CONFIG) for settings that no client takes."""
    return _log(worker, worker.log)


def data_log(worker: WorkerSettings) -> Log:
    """Return the Log for appending to data topics and to those of dead letters. Raises as `events_log`."""
    return _log(worker, worker.log_of_data, is_by_key=worker.pulsar_key_based_batcher)


def owned_data_log(
    worker: WorkerSettings, owner: RecordsOwner, number: int | str, whole_batches: bool = False
) -> OwnedKafkaLog:
    """Return the same for the producer `number` of an `owner`, or of its DRIVER, on Kafka. With `whole_batches` each of
    its transactions is a whole batch, and may have an entry of a journal with an event. Raises as `events_log`.
    """
    more = _OF_WHOLE_BATCHES if whole_batches else {}
    log = OwnedKafkaLog({**more, **worker.producer_config}, owner, number)
    log.replication_factor = worker.topic_creation_default_replication_factor
    return log


def own_by_epoch(log: Log, epoch: int) -> None:
    """Have the next records of a Log on Pulsar be those of an epoch: see its method `own`."""
    cast("PulsarLog", log).own(epoch)


def next_epochs(worker: WorkerSettings, topics: Collection[str], stopping: Callable[[], bool]) -> dict[str, int]:
    """Return the epoch that follows that of each topic on Pulsar, as `helenus_sinks.pulsar.owners` does."""
    config = _pulsar(worker)
    from helenus_sinks.pulsar.owners import next_epochs

    return next_epochs(config, topics, stopping)


def claim_epochs(
    worker: WorkerSettings, epochs: Mapping[str, int], proven: Collection[str], stopping: Callable[[], bool]
) -> dict[str, HelenusError]:
    """Own topics on Pulsar by their epochs, as the `claim` of `helenus_sinks.pulsar.owners`."""
    config = _pulsar(worker)
    from helenus_sinks.pulsar.owners import claim

    return claim(config, epochs, proven, stopping)


def fenced_topics(worker: WorkerSettings) -> FencedTopics:
    """Return the writer of topics on Pulsar that one worker at a time writes to. Raises as `events_log`."""
    topics: FencedTopics = _pulsar_module("_pulsar_fenced_topics").FencedTopics(_pulsar(worker))
    return topics


def keep_topic(log: Log, topic: str, epoch: int) -> None:
    """Have all records of a topic on Pulsar be those of an epoch: see the Log's method `keep`."""
    cast("PulsarLog", log).keep(topic, epoch)


def event_schemas(table: Table) -> DeclaredSchemas:
    """Return the schemas of a table's events topic, for a Log that keeps them. Raises Unmappable, naming the column."""
    return DeclaredSchemas(datastax.key_schema(table), datastax.VALUE, value_properties=datastax.VALUE_PROPERTIES)


def planner(worker: WorkerSettings, watches: bool = False) -> Planner:
    """Return the planner for events topics; with `watches` for a caller that polls all the time. Raises as
    `events_log`.
    """
    if worker.log == "pulsar":
        pulsar_planner: Planner = _pulsar_module("_pulsar_planner").PulsarPlanner(_pulsar(worker))
        return pulsar_planner
    return _kafka_planner.KafkaPlanner(worker.consumer_config, watches)


def read(
    worker: WorkerSettings,
    ranges: Sequence[OffsetRange],
    data_loss: str,
    note_lost: Callable[[OffsetRange, int], None],
    note_failed: Callable[[OffsetRange, HelenusError], None],
    has_transactions: bool = False,
) -> Generator[list[Message], None, None]:
    """Yield the records of several ranges, in chunks, each of one partition; in order within a range. With
    `has_transactions` some were appended in transactions of Kafka's: less is waited for.

    Where a topic no longer has events of a range, `note_lost` is called with their number if `data_loss` is `continue`.
    `note_failed` is called with OFFSETS_LOST if it is `fail`, with refusals of the broker, and with BROKER_UNREACHABLE
    if nothing comes for a minute. A range that failed goes no further, the others do.
    """
    if worker.log == "pulsar":
        chunks: Generator[list[Message], None, None] = _pulsar_module("_pulsar_reader").read(
            _pulsar(worker), ranges, data_loss, note_lost, note_failed
        )
        return chunks
    return _kafka_reader.read(worker.consumer_config, ranges, data_loss, note_lost, note_failed, has_transactions)


def data_planner(worker: WorkerSettings, watches: bool = False) -> Planner:
    """Return the planner for data topics, as `planner`. Raises as `events_log`."""
    if worker.log_of_data == "pulsar":
        pulsar_planner: Planner = _pulsar_module("_pulsar_planner").PulsarPlanner(_pulsar(worker))
        return pulsar_planner
    return _kafka_planner.KafkaPlanner(worker.consumer_config, watches)


def read_data(
    worker: WorkerSettings, ranges: Sequence[OffsetRange], note_failed: Callable[[OffsetRange, HelenusError], None]
) -> Generator[list[Message], None, None]:
    """Read data topics as `read`, with their records' headers. What a topic no longer has is left out."""
    if worker.log_of_data == "pulsar":
        reader = _pulsar_module("_pulsar_reader")
        chunks: Generator[list[Message], None, None] = reader.read(
            _pulsar(worker), ranges, "continue", _ignore_loss, note_failed, reader.records
        )
        return chunks
    return _kafka_reader.read(
        worker.consumer_config, ranges, "continue", _ignore_loss, note_failed, has_transactions=True
    )


def read_signals(
    worker: WorkerSettings, ranges: Sequence[OffsetRange], note_failed: Callable[[OffsetRange, HelenusError], None]
) -> Generator[list[Message], None, None]:
    """Read topics of signals as `read`, where the events are: keys are text. What a topic no longer has is left out."""
    if worker.log == "pulsar":
        reader = _pulsar_module("_pulsar_reader")
        chunks: Generator[list[Message], None, None] = reader.read(
            _pulsar(worker), ranges, "continue", _ignore_loss, note_failed, reader.texts
        )
        return chunks
    return _kafka_reader.read(worker.consumer_config, ranges, "continue", _ignore_loss, note_failed)


@contextmanager
def data_schemas(worker: WorkerSettings, topic: str) -> Iterator[Callable[[int], tuple[str | None, str | None]]]:
    """Yield a function that returns the schemas of keys and values by the version that a record names, where brokers
    keep schemas. Raises as `events_log`.
    """
    schemas = _pulsar_module("_pulsar_schemas").PulsarTopicSchemas(_pulsar(worker), topic)
    try:
        yield schemas.texts
    finally:
        schemas.close()


def unread(worker: WorkerSettings, group: str, topic: str, partition: int) -> Iterator[list[Message]]:
    """Yield the records of a partition, on the data's side, after the group's committed position, up to the current
    end.

    A chunk is committed when the next one is requested. Raises HelenusError.
    """
    if worker.log_of_data == "pulsar":
        chunks: Iterator[list[Message]] = _pulsar_module("_pulsar_unread").unread(
            _pulsar(worker), group, topic, partition
        )
        return chunks
    return _kafka_reader.unread(worker.consumer_config, group, topic, partition)


def _ignore_loss(offset_range: OffsetRange, events: int) -> None:
    pass


def _log(worker: WorkerSettings, log_name: str, is_by_key: bool = False) -> Log:
    if log_name == "kafka":
        log = KafkaLog(worker.producer_config)
        log.replication_factor = worker.topic_creation_default_replication_factor
        return log
    config = _pulsar(worker, is_by_key)
    from helenus_sinks.pulsar.log import PulsarLog

    return PulsarLog(config)


def _pulsar(worker: WorkerSettings, is_by_key: bool = False) -> PulsarConfig:
    with _pulsar_errors():
        from helenus_sinks.pulsar.config import PulsarConfig
    config = PulsarConfig.from_settings(worker, batches="key" if is_by_key else "mixed", linger=_LINGER_S)
    return replace(config, shares_subscriptions=bool(worker.group_id))


def _pulsar_module(module: str) -> ModuleType:
    with _pulsar_errors():
        return import_module(f"helenus_connector.log.{module}")


@contextmanager
def _pulsar_errors() -> Iterator[None]:
    try:
        yield
    except ModuleNotFoundError as error:
        if str(error.name).startswith("helenus"):
            raise  # that is no extra's
        raise HelenusError(Kind.CONFIG, f"log=pulsar: {error}", advice=NO_PULSAR) from None
