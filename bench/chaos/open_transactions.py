"""Ends transactions that the broker left open, as docs/failures.md has operators do."""

from __future__ import annotations

from collections.abc import Collection

from bench.kafka_tools import abort_transaction
from helenus_sinks.kafka.open_transactions import HeldBack, find_held_back

_OPEN_S = 30.0
"""No transaction of a worker takes so long, once nothing disturbs it: one that is open then has nobody who ends it."""


def end_open_transactions(brokers: str, topics: Collection[str]) -> list[HeldBack]:
    """End the transactions in topics that nobody ends, with Kafka's own tool, and return where they began. Raises
    AssertionError with what the tool says if it refuses.
    """
    left_open = find_held_back({"bootstrap.servers": brokers}, topics, _OPEN_S)
    for topic, partition, offset, _ in left_open:
        abort_transaction(brokers, topic, partition, offset)
    return left_open
