"""Which keys one statement reads: those of one partition, or that agree in all columns but one of the partition key.

CQL has `IN` over any one column of a partition key, and over the clustering columns together.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Hashable, Iterator
from dataclasses import dataclass

from helenus_schemas.codec.key import Key

_STATEMENT = 10
"""What a statement costs besides its reads, in reads of a partition: as measured by `bench connector`."""


@dataclass(frozen=True, slots=True)
class Span:
    """The key columns from `start` up to, not including, `end`: those in which the keys of a statement differ."""

    start: int
    end: int

    def rest(self, key: Key) -> Key:
        """What the keys of a statement have in common."""
        return key[: self.start] + key[self.end :]


@dataclass(frozen=True, slots=True)
class Grouping:
    """How the keys of a table with so many key columns, of which so many are of the partition key, are grouped.

    `home` says what partition keys of one statement have to share, such as the nodes that hold them, None where all
    share that; `most` is how many keys a statement reads at most.
    """

    partition_columns: int
    columns: int
    most: int
    home: Callable[[Key], Hashable] | None

    def groups(self, keys: Collection[Key], size: Callable[[], int]) -> Iterator[tuple[Span, list[Key]]]:
        """Each key once, in groups of at most `size()` as it is when they are taken, and the span in which they differ.

        All groups differ in the same span: the one by which the keys are read with the least work.
        """
        span = self._span(keys)
        if self.home is None and self.columns == 1:  # any keys may be read together
            yield from self._cut(span, list(keys), size)
            return
        held: dict[Hashable, list[Key]] = {}
        full = size()
        for key in keys:
            name = self._name(span, key)
            group = held.setdefault(name, [])
            group.append(key)
            if len(group) >= full:
                yield from self._cut(span, held.pop(name), size)
                full = size()
        for group in held.values():
            yield from self._cut(span, group, size)

    def _cut(self, span: Span, group: list[Key], size: Callable[[], int]) -> Iterator[tuple[Span, list[Key]]]:
        """A group that was held may be too large by now: rows that came meanwhile were larger."""
        start = 0
        while start < len(group):
            end = start + size()
            yield span, group[start:end]
            start = end

    def _span(self, keys: Collection[Key]) -> Span:
        ways = [Span(n, n + 1) for n in range(self.partition_columns)]
        if self.columns > self.partition_columns:
            ways.insert(0, Span(self.partition_columns, self.columns))
        return ways[0] if len(ways) == 1 else min(ways, key=lambda way: self._cost(way, keys))

    def _cost(self, span: Span, keys: Collection[Key]) -> float:
        """What Cassandra does for these keys: statements, and partitions that it looks into."""
        statements = max(len({self._name(span, key) for key in keys}), len(keys) / self.most)
        return statements * _STATEMENT + (statements if self._is_within(span) else len(keys))

    def _name(self, span: Span, key: Key) -> Hashable:
        rest = span.rest(key)
        if self.home is None or self._is_within(span):
            return rest
        return rest, self.home(key[: self.partition_columns])

    def _is_within(self, span: Span) -> bool:
        """Whether the keys of a statement are of one partition."""
        return span.start == self.partition_columns
