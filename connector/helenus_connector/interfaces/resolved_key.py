"""What a resolver says of a key: what its row is now.

It runs as it is, and compiled by Cython with the types of `resolved.pxd`: a backlog has one for each of its keys.
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
    """What a key's row is now; or the scope of a delete marker (a partition, a range, a table) and the rows in it.

    The resolver fills in, for the shape: `before` and `after`, the row as it was and as it is (None: not known, and
    gone). Of a marker `after` has the partition's static columns, and `read_rows` reads its `rows`: a function of this
    Resolved, so that it need not hold it; None of one row. `write_time` in µs and `expires` in s since the epoch are
    what the record says, `newest` is the newest write time of the changes. `event` is the first event of the batch that
    asks for it, of `events`; None if none does, as for a key that is read again. `parts` is the number of partitions
    that share a truncation; one that `continues` was begun by an earlier batch, which published its marker. `known` is
    the digest of what was published last, if that is known. `is_confirmed` says that the answer is final: no digest of
    it is needed. With `is_released` fewer replicas reported the change than the gate's level asks for. `failure` is why
    there is no answer and never will be: to be dead-lettered.

    Of a resolver that reads no rows, `cells` are those of the one change of `event`, `written` is what they say, and
    `after` and `read_rows` are None; `events` are its copies.

    Of one that keeps rows, `op` is the kind of operation, `c`, `u` or `d`, or `r` of a row that a snapshot read.

    The stage fills in: `digest` of the records, `published` and `dead_lettered`, and the number of `records` that it
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
    known: bytes | None
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
        self.known = self.failure = self.cells = self.op = self._written = None
        self.continues = self.is_confirmed = self.is_released = False
        self.digest = b""
        self.published = self.dead_lettered = False
        self.records = 0

    @property
    def written(self) -> Cells | None:
        """The cells, read when this is asked for. Raises Malformed."""
        if self._written is None and self.cells is not None:
            self._written = decode_cells(self.cells, self.scope)
        return self._written

    @written.setter
    def written(self, written: Cells) -> None:
        self._written = written

    @property
    def since(self) -> float:
        """When the event that asks for it was appended, s since the epoch; now if none does: then it is news."""
        return time.time() if self.event is None else self.event.timestamp / 1000

    @property
    def is_read(self) -> bool:
        """Whether the answer was read from the table; all of a group are, or none."""
        return self.cells is None and self._written is None

    def rows(self) -> Iterator[LiveRow]:
        """The rows that live in a marker's scope, from the first one, read as they are asked for. Raises RowsFailed."""
        assert self.read_rows is not None, "of one row"
        return self.read_rows(self)
