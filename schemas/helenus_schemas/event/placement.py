"""The partition of a topic that a key's events and records go to.

It follows from the partition key's Murmur3 token, as DataStax's agents have it: `((short)(token >>> 48) + 32768) %
partitions`. So a key's events keep their order, and all rows of a Cassandra partition are in one topic partition.
"""

from __future__ import annotations

STRIPES = 1 << 16
"""How many stripes of equal width the ring of Murmur3 tokens has: a topic's partitions take them in turn."""
LEAST_TOKEN, MOST_TOKEN = -(1 << 63), (1 << 63) - 1
"""The ring's ends."""


def stripe(token: int) -> int:
    """The stripe of a Murmur3 token, in the order of tokens."""
    return (token >> 48) + STRIPES // 2


def partition(token: int, partitions: int) -> int:
    """The topic partition of a Murmur3 token."""
    return stripe(token) % partitions
