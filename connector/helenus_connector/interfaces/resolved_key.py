"""A resolver's result for one key: the current row.

The module runs as plain Python, and compiled by Cython with the types of `resolved_key.pxd`: a backlog creates one
object for each of its keys.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any

from helenus_schemas.event.cells import Cells, decode_cells

if TYPE_CHECKING:
    from helenus_connector.interfaces.event import Event
    from helenus_connector.interfaces.image import Bounds, Image, LiveRow
    from helenus_schemas.codec.key import Key
    from helenus_schemas.errors import HelenusError
    from helenus_schemas.event.change import Scope

COMPILED = not __file__.endswith(".py")


class ResolvedKey:
    """The current row of a key; or the scope of a delete marker (a partition, a range, a table) and the rows in it.

    The resolver sets, for the shape: `before` and `after`, the previous and the current row (None: not known, and no
    row). For a marker, `after` has the partition's static columns, and `read_rows` reads the rows of its scope; it
    takes this object as its argument, so that it need not refer to it. For a single row `read_rows` is None.
    `write_time` in µs and `expires` in s since the epoch are those of the record; `newest` is the newest write time of
    the changes. `event` is the first of the batch's `events` events that concern the key; None if the key is only read
    again. `parts` is the number of partitions that share a truncation; `continues` says that an earlier batch began it
    and published its marker. `last_digest` is the digest of the records that were published last, if it is known.
    `is_confirmed` says that the result is final: no digest of it is needed. `is_released` says that fewer replicas
    reported the change than the gate's level requires. `failure` is why there is no result and never will be: the
    event is to be dead-lettered.

    From a resolver that reads no rows, `cells` are the encoded cells of the one change in `event`, `written` are the
    decoded ones, `after` and `read_rows` are None, and `events` counts the change's copies.

    From a resolver with state, `op` is the kind of operation: `c`, `u` or `d`, or `r` for a row that a snapshot read.

    The stage sets: the `digest` of the records, `published` and `dead_lettered`, and the number of `records` that it
    appended.
    """

    bounds: Bounds | None
    event: Event | None
    newest: int | None
    write_time: int | None
    expires: int | None
    before: Image | None
    after: Image | None
    read_rows: Callable[[Any], Iterator[LiveRow]] | None
    last_digest: bytes | None
    failure: HelenusError | None
    cells: bytes | None
    op: str | None
    _written: Cells | None

    def __init__(
        self,
        topic: str,
        partition: int,
        key: bytes,
        values: Key,
        scope: Scope,
        bounds: Bounds | None = None,
        parts: int = 1,
        event: Event | None = None,
    ) -> None:
        self.topic = topic
        self.partition = partition
        self.key = key
        self.values = values
        self.scope = scope
        self.bounds = bounds
        self.parts = parts
        self.event = event
        self.events = 0
        self.newest = self.write_time = self.expires = None
        self.before = self.after = None
        self.read_rows = None
        self.last_digest = self.failure = self.cells = self.op = self._written = None
        self.continues = self.is_confirmed = self.is_released = False
        self.digest = b""
        self.published = self.dead_lettered = False
        self.records = 0

    def copy(self) -> ResolvedKey:
        """Return the same result, for a shape that is to be given another row; without what the stage sets."""
        copied = ResolvedKey(
            self.topic, self.partition, self.key, self.values, self.scope, self.bounds, self.parts, self.event
        )
        copied.events = self.events
        copied.newest, copied.write_time, copied.expires = self.newest, self.write_time, self.expires
        copied.before, copied.after, copied.read_rows = self.before, self.after, self.read_rows
        copied.last_digest, copied.failure = self.last_digest, self.failure
        copied.cells, copied.op, copied._written = self.cells, self.op, self._written
        copied.continues = self.continues
        copied.is_confirmed, copied.is_released = self.is_confirmed, self.is_released
        return copied

    @property
    def written(self) -> Cells | None:
        """Return the cells, decoded at the first access. Raises Malformed."""
        if self._written is None and self.cells is not None:
            self._written = decode_cells(self.cells, self.scope)
        return self._written

    @written.setter
    def written(self, written: Cells) -> None:
        self._written = written

    @property
    def since(self) -> float:
        """Return when the first event of the key was appended, s since the epoch; the current time if there is none."""
        return time.time() if self.event is None else self.event.timestamp / 1000

    @property
    def is_read(self) -> bool:
        """Return whether the result was read from the table; that is the same for all members of a group."""
        return self.cells is None and self._written is None

    def rows(self) -> Iterator[LiveRow]:
        """Read the live rows in a marker's scope, lazily, from the first one at each call. Raises RowsFailed."""
        assert self.read_rows is not None, "of one row"
        return self.read_rows(self)
