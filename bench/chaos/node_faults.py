"""Faults after which the ring has other nodes: one joins and leaves, or loses its disk and is replaced or removed."""

from __future__ import annotations

import json
import random
import shutil
import subprocess
import sys
from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import replace
from datetime import datetime, timezone
from http import HTTPStatus
from pathlib import Path
from typing import Any
from urllib.error import HTTPError

from bench.chaos.fault_registry import NEW_NODE, NODE, number_of, of_node
from bench.chaos.modes import Mode
from bench.chaos.new_node import host_id, nodes_up, start_new_node
from bench.chaos.service import Service
from bench.chaos.stack_cluster import StackCluster
from helenus_stack import cassandra
from helenus_stack.errors import StackError
from helenus_stack.process import STOP_SECONDS, stop
from helenus_stack.server import Server
from helenus_stack.status import NodeStatus

TOKENS = (1, 16)
"""A node that joins has as many as one of these says, whatever the others have."""
_ELSEWHERE = "127.0.0.1{}"
"""The address of a node's replacement, by the node's number: no other node has such a one."""


@of_node("join-node", targets=[NEW_NODE], seconds=(5, 40), recovery_s=20, keeps_schema=True)
def join_node(cluster: StackCluster, target: str, chance: random.Random) -> Iterator[None]:
    """A further node joins with an agent of its own, and is decommissioned in the end."""
    node, agent = _join(cluster, target, chance)
    yield
    cluster.nodetool("decommission", nodes=[number_of(node.name)])
    stop([cluster.stack.process(_new_server(cluster))], STOP_SECONDS)
    cluster.agents.remove(agent)
    agent.stop()
    # As docs/clusters.md has it, before a disk goes.
    drain = [str(Path(sys.executable).with_name("helenus-agent")), "drain", "--offline", *map(str, agent.files)]
    drained = subprocess.run(drain, capture_output=True, text=True)
    if drained.returncode:
        cluster.complaints.append(f"what {node.name} had was not sent: {drained.stdout}{drained.stderr}")


@of_node("remove-node", targets=[NEW_NODE], seconds=(5, 30), recovery_s=30, loses_hints=True, keeps_schema=True)
def remove_node(cluster: StackCluster, target: str, chance: random.Random) -> Iterator[None]:
    """A further node joins, and its host is lost with its disk and its agent. What others have of it is repaired."""
    node, agent = _join(cluster, target, chance)
    yield
    server, lost = _new_server(cluster), host_id(cluster.stack, node.address)
    cluster.agents.remove(agent)
    agent.kill()
    stop([cluster.stack.process(server)], 0)
    shutil.rmtree(server.folder)
    cluster.wait(lambda: node.address not in nodes_up(cluster.stack), "the others know that it is down")
    cluster.nodetool("removenode", lost, nodes=[1])
    _have_losses_named(cluster, node=lost)
    cluster.repair()


def _join(cluster: StackCluster, target: str, chance: random.Random) -> tuple[NodeStatus, Service]:
    """Start a further node with its agent; returns when it has its part of the ring."""
    node, server = _new_node(cluster), _new_server(cluster)
    if cluster.stack.process(server).pid is not None:
        raise StackError("it joined before, and has not left", target, "see why nodetool decommission failed")
    agent = cluster.make_agent(node)
    shutil.rmtree(cluster.state_directory(agent.name), ignore_errors=True)
    start_new_node(cluster.stack, server, {"num_tokens": chance.choice(TOKENS)}, {})
    agent.start()
    cluster.agents.append(agent)
    cluster.wait(lambda: node.address in nodes_up(cluster.stack), f"{target} has joined")
    return node, agent


@of_node("replace-node", targets=[NODE], recovery_s=30, loses_hints=True, keeps_schema=True)
def replace_node(cluster: StackCluster, target: str, chance: random.Random) -> Iterator[None]:
    """A node loses its disk, with all that its agent had not sent, and a new one with its address takes its place. The
    agent goes on, or has lost its state, too.
    """
    address = cluster.status.nodes[number_of(target) - 1].address
    _replace(cluster, target, address, address, is_agent_lost=chance.random() < 0.5)
    yield


