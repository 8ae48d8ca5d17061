"""Faults of the data centre that no connector reads: it is away, or leaves and is built anew."""

from __future__ import annotations

import random
from collections.abc import Iterator

from bench.chaos.fault_registry import of_node
from bench.chaos.new_node import nodes_up
from bench.chaos.stack_cluster import StackCluster
from bench.chaos.topology import OTHER_CENTER


@of_node("away-center", targets=[OTHER_CENTER], seconds=(5, 40), recovery_s=40, loses_hints=True, data_centers=2)
def away_center(cluster: StackCluster, target: str, chance: random.Random) -> Iterator[None]:
    """All its nodes hang, or are killed. What they missed comes by hints; or hints are lost, and a repair brings it."""
    numbers = cluster.topology.numbers_in(target)
    servers = [f"cassandra{number}" for number in numbers]
    others = [number for number in range(1, cluster.topology.nodes + 1) if number not in numbers]
    is_hanging, are_hints_lost = chance.random() < 0.5, chance.random() < 0.5
    if are_hints_lost:
        cluster.nodetool("disablehandoff", nodes=others)
    for server in servers:
        if is_hanging:
            cluster.stack.pause(server)
        else:
            cluster.kill_server(server)
    yield
    for server in servers:
        cluster.stack.resume(server)
    cluster.stack.up(*servers)
    cluster.wait(lambda: len(nodes_up(cluster.stack)) == cluster.topology.nodes, "the others know that it is back")
    if are_hints_lost:
        cluster.nodetool("truncatehints")
        cluster.nodetool("enablehandoff")
        cluster.repair()


@of_node(
    "rebuild-center",
    targets=[OTHER_CENTER],
    seconds=(5, 40),
    recovery_s=20,
    loses_hints=True,
    data_centers=2,
    keeps_schema=True,
)
def rebuild_center(cluster: StackCluster, target: str, _: random.Random) -> Iterator[None]:
    """It has no replicas for a while, then gets them from the first one. A rebuild asks one replica of each partition,
    which may have missed what the other has: the repair comes at the end of the run.
    """
    cluster.alter_keyspace(cluster.topology.replication(data_centers=1))
    yield
    cluster.alter_keyspace(cluster.replication)
    cluster.nodetool("rebuild", "--", cluster.status.local_dc, nodes=cluster.topology.numbers_in(target))
