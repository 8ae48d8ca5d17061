"""What a change did to the rows that are kept: one row, or the scope of a delete, as it was before and after."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

from helenus_connector.interfaces.event import Event
from helenus_connector.interfaces.image import Bounds
from helenus_schemas.event.change import Scope

ASK = "ask"
"""A key is to be read, and comes again with what is there: that of an event without cells, or one that leaves its row
in doubt; or of no event, where the state is in doubt by itself.
"""
POISON = "poison"
"""An event that is none of this table, or has cells that can't be read: `failure` says why."""
GAP = "gap"
"""An event that says that changes are missing."""


class MergedChange(NamedTuple):
    """A key, or a delete marker, as a change leaves it.

    `key` is the event's, in Avro. `op` is `c`, `u` or `d`; of a marker `d`; or one of those above, which have no more
    than their `event`, if there is one. `before` and `after` are whole CQL values by column, static ones too; None:
    there was, or is, no row. `write_time` in µs, `expires` in s since the epoch. `event` is the one that changed it;
    None if it expired.

    An `ASK` has in `expires` the time of the batch that asks, before which the row is not read; in `write_time` up to
    which write time what is not found is gone, if that is known; and how many `disturbances` its partition had: if it
    has more when the answer comes, that may be of before.
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
