"""Which Log events come from and records go to, as the worker's file says: only this module chooses Kafka or Pulsar."""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterator, Sequence
from contextlib import contextmanager
from importlib import import_module
from typing import TYPE_CHECKING

from helenus_connector.config.worker import WorkerSettings
from helenus_connector.log import _kafka_planner, _kafka_reader
from helenus_connector.log.events import Message, OffsetRange, Planner
from helenus_schemas.cql.table import Table
from helenus_schemas.errors import HelenusError, Kind
from helenus_schemas.event import datastax
from helenus_schemas.settings.shared import NO_PULSAR
from helenus_sinks.kafka.log import KafkaLog
from helenus_sinks.log import DeclaredSchemas, Log

if TYPE_CHECKING:
    from types import ModuleType

    from helenus_sinks.pulsar.config import PulsarConfig

_LINGER_S = 0.1  # until the flush of a batch, which does not wait for it


def events_log(worker: WorkerSettings) -> Log:
    """For appending to events topics. Raises HelenusError(CONFIG) for settings that no client takes."""
    return _log(worker, worker.log)


def data_log(worker: WorkerSettings) -> Log:
    """For appending to data topics and to those of dead letters. Raises as `events_log`."""
    return _log(worker, worker.log_of_data, is_by_key=worker.pulsar_key_based_batcher)


def event_schemas(table: Table) -> DeclaredSchemas:
    """The schemas of a table's events topic, for a Log that keeps them. Raises Unmappable, naming the column."""
    return DeclaredSchemas(datastax.key_schema(table), datastax.VALUE, value_properties=datastax.VALUE_PROPERTIES)


def planner(worker: WorkerSettings, watches: bool = False) -> Planner:
    """For asking after events topics; with `watches` for who does so all the time. Raises as `events_log`."""
    if worker.log == "pulsar":
        found: Planner = _of_pulsar("_pulsar_planner").PulsarPlanner(_pulsar(worker))
        return found
    return _kafka_planner.KafkaPlanner(worker.consumer_config, watches)


def read(
    worker: WorkerSettings,
    places: Sequence[OffsetRange],
    data_loss: str,
    lost: Callable[[OffsetRange, int], None],
    failed: Callable[[OffsetRange, HelenusError], None],
) -> Generator[list[Message], None, None]:
    """The records of several ranges, in chunks, each of one partition; in order within a range.

    Where a topic no longer has events of a range, `lost` is called with how many if `data_loss` is `continue`. `failed`
    is called with OFFSETS_LOST if it is `fail`, with refusals of the broker, and with BROKER_UNREACHABLE if nothing
    comes for a minute. A range that failed goes no further, the others do.
    """
    if worker.log == "pulsar":
        found: Generator[list[Message], None, None] = _of_pulsar("_pulsar_reader").read(
            _pulsar(worker), places, data_loss, lost, failed
        )
        return found
    return _kafka_reader.read(worker.consumer_config, places, data_loss, lost, failed)


def data_planner(worker: WorkerSettings, watches: bool = False) -> Planner:
    """For asking after data topics, as `planner`. Raises as `events_log`."""
    if worker.log_of_data == "pulsar":
        found: Planner = _of_pulsar("_pulsar_planner").PulsarPlanner(_pulsar(worker))
        return found
    return _kafka_planner.KafkaPlanner(worker.consumer_config, watches)


def read_data(
    worker: WorkerSettings, places: Sequence[OffsetRange], failed: Callable[[OffsetRange, HelenusError], None]
) -> Generator[list[Message], None, None]:
    """As `read`, of data topics, with their records' headers. What a topic no longer has is left out."""
    if worker.log_of_data == "pulsar":
        reader = _of_pulsar("_pulsar_reader")
        found: Generator[list[Message], None, None] = reader.read(
            _pulsar(worker), places, "continue", _ignored, failed, reader.records
        )
        return found
    return _kafka_reader.read(worker.consumer_config, places, "continue", _ignored, failed)


def read_signals(
    worker: WorkerSettings, places: Sequence[OffsetRange], failed: Callable[[OffsetRange, HelenusError], None]
) -> Generator[list[Message], None, None]:
    """As `read`, of topics of signals, where the events are: keys are text. What a topic no longer has is left out."""
    if worker.log == "pulsar":
        reader = _of_pulsar("_pulsar_reader")
        found: Generator[list[Message], None, None] = reader.read(
            _pulsar(worker), places, "continue", _ignored, failed, reader.texts
        )
        return found
    return _kafka_reader.read(worker.consumer_config, places, "continue", _ignored, failed)


@contextmanager
def data_schemas(worker: WorkerSettings, topic: str) -> Iterator[Callable[[int], tuple[str | None, str | None]]]:
    """Gives the schemas of keys and values by the version that a record names, where brokers keep schemas. Raises as
    `events_log`.
    """
    schemas = _of_pulsar("_pulsar_schemas").PulsarTopicSchemas(_pulsar(worker), topic)
    try:
        yield schemas.texts
    finally:
        schemas.close()


def unread(worker: WorkerSettings, group: str, topic: str, partition: int) -> Iterator[list[Message]]:
    """The records of a partition, on the data's side, after the group's committed position, up to the current end.

    A chunk is committed when the next one is asked for. Raises HelenusError.
    """
    if worker.log_of_data == "pulsar":
        found: Iterator[list[Message]] = _of_pulsar("_pulsar_unread").unread(_pulsar(worker), group, topic, partition)
        return found
    return _kafka_reader.unread(worker.consumer_config, group, topic, partition)


def _ignored(place: OffsetRange, events: int) -> None:
    pass


def _log(worker: WorkerSettings, which: str, is_by_key: bool = False) -> Log:
    if which == "kafka":
        log = KafkaLog(worker.producer_config)
        log.replication_factor = worker.topic_creation_default_replication_factor
        return log
    config = _pulsar(worker, is_by_key)
    from helenus_sinks.pulsar.log import PulsarLog

    return PulsarLog(config)


def _pulsar(worker: WorkerSettings, is_by_key: bool = False) -> PulsarConfig:
    with _installed():
        from helenus_sinks.pulsar.config import PulsarConfig
    # Not exclusive: Spark's workers take turns at a partition.
    return PulsarConfig.from_settings(worker, batches="key" if is_by_key else "mixed", linger=_LINGER_S)


def _of_pulsar(module: str) -> ModuleType:
    with _installed():
        return import_module(f"helenus_connector.log.{module}")


@contextmanager
def _installed() -> Iterator[None]:
    try:
        yield
    except ModuleNotFoundError as error:
        if str(error.name).startswith("helenus"):
            raise  # that is no extra's
        raise HelenusError(Kind.CONFIG, f"log=pulsar: {error}", advice=NO_PULSAR) from None
