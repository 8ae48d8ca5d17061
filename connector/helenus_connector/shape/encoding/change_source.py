"""Where a change was read, as the envelopes' `source` says it."""

from __future__ import annotations

import time
from typing import NamedTuple

from helenus_connector.interfaces.image import Image
from helenus_connector.interfaces.resolved_key import ResolvedKey
from helenus_schemas.event.change import Origin
from helenus_schemas.event.own_format import log_position, match_own_format
from helenus_schemas.event.wire import decode, without_frames

_SNAPSHOT = {Origin.SNAPSHOT: "true", Origin.SNAPSHOT_FIRST: "first", Origin.SNAPSHOT_LAST: "last"}
_FURTHEST = (1 << 63) - 1


class ChangeSource(NamedTuple):
    """Where a change was read, as far as that is known; `write_time` in µs."""

    write_time: int
    snapshot: str = "false"
    segment: int | None = None
    position: int | None = None
    node: str | None = None


def change_source(resolved: ResolvedKey) -> ChangeSource:
    """Where the change was read that a record is of."""
    event, write_time = resolved.event, record_time(resolved)
    if event is None:
        return ChangeSource(write_time)
    value = event.value or b""
    if (match := match_own_format(value)) is not None:
        segment, position = log_position(match)
        return ChangeSource(write_time, "false", segment, position, match.node.decode())
    change = decode(without_frames(None, value)[1])
    is_placed = change.segment >= 0 and change.node is not None  # of a read it is when that was
    return ChangeSource(
        write_time,
        _SNAPSHOT.get(change.origin, "false"),
        change.segment if is_placed else None,
        change.position if is_placed else None,
        change.node,
    )


def record_time(resolved: ResolvedKey) -> int:
    """Return the write time of a record, in µs. Where none is known it is when the first event that asks for the key
    was written, also when the key is read again: a later time would have a deletion take away what was written since.
    """
    return round(resolved.since * 1e6) if resolved.write_time is None else resolved.write_time


def row_source(source: ChangeSource, image: Image | None) -> ChangeSource:
    """The source of a row, or of static columns, that live after a delete marker: their own write time, if it is known.

    Else the marker's, which is no later: what lives was written after the deletion.
    """
    own = None if image is None else image.write_time
    return source if own is None else source._replace(write_time=own)


def now_ms() -> int:
    """ms since the epoch."""
    return time.time_ns() // 1_000_000


def nanoseconds(at: int) -> int:
    """Of µs; the furthest that a long can say for a write time that is further away."""
    return max(-_FURTHEST, min(at * 1000, _FURTHEST))
