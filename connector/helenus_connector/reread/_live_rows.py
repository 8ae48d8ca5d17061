"""The live rows in the scope of a delete marker, read lazily: the stage reads them when it appends their records."""

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
"""How long the scans of truncations may take in a pass, together: other keys of the batch must not wait for long."""


class LiveRows:
    """The live rows of the markers in one pass over a batch. `prefetched` are rows that were requested already, and
    `next_stripes` has the stripe of the ring from which on a truncation's rows are still to be read; both by the id()
    of the marker's KeyRead.
    """

    def __init__(self, reader: RowReader, codec: KeyCodec) -> None:
        self.prefetched: dict[int, Rows] = {}
        self.next_stripes: dict[int, int] = {}
        self._reader = reader
        self._codec = codec
        self._scan_deadline = time.monotonic() + _SCAN_S

    def read_scope(self, key_read: KeyRead) -> Iterator[LiveRow]:
        """Read the rows of a partition, or of a range within it."""
        rows = self.prefetched.pop(id(key_read), None)
        if rows is None:
            rows = self._reader.read_range(key_read.values, key_read.bounds or (None, None), key_read.consistency)
        return self._with_keys(key_read, rows)

    def read_table(self, key_read: KeyRead) -> Iterator[LiveRow]:
        """Read the table's rows that belong to a topic partition, for some seconds."""
        return self._with_keys(key_read, self._scan(key_read))

    def _with_keys(self, key_read: KeyRead, rows: Rows) -> Iterator[LiveRow]:
        """Yield rows with their keys, and note in the KeyRead how old their cells are. Static columns count as well."""
        key_read.oldest, key_read.has_untimed_rows = None, False
        if (
            key_read.scope is Scope.PARTITION
            and key_read.after
            and key_read.after.values.count(None) < len(key_read.after.values)
        ):
            key_read.note_live_row(key_read.after)
        encode = self._codec.encode
        try:
            for values, image in rows:
                try:
                    key: bytes | None = encode(values)
                except Malformed:
                    key = None  # the agent skips its events too
                key_read.note_live_row(image if key is not None else None)
                yield LiveRow(key, values, image)
        except (HelenusError, SchemaChanged, KeyRefused) as error:
            raise RowsFailed(error) from None

    def _scan(self, key_read: KeyRead) -> Rows:
        """Read whole stripes until the deadline. `next_stripes` then has the first that is unread, or no entry if none
        is.
        """
        last_stripe: int | None = None
        for values, image in self._reader.read_topic_partition(
            key_read.partition, key_read.parts, key_read.consistency, first_stripe(key_read)
        ):
            stripe = stripe_of(values[: self._codec.partition_columns])
            if stripe != last_stripe:
                if last_stripe is not None:
                    self.next_stripes[id(key_read)] = stripe
                    if time.monotonic() > self._scan_deadline:
                        return
                last_stripe = stripe
            yield values, image
        self.next_stripes.pop(id(key_read), None)


def first_stripe(key_read: KeyRead) -> int:
    """Return the stripe of the ring from which on to read a truncation's rows: an earlier batch may have begun."""
    return key_read.unconfirmed.stripe if key_read.unconfirmed and not key_read.event else 0
