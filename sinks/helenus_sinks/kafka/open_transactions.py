"""Transactions that the brokers left open, though their producers are through with them.

    records 0 to 9, committed · 10 to 12 of a transaction without end · 13 to 99, committed
    a reader with `read_committed` gets 0 to 9, and nothing that comes after

A transaction ends in a partition by a mark that its coordinator writes there. A coordinator that starts again just then
may take the partition for one that was deleted, and leave it out (`TransactionMarkerChannelManager`: "likely deleted
already and hence can be skipped"; seen of Kafka 4.3.1 that was killed). Nobody ends the transaction then: its timeout
counts with the coordinator, for which it has ended.
"""

from __future__ import annotations

import time
from collections.abc import Collection, Mapping
from typing import NamedTuple

from confluent_kafka import IsolationLevel, KafkaException, TopicPartition
from confluent_kafka.admin import AdminClient, OffsetSpec

from helenus_sinks.kafka.errors import DeliveryReports, broker_error, new_client
from helenus_sinks.kafka.settings import client_settings

_ANSWER_TIMEOUT_S = 5.0
_POSITIONS_TOPIC = "__consumer_offsets"


class HeldBack(NamedTuple):
    """A partition of which readers with `read_committed` get nothing from `offset` on. It ends at `end`."""

    topic: str
    partition: int
    offset: int
    end: int


def find_held_back(config: Mapping[str, str], topics: Collection[str], open_s: float) -> list[HeldBack]:
    """Return the partitions of topics with a transaction that stays open for `open_s`, longer than producers have one
    open; in order. Topics that are not there have none. It waits only if one is open. `config` is a client's.

    Raises HelenusError as `broker_error` does.
    """
    where = config["bootstrap.servers"]
    admin: AdminClient = new_client(AdminClient, client_settings(config), DeliveryReports(), where)
    try:
        listed = admin.list_topics(timeout=_ANSWER_TIMEOUT_S).topics
        there = [topic for topic in sorted(topics) if topic in listed]
        first = _compare_ends(
            admin, [(topic, number) for topic in there for number in sorted(listed[topic].partitions)]
        )
        if not first:
            return []
        time.sleep(open_s)
        begun = {held_back[:3] for held_back in first}
        partitions = [(topic, partition) for topic, partition, _, _ in first]
        return [held_back for held_back in _compare_ends(admin, partitions) if held_back[:3] in begun]
    except KafkaException as failure:
        raise broker_error(failure.args[0], where) from None


def find_positions_held_back(config: Mapping[str, str], group: str) -> HeldBack | None:
    """Return what keeps a group's positions from readers, if anything: an open transaction in the partition where Kafka
    has them. It may be another group's, and of this moment. None also if this login may not see that topic.

    Raises HelenusError as `broker_error` does.
    """
    where = config["bootstrap.servers"]
    admin: AdminClient = new_client(AdminClient, client_settings(config), DeliveryReports(), where)
    try:
        listed = admin.list_topics(timeout=_ANSWER_TIMEOUT_S).topics
        count = len(listed[_POSITIONS_TOPIC].partitions) if _POSITIONS_TOPIC in listed else 0
        held_back = _compare_ends(admin, [(_POSITIONS_TOPIC, partition_of_group(group, count))]) if count else []
    except KafkaException as failure:
        raise broker_error(failure.args[0], where) from None
    return held_back[0] if held_back else None


def partition_of_group(group: str, count: int) -> int:
    """Return which of `count` partitions has a group's positions: by Java's hash of its name, as
    `GroupMetadataManager.partitionFor` has it.
    """
    code = 0
    units = group.encode("utf-16-be")
    for index in range(0, len(units), 2):
        code = (31 * code + int.from_bytes(units[index : index + 2], "big")) & 0xFFFFFFFF
    signed = code - (1 << 32) if code >> 31 else code
    return 0 if signed == -(1 << 31) else abs(signed) % count


def _compare_ends(admin: AdminClient, partitions: Collection[tuple[str, int]]) -> list[HeldBack]:
    ends = _end_offsets(admin, partitions, IsolationLevel.READ_UNCOMMITTED)
    # In this order, as what is committed in between is no open transaction.
    stable = _end_offsets(admin, partitions, IsolationLevel.READ_COMMITTED)
    return [HeldBack(*each, stable[each], ends[each]) for each in partitions if stable[each] < ends[each]]


def _end_offsets(
    admin: AdminClient, partitions: Collection[tuple[str, int]], level: IsolationLevel
) -> dict[tuple[str, int], int]:
    requests = {TopicPartition(*each): OffsetSpec.latest() for each in partitions}
    if not requests:
        return {}
    answers = admin.list_offsets(requests, isolation_level=level, request_timeout=_ANSWER_TIMEOUT_S)
    return {(each.topic, each.partition): answer.result().offset for each, answer in answers.items()}
