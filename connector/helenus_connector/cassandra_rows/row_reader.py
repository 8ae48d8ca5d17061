"""Reads the current rows of a table as images: those of many keys, of partitions and ranges, and along the ring."""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from contextlib import suppress
from functools import cache
from itertools import chain, groupby
from typing import Any

from cassandra.metadata import Murmur3Token

from helenus_connector.cassandra_rows._image_projection import ImageProjection
from helenus_connector.cassandra_rows._key_row_reader import KeyRowReader, PagedRows, PartialRead
from helenus_connector.cassandra_rows._requests import KeyRefused as KeyRefused
from helenus_connector.cassandra_rows._requests import UnreadReason as UnreadReason
from helenus_connector.cassandra_rows._requests import unread_reason
from helenus_connector.cassandra_rows._slices import slices
from helenus_connector.cassandra_rows._statements import RowQuery
from helenus_connector.cassandra_rows._stretches import MIN_KEYS, stretches
from helenus_connector.cassandra_rows.raw_rows import RawRow
from helenus_connector.config.connector import ConnectorSettings
from helenus_connector.gate.replicas import routing_key
from helenus_connector.interfaces.image import Bounds, Image
from helenus_schemas.codec.key import Key
from helenus_schemas.cql.table import Table
from helenus_schemas.cql.values import Malformed
from helenus_schemas.errors import HelenusError, Kind
from helenus_schemas.event import placement
from helenus_schemas.event.change import Scope

_MAX_SKIPPED_ROWS = 100
"""Rows whose reading for nothing costs about as much as another statement."""
_MAX_READ_RATIO = 4
"""Rows that are scanned for each wanted one, at most: above that, single reads are cheaper."""
_RING_PAUSE_S = 600.0
"""Until the next scan after one that was slow or returned too few wanted rows."""


Rows = Iterator[tuple[Key, Image]]
"""Live rows, read lazily."""
ScopeRows = tuple["Image | None", Rows]
"""The live content of a marker's scope: the partition's static columns, if it has any, and rows."""


