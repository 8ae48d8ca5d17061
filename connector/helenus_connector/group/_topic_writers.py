"""The choice of a topic's writer: Kafka's fences by transactional ids, Pulsar's by epochs."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from helenus_connector.config.worker import WorkerSettings
from helenus_connector.group._pulsar_topic_writer import PulsarTopicWriter
from helenus_connector.group._topic_writer import KafkaTopicWriter, TopicWriter

TakeEpoch = Callable[[str], "tuple[int, bool]"]
"""Returns an epoch of the leader's term for a topic, and whether the topic has it already."""


def topic_writer(
    worker: WorkerSettings,
    topic: str,
    transactional_id: str,
    parse: Callable[[bytes, str], Any],
    take_epoch: TakeEpoch | None,
) -> TopicWriter:
    """Return the writer of a `topic`: on Kafka with the id of all its writers, on Pulsar with an epoch."""
    if take_epoch is not None:
        return PulsarTopicWriter(worker, topic, take_epoch, parse)
    return KafkaTopicWriter(worker, topic, transactional_id, parse)
