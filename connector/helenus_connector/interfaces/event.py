"""A record of an events topic, a commit log gap that it may report, and a change that waits at the gate."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

from helenus_schemas.event.change import Change

_TOKEN_BYTES = 8


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
    topic. That of a lost node may concern some tokens alone: those above the first of `token_range`, up to the second.
    """

    partition: int
    offset: int
    node: str | None
    until: int | None
    token_range: tuple[int, int] | None = None


def parse_gap(event: Event, change: Change) -> Gap:
    """Return the gap that an event of scope GAP reports."""
    token_range = None
    if change.start is not None and change.end is not None:
        after, until = b"".join(change.start.values), b"".join(change.end.values)
        if len(after) == len(until) == _TOKEN_BYTES:
            token_range = int.from_bytes(after, "big", signed=True), int.from_bytes(until, "big", signed=True)
    return Gap(event.partition, event.offset, change.node, change.write_time, token_range)


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