@of_node(
    "replace-elsewhere",
    targets=[NODE],
    seconds=(5, 20),
    recovery_s=30,
    loses_hints=True,
    keeps_schema=True,
    share=0.25,  # it takes four minutes on two busy cores, as long as some ten others
)
def replace_elsewhere(cluster: StackCluster, target: str, _: random.Random) -> Iterator[None]:
    """A host is lost with its node and its agent, and those of another one, with its own address, take their place. In
    the end that one is lost, and the first address is there again.
    """
    address, elsewhere = cluster.status.nodes[number_of(target) - 1].address, _ELSEWHERE.format(number_of(target))
    _replace(cluster, target, address, elsewhere, is_agent_lost=True)
    yield
    _replace(cluster, target, elsewhere, address, is_agent_lost=True)


def _replace(cluster: StackCluster, target: str, lost: str, address: str, is_agent_lost: bool) -> None:
    """Have a new node take the place of one that is killed and loses its disk; then a repair."""
    number = number_of(target)
    (server,) = cluster.stack.select([target])
    other = 1 if number > 1 else 2
    lost_id = host_id(cluster.stack, lost, other)
    cluster.kill_server(target)
    lost_at = datetime.now(timezone.utc).isoformat()  # who replaces it at its address has its id, and is up
    agent = next((agent for agent in cluster.agents if agent.name == f"agent{number}"), None)
    if agent and is_agent_lost:
        with cluster.state_lock:
            agent.kill()
            shutil.rmtree(cluster.state_directory(agent.name), ignore_errors=True)
            file = agent.files[0]
            file.write_text(file.read_text().replace(f"points={lost}\n", f"points={address}\n"))
            agent.start()
    cluster.wait(lambda: lost not in nodes_up(cluster.stack, other), "the others know that it is down")
    yaml = {"listen_address": address, "rpc_address": address}
    environment = cluster.clock_environment(target)
    start_new_node(cluster.stack, server, yaml, environment, f"-Dcassandra.replace_address_first_boot={lost}")
    cluster.wait(lambda: address in nodes_up(cluster.stack, other), "another node is in its place")
    _have_losses_named(cluster, node=lost_id, until=lost_at, replaced_by=host_id(cluster.stack, address, other))
    cluster.repair(nodes=[number])


def _have_losses_named(cluster: StackCluster, **node: str) -> None:
    """Ask each connector what a lost node may not have sent: there is an answer, if its worker can give one now. One of
    a node that came and went without an event wants to be told since when.
    """
    for mode in cluster.modes:
        worker = cluster.leader(mode)
        with suppress(OSError):
            if worker is None:
                continue
            losses, refusal = _losses(worker, mode, node)
            if "give --since" in refusal:
                losses, refusal = _losses(worker, mode, {**node, "since": cluster.began_at})
            if not losses:
                cluster.complaints.append(f"{mode.connector} names no loss of {node} {refusal}")


def _losses(worker: Service, mode: Mode, query: Mapping[str, str]) -> tuple[list[Any], str]:
    """Return what a worker answers: the losses, or why it refuses the question. Raises OSError."""
    try:
        answer = worker.post(f"/connectors/{mode.connector}/losses", {**query, "dry_run": True})
    except HTTPError as error:
        with error:
            if error.code != HTTPStatus.BAD_REQUEST:
                raise
            return [], error.read().decode()
    return list(json.loads(answer)["losses"]), ""


def _new_server(cluster: StackCluster) -> Server:
    """Return the server of a further node, which the stack has not."""
    settings = cluster.stack.settings
    return cassandra.servers(replace(settings, nodes=settings.nodes + 1), cluster.stack.directory)[-1]


def _new_node(cluster: StackCluster) -> NodeStatus:
    """Return what the agent of a further node needs to know."""
    server, settings = _new_server(cluster), cluster.stack.settings
    return replace(
        cluster.status.nodes[0],
        name=server.name,
        address=server.address,
        data_center=settings.data_center(settings.nodes),
        cassandra_yaml=str(server.folder / cassandra.YAML),
        cdc_raw=str(server.folder / "cdc_raw"),
        jmx_port=settings.jmx_port(settings.nodes),
    )
