"""The rows that live in the scope of a delete marker, read as they are asked for."""

from __future__ import annotations

import time
from collections.abc import Iterator

from helenus_connector.cassandra_rows.row_reader import KeyRefused, RowReader, Rows, stripe_of
from helenus_connector.interfaces.image import LiveRow
from helenus_connector.interfaces.resolver import RowsFailed, SchemaChanged
from helenus_connector.reread._key_read import KeyRead
from helenus_schemas.codec.key import KeyCodec
from helenus_schemas.cql.values import Malformed
from helenus_schemas.errors import HelenusError
from helenus_schemas.event.change import Scope

_SCAN_S = 10.0


class LiveRows:
    """The live rows of the markers in one attempt at a batch. `prefetched` are rows that were requested already, and
    `next_stripes` says from which stripe of the ring on a truncation's rows are still to be read; both by the read's
    id().
    """

    def __init__(self, reader: RowReader, codec: KeyCodec) -> None:
        self.prefetched: dict[int, Rows] = {}
        self.next_stripes: dict[int, int] = {}
        self._reader = reader
        self._codec = codec
        self._late = time.monotonic() + _SCAN_S

    def scope_rows(self, key_read: KeyRead) -> Iterator[LiveRow]:
        """Read those of a partition, or a range of it."""
        rows = self.prefetched.pop(id(key_read), None)
        if rows is None:
            rows = self._reader.range(key_read.values, key_read.bounds or (None, None), key_read.consistency)
        return self._live(key_read, rows)

    def table_rows(self, key_read: KeyRead) -> Iterator[LiveRow]:
        """Read those of the table in a topic partition, for some seconds."""
        return self._live(key_read, self._scan(key_read))

    def _live(self, key_read: KeyRead, rows: Rows) -> Iterator[LiveRow]:
        """Yield rows with their keys; the read takes note of what they show."""
        key_read.oldest, key_read.timeless = None, False
        if (
            key_read.scope is Scope.PARTITION
            and key_read.after
            and key_read.after.values.count(None) < len(key_read.after.values)
        ):
            key_read.saw(key_read.after)
        encode = self._codec.encode
        try:
            for values, image in rows:
                try:
                    key: bytes | None = encode(values)
                except Malformed:
                    key = None  # the agent skips its events too
                key_read.saw(image if key is not None else None)
                yield LiveRow(key, values, image)
        except (HelenusError, SchemaChanged, KeyRefused) as error:
            raise RowsFailed(error) from None

    def _scan(self, key_read: KeyRead) -> Rows:
        """Read until it is late. `next_stripes` says where to go on; it says nothing when all are read."""
        reached: int | None = None
        for values, image in self._reader.part(
            key_read.partition, key_read.parts, key_read.consistency, first_stripe(key_read)
        ):
            stripe = stripe_of(values[: self._codec.partition_columns])
            if stripe != reached:
                if reached is not None:
                    self.next_stripes[id(key_read)] = stripe
                    if time.monotonic() > self._late:
                        return
                reached = stripe
            yield values, image
        self.next_stripes.pop(id(key_read), None)


def first_stripe(key_read: KeyRead) -> int:
    """Return the stripe of the ring to read a truncation from: an earlier batch may have begun it."""
    return key_read.unconfirmed.stripe if key_read.unconfirmed and not key_read.event else 0
