"""Which keys one statement reads: those of one partition, or that agree in all columns but one of the partition key.

CQL has `IN` over any one column of a partition key, and over the clustering columns together.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Hashable, Iterator
from dataclasses import dataclass

from helenus_schemas.key import Key

_STATEMENT = 10
"""What a statement costs beside its reads, in reads of a partition: as measured by `bench connector`."""


@dataclass(frozen=True, slots=True)
class Span:
    """The key columns from `start` up to, not including, `end`: those in which the keys of a statement differ."""

    start: int
    end: int

    def rest(self, key: Key) -> Key:
        """What the keys of a statement have in common."""
        return key[: self.start] + key[self.end :]


def spans(partition_columns: int, columns: int) -> list[Span]:
    """The ways to group the keys of a table with so many key columns, of which so many are of the partition key."""
    clustering = [Span(partition_columns, columns)] if columns > partition_columns else []
    return clustering + [Span(n, n + 1) for n in range(partition_columns)]


def grouped(
    keys: Collection[Key],
    partition_columns: int,
    columns: int,
    size: Callable[[], int],
    home: Callable[[Key], Hashable],
) -> Iterator[tuple[Span, list[Key]]]:
    """Each key once, in groups of at most `size()`, and the span in which the keys of each differ.

    All groups differ in the same span: the one by which the keys are read with the least work. `home` tells the nodes
    that hold a partition key, which keys of one statement share.
    """
    ways = spans(partition_columns, columns)
    span = ways[0] if len(ways) == 1 else min(ways, key=lambda way: _cost(way, keys, partition_columns, size()))
    within_partition = span.start == partition_columns
    groups: dict[Hashable, list[Key]] = {}
    most = size()
    for key in keys:
        rest = span.rest(key)
        name = rest if within_partition else (rest, home(key[:partition_columns]))
        group = groups.setdefault(name, [])
        group.append(key)
        if len(group) >= most:
            yield span, groups.pop(name)
            most = size()
    for group in groups.values():
        yield span, group


def _cost(span: Span, keys: Collection[Key], partition_columns: int, size: int) -> float:
    """What Cassandra does for these keys: statements, and partitions that it looks into."""
    alike = len({span.rest(key) for key in keys})
    statements = max(alike, len(keys) / size)
    return statements * _STATEMENT + (statements if span.start == partition_columns else len(keys))
