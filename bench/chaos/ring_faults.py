"""Faults that change the ring: a node joins and leaves, moves, or loses its disk; and replicas, of which some go."""

from __future__ import annotations

import random
import shutil
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

from bench.chaos.cluster import ChaosCluster
from bench.chaos.fault_registry import SERVERS, number_of, of_server
from bench.chaos.modes import KEYSPACE
from bench.chaos.new_node import nodes_up, start_new_node
from bench.chaos.stack_cluster import NODES, StackCluster
from helenus_stack import cassandra
from helenus_stack.errors import StackError
from helenus_stack.process import STOP_SECONDS, stop
from helenus_stack.server import Server
from helenus_stack.status import NodeStatus

FOURTH = f"cassandra{NODES + 1}"
TOKENS = (1, 16)
"""The others have one each."""


@of_server("move-node", targets=SERVERS, recovery_s=20)
def move_node(cluster: StackCluster, target: str, chance: random.Random) -> Iterator[None]:
    cluster.nodetool("move", "--", str(chance.randrange(-(2**63) + 1, 2**63)), nodes=[number_of(target)])
    yield


@of_server("two-replicas", targets=["keyspace"], seconds=(5, 40), recovery_s=20, loses_hints=True)
def two_replicas(cluster: StackCluster, target: str, _: random.Random) -> Iterator[None]:
    """And three again in the end; then a repair, or the third has nothing of what was written meanwhile."""
    three = cluster.replication
    cluster.session.execute(f"ALTER KEYSPACE {KEYSPACE} WITH replication = {three.replace(': 3', ': 2')}", timeout=60)
    yield
    cluster.session.execute(f"ALTER KEYSPACE {KEYSPACE} WITH replication = {three}", timeout=60)
    cluster.nodetool("repair", "-full", KEYSPACE, nodes=[1])


@of_server("cleanup", targets=SERVERS, recovery_s=2)
def cleanup(cluster: ChaosCluster, target: str, _: random.Random) -> Iterator[None]:
    cluster.nodetool("cleanup", KEYSPACE, nodes=[number_of(target)])
    yield


@of_server("join-node", targets=[FOURTH], seconds=(5, 40), recovery_s=20)
def join_node(cluster: StackCluster, target: str, chance: random.Random) -> Iterator[None]:
    """A fourth node joins with an agent of its own, and is decommissioned in the end."""
    node, server = fourth_node(cluster), fourth_server(cluster)
    process = cluster.stack.process(server)
    if process.pid is not None:
        raise StackError("it joined before, and has not left", server.name, "see why nodetool decommission failed")
    agent = cluster.make_agent(node)
    shutil.rmtree(cluster.state_directory(agent.name), ignore_errors=True)
    start_new_node(cluster.stack, server, {"num_tokens": chance.choice(TOKENS)})
    agent.start()
    cluster.agents.append(agent)
    cluster.wait(lambda: node.address in nodes_up(cluster.stack), "the fourth node has joined")
    yield
    cluster.nodetool("decommission", nodes=[NODES + 1])
    stop([process], STOP_SECONDS)
    cluster.agents.remove(agent)
    agent.stop()
    # As docs/failures.md has it, before a disk goes.
    drain = [str(Path(sys.executable).with_name("helenus-agent")), "drain", "--offline", *map(str, agent.files)]
    drained = subprocess.run(drain, capture_output=True, text=True)
    if drained.returncode:
        cluster.complaints.append(f"what the fourth node had was not sent: {drained.stdout}{drained.stderr}")


@of_server("replace-node", targets=SERVERS, recovery_s=30, loses_hints=True)
def replace_node(cluster: StackCluster, target: str, chance: random.Random) -> Iterator[None]:
    """A node loses its disk, with all that its agent had not sent, and a new one with its address takes its place. The
    agent goes on, or has lost its state, too.
    """
    number = number_of(target)
    (server,) = cluster.stack.select([target])
    agent = cluster.service(f"agent{number}")
    cluster.kill_server(target)
    if chance.random() < 0.5:
        agent.kill()
        shutil.rmtree(cluster.state_directory(agent.name), ignore_errors=True)
        agent.start()
    other = next(node for node in range(1, NODES + 1) if node != number)
    cluster.wait(lambda: server.address not in nodes_up(cluster.stack, other), "the others know that it is down")
    start_new_node(cluster.stack, server, {}, f"-Dcassandra.replace_address_first_boot={server.address}")
    cluster.wait(lambda: server.address in nodes_up(cluster.stack, other), "another node is in its place")
    cluster.nodetool("repair", "-full", KEYSPACE, nodes=[number])
    yield


def fourth_server(cluster: StackCluster) -> Server:
    """Return the server of a fourth node, which the stack has not."""
    settings = replace(cluster.stack.settings, nodes=NODES + 1)
    return cassandra.servers(settings, cluster.stack.directory)[NODES]


def fourth_node(cluster: StackCluster) -> NodeStatus:
    """Return what the agent of the fourth node needs to know."""
    server, first = fourth_server(cluster), cluster.status.nodes[0]
    return replace(
        first,
        name=server.name,
        address=server.address,
        cassandra_yaml=str(server.folder / cassandra.YAML),
        cdc_raw=str(server.folder / "cdc_raw"),
        jmx_port=cluster.stack.settings.jmx_port(NODES),
    )
