"""Reads parts of single partitions, from an offset to the end, by a consumer that is kept."""

from __future__ import annotations

import time
from collections.abc import Generator, Mapping
from typing import Any

from confluent_kafka import OFFSET_BEGINNING, Consumer, KafkaError, KafkaException, TopicPartition

from helenus_schemas.errors import HelenusError, Kind
from helenus_sinks.kafka.errors import MOVING, DeliveryReports, broker_error, new_client, topic_error

BEGINNING = OFFSET_BEGINNING
"""The offset of the first record, whichever that is."""
_POLL_S = 0.5
_QUEUE_KB = 8 * 1024
"""Memory for what is fetched ahead: a reader often stops after a few records."""


class OffsetsGone(HelenusError):
    """A partition has no record at the offset any more, and it is not the end: retention took it, or the topic is
    another one.
    """


class PartitionReader:
    """A consumer without a group. `config` is librdkafka's, `bootstrap.servers` at least. Records of transactions that
    are open or aborted are left out, if it `is_committed`. For one thread at a time. Raises HelenusError CONFIG for
    wrong settings.
    """

    def __init__(self, config: Mapping[str, str], timeout_s: float = 30.0, is_committed: bool = True) -> None:
        self._where = config["bootstrap.servers"]
        self._reports = DeliveryReports()
        self._timeout_s = timeout_s
        self._config = {
            "log_level": "0",
            "group.id": "helenus-reader",  # librdkafka wants one; nothing is committed
            "queued.max.messages.kbytes": str(_QUEUE_KB),
            "fetch.wait.max.ms": "50",
            **config,
            "enable.auto.commit": False,
            "enable.auto.offset.store": False,
            "auto.offset.reset": "error",
            "enable.partition.eof": True,
            "isolation.level": "read_committed" if is_committed else "read_uncommitted",
            "allow.auto.create.topics": False,
        }
        self._consumer: Consumer | None = None
        self._end_consumer: Consumer | None = None

    def records(self, topic: str, partition: int, offset: int, end: int) -> Generator[Any, None, None]:
        """Yield confluent-kafka's messages from an offset to the partition's end, for which it waits if that is before
        `end`: for transactions that are open, and brokers that have just become the leader. Raises OffsetsGone, and
        HelenusError as `errors.broker_error`: BROKER_UNREACHABLE if nothing comes for the timeout. Read it to its end,
        or close it, before the next one.
        """
        consumer = self._consumer = self._consumer or new_client(Consumer, self._config, self._reports, self._where)
        where = f"{self._where}, topic {topic}, partition {partition}"
        try:
            consumer.assign([TopicPartition(topic, partition, offset)])
            deadline = time.monotonic() + self._timeout_s
            while True:
                message = consumer.poll(_POLL_S)
                if message is None:
                    if time.monotonic() > deadline:
                        reason = f": {self._reports.last.str()}" if self._reports.last else ""
                        raise HelenusError(Kind.BROKER_UNREACHABLE, f"Kafka: no records came{reason}", where)
                    continue
                error = message.error()
                if error is None:
                    yield message
                    deadline = time.monotonic() + self._timeout_s
                elif error.code() == KafkaError._PARTITION_EOF:
                    if message.offset() >= end:
                        return
                elif error.code() == KafkaError._AUTO_OFFSET_RESET:
                    raise OffsetsGone(Kind.OFFSETS_LOST, f"Kafka: {error.str()}", where)
                elif error.fatal() or error.code() not in _PASSING | MOVING:
                    raise topic_error(error, self._where, topic)
                if time.monotonic() > deadline:
                    raise broker_error(error, where)
        except KafkaException as failure:
            raise broker_error(failure.args[0], where) from None
        finally:
            if self._consumer is not None:
                consumer.unassign()

    def partitions(self, topic: str) -> int:
        """Return how many partitions a topic has. Raises HelenusError, TOPIC_MISSING too."""
        consumer = self._consumer = self._consumer or new_client(Consumer, self._config, self._reports, self._where)
        try:
            metadata = consumer.list_topics(topic, timeout=self._timeout_s).topics[topic]
        except KafkaException as failure:
            raise topic_error(failure.args[0], self._where, topic) from None
        if metadata.error is not None:
            raise topic_error(metadata.error, self._where, topic)
        return len(metadata.partitions)

    def end(self, topic: str, partition: int) -> int:
        """Return the offset after the last record that the brokers acknowledged, also of an open transaction. Raises
        HelenusError.
        """
        if self._end_consumer is None:
            config = {**self._config, "isolation.level": "read_uncommitted"}
            self._end_consumer = new_client(Consumer, config, self._reports, self._where)
        topic_partition, deadline = TopicPartition(topic, partition), time.monotonic() + self._timeout_s
        while True:
            try:
                _, end = self._end_consumer.get_watermark_offsets(topic_partition, timeout=self._timeout_s)
                return int(end)
            except KafkaException as failure:
                error = failure.args[0]
                if error.code() not in MOVING or time.monotonic() > deadline:
                    raise topic_error(error, self._where, topic) from None
            time.sleep(_MOVING_S)

    def close(self) -> None:
        """End the connections."""
        for consumer in (self._consumer, self._end_consumer):
            if consumer is not None:
                consumer.close()
        self._consumer = self._end_consumer = None


_MOVING_S = 0.1
_PASSING = {KafkaError._TRANSPORT, KafkaError._ALL_BROKERS_DOWN, KafkaError._RESOLVE, KafkaError._TIMED_OUT}
"""Errors after which librdkafka tries again by itself."""
