"""Finds keys that are close together on the ring, as those of a snapshot are, so that one scan reads them all.

A snapshot read 200,000 rows, and a batch has 20,000 of their keys. A statement `token(k) >= ? AND token(k) <= ?`
returns some 500 rows that are needed; in a process that has half of the topic's partitions, that is every second row of
it. Cassandra scans in the order of the ring at a third of the cost of looking up each key.
"""

from __future__ import annotations

import statistics
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import groupby, pairwise
from operator import itemgetter

from helenus_schemas.codec.key import Key

MIN_KEYS = 25
"""Fewer keys are not worth a statement of their own."""
_GAP_FACTOR = 32
"""In median distances of two keys: across a wider gap, reading the rows between costs more than another statement."""


@dataclass(frozen=True, slots=True)
class KeyStretch:
    """The requested keys between two tokens, inclusive."""

    first: int
    last: int
    keys: Sequence[Key]


def stretches(keys: Iterable[tuple[int, Key]], max_keys: int) -> Iterator[KeyStretch]:
    """Yield the stretches of keys, given with their tokens, in the order of the ring, of about `max_keys` keys each.

    Keys that have few others near, and those of a partition that has more than `max_keys` of them, are in none.
    """
    partitions = [(token, [key for _, key in members]) for token, members in groupby(sorted(keys), key=itemgetter(0))]
    distances = [b - a for (a, _), (b, _) in pairwise(partitions)]
    max_gap = _GAP_FACTOR * statistics.median_low(distances) if distances else 0
    pending: list[Key] = []
    first = last = 0
    for token, members in partitions:
        is_large = len(members) > max_keys
        if pending and (is_large or token - last > max_gap or len(pending) + len(members) > max_keys):
            yield from _long_enough(first, last, pending)
            pending = []
        if is_large:
            continue
        first, last = first if pending else token, token
        pending += members
    yield from _long_enough(first, last, pending)


def _long_enough(first: int, last: int, keys: list[Key]) -> Iterator[KeyStretch]:
    if len(keys) >= MIN_KEYS:
        yield KeyStretch(first, last, keys)
