"""Partitions that are waited for: Kafka says when something comes there, so that a planner need not ask for their ends.

To ask for the ends of four partitions takes 0.6 ms of CPU, and of 800 some 15, fifty times a second. A consumer waits
at their ends, and is handed what comes.
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
_MOST = 10_000
_BUSY_S, _MANY = 0.2, 10


class TopicWatch:
    """Waits for records of the partitions in `places`. `config` is librdkafka's.

    It only saves questions: what it misses is found when all ends are asked for, which it `is_unsure` says is due.
    """

    def __init__(self, config: Mapping[str, str]) -> None:
        self._config = config
        self._consumer: Any = None
        self._taken: list[Any] = []
        self._woken: dict[Place, float] = {}
        self.places: set[Place] = set()
        self.is_unsure = False

    def add(self, ends: Mapping[Place, int]) -> None:
        """Wait for records from these offsets on."""
        if not ends:
            return
        if self._consumer is None:
            self._consumer = Consumer({**self._config, **_SETTINGS, "error_cb": self._failed})
        self._consumer.incremental_assign([TopicPartition(*place, end) for place, end in ends.items()])
        self.places |= ends.keys()

    def leave(self, places: Iterable[Place]) -> None:
        """Wait for these no longer."""
        if left := self.places.intersection(places):
            self._consumer.incremental_unassign([TopicPartition(*place) for place in left])
            self.places -= left

    def wait(self, seconds: float) -> None:
        """Wait for so long, or until something comes."""
        if not self.places:
            time.sleep(seconds)
        elif not self._taken:
            self._take(seconds)

    def woken(self) -> set[Place]:
        """The partitions where something came since this was asked last. Those where much comes, or an error, are
        waited for no longer.
        """
        self._take(0)
        now = time.monotonic()
        wrong = {(message.topic(), message.partition()) for message in self._taken if message.error() is not None}
        counts = Counter((message.topic(), message.partition()) for message in self._taken)
        found = counts.keys() & self.places
        busy = {p for p in found if counts[p] > _MANY or now - self._woken.get(p, -math.inf) < _BUSY_S}
        self._woken = {place: at for place, at in self._woken.items() if now - at < _BUSY_S} | dict.fromkeys(found, now)
        self._taken.clear()
        self.leave(wrong | busy)
        return found

    def close(self) -> None:
        """Let go of the brokers."""
        if self._consumer is not None:
            self._consumer.close()
            self._consumer = None
        self._taken.clear()
        self.places.clear()

    def _failed(self, error: KafkaError) -> None:
        """All are asked for when no broker is there: that shows why, and when one is back."""
        self.is_unsure |= error.code() == KafkaError._ALL_BROKERS_DOWN

    def _take(self, seconds: float) -> None:
        if not self.places:
            return
        try:
            # More than one at a time would be waited for until all are there.
            if seconds and (first := self._consumer.poll(seconds)) is not None:
                self._taken.append(first)
            self._taken += self._consumer.consume(_MOST, timeout=0)
        except KafkaException:
            self.is_unsure = True
            time.sleep(seconds)  # or the planner would not pause
