"""Partitions whose new records Kafka reports, so that a planner need not read their ends.

To read the ends of four partitions takes 0.6 ms of CPU, and of 800 some 15, fifty times a second. A consumer waits at
their ends, and receives new records.
"""

from __future__ import annotations

import math
import time
from collections import Counter
from collections.abc import Iterable, Mapping
from typing import Any

from confluent_kafka import Consumer, KafkaError, KafkaException, TopicPartition

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
_MAX_RECORDS = 10_000
_BUSY_S, _BUSY_RECORDS = 0.2, 10


class TopicWatch:
    """Waits for records of `topic_partitions`. `config` is librdkafka's.

    It only saves requests: what it misses is found when all ends are read, which is due when it `is_unsure`.
    """

    def __init__(self, config: Mapping[str, str]) -> None:
        self._config = config
        self._consumer: Any = None
        self._received: list[Any] = []
        self._woken_at: dict[Place, float] = {}
        self.topic_partitions: set[Place] = set()
        self.is_unsure = False

    def watch(self, ends: Mapping[Place, int]) -> None:
        """Wait for records from these offsets on."""
        if not ends:
            return
        if self._consumer is None:
            self._consumer = Consumer({**self._config, **_SETTINGS, "error_cb": self._failed})
        self._consumer.incremental_assign(
            [TopicPartition(*topic_partition, end) for topic_partition, end in ends.items()]
        )
        self.topic_partitions |= ends.keys()

    def unwatch(self, topic_partitions: Iterable[Place]) -> None:
        """Stop waiting for records of these partitions."""
        if unwatched := self.topic_partitions.intersection(topic_partitions):
            self._consumer.incremental_unassign([TopicPartition(*topic_partition) for topic_partition in unwatched])
            self.topic_partitions -= unwatched

    def wait(self, seconds: float) -> None:
        """Wait for so long, or until something comes."""
        if not self.topic_partitions:
            time.sleep(seconds)
        elif not self._received:
            self._receive(seconds)

    def take_woken(self) -> set[Place]:
        """Return the partitions with new records since the last call. Those with many, or with an error, are no longer
        watched.
        """
        self._receive(0)
        now = time.monotonic()
        failed = {(message.topic(), message.partition()) for message in self._received if message.error() is not None}
        counts = Counter((message.topic(), message.partition()) for message in self._received)
        woken = counts.keys() & self.topic_partitions
        busy = {
            topic_partition
            for topic_partition in woken
            if counts[topic_partition] > _BUSY_RECORDS or now - self._woken_at.get(topic_partition, -math.inf) < _BUSY_S
        }
        self._woken_at = {
            topic_partition: woken_at
            for topic_partition, woken_at in self._woken_at.items()
            if now - woken_at < _BUSY_S
        } | dict.fromkeys(woken, now)
        self._received.clear()
        self.unwatch(failed | busy)
        return woken

    def close(self) -> None:
        """Close the consumer."""
        if self._consumer is not None:
            self._consumer.close()
            self._consumer = None
        self._received.clear()
        self.topic_partitions.clear()

    def _failed(self, error: KafkaError) -> None:
        """Note that all ends are to be read if no broker is available: that shows why, and when one is back."""
        self.is_unsure |= error.code() == KafkaError._ALL_BROKERS_DOWN

    def _receive(self, seconds: float) -> None:
        if not self.topic_partitions:
            return
        try:
            # More than one at a time would be waited for until all are there.
            if seconds and (first := self._consumer.poll(seconds)) is not None:
                self._received.append(first)
            self._received += self._consumer.consume(_MAX_RECORDS, timeout=0)
        except KafkaException:
            self.is_unsure = True
            time.sleep(seconds)  # or the planner would not pause
