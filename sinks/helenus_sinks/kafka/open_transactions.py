"""Transactions that the brokers left open, though their producers are through with them.

    records 0 to 9, committed · 10 to 12 of a transaction without end · 13 to 99, committed
    a reader with `read_committed` gets 0 to 9, and nothing that comes after

A transaction ends in a partition by a mark that its coordinator writes there. A coordinator that starts again just then
may take the partition for one that was deleted, and leave it out (`TransactionMarkerChannelManager`: "likely deleted
already and hence can be skipped"; seen of Kafka 4.3.1 that was killed). Nobody ends the transaction then: its timeout
counts with the coordinator, for which it has ended.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import NamedTuple

from confluent_kafka import IsolationLevel, KafkaException, TopicPartition
from confluent_kafka.admin import AdminClient, OffsetSpec

from helenus_sinks.kafka.errors import DeliveryReports, broker_error, new_client
from helenus_sinks.kafka.settings import client_settings

_ANSWER_TIMEOUT_S = 10.0


class HeldBack(NamedTuple):
    """A partition of which readers with `read_committed` get nothing from `offset` on. It ends at `end`."""

    topic: str
    partition: int
    offset: int
    end: int


def find_held_back(config: Mapping[str, str], topics: Collection[str]) -> list[HeldBack]:
    """Return the partitions of topics with an open transaction, in order. Topics that are not there have none. Whoever
    calls knows that no producer has one open just now. `config` is a client's.

    Raises HelenusError as `broker_error` does.
    """
    where = config["bootstrap.servers"]
    admin: AdminClient = new_client(AdminClient, client_settings(config), DeliveryReports(), where)
    try:
        listed = admin.list_topics(timeout=_ANSWER_TIMEOUT_S).topics
        partitions = [
            (topic, number) for topic in sorted(topics) if topic in listed for number in listed[topic].partitions
        ]
        ends = _end_offsets(admin, partitions, IsolationLevel.READ_UNCOMMITTED)
        # In this order, as what is committed in between is no open transaction.
        stable = _end_offsets(admin, partitions, IsolationLevel.READ_COMMITTED)
    except KafkaException as failure:
        raise broker_error(failure.args[0], where) from None
    return [HeldBack(*each, stable[each], ends[each]) for each in partitions if stable[each] < ends[each]]


def _end_offsets(
    admin: AdminClient, partitions: Collection[tuple[str, int]], level: IsolationLevel
) -> dict[tuple[str, int], int]:
    requests = {TopicPartition(*each): OffsetSpec.latest() for each in partitions}
    if not requests:
        return {}
    answers = admin.list_offsets(requests, isolation_level=level, request_timeout=_ANSWER_TIMEOUT_S)
    return {(each.topic, each.partition): answer.result().offset for each, answer in answers.items()}
