"""Groups keys by statement: keys of one partition, or keys that agree in all partition key columns but one.

CQL has `IN` over any one column of a partition key, and over the clustering columns together.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Hashable, Iterator
from dataclasses import dataclass
from functools import cache
from typing import Any

from helenus_connector.gate.replicas import routing_key
from helenus_schemas.codec.key import Key, KeyCodec
from helenus_schemas.cql.table import Table

_STATEMENT_COST = 10
"""Cost of a statement without its reads, in reads of a partition: as measured by `bench connector`."""


@dataclass(frozen=True, slots=True)
class Span:
    """The key columns from `start` up to, not including, `end`: those in which the keys of a statement differ."""

    start: int
    end: int

    def common_columns(self, key: Key) -> Key:
        """Return the columns that the keys of a statement have in common."""
        return key[: self.start] + key[self.end :]


@dataclass(frozen=True, slots=True)
class Grouping:
    """Groups the keys of a table with `columns` key columns, of which `partition_columns` form the partition key.

    `home` returns what the partition keys of one statement have to share, such as their replicas; None where all keys
    share it. `max_keys` is the largest number of keys in a statement.
    """

    partition_columns: int
    columns: int
    max_keys: int
    home: Callable[[Key], Hashable] | None

    def groups(self, keys: Collection[Key], size: Callable[[], int]) -> Iterator[tuple[Span, list[Key]]]:
        """Yield each key once, in groups, with the span in which the keys of a group differ. A group has at most
        `size()` keys, as evaluated when the group is yielded.

        All groups differ in the same span: the one by which Cassandra reads the keys at the lowest cost.
        """
        span = self._span(keys)
        if self.home is None and self.columns == 1:  # any keys may be read together
            yield from self._cut(span, list(keys), size)
            return
        groups: dict[Hashable, list[Key]] = {}
        max_size = size()
        for key in keys:
            group_id = self._group_id(span, key)
            group = groups.setdefault(group_id, [])
            group.append(key)
            if len(group) >= max_size:
                yield from self._cut(span, groups.pop(group_id), size)
                max_size = size()
        for group in groups.values():
            yield from self._cut(span, group, size)

    def _cut(self, span: Span, group: list[Key], size: Callable[[], int]) -> Iterator[tuple[Span, list[Key]]]:
        """Cut a collected group to the current size, which is smaller if larger rows were read in the meantime."""
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
        """Return the cost of reading these keys, in reads of a partition."""
        statements = max(len({self._group_id(span, key) for key in keys}), len(keys) / self.max_keys)
        return statements * _STATEMENT_COST + (statements if self._is_within(span) else len(keys))

    def _group_id(self, span: Span, key: Key) -> Hashable:
        common = span.common_columns(key)
        if self.home is None or self._is_within(span):
            return common
        return common, self.home(key[: self.partition_columns])

    def _is_within(self, span: Span) -> bool:
        """Return whether the keys of a statement are of one partition."""
        return span.start == self.partition_columns


@dataclass(frozen=True, slots=True)
class KeyHomes:
    """Functions of a partition key. `home` returns its replicas, which keys of one statement share: where they are down
    the statement fails. `node` returns the first of them, which the driver asks, and which statements share that are
    sent together: in a cluster of hundreds of nodes hardly two keys of a batch have all replicas in common.

    Both return an ordinal among keys that compare equal, too. Cassandra reads such keys within one `IN` as one key, and
    its answers do not tell them apart.
    """

    home: Callable[[Key], Hashable]
    node: Callable[[Key], Hashable]


def homes_of_keys(metadata: Any, table: Table, codec: KeyCodec, data_center: str | None) -> KeyHomes | None:
    """Return the homes of a table's partition keys, by the driver's `metadata` of the cluster; `data_center` is the one
    that is read, None if there is one alone. None if all keys may be in one statement.
    """
    is_single_node = len(metadata.all_hosts()) == 1
    if is_single_node and not codec.has_several_forms:
        return None
    keys_by_value: dict[bytes, dict[Key, int]] = {}

    @cache
    def locate(key: Key) -> tuple[int, Hashable, Hashable]:
        equal_keys = keys_by_value.setdefault(codec.comparison_bytes(key), {}) if codec.has_several_forms else {}
        ordinal = equal_keys.setdefault(key, len(equal_keys))
        if is_single_node:
            return ordinal, None, None
        hosts = metadata.get_replicas(table.keyspace, routing_key(key))
        nodes = (host.host_id for host in hosts if host.is_up and data_center in (None, host.datacenter))
        return ordinal, frozenset(host.host_id for host in hosts), next(nodes, None)

    return KeyHomes(lambda key: locate(key)[:2], lambda key: locate(key)[::2])
