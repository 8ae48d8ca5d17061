"""Records of data topics of Kafka, read and decoded once: who waits for something asks for them twice a second."""

from __future__ import annotations

import time

from confluent_kafka import Consumer, KafkaError, KafkaException, Message, TopicPartition

from helenus_stack.readers import Reader
from helenus_stack.records import PATIENCE_S, Record
from helenus_stack.status import Status


class HeldTopics:
    """All that topics hold, as `Reader.messages` and `Reader.record` give it.

    A topic is read on from where it was read last: what Kafka deletes or compacts after that stays in the answer. A
    topic must not be deleted.
    """

    def __init__(self, status: Status, reader: Reader) -> None:
        self._reader = reader
        self._topics: dict[str, dict[int, _Partition]] = {}
        self._consumer = Consumer(
            {
                **status.kafka(),
                "group.id": "helenus-tests",
                "enable.auto.commit": "false",
                "enable.partition.eof": "true",  # the end of a transaction takes an offset, which has no message
                "log_level": "0",
                "reconnect.backoff.max.ms": "500",  # brokers are stopped, and come back
            }
        )

    def records(self, topic: str) -> list[Record]:
        """Partition by partition. Raises KafkaException if the brokers are away."""
        partitions = self._topics.setdefault(topic, {})
        for number in self._consumer.list_topics(topic, timeout=PATIENCE_S).topics[topic].partitions:
            try:
                start, end = self._consumer.get_watermark_offsets(TopicPartition(topic, number), timeout=PATIENCE_S)
            except KafkaException as error:
                if error.args[0].code() != KafkaError.NOT_LEADER_FOR_PARTITION:
                    raise
                continue  # without a leader just now, as it was just made
            partition = partitions.setdefault(number, _Partition(start))
            if partition.at < end:
                self._read(TopicPartition(topic, number, partition.at), end, partition)
        return [record for number in sorted(partitions) for record in partitions[number].records]

    def _read(self, topic_partition: TopicPartition, end: int, partition: _Partition) -> None:
        self._consumer.assign([topic_partition])
        try:
            deadline = time.monotonic() + PATIENCE_S
            while partition.at < end:
                messages: list[Message] = self._consumer.consume(min(10_000, end - partition.at), timeout=0.1)
                if messages:
                    deadline = time.monotonic() + PATIENCE_S
                elif time.monotonic() > deadline:
                    raise TimeoutError(f"no message within {PATIENCE_S} s: {topic_partition}, now at {partition.at}")
                for message in messages:
                    error = message.error()
                    if error is None:
                        partition.records.append(self._reader.record(message))
                        partition.at = message.offset() + 1
                    elif error.code() == KafkaError._PARTITION_EOF:
                        partition.at = message.offset()
                    else:
                        raise KafkaException(error)
        finally:
            self._consumer.unassign()

    def close(self) -> None:
        self._consumer.close()


class _Partition:
    def __init__(self, start: int) -> None:
        self.at = start
        self.records: list[Record] = []
