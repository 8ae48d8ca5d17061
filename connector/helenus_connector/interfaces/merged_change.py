"""The effect of a change on the rows in the store: one row, or the scope of a delete, before and after the change."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

from helenus_connector.interfaces.event import Event
from helenus_connector.interfaces.image import Bounds
from helenus_schemas.event.change import Scope

ASK = "ask"
"""The key has to be read; the result of the read comes back as an event. The reason is an event without cells, an event
after which the row is uncertain, or, without an event, a row in the store that is uncertain by itself.
"""
POISON = "poison"
"""An event that does not belong to this table, or whose cells can't be decoded: `failure` says why."""
GAP = "gap"
"""An event that reports that changes are missing."""


class MergedChange(NamedTuple):
    """A key, or a delete marker, after a change was merged.

    `key` is the event's key in Avro. `op` is `c`, `u` or `d` (a marker has `d`), or one of the three constants above,
    which come with no more than their `event`, if there is one. `before` and `after` map columns, static ones included,
    to complete CQL values; None means that there was, or is, no row. `write_time` is in µs, `expires` in s since the
    epoch. `event` is the event that caused the change; None if the row expired.

    In an `ASK`, `expires` is the time of the batch that requests the read: the row is not read before. `write_time` is
    the write time up to which cells that the read does not show count as deleted, if that is known. `disturbances` is
    the number of disturbances of the partition so far: if it is higher when the answer comes, the answer may be older
    than one of them.
    """

    partition: int
    key: bytes
    scope: Scope
    bounds: Bounds | None
    op: str
    before: Mapping[str, bytes | None] | None
    after: Mapping[str, bytes | None] | None
    write_time: int | None
    expires: int | None
    event: Event | None
    failure: str | None = None
    disturbances: int = 0
