"""The faults that there are, by name, and how one is made of a function: what comes before its `yield` begins it, what
comes after that ends it.

What a fault of the product's own promises finds to be wrong it adds to the cluster's `complaints`.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from functools import partial
from typing import Any

from bench.chaos.plan import FaultKind

Fault = Callable[[Any, str, random.Random], Iterator[None]]
NODE, NEW_NODE, AGENT, WORKER = "node", "new node", "agent", "worker"
"""As targets these stand for the nodes that a run has, the further one that may join, its agents and its workers."""
KINDS: dict[str, FaultKind] = {}
BEGINNINGS: dict[str, Callable[[Any, str, random.Random], AbstractContextManager[None]]] = {}
"""Of each kind the context that is the fault, on a cluster and its target; the last argument is what it draws from."""


def fault(
    name: str,
    targets: Sequence[str],
    lane: str,
    seconds: tuple[float, float] = (0.0, 0.0),
    recovery_s: float = 5.0,
    loses_hints: bool = False,
    data_centers: int = 0,
    tokens: int = 0,
    keeps_schema: bool = False,
    share: float = 1.0,
) -> Callable[[Fault], Fault]:
    """Name a fault, and say what `FaultKind` does."""

    def register(function: Fault) -> Fault:
        KINDS[name] = FaultKind(
            name, targets, lane, seconds, recovery_s, loses_hints, data_centers, tokens, keeps_schema, share
        )
        BEGINNINGS[name] = contextmanager(function)
        return function

    return register


of_node = partial(fault, lane="nodes")
of_broker = partial(fault, lane="brokers")
"""Of the message broker, or of the registry."""
of_agent = partial(fault, lane="agents")
of_worker = partial(fault, lane="workers")
of_connection = partial(fault, lane="connections")


def number_of(node: str) -> int:
    """Return a node's number, from 1."""
    return int(node.removeprefix("cassandra"))
