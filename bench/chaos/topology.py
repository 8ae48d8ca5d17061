"""Where a cluster's nodes are: data centres, racks, tokens, and which nodes have an agent."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass

from helenus_stack.settings import Settings

OTHER_CENTER = "datacenter2"
"""The data centre that no connector reads."""
_FACTORS = {1: 3, 2: 2}
"""The replication factor of each data centre, by their number."""


@dataclass(frozen=True)
class Topology:
    """The nodes of a run. Connectors read the first data centre."""

    data_centers: int = 1
    racks: int = 1
    """In each data centre."""
    tokens: int = 1
    """Of each node; with more than one they are random."""
    has_local_agents: bool = False
    """Only nodes of the data centre that is read have an agent."""
    logs_repairs: bool = True
    """`cdc_on_repair_enabled` in cassandra.yaml."""

    @property
    def nodes(self) -> int:
        """How many nodes there are: two in each data centre or rack, three where there is but one."""
        return 3 if self.data_centers == self.racks == 1 else 4

    @property
    def factor(self) -> int:
        """The replication factor in each data centre."""
        return _FACTORS[self.data_centers]

    @property
    def servers(self) -> list[str]:
        """The names of all nodes."""
        return [f"cassandra{number + 1}" for number in range(self.nodes)]

    @property
    def new_server(self) -> str:
        """The name of a further node, which joins and leaves. It is of the data centre that is read."""
        return f"cassandra{self.nodes + 1}"

    @property
    def agents(self) -> list[str]:
        """The names of the agents, which have their nodes' numbers."""
        step = self.data_centers if self.has_local_agents else 1
        return [f"agent{number + 1}" for number in range(0, self.nodes, step)]

    @property
    def settings(self) -> Settings:
        """A stack's settings that have the nodes where they are."""
        return Settings(nodes=self.nodes, data_centers=self.data_centers, racks=self.racks)

    @property
    def repaired_nodes(self) -> Sequence[int]:
        """The numbers of nodes that between them hold a replica of every partition."""
        return range(1, self.nodes - self.factor * self.data_centers + 2)

    def numbers_in(self, data_center: str) -> list[int]:
        """Return the numbers of the nodes of a data centre, from 1."""
        return [number + 1 for number in range(self.nodes) if self.settings.data_center(number) == data_center]

    def reaches_agents(self, level: str, data_center: int) -> bool:
        """Return whether a write that is acknowledged at a level, by a coordinator in a data centre, is in the log of a
        node with an agent. Otherwise it may reach these by a repair, merged with later ones.
        """
        return not self.has_local_agents or level == "ALL" or (level == "LOCAL_QUORUM" and data_center == 1)

    def replication(self, data_centers: int = 0, factor: int = 0) -> str:
        """Return a keyspace's replication: in the first of the data centres, in all of them if no number is given."""
        names = [f"datacenter{number + 1}" for number in range(data_centers or self.data_centers)]
        factors = ", ".join(f"'{name}': {factor or self.factor}" for name in names)
        return f"{{'class': 'NetworkTopologyStrategy', {factors}}}"

    def __str__(self) -> str:
        return (
            f"{self.nodes} nodes, data centres: {self.data_centers}, racks: {self.racks}, tokens: {self.tokens}, "
            f"agents: {'local' if self.has_local_agents else 'all'}, cdc_on_repair_enabled: {self.logs_repairs}"
        )


def draw_topology(seed: int, data_centers: int, racks: int, tokens: int, has_local_agents: bool) -> Topology:
    """Return a run's topology; whether repairs are logged is the seed's. If only the local nodes have an agent they
    are: what a repair brings here of a write that came to the other data centre alone has no other event.
    """
    logs_repairs = has_local_agents or random.Random(f"{seed} cdc_on_repair_enabled").random() < 0.5
    return Topology(data_centers, racks, tokens, has_local_agents, logs_repairs)
