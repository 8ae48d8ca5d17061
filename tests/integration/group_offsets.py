"""How far a consumer group has come, as Kafka's own tools see it."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import closing

from confluent_kafka import Consumer, TopicPartition

_TIMEOUT_S = 30.0


def end_offsets(brokers: str, topic: str) -> dict[int, int]:
    """The offset after the last message of each partition."""
    with closing(_consumer(brokers, "ends")) as consumer:
        return {
            partition.partition: consumer.get_watermark_offsets(partition, _TIMEOUT_S)[1]
            for partition in _partitions(consumer, topic)
        }


def group_offsets(brokers: str, group: str, topic: str) -> dict[int, int]:
    """The group's committed offset of each partition; 0 where it has none."""
    with closing(_consumer(brokers, group)) as consumer:
        committed = consumer.committed(_partitions(consumer, topic), _TIMEOUT_S)
        return {partition.partition: max(partition.offset, 0) for partition in committed}


def commit_offsets(brokers: str, group: str, topic: str, offsets: Mapping[int, int]) -> None:
    """Move a group that nobody uses, as `kafka-consumer-groups --reset-offsets` does."""
    with closing(_consumer(brokers, group)) as consumer:
        positions = [TopicPartition(topic, partition, offset) for partition, offset in offsets.items()]
        consumer.commit(offsets=positions, asynchronous=False)


def _consumer(brokers: str, group: str) -> Consumer:
    return Consumer({"bootstrap.servers": brokers, "group.id": group, "enable.auto.commit": False, "log_level": 0})


def _partitions(consumer: Consumer, topic: str) -> list[TopicPartition]:
    partitions = consumer.list_topics(topic, _TIMEOUT_S).topics[topic].partitions
    return [TopicPartition(topic, partition) for partition in sorted(partitions)]
