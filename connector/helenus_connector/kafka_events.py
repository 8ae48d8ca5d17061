"""Reading events topics on Kafka: offsets for the planner, records for the tasks."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from confluent_kafka import Consumer, KafkaError, KafkaException, TopicPartition
from confluent_kafka.admin import AdminClient, OffsetSpec

from helenus_schemas.errors import HelenusError, Kind
from helenus_sinks.kafka import broker_error

Offsets = dict[str, dict[str, int]]
"""Next offset by topic and partition; partitions are text, because this is kept as JSON."""

_CHUNK = 10_000
_TIMEOUT_S = 5.0
_READ_TIMEOUT_S = 60.0


@dataclass(frozen=True, slots=True)
class Range:
    """Records of one partition from offset `start` up to, not including, `end`."""

    topic: str
    partition: int
    start: int
    end: int


class Planner:
    """What the planner asks of the brokers. Every call takes a few seconds at most, then raises KafkaException."""

    def __init__(self, config: Mapping[str, str], group: str) -> None:
        self._admin = AdminClient({"log_level": "0", **config})
        self._consumer = Consumer({"log_level": "0", "enable.auto.commit": "false", **config, "group.id": group})

    def partitions(self, topics: Sequence[str]) -> dict[str, int]:
        """How many partitions each topic has; 0 if it does not exist."""
        known = self._consumer.list_topics(timeout=_TIMEOUT_S).topics
        return {t: len(known[t].partitions) if t in known else 0 for t in topics}

    def latest(self, partitions: Mapping[str, int]) -> Offsets:
        """The end of every partition."""
        return self._offsets(partitions, OffsetSpec.latest())

    def earliest(self, partitions: Mapping[str, int]) -> Offsets:
        """The start of every partition."""
        return self._offsets(partitions, OffsetSpec.earliest())

    def since(self, partitions: Mapping[str, int], timestamp_ms: int) -> Offsets:
        """The first offset of every partition with at least this timestamp; -1 where there is none."""
        return self._offsets(partitions, OffsetSpec.for_timestamp(timestamp_ms))

    def commit(self, offsets: Offsets) -> None:
        """Move the consumer group, which dashboards read as lag; the checkpoint is what counts."""
        group = [TopicPartition(t, int(p), o) for t, ps in offsets.items() for p, o in ps.items()]
        self._consumer.commit(offsets=group, asynchronous=True)

    def close(self) -> None:
        self._consumer.close()

    def _offsets(self, partitions: Mapping[str, int], spec: Any) -> Offsets:
        wanted = {TopicPartition(t, p): spec for t, n in partitions.items() for p in range(n)}
        found: Offsets = {}
        if wanted:
            for place, future in self._admin.list_offsets(wanted, request_timeout=_TIMEOUT_S).items():
                found.setdefault(place.topic, {})[str(place.partition)] = future.result().offset
        return found


_consumers: dict[tuple[str, str], Consumer] = {}


def read(config: Mapping[str, str], place: Range, data_loss: str, lost: Callable[[int], None]) -> Iterator[list[Any]]:
    """The records of a range, in chunks of confluent-kafka Messages. The process keeps its consumers between calls.

    Where the topic no longer has the range's start: `lost` hears how many offsets that are if `data_loss` is
    `continue`, HelenusError OFFSETS_LOST if it is `fail`. Raises BROKER_UNREACHABLE if nothing comes for a minute.
    """
    consumer = _consumers.get((config["bootstrap.servers"], data_loss))
    if consumer is None:
        settings = {
            "log_level": "0",
            "fetch.wait.max.ms": "20",
            **config,
            "group.id": "helenus-reader",
            "enable.auto.commit": "false",
            "auto.offset.reset": "error" if data_loss == "fail" else "earliest",
            "enable.partition.eof": "true",
        }
        consumer = _consumers[config["bootstrap.servers"], data_loss] = Consumer(settings)
    where = f"topic {place.topic}, partition {place.partition}, offsets {place.start} to {place.end}"
    consumer.assign([TopicPartition(place.topic, place.partition, place.start)])
    at = place.start
    deadline = time.monotonic() + _READ_TIMEOUT_S
    try:
        while at < place.end:
            chunk = []
            for message in consumer.consume(min(_CHUNK, place.end - at), timeout=0.5):
                error = message.error()
                if error is None:
                    if at == place.start and message.offset() > at:
                        lost(_gone(consumer, place))
                    if message.offset() < place.end:
                        chunk.append(message)
                    at = max(at, message.offset() + 1)
                elif error.code() == KafkaError._PARTITION_EOF:
                    # Transaction markers and compaction leave holes at the end of a range.
                    if at == place.start and message.offset() > at:
                        lost(_gone(consumer, place))
                    at = max(at, message.offset())
                elif error.code() in (KafkaError._AUTO_OFFSET_RESET, KafkaError.OFFSET_OUT_OF_RANGE):
                    raise HelenusError(Kind.OFFSETS_LOST, "the topic no longer has events that were not read", where)
                elif not error.retriable() and error.code() not in (
                    KafkaError._ALL_BROKERS_DOWN,
                    KafkaError._TRANSPORT,
                ):
                    raise broker_error(error, where)
            if chunk:
                deadline = time.monotonic() + _READ_TIMEOUT_S
                yield chunk
            elif time.monotonic() > deadline:
                raise HelenusError(Kind.BROKER_UNREACHABLE, "no events come, though the topic has more", where)
    except KafkaException as failure:
        raise broker_error(failure.args[0], where) from None
    finally:
        consumer.unassign()


def _gone(consumer: Consumer, place: Range) -> int:
    """How many offsets of a range are before the topic's first: holes behind that are no loss."""
    first, _ = consumer.get_watermark_offsets(TopicPartition(place.topic, place.partition), timeout=_TIMEOUT_S)
    return int(min(max(first - place.start, 0), place.end - place.start))
