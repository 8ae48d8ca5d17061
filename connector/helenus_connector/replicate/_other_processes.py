"""How far the other processes of a consumer group are, whose partitions this one does not read."""

from __future__ import annotations

import time
from collections.abc import Collection, Mapping, Sequence
from contextlib import closing
from typing import Any

from confluent_kafka import OFFSET_BEGINNING, Consumer, KafkaError, KafkaException, TopicPartition

from helenus_sinks.kafka.errors import DeliveryReports, broker_error, new_client
from helenus_sinks.kafka.groups import committed

_ANSWER_TIMEOUT_S = 10.0
_PAUSE_S = 1.0
"""Between looks: each asks the brokers."""


class OtherProcesses:
    """Sees whether they have written what the topics had when they were first looked at. `have_moved` says whether they
    had come further at the last look.
    """

    def __init__(self, consumer: Any, settings: Mapping[str, Any], topics: Sequence[str]) -> None:
        self._consumer = consumer
        self._settings = {**settings, "auto.offset.reset": "earliest"}
        self._topics = topics
        self._ends: dict[tuple[str, int], int] = {}
        self._offsets: dict[tuple[str, int], int] = {}
        self._look_at = 0.0
        self.have_moved = False

    def are_at_end(self, own: Collection[tuple[str, int]]) -> bool:
        """Return whether all partitions but these are written to their ends. Raises HelenusError."""
        self.have_moved = False
        if time.monotonic() < self._look_at:
            return False
        self._look_at = time.monotonic() + _PAUSE_S
        try:
            return self._look(own)
        except KafkaException as failure:
            raise broker_error(failure.args[0], str(self._settings["bootstrap.servers"])) from None

    def _look(self, own: Collection[tuple[str, int]]) -> bool:
        metadata = self._consumer.list_topics(timeout=_ANSWER_TIMEOUT_S).topics
        present = [topic for topic in self._topics if topic in metadata]
        names = {(topic, number) for topic in present for number in metadata[topic].partitions} - set(own)
        if not names:
            return True
        positions = committed(self._consumer, [TopicPartition(*name) for name in sorted(names)])
        for position in positions:
            if (position.topic, position.partition) not in self._ends:
                _, end = self._consumer.get_watermark_offsets(position, timeout=_ANSWER_TIMEOUT_S)
                self._ends[position.topic, position.partition] = end
        offsets = {(p.topic, p.partition): p.offset for p in positions}
        self.have_moved, self._offsets = offsets != self._offsets, offsets
        behind = [p for p in positions if p.offset < self._ends[p.topic, p.partition]]
        return not behind or self._are_without_events(behind)

    def _are_without_events(self, positions: Sequence[TopicPartition]) -> bool:
        """Return whether no event follows any of these positions: the marks of transactions may."""
        pending = {(p.topic, p.partition) for p in positions}
        until = time.monotonic() + _ANSWER_TIMEOUT_S
        where = str(self._settings["bootstrap.servers"])
        with closing(new_client(Consumer, self._settings, DeliveryReports(), where)) as consumer:
            starts = [p.offset if p.offset >= 0 else OFFSET_BEGINNING for p in positions]
            consumer.assign([TopicPartition(p.topic, p.partition, n) for p, n in zip(positions, starts, strict=True)])
            while pending and time.monotonic() < until:
                message = consumer.poll(until - time.monotonic())
                if message is None:
                    continue
                if message.error() is None or message.error().code() != KafkaError._PARTITION_EOF:
                    return False
                pending.discard((message.topic(), message.partition()))
        return not pending
