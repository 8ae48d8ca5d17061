"""Reads the current rows of many keys, in few statements.

Keys are read in groups, as `Grouping.groups` forms them. Groups that time out are divided, down to single keys.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Hashable, Iterable, Iterator, Sequence
from contextlib import suppress
from functools import cache
from itertools import chain, groupby
from typing import Any

from cassandra.metadata import Murmur3Token

from helenus_connector.cassandra_rows._key_groups import Grouping
from helenus_connector.cassandra_rows._requests import MAX_PENDING_BYTES, RowRequests
from helenus_connector.cassandra_rows._requests import KeyRefused as KeyRefused
from helenus_connector.cassandra_rows._requests import UnreadReason as UnreadReason
from helenus_connector.cassandra_rows._slices import slices
from helenus_connector.cassandra_rows._statements import RowQuery, together
from helenus_connector.cassandra_rows._stretches import MIN_KEYS, stretches
from helenus_connector.cassandra_rows.raw_rows import RawRow, RowPage
from helenus_connector.cassandra_rows.row_images import make_images, match_keys, newest_write_time
from helenus_connector.config.connector import ConnectorSettings
from helenus_connector.gate.replicas import routing_key
from helenus_connector.interfaces.image import Bounds, Image, TimedColumns
from helenus_schemas.codec.key import Key, KeyCodec
from helenus_schemas.cql.table import Column, Table
from helenus_schemas.cql.values import Malformed
from helenus_schemas.errors import HelenusError, Kind
from helenus_schemas.event import placement
from helenus_schemas.event.change import Scope

_MIN_LIVE_SHARE = 0.001
"""Lower limit of the assumed share of requested keys that have a row: it limits how many keys a statement has."""
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


class RowReader(RowRequests):
    """Reads the rows of one version of a table. With `is_single` each key is read by a statement of its own."""

    def __init__(self, session: Any, table: Table, settings: ConnectorSettings, times: bool = True) -> None:
        super().__init__(session, table, settings, times)
        self._codec = KeyCodec(table)
        self._key_width = len(table.primary_key)
        self._pk_width = len(table.partition_key)
        self._width = self._key_width + len(table.values)
        self.is_single = False
        self._live_share = 1.0  # share of the keys requested lately that have a row
        self._wanted_share = 1.0  # share of the rows scanned lately that were wanted
        self._ring_paused_until = 0.0  # monotonic s
        self._imaged_columns = self._timed
        self._image_columns = self._timed_columns(self._timed)
        self._statics_timed = TimedColumns.from_columns(
            self._timed_statics, _other_columns(table.statics, self._timed_statics)
        )

    def rows(
        self, keys: Collection[Key], consistency: int
    ) -> Iterator[tuple[Key, Image | KeyRefused | UnreadReason | None]]:
        """Yield what `answers` yields, key by key."""
        return chain.from_iterable(self.answers(keys, consistency))

    def answers(self, keys: Collection[Key], consistency: int) -> Iterator[list[tuple[Key, Any]]]:
        """Yield each of these keys once with its row: an Image, or None if there is no row. Keys come in lists, in the
        order of the answers; keys that were not read come in lists of their own, with KeyRefused or UnreadReason.

        Raises HelenusError CASSANDRA_READ if the cluster can't be read, CASSANDRA_AUTH if key columns are masked, and
        SchemaChanged. Each may be raised after some keys were yielded.
        """
        self._probe()
        normalized, width = None if self._codec.has_one_form else self._codec.normalize, self._key_width
        for query, answer in self._run(self._grouped(keys, width), consistency):
            if isinstance(answer, (KeyRefused, UnreadReason)):
                yield [(key, answer) for key in query.keys]
                continue
            missing, rows_read = query.keys, 0
            for page, is_last in self._pages(query, answer, consistency):
                # Cassandra returns a key in the form in which it was first written, which may be another one.
                row_keys = [row[:width] for row in page]
                image_keys = row_keys if normalized is None else map(normalized, row_keys)
                images = dict(zip(image_keys, self._images(page), strict=True))
                rows_read += len(page)
                answered, missing, count = match_keys(missing, images, normalized, is_last)
                if len(images) > count:
                    raise self._masked_keys_error()
                if answered:
                    yield answered
            # Keys without a row don't change the size of rows, but how many of the next keys have one.
            self._live_share = max(rows_read / len(query.keys), self._live_share / 2, _MIN_LIVE_SHARE)

    def read_along_ring(self, keys: Collection[Key], consistency: int) -> Iterator[list[tuple[Key, Image]]]:
        """Scan the ring for those of these keys that are close to others, as nearly all keys of a snapshot are, and
        yield them with their rows. The caller reads the other keys, and those that have no row, with `answers`.

        Yields fewer keys, or none, if scanning is slow or fails. Raises the same errors as `answers`.
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
                        yield list(zip(row_keys, self._images(rows), strict=True))
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

    def statics(self, key: Key, consistency: int) -> Image | None:
        """Read the static columns of a key's partition; None if there is no partition, or no such column. Raises as
        `rows`.
        """
        image = None
        if self.table.statics:
            for row in self._scan(self._queries.statics(key), consistency):
                image = self._static_image(row)
        return image

    def range(self, key: Key, bounds: Bounds, consistency: int) -> Rows:
        """Read the live rows of a key's partition within bounds, lazily. Raises as `rows`."""
        for clustering_slice in slices(bounds):
            yield from self._live_rows(self._scan(self._queries.slice(key, clustering_slice), consistency))

    def part(self, partition: int, parts: int, consistency: int, first: int = 0) -> Rows:
        """Read all live rows of the table that belong to one of a topic's `parts` partitions, in the order of the ring,
        from the stripe `first` on. Raises as `rows`.

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

    def scan(self, first: int, last: int, consistency: int) -> Iterator[tuple[Key, tuple[bytes | None, ...]]]:
        """Read keys and values, static columns last, of the rows with tokens from `first` to `last`, inclusive, in the
        order of the ring. A partition with static columns only has one row, whose clustering key is null. Raises as
        `rows`.
        """
        width, end = self._key_width, self._width
        for row in self._scan(self._queries.tokens(first, last), consistency):
            yield row[:width], row[width:end] or row[:width]

    def scopes(
        self, scopes: Sequence[tuple[Scope, Key, Bounds | None]], consistency: int
    ) -> Iterator[tuple[int, ScopeRows | KeyRefused | UnreadReason]]:
        """Read the live content of partitions (PARTITION), of bounds within them (RANGE), or static columns (STATIC).

        Yields the index in `scopes` with the content, in any order. The caller consumes the rows of one before it
        requests the next. Many are read at once. Raises as `rows`; the rows raise as `range`.
        """
        self._probe()
        indexes: dict[Scope, dict[Key, int]] = {}
        ranges: list[tuple[int, Key, Bounds]] = []
        for index, (scope, key, bounds) in enumerate(scopes):
            if scope is Scope.STATIC and not self.table.statics:
                yield index, (None, iter(()))
            elif scope is Scope.RANGE:
                ranges.append((index, key, bounds or (None, None)))
            else:
                indexes.setdefault(scope, {})[key] = index
        for scope, keys in indexes.items():
            partitions = self._partitions(keys, scope is Scope.STATIC, consistency)
            yield from ((keys[key], answer) for key, answer in partitions)
        yield from self._ranges(ranges, consistency)

    def _partitions(
        self, keys: Collection[Key], statics: bool, consistency: int
    ) -> Iterator[tuple[Key, ScopeRows | KeyRefused | UnreadReason]]:
        width = self._pk_width
        for query, answer in self._run(self._grouped(keys, width, statics), consistency):
            if isinstance(answer, (KeyRefused, UnreadReason)):
                yield from ((key, answer) for key in query.keys)
                continue
            missing = {key[:width]: key for key in query.keys}
            rows = _PagedRows(page for page, _ in self._pages(query, answer, consistency))
            with suppress(_PartialRead):
                for partition, members in groupby(rows, lambda row: row[:width]):
                    key = missing.pop(partition, None)
                    if key is None:
                        raise self._masked_keys_error()
                    first = next(members)
                    live = iter(()) if statics else self._live_rows(chain([first], members))  # noqa: B031
                    yield key, (self._static_image(first) if statics else self._static_part(first), live)
            for key in missing.values():  # after a failed read they may have rows
                yield key, UnreadReason(rows.failure, False) if rows.failure else (None, iter(()))

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
                    statics = self._static_image(row)
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
                yield row[: self._key_width], self._images([row])[0]

    def _grouped(self, keys: Collection[Key], width: int, statics: bool = False) -> Iterator[RowQuery]:
        """Yield the queries of these keys' first columns: rows grouped by their size, partitions by `group_size`."""
        home = self._home_of_keys()
        grouping = Grouping(self._pk_width, width, self.group_size, home)
        size = self._keys_at_once if width == self._key_width else lambda: self.group_size
        groups = grouping.groups(keys, (lambda: 1) if self.is_single else size)
        queries = (self._queries.group(span, members, width, statics) for span, members in groups)
        if width < self._key_width or self.is_single or not self._sends_together():
            return queries
        return self._together(queries, home or (lambda _: None))

    def _together(self, queries: Iterable[RowQuery], home: Callable[[Key], Hashable]) -> Iterator[RowQuery]:
        """Join queries of few keys with the same replicas, so that they are sent together; others go by themselves."""
        pending: dict[Hashable, tuple[list[RowQuery], list[Key]]] = {}
        max_keys = min(self._together_size, self._keys_at_once())
        for query in queries:
            if len(query.keys) * 2 > max_keys:
                yield together([query], query.keys)
                max_keys = min(self._together_size, self._keys_at_once())
                continue
            group_home = home(query.keys[0][: self._pk_width])
            parts, members = pending.setdefault(group_home, ([], []))
            parts.append(query)
            members += query.keys
            if len(members) >= max_keys:
                yield together(*pending.pop(group_home))
                max_keys = min(self._together_size, self._keys_at_once())
        for parts, members in pending.values():
            yield together(parts, members)

    def _home_of_keys(self) -> Callable[[Key], Hashable] | None:
        """Return a function from a partition key to its replicas, and to an ordinal among keys that compare equal.

        Cassandra reads such keys within one `IN` as one key, so they go to different statements. None if all keys may
        be in one statement.
        """
        metadata = self.session.cluster.metadata
        is_single_node = len(metadata.all_hosts()) == 1
        if is_single_node and not self._codec.has_several_forms:
            return None
        keys_by_value: dict[bytes, dict[Key, int]] = {}

        @cache
        def home(key: Key) -> Hashable:
            equal_keys = (
                keys_by_value.setdefault(self._codec.comparison_bytes(key), {}) if self._codec.has_several_forms else {}
            )
            ordinal = equal_keys.setdefault(key, len(equal_keys))
            if is_single_node:
                return ordinal
            hosts = metadata.get_replicas(self.table.keyspace, routing_key(key))
            return ordinal, frozenset(host.host_id for host in hosts)

        return home

    def _token_of_key(self) -> Callable[[Key], int]:
        """Return a function from a key to the token of its partition."""
        width = self._pk_width

        @cache
        def token(partition: Key) -> int:
            hashed: int = Murmur3Token.hash_fn(routing_key(partition))
            return hashed

        return lambda key: token(key[:width])

    def _keys_at_once(self) -> int:
        """Return how many keys to read in one statement, by the size and the share of rows that were read lately."""
        return max(1, min(self.group_size, int(MAX_PENDING_BYTES / 8 / (self._row_bytes * self._live_share))))

    def _masked_keys_error(self) -> HelenusError:
        reason = "Cassandra answers with other keys than were asked for"
        advice = "if key columns are masked, GRANT UNMASK on the table to the role of cassandra.username"
        return HelenusError(Kind.CASSANDRA_AUTH, reason, self.table.full_name, advice)

    def _images(self, rows: Iterable[RawRow]) -> list[Image]:
        if self._imaged_columns is not self._timed:  # MAXWRITETIME was switched off, or on again
            self._imaged_columns, self._image_columns = self._timed, self._timed_columns(self._timed)
        expires = self._first_expiry if self.asks_ttl else None
        return make_images(rows, self._key_width, self._width, len(self._timed), self._image_columns, expires)

    def _first_expiry(self, row: RawRow) -> int | None:
        """Return when the first cell expires by the TTLs of the row, s since the epoch."""
        ttls = row[len(row) - len(self._expiring) :]
        if ttls.count(None) == len(ttls):
            return None
        self.saw_ttl = True
        return int(time.time()) + min(int.from_bytes(ttl, "big") for ttl in ttls if ttl)

    def _timed_columns(self, timed: Sequence[tuple[Column, str]]) -> TimedColumns:
        columns = [column for column, _ in timed]
        return TimedColumns.from_columns(columns, _other_columns(self.table.regulars, columns))

    def _static_image(self, row: RawRow) -> Image:
        """Make an image of the static columns from a row that has no others."""
        end = self._pk_width + len(self.table.statics)
        values = dict(zip([c.name for c in self.table.statics], row[self._pk_width : end], strict=True))
        return Image(
            tuple(values.get(c.name) for c in self.table.values), *_newest_and_all(row[end:]), self._statics_timed
        )

    def _static_part(self, row: RawRow) -> Image | None:
        """Make an image of the static columns that a row contains."""
        if not self.table.statics:
            return None
        start, end = self._key_width + len(self.table.regulars), self._width
        last = len(row) - (len(self._expiring) if self.asks_ttl else 0)
        times = row[last - len(self._timed_statics) : last]
        return Image(
            (*[None] * len(self.table.regulars), *row[start:end]), *_newest_and_all(times), self._statics_timed
        )


def _other_columns(columns: Sequence[Column], excluded: Sequence[Column]) -> list[Column]:
    return [column for column in columns if column not in excluded]


class _PartialRead(HelenusError):
    """A read that failed after it had returned a part of its rows."""


class _PagedRows(Iterator[RawRow]):
    """The rows of pages. `failure` is the error of the read, if it failed before the last page."""

    def __init__(self, pages: Iterable[RowPage]) -> None:
        self._rows = chain.from_iterable(pages)
        self.failure: HelenusError | None = None

    def __next__(self) -> RawRow:
        try:
            return next(self._rows)
        except HelenusError as error:
            self.failure = error
            raise _PartialRead(error.kind, error.what, error.where, error.advice) from None


def stripe_of(partition_key: Key) -> int:
    """Return the stripe of the ring that a partition is in."""
    return placement.stripe(Murmur3Token.hash_fn(routing_key(partition_key)))


def _newest_and_all(times: tuple[bytes | None, ...]) -> tuple[int | None, tuple[bytes | None, ...]]:
    """Return the newest of write times, and all of them."""
    return newest_write_time(times), times
