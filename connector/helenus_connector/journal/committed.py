"""The positions of connectors that do not run just now, as the brokers have them: whichever worker runs one next."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence

from confluent_kafka import TopicPartition

from helenus_connector.config.connector import ConnectorSettings
from helenus_connector.config.worker import WorkerSettings
from helenus_connector.control.positions import KnownPosition
from helenus_connector.journal._positions import group_of, read_positions, to_commit, to_commit_again
from helenus_connector.journal.support import obstacle
from helenus_sinks.kafka.groups import commit_to_group

Commit = Callable[[str, Sequence[TopicPartition]], None]
"""Commits positions of a consumer group."""


class CommittedPositions:
    """A `control.positions.BrokerPositions` of connectors that publish exactly once. By `commit` it commits positions,
    by default without a fence, as a worker does that has no group.
    """

    def __init__(self, worker: WorkerSettings, commit: Commit | None = None) -> None:
        self._worker = worker
        self._commit = commit or self._commit_unfenced

    def has(self, settings: ConnectorSettings) -> bool:
        """Return whether the brokers have a connector's positions. Those of a state of rows are Spark's."""
        if settings.state == "rows":
            return False
        return settings.exactly_once_support != "disabled" and not obstacle(self._worker, settings)

    def read(self, settings: ConnectorSettings, partitions: Mapping[str, int]) -> dict[str, KnownPosition]:
        """Return where a connector stands, by topic; `partitions` says how many each has."""
        topic_positions = {}
        for topic, positions in read_positions(self._worker, settings.name, partitions).items():
            epochs = [position.epoch for position in positions.values() if position.epoch is not None]
            offsets = {partition: position.offset for partition, position in positions.items()}
            is_loose = any(position.is_loose for position in positions.values())
            topic_positions[topic] = KnownPosition(offsets, max(epochs, default=None), is_loose)
        return topic_positions

    def move(self, settings: ConnectorSettings, topic: str, offsets: Mapping[str, int], epoch: int) -> None:
        """Commit where a stopped connector is to go on in a topic, of this `epoch`."""
        now_ms = int(time.time() * 1000)
        positions = {int(partition): (offset, now_ms) for partition, offset in offsets.items()}
        self._commit(group_of(settings.name), to_commit(topic, positions, epoch))

    def renew(self, settings: ConnectorSettings, partitions: Mapping[str, int]) -> None:
        """Commit a connector's positions once more: Kafka forgets them after a week (`offsets.retention.minutes`)."""
        positions = read_positions(self._worker, settings.name, partitions)
        renewed = [p for topic, of_topic in positions.items() for p in to_commit_again(topic, of_topic)]
        if renewed:
            self._commit(group_of(settings.name), renewed)

    def _commit_unfenced(self, group: str, positions: Sequence[TopicPartition]) -> None:
        commit_to_group(self._worker.consumer_config, group, positions)
