"""What the operator with state says of events: `MergedChange`, one of four types.

    UPDATE t SET v = 2 WHERE k = 7    RowChange "u", with the row before and after
    an event without cells            ReadRequest of its row
    bytes that can't be decoded       PoisonEvent
    a gap in a node's commit log      GapEvent

`state.rows` makes them, `pipeline.merged_stage` publishes them.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

from helenus_connector.interfaces.event import Event
from helenus_connector.interfaces.image import Bounds
from helenus_schemas.event.change import Scope


class RowChange(NamedTuple):
    """The effect of a change on one row, on static columns, or on all rows of a scope that it deletes.

    `key` is the event's key in Avro. `op` is `c`, `u`, `d`, or `r` for a row that is only read; that of a scope is `d`.
    `before` and `after` map columns, static ones included, to complete CQL values; None means that there was, or is, no
    row. `write_time` is in µs, `expires` in s since the epoch. `event` is the event that caused the change; None if the
    row expired. `bounds` are those of a range.
    """

    partition: int
    key: bytes
    scope: Scope
    op: str
    before: Mapping[str, bytes | None] | None = None
    after: Mapping[str, bytes | None] | None = None
    write_time: int | None = None
    expires: int | None = None
    event: Event | None = None
    bounds: Bounds | None = None


class ReadRequest(NamedTuple):
    """A request to read a row, or static columns; the result of the read comes back as an event.

    The reason is the `event`: it has no cells, or the row is uncertain after it. Without an event a row in the store is
    uncertain by itself; then `scope` says whether it is a row or static columns. `requested_at` is the time of the
    batch that requests the read, s since the epoch: the row is not read before. `deleted_to` is the write time up to
    which cells that the read does not show count as deleted, if that is known. `disturbances` is the number of
    disturbances of the partition so far: if it is higher when the answer comes, the answer may be older than one of
    them.
    """

    partition: int
    key: bytes
    scope: Scope
    requested_at: int
    deleted_to: int | None = None
    event: Event | None = None
    disturbances: int = 0


class PoisonEvent(NamedTuple):
    """An event that does not belong to this table, or whose cells can't be decoded: `failure` says why."""

    event: Event
    failure: str


class GapEvent(NamedTuple):
    """An event that reports that changes are missing."""

    event: Event


MergedChange = RowChange | ReadRequest | PoisonEvent | GapEvent
"""What becomes of one event, or of a row in the store."""
