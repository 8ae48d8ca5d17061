"""The partition of a topic that a key's events and records go to.

It follows from the partition key's Murmur3 token, as DataStax's agents have it: `((short)(token >>> 48) + 32768) %
partitions`. So a key's events keep their order, and all rows of a Cassandra partition are in one topic partition.
"""

from __future__ import annotations

import re
from itertools import pairwise

STRIPES = 1 << 16
"""How many stripes of equal width the ring of Murmur3 tokens has: a topic's partitions take them in turn."""
LEAST_TOKEN, MOST_TOKEN = -(1 << 63), (1 << 63) - 1
"""The ring's ends. No partition has the first one: Cassandra takes the last for it."""


def token_range(text: str) -> tuple[int, int]:
    """Parse `AFTER:UNTIL`, the range of the tokens above the first, up to the second. Either may be left out. Raises
    ValueError.
    """
    match = re.fullmatch(r"\s*(-?\d{1,19})?\s*:\s*(-?\d{1,19})?\s*", text, re.ASCII)
    if match is None:
        raise ValueError(f"{text}: give a token range as AFTER:UNTIL, for example -100:2000")
    after, until = int(match[1] or LEAST_TOKEN), int(match[2] or MOST_TOKEN)
    if not LEAST_TOKEN <= after < until <= MOST_TOKEN:
        raise ValueError(f"{text}: the first token must be below the second, both from {LEAST_TOKEN} to {MOST_TOKEN}")
    return after, until


def token_ranges(text: str) -> list[tuple[int, int]]:
    """Parse one or more of `token_range`, separated by commas, and return them in the order of tokens. Raises
    ValueError, also for two that overlap.
    """
    ranges = sorted(token_range(part) for part in text.split(","))
    for (_, until), (after, _) in pairwise(ranges):
        if after < until:
            raise ValueError(f"{text[:80]}: tokens above {after}, up to {until}, are in two of the ranges")
    return ranges


def stripe(token: int) -> int:
    """Return the stripe of a Murmur3 token, in the order of tokens."""
    return (token >> 48) + STRIPES // 2


def partition(token: int, partitions: int) -> int:
    """Return the topic partition of a Murmur3 token."""
    return stripe(token) % partitions
