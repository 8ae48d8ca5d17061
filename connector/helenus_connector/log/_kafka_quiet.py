"""Partitions where nothing comes: Kafka says when that changes, so that a planner need not ask for their ends.

To ask for the ends of 800 partitions takes some 15 ms of CPU, fifty times a second while events come. Most of a
worker's tables are quiet. A consumer waits at the ends of their partitions, and is handed the first record of each.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from confluent_kafka import Consumer, KafkaException, TopicPartition

Place = tuple[str, int]
"""A topic and partition."""
WAITS_S = 2.0
"""So long a request waits for records. Each has all partitions, and costs client and broker some ms for a thousand."""
_SETTINGS = {
    "log_level": "0",
    "fetch.wait.max.ms": str(int(WAITS_S * 1000)),
    "socket.timeout.ms": "60000",  # librdkafka's default: it has to be longer than that
    "group.id": "helenus-reader",
    "enable.auto.commit": "false",
    "auto.offset.reset": "error",
    # One small batch of a partition says enough. Only so many bytes are a limit, for while nobody looks: a limit that a
    # few records reach (`queued.min.messages`) keeps other partitions out of the next request.
    "max.partition.fetch.bytes": "16384",
    "queued.max.messages.kbytes": "1024",
    "fetch.queue.backoff.ms": "20",
}
_MOST = 10_000


class Quiet:
    """Waits for the next record of partitions. `config` is librdkafka's.

    It only saves questions: what it misses, as for a broker that is away, is found when all ends are asked for.
    """

    def __init__(self, config: Mapping[str, str]) -> None:
        self._config = config
        self._consumer: Any = None
        self.places: set[Place] = set()

    def watch(self, ends: Mapping[Place, int]) -> None:
        """Wait for records from these offsets on."""
        if not ends:
            return
        if self._consumer is None:
            self._consumer = Consumer({**self._config, **_SETTINGS})
        self._consumer.incremental_assign([TopicPartition(*place, end) for place, end in ends.items()])
        self.places |= ends.keys()

    def leave(self, places: Iterable[Place]) -> None:
        """Wait for these no longer."""
        if left := self.places.intersection(places):
            self._consumer.incremental_unassign([TopicPartition(*place) for place in left])
            self.places -= left

    def woken(self) -> set[Place]:
        """The partitions that have records now, or an error. They are no longer waited for."""
        if not self.places:
            return set()
        try:
            messages = self._consumer.consume(_MOST, timeout=0)
        except KafkaException:  # all ends are asked for once in a while
            return set()
        found = {(message.topic(), message.partition()) for message in messages} & self.places
        self.leave(found)
        return found

    def close(self) -> None:
        """Let go of the brokers."""
        if self._consumer is not None:
            self._consumer.close()
            self._consumer = None
        self.places.clear()
