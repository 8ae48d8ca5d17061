"""What planner and reader of Kafka share: timeouts, and Kafka's errors as ours."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from confluent_kafka import KafkaError, KafkaException

from helenus_sinks.kafka.errors import MOVING, broker_error

TIMEOUT_S = 5.0
NO_ANSWER_ADVICE = "look at the brokers' logs: the leader of the partition may be away"
TRANSIENT_CODES = MOVING | {KafkaError._ALL_BROKERS_DOWN, KafkaError._TRANSPORT, KafkaError._TIMED_OUT}
"""Errors that pass when the brokers are back, or a partition has its new leader."""


@contextmanager
def kafka_errors(where: str) -> Iterator[None]:
    """Raise Kafka's errors as ours."""
    try:
        yield
    except KafkaException as failure:
        raise broker_error(failure.args[0], where) from None
