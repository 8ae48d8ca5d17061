"""Nodes that start on an empty disk and take their data from the others."""

from __future__ import annotations

import json
import shutil
from collections.abc import Mapping
from pathlib import Path

from helenus_stack import cassandra
from helenus_stack.errors import StackError
from helenus_stack.jars import fetch, read_lock
from helenus_stack.java import java_home
from helenus_stack.progress import Silent
from helenus_stack.resolve import resolve
from helenus_stack.server import Server
from helenus_stack.stack import Stack

_RING_DELAY_MS = 5000
"""So long the others hear of a node before it has its part of the ring; a stack's own nodes have theirs at once."""


def start_new_node(
    stack: Stack, server: Server, yaml: Mapping[str, object], environment: Mapping[str, str], *options: str
) -> None:
    """Start a node whose disk is emptied first, with `yaml` in its configuration, more in its environment and these
    options of its JVM. It joins the ring, or takes over the part of one that it replaces. Returns at once.
    """
    if server.folder.exists():
        for folder in filter(Path.is_dir, server.folder.iterdir()):
            shutil.rmtree(folder)
    command = server.prepare(java_home(server.java, Silent()), fetch(read_lock(server.lock), Silent(), resolve))
    file = server.folder / cassandra.YAML
    configured = json.loads(file.read_text())
    del configured["initial_token"]
    configured |= {"auto_bootstrap": True, **yaml}
    (seeds,) = configured["seed_provider"][0]["parameters"]
    # A seed takes no data from others.
    others = [seed for seed in seeds["seeds"].split(",") if seed.partition(":")[0] != server.address]
    seeds["seeds"] = ",".join(others)
    file.write_text(json.dumps(configured))
    *before, main = command.arguments
    arguments = [*before, *options, f"-Dcassandra.ring_delay_ms={_RING_DELAY_MS}", main]
    stack.process(server).start(arguments, command.folder, server.log, {**command.environment, **environment})


def host_id(stack: Stack, address: str, node: int = 1) -> str:
    """Return the host id of a node, up or down, as a node has it. Raises StackError for one that it does not know."""
    lines = [line.split() for line in stack.nodetool("status", node=node).splitlines()]
    for words in lines:
        if len(words) > 3 and words[1] == address:
            return words[-2]
    raise StackError("nodetool status does not show it", address, "see whether it has left")


def nodes_up(stack: Stack, node: int = 1) -> list[str]:
    """Return the addresses of the nodes that are up and have their part of the ring, as a node sees it."""
    lines = [line.split() for line in stack.nodetool("status", node=node).splitlines()]
    return [words[1] for words in lines if words[:1] == ["UN"]]
