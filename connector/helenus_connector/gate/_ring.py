"""The token ring of a cluster, and the replicas of a token, as Cassandra computes them.

Sources: SimpleStrategy.calculateNaturalReplicas and NetworkTopologyStrategy.calculateNaturalReplicas of Cassandra 5.0.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Iterable, Mapping, Set
from typing import Any, NamedTuple

from cassandra.metadata import BytesToken, MD5Token, Murmur3Token

from helenus_schemas.event.placement import LEAST_TOKEN, MOST_TOKEN

_PARTITIONERS = {
    "Murmur3Partitioner": Murmur3Token,
    "RandomPartitioner": MD5Token,
    "ByteOrderedPartitioner": BytesToken,
}
_MAX_STRATEGIES = 4096
"""Strategies that are remembered: one for each keyspace, and one more whenever the driver reads a keyspace again."""


class RingNode(NamedTuple):
    """A node that owns tokens."""

    host_id: str
    data_center: str
    rack: str


Replicas = tuple[RingNode, ...]
Factors = tuple[tuple[str, int], ...] | int | None
"""What decides a keyspace's replicas: the factor of each data centre, or one for all; None for all nodes."""


class Ring:
    """The tokens of a cluster, each with the node that owns it. It never changes; equal rings have equal tokens.

    `partitioner` is the name of Cassandra's class, with or without its package. Raises ValueError for one that is not
    Cassandra's.
    """

    def __init__(self, partitioner: str, tokens: Mapping[RingNode, Iterable[str]]) -> None:
        kind = _PARTITIONERS.get(partitioner.rpartition(".")[2])
        if kind is None:
            raise ValueError(f"the partitioner {partitioner} is not known")
        self._hash: Callable[[bytes], Any] = kind.hash_fn
        self._has_murmur3_tokens = kind is Murmur3Token
        owners = {kind.from_string(token).value: node for node, owned in tokens.items() for token in owned}
        self._tokens = sorted(owners)
        self._owners = [owners[token] for token in self._tokens]
        self.nodes: frozenset[RingNode] = frozenset(self._owners)
        self._all_nodes = tuple(self.nodes)
        self._racks: dict[str, set[str]] = {}
        by_dc: dict[str, set[str]] = {}
        for node in self.nodes:
            self._racks.setdefault(node.data_center, set()).add(node.rack)
            by_dc.setdefault(node.data_center, set()).add(node.host_id)
        self.by_dc: Mapping[str, Set[str]] = by_dc
        """The host ids of all nodes, by data centre."""
        # Keyspaces with the same factors share their replicas: a cluster may have many keyspaces, and a ring 65,536
        # tokens.
        self._strategies: dict[int, tuple[object, dict[int, Replicas]]] = {}
        self._replicas: dict[Factors, dict[int, Replicas]] = {}

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Ring) and (self._tokens, self._owners) == (other._tokens, other._owners)

    __hash__ = None  # type: ignore[assignment]

    def replicas(self, strategy: Any, partition_key: bytes) -> Replicas:
        """Return the replicas of a partition, by its key as it is hashed, under a strategy of the driver's metadata.

        All nodes, where the strategy is another than Cassandra's two: then any of them may hold it.
        """
        if not self._tokens:
            return ()
        index = bisect_left(self._tokens, self._hash(partition_key))
        return self._replicas_at(strategy, 0 if index == len(self._tokens) else index)

    def token_ranges(self, strategy: Any, host_id: str) -> list[tuple[int, int]]:
        """Return the ranges of which a node is a replica: the tokens above the first, up to the second, in order. All
        of the ring, where tokens are not Murmur3's.
        """
        if not self._has_murmur3_tokens:
            return [(LEAST_TOKEN, MOST_TOKEN)]
        ranges: list[tuple[int, int]] = []
        for index, until in enumerate([*self._tokens, MOST_TOKEN]):
            after = self._tokens[index - 1] if index else LEAST_TOKEN
            replicas = self._replicas_at(strategy, index % len(self._tokens)) if self._tokens else ()
            if after == until or all(node.host_id != host_id for node in replicas):
                continue
            if ranges and ranges[-1][1] == after:
                after = ranges.pop()[0]
            ranges.append((after, until))
        return ranges

    def _replicas_at(self, strategy: Any, index: int) -> Replicas:
        """Return the replicas of the tokens up to the one of this index."""
        cached = self._strategies.get(id(strategy))
        if cached is None:
            if len(self._strategies) >= _MAX_STRATEGIES:
                self._strategies.clear()
                self._replicas.clear()
            # The strategy itself is kept as well: so no other one gets its id.
            cached = self._strategies[id(strategy)] = strategy, self._replicas.setdefault(_factors(strategy), {})
        replicas = cached[1].get(index)
        if replicas is None:
            replicas = cached[1][index] = self._compute(_factors(strategy), index)
        return replicas

    def _compute(self, factors: Factors, index: int) -> Replicas:
        if factors is None:
            return self._all_nodes
        if isinstance(factors, int):
            return self._in_order(factors, index)
        return self._by_data_center(dict(factors), index)

    def _in_order(self, factor: int, index: int) -> Replicas:
        """Take the next distinct nodes on the ring."""
        replicas: dict[RingNode, None] = {}
        for node in self._from(index):
            if len(replicas) >= factor:
                break
            replicas[node] = None
        return tuple(replicas)

    def _by_data_center(self, factors: Mapping[str, int], index: int) -> Replicas:
        """Take the next nodes of each data centre on the ring, of distinct racks as far as there are enough racks."""
        missing = {dc: min(factor, len(self.by_dc.get(dc, ()))) for dc, factor in factors.items()}
        repeats = {dc: factor - len(self._racks.get(dc, ())) for dc, factor in factors.items()}
        racks: set[tuple[str, str]] = set()
        replicas: dict[RingNode, None] = {}
        remaining = sum(missing.values())
        for node in self._from(index):
            if not remaining:
                break
            dc = node.data_center
            if not missing.get(dc) or node in replicas:
                continue
            if (dc, node.rack) in racks:
                if repeats[dc] <= 0:
                    continue  # another rack is still to come
                repeats[dc] -= 1
            racks.add((dc, node.rack))
            replicas[node] = None
            missing[dc] -= 1
            remaining -= 1
        return tuple(replicas)

    def _from(self, index: int) -> Iterable[RingNode]:
        """Yield the owners of the tokens from this one on, round the ring: as a rule only the first few are wanted."""
        owners = self._owners
        for position in range(index - len(owners), index):
            yield owners[position]


def _factors(strategy: Any) -> Factors:
    """Return what the replicas under a strategy of the driver's metadata depend on, with those that are transient."""
    if by_dc := getattr(strategy, "dc_replication_factors_info", None):
        return tuple(sorted((dc, int(factor.all_replicas)) for dc, factor in by_dc.items()))
    if factor := getattr(strategy, "replication_factor_info", None):
        return int(factor.all_replicas)
    return None
