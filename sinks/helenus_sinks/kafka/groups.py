"""The positions that consumer groups have committed, also in transactions."""

from __future__ import annotations

import threading
import time
from collections.abc import Mapping, Sequence
from contextlib import closing, suppress
from typing import Any

from confluent_kafka import Consumer, KafkaError, KafkaException, Producer, TopicPartition

from helenus_schemas.errors import HelenusError, Kind
from helenus_sinks.kafka.errors import DeliveryReports, broker_error, new_client
from helenus_sinks.kafka.open_transactions import find_positions_held_back
from helenus_sinks.kafka.settings import client_settings

LOOSE = '{"once":false}'
"""The metadata of positions that are committed after a batch, not in a transaction with its records."""
_PASSING = {
    KafkaError.UNSTABLE_OFFSET_COMMIT,  # a transaction is being committed
    KafkaError.COORDINATOR_LOAD_IN_PROGRESS,
    KafkaError.COORDINATOR_NOT_AVAILABLE,
    KafkaError.NOT_COORDINATOR,
}
_END_IT = "if it stays, the brokers left it open: end it with kafka-transactions.sh abort, as docs/failures.md has it"
_ANSWER_TIMEOUT_S = 30.0
_PAUSE_S = 0.05
_GRACE_S = 1.0
"""In which librdkafka says for itself that the brokers did not answer."""


def committed(consumer: Consumer, partitions: Sequence[TopicPartition]) -> list[TopicPartition]:
    """Return the positions that a consumer's group has committed, with their metadata; the offset is negative where it
    has none. Those of a transaction that is open are waited for. Raises KafkaException.
    """
    # Not by an admin client: librdkafka 2.16 crashes in that where the coordinator is just being elected.
    deadline = time.monotonic() + _ANSWER_TIMEOUT_S
    while True:
        try:
            positions: list[TopicPartition] = consumer.committed(list(partitions), _ANSWER_TIMEOUT_S)
            error = next((position.error for position in positions if position.error is not None), None)
            if error is None:
                return positions
        except KafkaException as failure:
            error = failure.args[0]
        if error.code() not in _PASSING or time.monotonic() > deadline:
            raise KafkaException(error)
        time.sleep(_PAUSE_S)


def send_positions(producer: Producer, group: Any, positions: Sequence[TopicPartition], seconds: float) -> None:
    """Make positions of a group, a consumer's `consumer_group_metadata()`, a part of the producer's open transaction.

    Raises KafkaException. After one with _TIMED_OUT the producer must not be used again.
    """
    answered = threading.Event()
    failures: list[KafkaException] = []

    def send() -> None:
        try:
            producer.send_offsets_to_transaction(list(positions), group, seconds)
        except KafkaException as failure:
            failures.append(failure)
        finally:
            answered.set()

    # librdkafka (its issue 5456, 2.16) keeps no limit here: with the group's coordinator away it waits until some
    # connection changes, which may be never.
    threading.Thread(target=send, name="positions", daemon=True).start()
    if not answered.wait(seconds + _GRACE_S):
        raise KafkaException(KafkaError(KafkaError._TIMED_OUT, "the group's coordinator does not answer"))
    if failures:
        raise failures[0]


def read_group(config: Mapping[str, str], group: str, partitions: Sequence[TopicPartition]) -> list[TopicPartition]:
    """Return the positions of a group, as `committed`. Raises HelenusError BROKER_UNREACHABLE and BROKER_REFUSED."""
    where = f"{config['bootstrap.servers']}, group {group}"
    settings = {**client_settings(config), "group.id": group, "isolation.level": "read_committed"}
    with closing(new_client(Consumer, settings, DeliveryReports(), where)) as consumer:
        try:
            return committed(consumer, partitions)
        except KafkaException as failure:
            error = failure.args[0]
    raise positions_error(config, group, error)


def positions_error(config: Mapping[str, str], group: str, error: KafkaError) -> HelenusError:
    """Return Kafka's error of reading a group's positions as ours. An open transaction keeps them back without end."""
    with suppress(HelenusError):
        if error.code() == KafkaError._TIMED_OUT and (held_back := find_positions_held_back(config, group)) is not None:
            topic, partition, offset, _ = held_back
            problem = f"Kafka keeps the positions of {group} back: a transaction is open from offset {offset} on"
            where = f"{config['bootstrap.servers']}, topic {topic}, partition {partition}"
            return HelenusError(Kind.BROKER_UNREACHABLE, problem, where, _END_IT)
    return broker_error(error, f"{config['bootstrap.servers']}, group {group}")


def commit_to_group(config: Mapping[str, str], group: str, positions: Sequence[TopicPartition]) -> None:
    """Commit positions of a group that has no members. Raises as `read_group`."""
    where = f"{config['bootstrap.servers']}, group {group}"
    settings = {**client_settings(config), "group.id": group}
    with closing(new_client(Consumer, settings, DeliveryReports(), where)) as consumer:
        try:
            answers: list[TopicPartition] = consumer.commit(offsets=list(positions), asynchronous=False)
            error = next((answer.error for answer in answers if answer.error is not None), None)
            if error is not None:
                raise KafkaException(error)
        except KafkaException as failure:
            raise broker_error(failure.args[0], where) from None
