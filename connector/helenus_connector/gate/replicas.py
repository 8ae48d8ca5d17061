"""Who holds the rows of a keyspace, and how many hold each: what a proof counts, and what the gate counts.

The ring is Cassandra's own, as `RingReader` reads it. While nodes disagree, or a ring has just changed, a proof counts
only who holds a partition by all rings that were read lately. The gate counts by each of them.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable, Iterator, Mapping, Sequence, Set
from typing import Any

from helenus_connector.config.connector import ConnectorSettings
from helenus_connector.gate._ring import Ring, RingNode
from helenus_connector.gate._ring_reader import SETTLED_S, RingReader, reader_for
from helenus_schemas.errors import HelenusError, Kind


class Replicas:
    """Who holds the rows of a keyspace where they are read, by the rings that `rings` reads; those of the session's
    cluster by default.

    That is in one data centre, but for level QUORUM in all of them. Raises HelenusError CONFIG and CASSANDRA_READ as
    `check`.
    """

    def __init__(self, session: Any, settings: ConnectorSettings, rings: RingReader | None = None) -> None:
        self._metadata = session.cluster.metadata
        self._rings = rings or reader_for(session)
        self._keyspace = settings.keyspace
        self._name = settings.name
        self._everywhere = settings.query_consistency == "QUORUM"
        self._gate_timeout_s = settings.gate_timeout_ms / 1000
        self._configured_dc = settings.cassandra_local_dc
        self._dc = self._configured_dc or next((h.datacenter for h in self._metadata.all_hosts()), None)
        self.check()

    def check(self) -> None:
        """Read the ring, if it is time. Raise HelenusError CONFIG if there are several data centres and it is not said
        which to read: one may join at any time, and has no rows until it is rebuilt. Raise CASSANDRA_READ as
        `RingReader.follow`.
        """
        if not self._configured_dc:
            data_centers = {self._dc, *(h.datacenter for h in self._metadata.all_hosts())} - {None}
            if len(data_centers) > 1:
                reason = f"cassandra.local.dc: say which to read of {', '.join(sorted(map(str, data_centers)))}"
                raise HelenusError(Kind.CONFIG, reason, self._name)
        self._rings.follow()

    def nodes(self, partition_key: bytes | None) -> set[str]:
        """Host ids of the nodes that hold a partition, by its key as it is hashed; of all nodes if it is None.

        While nodes come, go and move, one that is none of them may have logged a write too: a read does not meet it.
        """
        return self._common_nodes(partition_key, None if self._everywhere else self._dc)

    def nodes_everywhere(self, partition_key: bytes | None) -> set[str]:
        """Return the same for all data centres."""
        return self._common_nodes(partition_key, None)

    def _common_nodes(self, partition_key: bytes | None, data_center: str | None) -> set[str]:
        nodes_by_ring = [
            {node.host_id for node in self._nodes_in(ring, partition_key) if data_center in (None, node.data_center)}
            for ring in self._rings.recent(SETTLED_S)
        ]
        return nodes_by_ring[0] if len(nodes_by_ring) == 1 else set.intersection(*nodes_by_ring)

    def _nodes_in(self, ring: Ring, partition_key: bytes | None) -> Iterable[RingNode]:
        return ring.nodes if partition_key is None else ring.replicas(self._strategy, partition_key)

    def token_ranges(self, host_id: str) -> list[tuple[int, int]]:
        """Return the ranges of which a node is a replica by the latest ring: the tokens above the first, up to the
        second, in order. None are, if the ring has no such node.
        """
        return self._rings.latest.token_ranges(self._strategy, host_id)

    @property
    def data_center(self) -> str | None:
        """Return the data centre that is read; None while no node is known."""
        return self._dc

    @property
    def counts_everywhere(self) -> bool:
        """Return whether `nodes` and `factor` cover all data centres."""
        return self._everywhere

    def by_dc(self) -> Mapping[str, Set[str]]:
        """Return the host ids of all nodes of the latest ring, by data centre."""
        return self._rings.latest.by_dc

    def recent_by_dc(self, partition_key: bytes) -> Iterator[dict[str, set[str]]]:
        """Yield the host ids of the nodes that hold a partition, by data centre: by the latest ring, and by each that
        nodes had in the time for which a change waits at the gate: its first report may have come while that ring was
        the one.

        A node that left since holds nothing. One that a join or a move made give up a partition has streamed what it
        held of it to its successor.
        """
        rings = self._rings.recent(self._gate_timeout_s)
        yield _by_dc(rings[0].replicas(self._strategy, partition_key))
        for ring in rings[1:]:
            members = rings[0].nodes
            yield _by_dc(node for node in ring.replicas(self._strategy, partition_key) if node in members)

    @property
    def is_by_dc(self) -> bool:
        """Return whether the keyspace's strategy sets a replication factor per data centre."""
        return bool(getattr(self._strategy, "dc_replication_factors_info", None))

    def factors(self) -> dict[str, int]:
        """The replication factor of each data centre that has replicas, as `factor` has it. A strategy that knows no
        data centres has its own under the name "" where there are several.
        """
        strategy = self._strategy
        if by_dc := getattr(strategy, "dc_replication_factors_info", None):
            return {dc: n for dc, factor in by_dc.items() if (n := int(factor.all_replicas))}
        nodes = self.by_dc()
        if factor := getattr(strategy, "replication_factor_info", None):
            return {next(iter(nodes)) if len(nodes) == 1 else "": int(factor.all_replicas)}
        return {dc: len(members) for dc, members in nodes.items()}

    @property
    def _strategy(self) -> Any:
        keyspace = self._metadata.keyspaces.get(self._keyspace)
        return keyspace.replication_strategy if keyspace else None

    def is_partial(self) -> bool:
        """Return whether a partition has fewer replicas than there are nodes."""
        factor = self.factor()
        return any(self._count_nodes(ring) > factor for ring in self._rings.recent(SETTLED_S))

    def are_all_read(self) -> bool:
        """Return whether all nodes are read: then a node that reported a change and left was one of them, too."""
        if self._everywhere:
            return True
        return all(ring.by_dc.keys() <= {self._dc} for ring in self._rings.recent(SETTLED_S))

    def factor(self) -> int:
        """The replication factor, with replicas that are transient. Where it is not known, or the strategy is another
        than Cassandra's two, all nodes: then what is proven is so by any.
        """
        strategy = self._strategy
        if by_dc := getattr(strategy, "dc_replication_factors_info", None):
            factors = {dc: int(factor.all_replicas) for dc, factor in by_dc.items()}
            return sum(factors.values()) if self._everywhere else factors.get(self._dc) or max(factors.values())
        if factor := getattr(strategy, "replication_factor_info", None):
            return int(factor.all_replicas)
        return max(1, *map(self._count_nodes, self._rings.recent(SETTLED_S)))

    def _count_nodes(self, ring: Ring) -> int:
        """Return how many nodes of a ring are read."""
        return len(ring.nodes) if self._everywhere else len(ring.by_dc.get(self._dc or "", ()))


def _by_dc(nodes: Iterable[RingNode]) -> dict[str, set[str]]:
    by_dc: dict[str, set[str]] = {}
    for node in nodes:
        by_dc.setdefault(node.data_center, set()).add(node.host_id)
    return by_dc


def routing_key(key: Sequence[bytes | None]) -> bytes:
    """A partition key as Cassandra hashes it: several columns are each ushort length, bytes, 0."""
    values = [value or b"" for value in key]
    if len(values) == 1:
        return values[0]
    return b"".join(struct.pack(">H", len(value)) + value + b"\0" for value in values)