class RowReader(KeyRowReader[Image]):
    """Reads the rows of one version of a table as images, without write times if `times` is false: those of keys, of
    scopes within partitions, and of parts of the ring.
    """

    def __init__(self, session: Any, table: Table, settings: ConnectorSettings, times: bool = True) -> None:
        self._images = ImageProjection(session, table, times)
        super().__init__(session, table, settings, self._images)
        self._width = self._key_width + len(table.values)
        self._wanted_share = 1.0  # share of the rows scanned lately that were wanted
        self._ring_paused_until = 0.0  # monotonic s

    @property
    def shows_all_times(self) -> bool:
        """Return whether the write times of all cells are read: before Cassandra 5.0 not those of unfrozen collections
        and UDTs.
        """
        return self._images.shows_all_times

    @property
    def asks_ttl(self) -> bool:
        """Return whether the TTLs of cells are read, as far as CQL shows them."""
        return self._images.asks_ttl

    @asks_ttl.setter
    def asks_ttl(self, asks_ttl: bool) -> None:
        self._images.asks_ttl = asks_ttl

    @property
    def saw_ttl(self) -> bool:
        """Return whether some cell has a TTL, of those that were read since this was set to false."""
        return self._images.saw_ttl

    @saw_ttl.setter
    def saw_ttl(self, saw_ttl: bool) -> None:
        self._images.saw_ttl = saw_ttl

    def read_along_ring(self, keys: Collection[Key], consistency: int) -> Iterator[list[tuple[Key, Image]]]:
        """Scan the ring for those of these keys that are close to others, as nearly all keys of a snapshot are, and
        yield them with their rows. The caller reads the other keys, and those that have no row, with `read_row_lists`.

        Yields fewer keys, or none, if scanning is slow or fails. Raises the same errors as `read_row_lists`.
        """
        if len(keys) < MIN_KEYS or time.monotonic() < self._ring_paused_until:
            return
        normalized, width = self._codec.normalize, self._key_width
        keys_by_query: dict[int, dict[Key, Key]] = {}
        rows_read = rows_wanted = 0

        def queries() -> Iterator[RowQuery]:
            for stretch in stretches(
                zip(map(self._token_of_key(), keys), keys, strict=True), int(self._page_rows * self._wanted_share)
            ):
                query = self._queries.tokens(stretch.first, stretch.last)
                query.has_hung = True  # no retries: the caller reads these keys one by one then
                keys_by_query[id(query)] = {normalized(key): key for key in stretch.keys}
                yield query

        try:
            for query, answer in self._run(queries(), consistency):
                missing = keys_by_query.pop(id(query))
                if isinstance(answer, (KeyRefused, UnreadReason)):
                    self._ring_paused_until = time.monotonic() + _RING_PAUSE_S
                    return
                max_rows = rows_read + _MAX_READ_RATIO * len(missing) + self._page_rows
                for page, _ in self._pages(query, answer, consistency):
                    rows_read += len(page)
                    rows: list[RawRow] = []
                    row_keys: list[Key] = []
                    for row in page:
                        try:
                            key = missing.pop(normalized(row[:width]), None)
                        except Malformed:
                            continue  # such a key can't have been requested
                        if key is not None:
                            row_keys.append(key)
                            rows.append(row)
                    if rows:
                        rows_wanted += len(rows)
                        yield list(zip(row_keys, self._images.rows(rows), strict=True))
                    if not missing or rows_read > max_rows:
                        break
        except HelenusError as error:
            if error.kind is not Kind.CASSANDRA_READ:
                raise
            self._ring_paused_until = time.monotonic() + _RING_PAUSE_S
        if rows_read:
            self._wanted_share = max(rows_wanted / rows_read, 1 / _MAX_READ_RATIO)
            if rows_wanted * _MAX_READ_RATIO < rows_read:
                self._ring_paused_until = time.monotonic() + _RING_PAUSE_S

    def read_statics(self, key: Key, consistency: int) -> Image | None:
        """Read the static columns of a key's partition; None if there is no partition, or no such column. Raises as
        `read_rows`.
        """
        image = None
        if self.table.statics:
            for row in self._scan(self._queries.statics(key), consistency):
                image = self._images.static_row(row)
        return image

    def read_range(self, key: Key, bounds: Bounds, consistency: int) -> Rows:
        """Read the live rows of a key's partition within bounds, lazily. Raises as `read_rows`."""
        for clustering_slice in slices(bounds):
            yield from self._live_rows(self._scan(self._queries.slice(key, clustering_slice), consistency))

    def read_topic_partition(self, partition: int, parts: int, consistency: int, first: int = 0) -> Rows:
        """Read all live rows of the table that belong to one of a topic's `parts` partitions, in the order of the ring,
        from the stripe `first` on. Raises as `read_rows`.

        A topic partition has every n-th stripe of the ring. If rows are few, one statement reads all stripes; if they
        are many, the stripes of other partitions are skipped.
        """
        stripe, is_dense = first + (partition - first) % parts, False
        while stripe < placement.STRIPES:
            last = stripe if is_dense else placement.STRIPES - 1
            count, skipped_group, skipped_rows = 0, -1, 0
            for key, image in self._live_rows(self._scan(self._queries.stripes(stripe, last), consistency)):
                key_stripe = stripe_of(key[: self._pk_width])
                if key_stripe % parts == partition:
                    count += 1
                    yield key, image
                    continue
                if (key_stripe - partition) // parts != skipped_group:
                    skipped_group, skipped_rows = (key_stripe - partition) // parts, 0
                skipped_rows += 1
                if skipped_rows > _MAX_SKIPPED_ROWS:
                    last, is_dense = partition + skipped_group * parts + parts - 1, True
                    break
            else:
                is_dense = count * (parts - 1) > _MAX_SKIPPED_ROWS
            stripe = last + 1 + (partition - last - 1) % parts

    def read_token_range(
        self, first: int, last: int, consistency: int
    ) -> Iterator[tuple[Key, tuple[bytes | None, ...]]]:
        """Read keys and values, static columns last, of the rows with tokens from `first` to `last`, inclusive, in the
        order of the ring. A partition with static columns only has one row, whose clustering key is null. Raises as
        `read_rows`.
        """
        width, end = self._key_width, self._width
        for row in self._scan(self._queries.tokens(first, last), consistency):
            yield row[:width], row[width:end] or row[:width]

    def read_scopes(
        self, scopes: Sequence[tuple[Scope, Key, Bounds | None]], consistency: int
    ) -> Iterator[tuple[int, ScopeRows | KeyRefused | UnreadReason]]:
        """Read the live content of partitions (PARTITION), of bounds within them (RANGE), or static columns (STATIC).

        Yields the index in `scopes` with the content, in any order. The caller consumes the rows of one before it
        requests the next. Many are read at once. Raises as `read_rows`; the rows raise as `read_range`.
        """
        self._projection.restore()
        indexes: dict[Scope, dict[Key, int]] = {}
        ranges: list[tuple[int, Key, Bounds]] = []
        for index, (scope, key, bounds) in enumerate(scopes):
            if scope is Scope.STATIC and not self.table.statics:
                yield index, (None, iter(()))
            elif scope is Scope.RANGE:
                ranges.append((index, key, bounds or (None, None)))
            else:
                indexes.setdefault(scope, {})[key] = index
        content: ScopeRows | KeyRefused | UnreadReason
        for key, answer in self._static_rows(indexes.get(Scope.STATIC, {}), consistency):
            content = answer if isinstance(answer, (KeyRefused, UnreadReason)) else (answer, iter(()))
            yield indexes[Scope.STATIC][key], content
        for key, partition in self._partitions(indexes.get(Scope.PARTITION, {}), consistency):
            yield indexes[Scope.PARTITION][key], partition
        yield from self._ranges(ranges, consistency)

    def _partitions(
        self, keys: Collection[Key], consistency: int
    ) -> Iterator[tuple[Key, ScopeRows | KeyRefused | UnreadReason]]:
        width = self._pk_width
        for query, answer in self._run(self._grouped(keys, width), consistency):
            if isinstance(answer, (KeyRefused, UnreadReason)):
                yield from ((key, answer) for key in query.keys)
                continue
            missing = {key[:width]: key for key in query.keys}
            rows = PagedRows(page for page, _ in self._pages(query, answer, consistency))
            with suppress(PartialRead):
                for partition, members in groupby(rows, lambda row: row[:width]):
                    key = missing.pop(partition, None)
                    if key is None:
                        raise self._masked_keys_error()
                    first = next(members)
                    live_rows = self._live_rows(chain([first], members))  # noqa: B031
                    yield key, (self._images.static_part(first), live_rows)
            for key in missing.values():  # after a failed read they may have rows
                yield key, unread_reason(rows.failure) if rows.failure else (None, iter(()))

    def _ranges(
        self, ranges: Sequence[tuple[int, Key, Bounds]], consistency: int
    ) -> Iterator[tuple[int, ScopeRows | KeyRefused | UnreadReason]]:
        """Read ranges: each takes several statements, which are answered in the order in which they are sent."""
        queries_by_range = [(index, self._range_queries(key, bounds)) for index, key, bounds in ranges]
        answers = self._run((query for _, queries in queries_by_range for query in queries), consistency)
        for index, queries in queries_by_range:
            range_answers = [next(answers) for _ in queries]
            failure = next((a for _, a in range_answers if isinstance(a, (KeyRefused, UnreadReason))), None)
            if failure is not None:
                yield index, failure
                continue
            statics = None
            if range_answers and range_answers[0][0].statics:
                for row in range_answers.pop(0)[1].current_rows:
                    statics = self._images.static_row(row)
            pages = (page for query, answer in range_answers for page, _ in self._pages(query, answer, consistency))
            yield index, (statics, self._live_rows(chain.from_iterable(pages)))

    def _range_queries(self, key: Key, bounds: Bounds) -> list[RowQuery]:
        statics = [self._queries.statics(key)] if self.table.statics else []
        row_queries = [self._queries.slice(key, clustering_slice) for clustering_slice in slices(bounds)]
        return [*statics, *row_queries]

    def _live_rows(self, rows: Iterable[RawRow]) -> Rows:
        for row in rows:
            # A partition with static columns only has one row without a clustering key.
            if None not in row[self._pk_width : self._key_width]:
                yield row[: self._key_width], self._images.rows([row])[0]

    def _token_of_key(self) -> Callable[[Key], int]:
        """Return a function from a key to the token of its partition."""
        width = self._pk_width

        @cache
        def token(partition: Key) -> int:
            hashed: int = Murmur3Token.hash_fn(routing_key(partition))
            return hashed

        return lambda key: token(key[:width])


def stripe_of(partition_key: Key) -> int:
    """Return the stripe of the ring that a partition is in."""
    return placement.stripe(Murmur3Token.hash_fn(routing_key(partition_key)))
