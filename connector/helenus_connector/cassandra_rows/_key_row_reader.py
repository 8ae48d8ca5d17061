"""Reads what each of many keys has, in few statements.

Keys are read in groups, as `Grouping.groups` forms them. Groups that time out are divided, down to single keys.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Hashable, Iterable, Iterator
from contextlib import suppress
from itertools import chain
from typing import Any, Generic, TypeVar

from helenus_connector.cassandra_rows._concurrent_requests import ConcurrentRequests
from helenus_connector.cassandra_rows._key_groups import Grouping, homes_of_keys
from helenus_connector.cassandra_rows._projection import Projection
from helenus_connector.cassandra_rows._requests import MAX_PENDING_BYTES, KeyRefused, UnreadReason, unread_reason
from helenus_connector.cassandra_rows._statements import RowQuery, together
from helenus_connector.cassandra_rows.raw_rows import RawRow, RowPage
from helenus_connector.cassandra_rows.row_images import match_keys
from helenus_connector.config.connector import ConnectorSettings
from helenus_schemas.codec.key import Key, KeyCodec
from helenus_schemas.cql.table import Table
from helenus_schemas.errors import HelenusError, Kind

_MIN_LIVE_SHARE = 0.001
"""Lower limit of the assumed share of requested keys that have a row: it limits how many keys a statement has."""

Row = TypeVar("Row")


class KeyRowReader(ConcurrentRequests, Generic[Row]):
    """Reads the keys of one version of a table, as the rows that a projection makes. With `reads_singly` each key is
    read by a statement of its own.
    """

    def __init__(self, session: Any, table: Table, settings: ConnectorSettings, projection: Projection[Row]) -> None:
        super().__init__(session, table, settings, projection)
        self._codec = KeyCodec(table)
        self._key_width = len(table.primary_key)
        self._pk_width = len(table.partition_key)
        self._data_center = settings.cassandra_local_dc
        self.reads_singly = False
        self._live_share = 1.0  # share of the keys requested lately that have a row

    def read_rows(
        self, keys: Collection[Key], consistency: int
    ) -> Iterator[tuple[Key, Row | KeyRefused | UnreadReason | None]]:
        """Yield what `read_row_lists` yields, key by key."""
        return chain.from_iterable(self.read_row_lists(keys, consistency))

    def read_row_lists(self, keys: Collection[Key], consistency: int) -> Iterator[list[tuple[Key, Any]]]:
        """Yield each of these keys once with its row, or None if there is no row. Keys come in lists, in the order of
        the answers; keys that were not read come in lists of their own, with KeyRefused or UnreadReason.

        Raises HelenusError CASSANDRA_READ if the cluster can't be read, CASSANDRA_AUTH if key columns are masked, and
        SchemaChanged. Each may be raised after some keys were yielded.
        """
        self._projection.restore()
        normalized, width = None if self._codec.has_one_form else self._codec.normalize, self._key_width
        for query, answer in self._run(self._grouped(keys, width), consistency):
            if isinstance(answer, (KeyRefused, UnreadReason)):
                yield [(key, answer) for key in query.keys]
                continue
            missing, rows_read = query.keys, 0
            for page, is_last in self._pages(query, answer, consistency):
                # Cassandra returns a key in the form in which it was first written, which may be another one.
                row_keys = [row[:width] for row in page]
                normalized_keys = row_keys if normalized is None else map(normalized, row_keys)
                rows = dict(zip(normalized_keys, self._projection.rows(page), strict=True))
                rows_read += len(page)
                answered, missing, count = match_keys(missing, rows, normalized, is_last)
                if len(rows) > count:
                    raise self._masked_keys_error()
                if answered:
                    yield answered
            # Keys without a row don't change the size of rows, but how many of the next keys have one.
            self._live_share = max(rows_read / len(query.keys), self._live_share / 2, _MIN_LIVE_SHARE)

    def _static_rows(
        self, keys: Collection[Key], consistency: int
    ) -> Iterator[tuple[Key, Row | KeyRefused | UnreadReason | None]]:
        """Yield each of these keys once with the static columns of its partition: None if there is none, or no such
        column. Raises as `read_row_lists`.
        """
        width = self._pk_width
        for query, answer in self._run(self._grouped(keys, width, True), consistency):
            if isinstance(answer, (KeyRefused, UnreadReason)):
                yield from ((key, answer) for key in query.keys)
                continue
            missing = {key[:width]: key for key in query.keys}
            rows = PagedRows(page for page, _ in self._pages(query, answer, consistency))
            with suppress(PartialRead):
                for row in rows:
                    key = missing.pop(row[:width], None)
                    if key is None:
                        raise self._masked_keys_error()
                    yield key, self._projection.static_row(row)
            for key in missing.values():  # after a failed read they may have some
                yield key, unread_reason(rows.failure) if rows.failure else None

    def _grouped(self, keys: Collection[Key], width: int, statics: bool = False) -> Iterator[RowQuery]:
        """Yield the queries of these keys' first columns: rows grouped by their size, partitions by `group_size`."""
        homes = homes_of_keys(self.session.cluster.metadata, self.table, self._codec, self._data_center)
        grouping = Grouping(self._pk_width, width, self.group_size, homes.home if homes else None)
        size = self._keys_at_once if width == self._key_width else lambda: self.group_size
        groups = grouping.groups(keys, (lambda: 1) if self.reads_singly else size)
        queries = (self._queries.group(span, members, width, statics) for span, members in groups)
        if width < self._key_width or self.reads_singly or not self._sends_together():
            return queries
        return self._together(queries, homes.node if homes else (lambda _: None))

    def _together(self, queries: Iterable[RowQuery], node_of: Callable[[Key], Hashable]) -> Iterator[RowQuery]:
        """Join queries of few keys that one node is asked for, so that they are sent together; others go by
        themselves.
        """
        pending: dict[Hashable, tuple[list[RowQuery], list[Key]]] = {}
        max_keys = min(self._together_size, self._keys_at_once())
        for query in queries:
            if len(query.keys) * 2 > max_keys:
                yield together([query], query.keys)
                max_keys = min(self._together_size, self._keys_at_once())
                continue
            node = node_of(query.keys[0][: self._pk_width])
            parts, members = pending.setdefault(node, ([], []))
            parts.append(query)
            members += query.keys
            if len(members) >= max_keys:
                yield together(*pending.pop(node))
                max_keys = min(self._together_size, self._keys_at_once())
        for parts, members in pending.values():
            yield together(parts, members)

    def _keys_at_once(self) -> int:
        """Return how many keys to read in one statement, by the size and the share of rows that were read lately."""
        return max(1, min(self.group_size, int(MAX_PENDING_BYTES / 8 / (self._row_bytes * self._live_share))))

    def _masked_keys_error(self) -> HelenusError:
        reason = "Cassandra answers with other keys than were asked for"
        advice = "if key columns are masked, GRANT UNMASK on the table to the role of cassandra.username"
        return HelenusError(Kind.CASSANDRA_AUTH, reason, self.table.full_name, advice)


class PartialRead(HelenusError):
    """A read that failed after it had returned a part of its rows."""


class PagedRows(Iterator[RawRow]):
    """The rows of pages. `failure` is the error of the read, if it failed before the last page."""

    def __init__(self, pages: Iterable[RowPage]) -> None:
        self._rows = chain.from_iterable(pages)
        self.failure: HelenusError | None = None

    def __next__(self) -> RawRow:
        try:
            return next(self._rows)
        except HelenusError as error:
            self.failure = error
            raise PartialRead(error.kind, error.what, error.where, error.advice) from None
