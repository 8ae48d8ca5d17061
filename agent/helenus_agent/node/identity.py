"""Is the node that answers the one whose cdc_raw is read? Events name their node, and the connector counts nodes.

An agent that asks another node than its own reports that one's host id: two replicas would count as one. The addresses
in cassandra.yaml decide, if there are any. Without them the machine's own addresses do, unless the agent runs in a
container with its own network: then nothing is checked.
"""

from __future__ import annotations

import ipaddress
import socket
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import structlog

from helenus_agent.config import AgentSettings
from helenus_agent.node.cassandra import Node
from helenus_agent.node_directories import is_same_directory
from helenus_agent.node_yaml import read_yaml
from helenus_schemas.errors import HelenusError, Kind

_CONTAINERS = ("/.dockerenv", "/run/.containerenv")
_log = structlog.get_logger(__name__)


def check(node: Node, settings: AgentSettings, directory: Path) -> None:
    """Refuse a node that can't be the one whose segments lie in `directory`; warn if that is not certain.

    Raises HelenusError(CONFIG). What a node says of itself counts for more than its file.
    """
    where = f"{settings.cassandra_contact_points[0]}:{settings.cassandra_port}, node {node.host_id}"
    wanted = settings.cassandra_local_dc
    if wanted and node.data_center and node.data_center != wanted:
        message = f"cassandra.local.dc={wanted}: the node is of {node.data_center}"
        raise HelenusError(Kind.CONFIG, message, where)
    if is_same_directory(directory, node.settings.get("commitlog_directory")):
        message = "cdc.raw.dir is the node's commitlog_directory, in which nothing may be deleted"
        raise HelenusError(Kind.CONFIG, message, str(directory))
    theirs = node.settings.get("cdc_raw_directory")
    if theirs and not is_same_directory(directory, theirs):
        _log.warning("directory.differs", ours=str(directory), node=theirs, advice="is this the node of cdc.raw.dir?")
    if not node.addresses:
        return
    yaml = read_yaml(settings.cassandra_config) if settings.cassandra_config else {}
    is_same_node = is_described(node.addresses, yaml)
    if is_same_node is False:
        message = (
            f"cassandra.contact.points: it names another node than {settings.cassandra_config} describes: that one's "
            f"listen_address is {yaml.get('listen_address')}, and {node.addresses.get('listen_address')} answers"
        )
        raise HelenusError(Kind.CONFIG, message, where)
    if is_same_node is None and not _is_in_a_container() and not any(map(is_of_this_machine, node.addresses.values())):
        advice = "cassandra.contact.points must name the node whose cdc_raw is read: is it this machine's?"
        _log.warning("node.elsewhere", node=str(node.host_id), addresses=dict(node.addresses), advice=advice)


def is_described(addresses: Mapping[str, str], yaml: Mapping[str, Any]) -> bool | None:
    """Return whether a cassandra.yaml is that of the node with these addresses; None if it names none to compare.

    Host names, and addresses that stand for any or for each machine's own, are not compared.
    """
    named = {"listen_address": "listen_address", "broadcast_address": "broadcast_address"}
    named["rpc_address"] = "broadcast_rpc_address" if yaml.get("broadcast_rpc_address") else "rpc_address"
    matches = []
    for column, key in named.items():
        wanted, actual = _address(yaml.get(key)), _address(addresses.get(column))
        if wanted is not None and actual is not None:
            matches.append(wanted == actual)
    return any(matches) if matches else None


def is_of_this_machine(address: str) -> bool:
    """Return whether an address is one that a socket can have here."""
    parsed = _parse_address(address)
    if parsed is None:
        return False
    family = socket.AF_INET6 if parsed.version == 6 else socket.AF_INET
    try:
        with socket.socket(family, socket.SOCK_DGRAM) as probe:
            probe.bind((address, 0))
    except OSError:
        return False
    return True


def _address(text: object) -> object:
    """Return one that belongs to a single machine, else None."""
    parsed = _parse_address(text)
    return None if parsed is None or parsed.is_unspecified or parsed.is_loopback else parsed


def _parse_address(text: object) -> ipaddress.IPv4Address | ipaddress.IPv6Address | None:
    try:
        return ipaddress.ip_address(str(text))
    except ValueError:
        return None


def _is_in_a_container() -> bool:
    return any(Path(mark).exists() for mark in _CONTAINERS)
