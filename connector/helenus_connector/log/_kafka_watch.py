"""Partitions whose new records Kafka reports, so that a planner need not read their ends.

To read the ends of four partitions takes 0.6 ms of CPU, and of 800 some 15, fifty times a second. A consumer waits at
their ends, and receives new records.
"""

from __future__ import annotations

import math
import time
from collections import Counter
from collections.abc import Collection, Iterable, Mapping
from typing import Any

from confluent_kafka import Consumer, KafkaError, KafkaException, TopicPartition

Place = tuple[str, int]
"""A topic and partition."""
WAITS_S = 2.0
"""So long a request waits for records. Each has all partitions, and costs client and broker 4 ms for a thousand."""
_LONGEST_WAIT_S, _PARTITIONS_PER_S = 10.0, 400
"""So long it waits later on, with so many partitions for each second. It is short at first, as partitions that are not
in it yet have to be asked for their ends meanwhile: at a start these are all.
"""
LEARN_LEADERS_S = 1.5
"""So long it may take until a client knows the leaders of new partitions, which are in its next request then."""
_SETTINGS = {
    "log_level": "0",
    "socket.timeout.ms": "60000",  # librdkafka's default: it has to be longer than a request waits
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
_BUSY_S, _BUSY_RECORDS = 0.005, 10
"""A partition is asked for its end instead, each 20 ms, once so many records wait or looks follow each other so fast:
some hundred a second. Before that, to receive them costs less, and nothing waits for the next look.
"""


class TopicWatch:
    """Waits for records of `topic_partitions`, each request for `waits_s`. `config` is librdkafka's.

    It only saves requests: what it misses is found when all ends are read, which is due when it `is_unsure`.
    """

    def __init__(self, config: Mapping[str, str]) -> None:
        self._config = config
        self._consumer: Any = None
        self._former: Any = None  # until the requests of the one that replaces it have all partitions
        self._former_partitions: set[Place] = set()
        self._former_until = 0.0  # monotonic s
        self._received: list[Any] = []
        self._woken_at: dict[Place, float] = {}
        self.topic_partitions: set[Place] = set()
        self.waits_s = WAITS_S
        self.is_unsure = False

    def watch(self, ends: Mapping[Place, int]) -> None:
        """Wait for records from these offsets on."""
        if not ends:
            return
        if self._consumer is None:
            self._consumer = self._make_consumer()
        _assign(self._consumer, ends)
        self.topic_partitions |= ends.keys()

    def unwatch(self, topic_partitions: Iterable[Place]) -> None:
        """Stop waiting for records of these partitions."""
        if unwatched := self.topic_partitions.intersection(topic_partitions):
            _unassign(self._consumer, unwatched)
            _unassign(self._former, unwatched & self._former_partitions)
            self.topic_partitions -= unwatched
            self._former_partitions -= unwatched

    def wait_longer(self, ends: Mapping[Place, int]) -> None:
        """Have requests wait as long as is right for so many partitions. `ends` has the ends of all that are watched,
        at least.
        """
        waits_s = min(len(self.topic_partitions) / _PARTITIONS_PER_S, _LONGEST_WAIT_S)
        if self._consumer is None or self._former is not None or waits_s <= self.waits_s:
            return
        self.waits_s, self._former_until = waits_s, time.monotonic() + waits_s + LEARN_LEADERS_S
        self._former, self._former_partitions = self._consumer, set(self.topic_partitions)
        self._consumer = self._make_consumer()
        _assign(self._consumer, {topic_partition: ends[topic_partition] for topic_partition in self.topic_partitions})

    def _make_consumer(self) -> Any:
        wait_ms = {"fetch.wait.max.ms": str(int(self.waits_s * 1000))}
        return Consumer({**self._config, **_SETTINGS, **wait_ms, "error_cb": self._failed})

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
        if self._former is not None and now >= self._former_until:
            self._close_former()
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
        self._close_former()
        if self._consumer is not None:
            self._consumer.close()
            self._consumer = None
        self._received.clear()
        self.topic_partitions.clear()

    def _close_former(self) -> None:
        if self._former is not None:
            self._former.close()
            self._former, self._former_partitions = None, set()

    def _failed(self, error: KafkaError) -> None:
        """Note that all ends are to be read if no broker is available: that shows why, and when one is back."""
        self.is_unsure |= error.code() == KafkaError._ALL_BROKERS_DOWN

    def _receive(self, seconds: float) -> None:
        if not self.topic_partitions:
            return
        try:
            consumers = [consumer for consumer in (self._former, self._consumer) if consumer is not None]
            # More than one at a time would be waited for until all are there.
            if seconds and (first := consumers[0].poll(seconds)) is not None:
                self._received.append(first)
            for consumer in consumers:
                self._received += consumer.consume(_MAX_RECORDS, timeout=0)
        except KafkaException:
            self.is_unsure = True
            time.sleep(seconds)  # or the planner would not pause


def _assign(consumer: Any, ends: Mapping[Place, int]) -> None:
    consumer.incremental_assign([TopicPartition(*topic_partition, end) for topic_partition, end in ends.items()])


def _unassign(consumer: Any, topic_partitions: Collection[Place]) -> None:
    if topic_partitions:
        consumer.incremental_unassign([TopicPartition(*topic_partition) for topic_partition in topic_partitions])
