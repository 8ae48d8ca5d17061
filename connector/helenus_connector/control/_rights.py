"""The rights that a worker's logins lack on the topics of its connectors, as far as brokers can be asked: on Kafka."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from helenus_connector.config.connector import ConnectorSettings
from helenus_connector.config.state import marker_topic
from helenus_connector.config.worker import WorkerSettings
from helenus_schemas.errors import HelenusError
from helenus_sinks.chunks import chunk_topic
from helenus_sinks.kafka.rights import TopicUse, missing_rights

_ANY_NUMBER = -1  # of partitions: while the events topic is missing, nobody knows how many


def refusals(
    worker: WorkerSettings, tables: Sequence[ConnectorSettings], partitions: Mapping[str, int]
) -> Iterator[HelenusError]:
    """Yield an error for each topic that a login may not use as its connector has to. `partitions` are those of the
    events topics, 0 for one that is missing. Raises HelenusError if a broker is away.
    """
    reads = [use for table in tables for use in _reads(worker, table)]
    writes = [use for table in tables for use in _writes(worker, table, partitions.get(table.events) or _ANY_NUMBER)]
    if worker.group_id and worker.log == "kafka":
        writes.append(TopicUse(worker.group_topic, ("WRITE", "READ"), 1, worker.config_storage_replication_factor))
        writes.append(TopicUse(worker.status_topic, ("WRITE", "READ"), 1, worker.status_storage_replication_factor))
    if reads:
        yield from missing_rights(worker.consumer_config, reads)
    if writes:
        yield from missing_rights(worker.producer_config, writes)


def _reads(worker: WorkerSettings, table: ConnectorSettings) -> Iterator[TopicUse]:
    if worker.log == "kafka":
        yield TopicUse(table.events, ("READ",))
        if table.signal_topic:
            yield TopicUse(table.signal_topic, ("READ",))
    if worker.log_of_data == "kafka" and table.state == "keys":
        yield TopicUse(table.data, ("READ",))


def _writes(worker: WorkerSettings, table: ConnectorSettings, partitions: int) -> Iterator[TopicUse]:
    factor = worker.topic_creation_default_replication_factor
    if worker.log == "kafka" and (table.snapshot_mode != "never" or table.state != "none"):
        yield TopicUse(table.events, ("WRITE",))  # keys of a snapshot, and what the state asks for
    if worker.log_of_data != "kafka":
        return
    data_factor = table.data_creation.replication_factor
    data_factor = factor if data_factor is None else data_factor
    yield TopicUse(table.data, ("WRITE",), partitions, data_factor)
    if table.has_chunks:
        chunk_partitions = partitions if partitions == _ANY_NUMBER else 2 * partitions
        yield TopicUse(chunk_topic(table.data), ("WRITE", "READ"), chunk_partitions, data_factor)
    if table.schema_store == "topic" or table.defers_schemas:
        yield TopicUse(table.schema_store_topic, ("WRITE", "READ"), 1, factor)
    if not table.markers:
        yield TopicUse(marker_topic(table.data), ("WRITE",), partitions, data_factor)
    if table.exactly_once_support != "disabled":
        journal_factor = worker.offset_storage_replication_factor
        yield TopicUse(worker.journal_topic(table.name), ("WRITE", "READ"), 1, journal_factor)
    if table.has_dead_letters:
        yield TopicUse(table.dead_letters, ("WRITE",), 1, factor)
