"""Faults that change who holds a partition: a node moves, a keyspace has other replicas."""

from __future__ import annotations

import random
from collections.abc import Iterator

from bench.chaos.cluster import ChaosCluster
from bench.chaos.fault_registry import NODE, number_of, of_node
from bench.chaos.modes import KEYSPACE
from bench.chaos.stack_cluster import StackCluster


@of_node("move-node", targets=[NODE], recovery_s=20, tokens=1, keeps_schema=True)
def move_node(cluster: StackCluster, target: str, chance: random.Random) -> Iterator[None]:
    cluster.nodetool("move", "--", str(chance.randrange(-(2**63) + 1, 2**63)), nodes=[number_of(target)])
    yield


@of_node("two-replicas", targets=["keyspace"], seconds=(5, 40), recovery_s=20, loses_hints=True, data_centers=1)
def two_replicas(cluster: StackCluster, target: str, _: random.Random) -> Iterator[None]:
    """And three again in the end; then a repair, or the third has nothing of what was written meanwhile."""
    cluster.alter_keyspace(cluster.topology.replication(factor=2))
    yield
    cluster.alter_keyspace(cluster.replication)
    cluster.repair()


@of_node("other-strategy", targets=["keyspace"], seconds=(5, 40), recovery_s=20, loses_hints=True, data_centers=1)
def other_strategy(cluster: StackCluster, target: str, _: random.Random) -> Iterator[None]:
    """SimpleStrategy, of the same factor, and back: where racks count, others hold a partition. A repair after each."""
    cluster.alter_keyspace(f"{{'class': 'SimpleStrategy', 'replication_factor': {cluster.topology.factor}}}")
    cluster.repair()
    yield
    cluster.alter_keyspace(cluster.replication)
    cluster.repair()


@of_node("cleanup", targets=[NODE], recovery_s=2)
def cleanup(cluster: ChaosCluster, target: str, _: random.Random) -> Iterator[None]:
    cluster.nodetool("cleanup", KEYSPACE, nodes=[number_of(target)])
    yield
