"""Who holds the rows of a keyspace, and how many hold each: what a proof counts."""

from __future__ import annotations

import struct
from collections.abc import Sequence
from typing import Any

from helenus_connector.config.connector import ConnectorSettings
from helenus_schemas.errors import HelenusError, Kind


class Replicas:
    """Who holds the rows of a keyspace where they are read, as the driver knows it now.

    That is in one data centre, but for level QUORUM in all of them. Raises HelenusError CONFIG as `check`.
    """

    def __init__(self, session: Any, settings: ConnectorSettings) -> None:
        self._metadata = session.cluster.metadata
        self._keyspace = settings.keyspace
        self._name = settings.name
        self._everywhere = settings.query_consistency == "QUORUM"
        self._said = settings.cassandra_local_dc
        self._dc = self._said or next((h.datacenter for h in self._metadata.all_hosts()), None)
        self.check()

    def check(self) -> None:
        """Raise HelenusError CONFIG if there are several data centres and it is not said which to read. One may join at
        any time, and has no rows until it is rebuilt.
        """
        if self._said:
            return
        known = {self._dc, *(h.datacenter for h in self._metadata.all_hosts())} - {None}
        if len(known) > 1:
            what = f"cassandra.local.dc: say which to read of {', '.join(sorted(map(str, known)))}"
            raise HelenusError(Kind.CONFIG, what, self._name)

    def nodes(self, partition_key: bytes | None) -> set[str]:
        """Host ids of the nodes that hold a partition, by its key as it is hashed; of all nodes if it is None.

        While nodes come and go, one that is none of them may have logged a write too: a read does not meet it.
        """
        hosts = self._hosts(partition_key)
        return {str(h.host_id) for h in hosts if self._everywhere or h.datacenter == self._dc}

    def holders(self, partition_key: bytes | None) -> set[str]:
        """The same in all data centres."""
        return {str(h.host_id) for h in self._hosts(partition_key)}

    @property
    def data_center(self) -> str | None:
        """The one that is read; None while no node is known."""
        return self._dc

    @property
    def counts_everywhere(self) -> bool:
        """Whether `nodes` and `factor` are those of all data centres."""
        return self._everywhere

    def by_dc(self, partition_key: bytes | None) -> dict[str, set[str]]:
        """Host ids of the nodes that hold a partition, by data centre; of all nodes if it is None."""
        found: dict[str, set[str]] = {}
        for host in self._hosts(partition_key):
            found.setdefault(str(host.datacenter), set()).add(str(host.host_id))
        return found

    @property
    def is_by_dc(self) -> bool:
        """Whether the keyspace's strategy says how many replicas each data centre has."""
        return bool(getattr(self._strategy, "dc_replication_factors_info", None))

    def factors(self) -> dict[str, int]:
        """The replication factor of each data centre that has replicas, as `factor` has it. A strategy that knows no
        data centres has its own under the name "" where there are several.
        """
        strategy = self._strategy
        if by_dc := getattr(strategy, "dc_replication_factors_info", None):
            return {dc: n for dc, factor in by_dc.items() if (n := int(factor.all_replicas))}
        nodes = self.by_dc(None)
        if factor := getattr(strategy, "replication_factor_info", None):
            return {next(iter(nodes)) if len(nodes) == 1 else "": int(factor.all_replicas)}
        return {dc: len(found) for dc, found in nodes.items()}

    @property
    def _strategy(self) -> Any:
        keyspace = self._metadata.keyspaces.get(self._keyspace)
        return keyspace.replication_strategy if keyspace else None

    def _hosts(self, partition_key: bytes | None) -> Any:
        if partition_key is None:
            return self._metadata.all_hosts()
        return self._metadata.get_replicas(self._keyspace, partition_key)

    def some(self) -> bool:
        """Whether a partition is held by some of the nodes, not by all."""
        return len(self.nodes(None)) > self.factor()

    def alone(self) -> bool:
        """Whether no node holds rows but those that are read: one that reported and is gone was one of them."""
        return self._everywhere or all(h.datacenter == self._dc for h in self._metadata.all_hosts())

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
        return max(1, len(self.nodes(None)))


def routing_key(key: Sequence[bytes | None]) -> bytes:
    """A partition key as Cassandra hashes it: several columns are each ushort length, bytes, 0."""
    values = [value or b"" for value in key]
    if len(values) == 1:
        return values[0]
    return b"".join(struct.pack(">H", len(value)) + value + b"\0" for value in values)
