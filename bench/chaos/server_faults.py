"""Faults of the servers: Cassandra's nodes, the broker and the registry."""

from __future__ import annotations

import random
from collections.abc import Iterator

from bench.chaos.cluster import ChaosCluster
from bench.chaos.fault_registry import NODE, number_of, of_broker, of_node
from bench.chaos.stack_cluster import StackCluster


@of_node("kill-node", targets=[NODE], seconds=(0, 15), recovery_s=30, loses_hints=True)
def kill_node(cluster: StackCluster, target: str, _: random.Random) -> Iterator[None]:
    """Its hints for others that are in memory are lost with it."""
    cluster.kill_server(target)
    yield
    cluster.stack.start(target)


@of_node("restart-node", targets=[NODE], recovery_s=30)
def restart_node(cluster: StackCluster, target: str, _: random.Random) -> Iterator[None]:
    cluster.stack.stop(target)
    yield
    cluster.stack.start(target)


@of_node("drain-node", targets=[NODE], seconds=(0, 5), recovery_s=30, loses_hints=True)
def drain_node(cluster: StackCluster, target: str, _: random.Random) -> Iterator[None]:
    cluster.nodetool("drain", nodes=[number_of(target)])
    yield
    cluster.kill_server(target)
    cluster.stack.start(target)


@of_node("pause-node", targets=[NODE], seconds=(2, 40))
def pause_node(cluster: StackCluster, target: str, _: random.Random) -> Iterator[None]:
    cluster.stack.pause(target)
    yield
    cluster.stack.resume(target)


@of_node("lose-hints", targets=[NODE], seconds=(3, 12), recovery_s=10, loses_hints=True)
def lose_hints(cluster: StackCluster, target: str, _: random.Random) -> Iterator[None]:
    """What a node that hangs misses is gone, but for reads and repairs."""
    cluster.nodetool("disablehandoff")
    cluster.stack.pause(target)
    yield
    cluster.stack.resume(target)
    cluster.nodetool("truncatehints")
    cluster.nodetool("enablehandoff")


@of_node("cut-cassandra", targets=[NODE], seconds=(0, 10))
def cut_cassandra(cluster: StackCluster, target: str, _: random.Random) -> Iterator[None]:
    """All CQL connections to a node end, and new ones are refused for a while."""
    cluster.nodetool("disablebinary", nodes=[number_of(target)])
    yield
    cluster.nodetool("enablebinary", nodes=[number_of(target)])


@of_broker("kill-broker", targets=["kafka"], seconds=(0, 10), recovery_s=10)
def kill_broker(cluster: StackCluster, target: str, _: random.Random) -> Iterator[None]:
    cluster.kill_server(target)
    yield
    cluster.stack.start(target)


@of_broker("restart-broker", targets=["kafka"], seconds=(0, 5), recovery_s=10)
def restart_broker(cluster: StackCluster, target: str, _: random.Random) -> Iterator[None]:
    cluster.stack.stop(target)
    yield
    cluster.stack.start(target)


@of_broker("pause-broker", targets=["kafka"], seconds=(1, 20))
def pause_broker(cluster: StackCluster, target: str, _: random.Random) -> Iterator[None]:
    cluster.stack.pause(target)
    yield
    cluster.stack.resume(target)


@of_broker("registry-away", targets=["registry"], seconds=(2, 20))
def registry_away(cluster: StackCluster, target: str, _: random.Random) -> Iterator[None]:
    cluster.kill_server(target)
    yield
    cluster.stack.start(target)


@of_node("repair", targets=[NODE], recovery_s=5)
def repair(cluster: ChaosCluster, target: str, _: random.Random) -> Iterator[None]:
    cluster.nodetool("repair", "-full", "chaos", nodes=[number_of(target)])
    yield


@of_node("flush", targets=[NODE], recovery_s=2)
def flush(cluster: ChaosCluster, target: str, _: random.Random) -> Iterator[None]:
    cluster.nodetool("flush", nodes=[number_of(target)])
    yield


@of_node("compact", targets=[NODE], recovery_s=2)
def compact(cluster: ChaosCluster, target: str, _: random.Random) -> Iterator[None]:
    cluster.nodetool("compact", "chaos", nodes=[number_of(target)])
    yield
