"""Where a change was read, as the envelopes' `source` says it."""

from __future__ import annotations

import time
from typing import NamedTuple

from helenus_connector.interfaces.gate import Event
from helenus_schemas.event.change import Origin
from helenus_schemas.event.own_format import log_position, match_own_format
from helenus_schemas.event.wire import decode, without_frames

_SNAPSHOT = {Origin.SNAPSHOT: "true", Origin.SNAPSHOT_FIRST: "first", Origin.SNAPSHOT_LAST: "last"}
_FURTHEST = (1 << 63) - 1


class Source(NamedTuple):
    """Where a change was read, as far as that is known; `write_time` in µs."""

    write_time: int
    snapshot: str = "false"
    segment: int | None = None
    position: int | None = None
    node: str | None = None


def source_of(event: Event | None, write_time: int | None) -> Source:
    """Where the change of an event was read. Without a write time it is when the event was written, or now."""
    if event is None:
        return Source(now() * 1000 if write_time is None else write_time)
    if write_time is None:
        write_time = event.timestamp * 1000
    value = event.value or b""
    if (match := match_own_format(value)) is not None:
        segment, position = log_position(match)
        return Source(write_time, "false", segment, position, match.node.decode())
    change = decode(without_frames(None, value)[1])
    is_placed = change.segment >= 0 and change.node is not None  # of a read it is when that was
    return Source(
        write_time,
        _SNAPSHOT.get(change.origin, "false"),
        change.segment if is_placed else None,
        change.position if is_placed else None,
        change.node,
    )


def now() -> int:
    """ms since the epoch."""
    return time.time_ns() // 1_000_000


def nanoseconds(at: int) -> int:
    """Of µs; the furthest that a long can say for a write time that is further away."""
    return max(-_FURTHEST, min(at * 1000, _FURTHEST))
