"""A record of an events topic, a commit log gap that it may report, and a change that waits at the gate."""

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
    """A gap in a node's commit log, up to the write time `until` in µs. Its agent reports it in each partition of a
    topic.
    """

    partition: int
    offset: int
    node: str | None
    until: int | None


Nodes = tuple[str, ...]
"""Host ids of nodes: sorted, without duplicates."""


@dataclass(slots=True)
class WaitingChange:
    """A change that waits at the gate until enough replicas have reported it.

    `event` is the complete first event of the change, `nodes` are the nodes that have reported it so far, and `copies`
    counts its events. The driver sets `since`, the time at which it received the change, in s of the topic's clock.
    The driver hands a change out before its timeout in two cases: with `is_early`, so that it is verified by a read to
    free memory, and not dropped; with `is_recount`, so that it is admitted if the nodes that reported it suffice by
    now, because the ring or the replication may have changed.
    """

    id: bytes
    event: Event
    nodes: Nodes
    copies: int
    since: float = 0.0
    is_early: bool = False
    is_recount: bool = False
