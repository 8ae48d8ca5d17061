"""Keys that lie close together on the ring, as those of a snapshot do: they are read through, with what lies between.

200,000 rows were snapshotted, a batch has 20,000 keys of them: of the statement `token(k) >= ? AND token(k) <= ?` some
500 rows are wanted, where a process has half of the topic's partitions every second one. Cassandra reads on in the
order of the ring for a third of what it takes to look up each key.
"""

from __future__ import annotations

import statistics
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import groupby, pairwise
from operator import itemgetter

from helenus_schemas.codec.key import Key

FEWEST = 25
"""Keys for which it is worth a statement."""
_GAP = 32
"""Of the usual distance of two keys: where it is more, rows between that nobody asked for are dearer than a statement.
"""


@dataclass(frozen=True, slots=True)
class KeyStretch:
    """The keys asked for between two tokens, these included."""

    first: int
    last: int
    keys: Sequence[Key]


def stretches(keys: Iterable[tuple[int, Key]], most: int) -> Iterator[KeyStretch]:
    """The stretches of some keys by their tokens, in the order of the ring, of about `most` keys each.

    Keys that have few others near, and those of a partition that has more than `most` of them, are in none.
    """
    parts = [(token, [key for _, key in found]) for token, found in groupby(sorted(keys), key=itemgetter(0))]
    gaps = [b - a for (a, _), (b, _) in pairwise(parts)]
    far = _GAP * statistics.median_low(gaps) if gaps else 0
    held: list[Key] = []
    first = last = 0
    for token, found in parts:
        is_large = len(found) > most
        if held and (is_large or token - last > far or len(held) + len(found) > most):
            yield from _worth(first, last, held)
            held = []
        if is_large:
            continue
        first, last = first if held else token, token
        held += found
    yield from _worth(first, last, held)


def _worth(first: int, last: int, keys: list[Key]) -> Iterator[KeyStretch]:
    if len(keys) >= FEWEST:
        yield KeyStretch(first, last, keys)
