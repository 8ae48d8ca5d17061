"""An event of an events topic, a gap that one reports, and a change that waits at the gate."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple


class Event(NamedTuple):
    """A record of an events topic; `timestamp` in ms since the epoch."""

    topic: str
    partition: int
    offset: int
    timestamp: int
    key: bytes | None
    value: bytes | None


class Gap(NamedTuple):
    """A gap in a node's commit log, `until` a write time in µs: its agent reports it in each partition of a topic."""

    partition: int
    offset: int
    node: str | None
    until: int | None


Nodes = tuple[str, ...]
"""Host ids of nodes, in order, each once."""


@dataclass(slots=True)
class WaitingChange:
    """A change that waits at the gate: the first `event` of it, whole, and which `nodes` have reported it.

    `copies` counts its events. The driver fills in `since`, when it first had it, s by the clock of the topic. Before
    its time is over it is handed out with `is_early` to be verified to make room, and not to be dropped; or with
    `is_recount`, to go on if the nodes that reported it are enough by now: the ring, or the replication, has changed.
    """

    id: bytes
    event: Event
    nodes: Nodes
    copies: int
    since: float = 0.0
    is_early: bool = False
    is_recount: bool = False
