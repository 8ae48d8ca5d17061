"""Where a change was read, for the envelopes' field `source`."""

from __future__ import annotations

import time
from typing import NamedTuple

from helenus_connector.interfaces.image import Image
from helenus_connector.interfaces.resolved_key import ResolvedKey
from helenus_schemas.event.change import Origin
from helenus_schemas.event.own_format import log_position, match_own_format
from helenus_schemas.event.wire import decode, without_frames

_SNAPSHOT = {Origin.SNAPSHOT: "true", Origin.SNAPSHOT_FIRST: "first", Origin.SNAPSHOT_LAST: "last"}
_MAX_LONG = (1 << 63) - 1


class ChangeSource(NamedTuple):
    """Where a change was read, as far as the event says; `write_time` in µs."""

    write_time: int
    snapshot: str = "false"
    segment: int | None = None
    position: int | None = None
    node: str | None = None


def change_source(resolved: ResolvedKey) -> ChangeSource:
    """Return where the change of a record was read."""
    event, write_time = resolved.event, record_time(resolved)
    if event is None:
        return ChangeSource(write_time)
    value = event.value or b""
    if (match := match_own_format(value)) is not None:
        segment, position = log_position(match)
        return ChangeSource(write_time, "false", segment, position, match.node.decode())
    change = decode(without_frames(None, value)[1])
    is_placed = (
        change.segment >= 0 and change.node is not None
    )  # a change that was read from a table has no log position
    return ChangeSource(
        write_time,
        _SNAPSHOT.get(change.origin, "false"),
        change.segment if is_placed else None,
        change.position if is_placed else None,
        change.node,
    )


def record_time(resolved: ResolvedKey) -> int:
    """Return the write time of a record, in µs. If Cassandra gave none, return the time of the first event for the key,
    also when the key is read again: with a later time a deletion would hide what was written since.
    """
    return round(resolved.since * 1e6) if resolved.write_time is None else resolved.write_time


def row_source(source: ChangeSource, image: Image | None) -> ChangeSource:
    """Return the source of a row, or of static columns, that live after a delete marker, with their own write time.

    Without one the marker's stays. It is no later: what lives was written after the deletion.
    """
    write_time = None if image is None else image.write_time
    return source if write_time is None else source._replace(write_time=write_time)


def now_ms() -> int:
    """Return the time now, in ms since the epoch."""
    return time.time_ns() // 1_000_000


def nanoseconds(write_time_us: int) -> int:
    """Convert µs to ns, limited to what a long can hold."""
    return max(-_MAX_LONG, min(write_time_us * 1000, _MAX_LONG))
