"""Reads the current rows of many keys, in few statements.

Keys are read in groups, as `groups` says. Groups that time out are split, down to single keys.
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
from helenus_connector.cassandra_rows._requests import BUDGET, RowRequests
from helenus_connector.cassandra_rows._requests import KeyRefused as KeyRefused
from helenus_connector.cassandra_rows._requests import UnreadReason as UnreadReason
from helenus_connector.cassandra_rows._slices import slices
from helenus_connector.cassandra_rows._statements import RowQuery, together
from helenus_connector.cassandra_rows._stretches import FEWEST, stretches
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

_FEWEST = 0.001
"""Of the keys that are asked for, so many live at least: more are in no statement."""
_SKIP = 100
"""Rows that are no dearer to read and leave than another statement is."""
_MOST_WASTE = 4
"""Rows that are read through for each that is wanted, at most."""
_THROUGH_AGAIN_S = 600.0
"""Until keys are read through again where that did not work well."""


Rows = Iterator[tuple[Key, Image]]
"""Live rows, read as they are asked for."""
Scoped = tuple["Image | None", Rows]
"""What lives in the scope of a marker: the partition's static columns, if it has any, and rows."""


class RowReader(RowRequests):
    """Reads the rows of one version of a table. `is_single` has each key read by itself."""

    def __init__(self, session: Any, table: Table, settings: ConnectorSettings, times: bool = True) -> None:
        super().__init__(session, table, settings, times)
        self._codec = KeyCodec(table)
        self._key_width = len(table.primary_key)
        self._pk_width = len(table.partition_key)
        self._width = self._key_width + len(table.values)
        self.is_single = False
        self._live = 1.0  # of the keys that were asked for lately
        self._wanted = 1.0  # of the rows that were read through lately
        self._through_at = 0.0  # monotonic s
        self._of_rows = self._timed
        self._shown = self._times_of(self._timed)
        self._statics_timed = TimedColumns.from_columns(
            self._timed_statics, _without(table.statics, self._timed_statics)
        )

    def rows(
        self, keys: Collection[Key], consistency: int
    ) -> Iterator[tuple[Key, Image | KeyRefused | UnreadReason | None]]:
        """As `answers`, one by one."""
        return chain.from_iterable(self.answers(keys, consistency))

    def answers(self, keys: Collection[Key], consistency: int) -> Iterator[list[tuple[Key, Any]]]:
        """Each of these keys once with its row, an Image, or None if it has none; in the order of the answers, in lists
        of some. Of keys that were not read there are lists of their own, with KeyRefused or Unread.

        Raises HelenusError CASSANDRA_READ if the cluster can't be read, CASSANDRA_AUTH where keys are masked, and
        SchemaChanged: all may come when some keys are answered.
        """
        self._probe()
        normalized, width = None if self._codec.has_one_form else self._codec.normalize, self._key_width
        for query, answer in self._run(self._grouped(keys, width), consistency):
            if isinstance(answer, (KeyRefused, UnreadReason)):
                yield [(key, answer) for key in query.keys]
                continue
            left, read = query.keys, 0
            for page, is_last in self._pages(query, answer, consistency):
                # A row answers with its key in the form it was first written in, which need not be the one asked for.
                of_rows = [row[:width] for row in page]
                names = of_rows if normalized is None else map(normalized, of_rows)
                found = dict(zip(names, self._images(page), strict=True))
                read += len(page)
                answered, left, count = match_keys(left, found, normalized, is_last)
                if len(found) > count:
                    raise self._masked()
                if answered:
                    yield answered
            # Keys without a row say nothing about how large rows are, but how many there are to come.
            self._live = max(read / len(query.keys), self._live / 2, _FEWEST)

    def through(self, keys: Collection[Key], consistency: int) -> Iterator[list[tuple[Key, Image]]]:
        """Some of these keys with their rows, read in the order of the ring: of those that are close to others, which
        nearly all are that a snapshot scanned. The others are to be read with `answers`, as are those that have no row.

        Gives less, or nothing, where that is slow or fails. Raises as `answers`.
        """
        if len(keys) < FEWEST or time.monotonic() < self._through_at:
            return
        normalized, width = self._codec.normalize, self._key_width
        wanted: dict[int, dict[Key, Key]] = {}
        read = found = 0

        def queries() -> Iterator[RowQuery]:
            for stretch in stretches(zip(map(self._token(), keys), keys, strict=True), int(self._page * self._wanted)):
                query = self._queries.tokens(stretch.first, stretch.last)
                query.hung = True  # one attempt: there is another way
                wanted[id(query)] = {normalized(key): key for key in stretch.keys}
                yield query

        try:
            for query, answer in self._run(queries(), consistency):
                left = wanted.pop(id(query))
                if isinstance(answer, (KeyRefused, UnreadReason)):
                    self._through_at = time.monotonic() + _THROUGH_AGAIN_S
                    return
                most = read + _MOST_WASTE * len(left) + self._page
                for page, _ in self._pages(query, answer, consistency):
                    read += len(page)
                    rows: list[RawRow] = []
                    of_rows: list[Key] = []
                    for row in page:
                        try:
                            key = left.pop(normalized(row[:width]), None)
                        except Malformed:
                            continue  # nobody can have asked for it
                        if key is not None:
                            of_rows.append(key)
                            rows.append(row)
                    if rows:
                        found += len(rows)
                        yield list(zip(of_rows, self._images(rows), strict=True))
                    if not left or read > most:
                        break
        except HelenusError as error:
            if error.kind is not Kind.CASSANDRA_READ:
                raise
            self._through_at = time.monotonic() + _THROUGH_AGAIN_S
        if read:
            self._wanted = max(found / read, 1 / _MOST_WASTE)
            if found * _MOST_WASTE < read:
                self._through_at = time.monotonic() + _THROUGH_AGAIN_S

    def statics(self, key: Key, consistency: int) -> Image | None:
        """The static columns of a key's partition; None if it is gone or the table has none. Raises as `rows`."""
        image = None
        if self.table.statics:
            for row in self._scan(self._queries.statics(key), consistency):
                image = self._of_statics(row)
        return image

    def range(self, key: Key, bounds: Bounds, consistency: int) -> Rows:
        """The live rows of a key's partition within bounds, read as they are asked for. Raises as `rows`."""
        for one in slices(bounds):
            yield from self._alive(self._scan(self._queries.slice(key, one), consistency))

    def part(self, partition: int, parts: int, consistency: int, first: int = 0) -> Rows:
        """All live rows of the table that belong to one of a topic's partitions, from a stripe of the ring on, in its
        order. Raises as `rows`.

        A partition has every so manieth stripe. Where rows are few they are read through, where they are many those of
        other partitions are skipped.
        """
        stripe, is_dense = first + (partition - first) % parts, False
        while stripe < placement.STRIPES:
            last = stripe if is_dense else placement.STRIPES - 1
            count, gap, passed = 0, -1, 0
            for key, image in self._alive(self._scan(self._queries.stripes(stripe, last), consistency)):
                at = stripe_of(key[: self._pk_width])
                if at % parts == partition:
                    count += 1
                    yield key, image
                    continue
                if (at - partition) // parts != gap:
                    gap, passed = (at - partition) // parts, 0
                passed += 1
                if passed > _SKIP:
                    last, is_dense = partition + gap * parts + parts - 1, True
                    break
            else:
                is_dense = count * (parts - 1) > _SKIP
            stripe = last + 1 + (partition - last - 1) % parts

    def scan(self, first: int, last: int, consistency: int) -> Iterator[tuple[Key, tuple[bytes | None, ...]]]:
        """Keys and values, static columns last, of the rows with these tokens and those between, in the ring's order; a
        partition of static columns alone has one whose clustering key is null. Raises as `rows`.
        """
        width, end = self._key_width, self._width
        for row in self._scan(self._queries.tokens(first, last), consistency):
            yield row[:width], row[width:end] or row[:width]

    def scopes(
        self, asked: Sequence[tuple[Scope, Key, Bounds | None]], consistency: int
    ) -> Iterator[tuple[int, Scoped | KeyRefused | UnreadReason]]:
        """What lives of partitions (PARTITION), within bounds of them (RANGE), or their static columns alone: by its
        place in `asked`, in any order; each before the next one is asked for. Many are read at once. Raises as `rows`,
        and the rows as `range`.
        """
        self._probe()
        places: dict[Scope, dict[Key, int]] = {}
        ranges: list[tuple[int, Key, Bounds]] = []
        for place, (scope, key, bounds) in enumerate(asked):
            if scope is Scope.STATIC and not self.table.statics:
                yield place, (None, iter(()))
            elif scope is Scope.RANGE:
                ranges.append((place, key, bounds or (None, None)))
            else:
                places.setdefault(scope, {})[key] = place
        for scope, keys in places.items():
            of = self._partitions(keys, scope is Scope.STATIC, consistency)
            yield from ((keys[key], answer) for key, answer in of)
        yield from self._ranges(ranges, consistency)

    def _partitions(
        self, keys: Collection[Key], statics: bool, consistency: int
    ) -> Iterator[tuple[Key, Scoped | KeyRefused | UnreadReason]]:
        width = self._pk_width
        for query, answer in self._run(self._grouped(keys, width, statics), consistency):
            if isinstance(answer, (KeyRefused, UnreadReason)):
                yield from ((key, answer) for key in query.keys)
                continue
            left = {key[:width]: key for key in query.keys}
            rows = _Whole(page for page, _ in self._pages(query, answer, consistency))
            with suppress(_Failed):
                for partition, members in groupby(rows, lambda row: row[:width]):
                    key = left.pop(partition, None)
                    if key is None:
                        raise self._masked()
                    first = next(members)
                    live = iter(()) if statics else self._alive(chain([first], members))  # noqa: B031
                    yield key, (self._of_statics(first) if statics else self._static_part(first), live)
            for key in left.values():  # a read that failed says nothing of them
                yield key, UnreadReason(rows.failure, False) if rows.failure else (None, iter(()))

    def _ranges(
        self, asked: Sequence[tuple[int, Key, Bounds]], consistency: int
    ) -> Iterator[tuple[int, Scoped | KeyRefused | UnreadReason]]:
        """Each range is some statements, and all are answered in the order in which they are sent."""
        made = [(place, self._of_range(key, bounds)) for place, key, bounds in asked]
        answers = self._run((query for _, queries in made for query in queries), consistency)
        for place, queries in made:
            mine = [next(answers) for _ in queries]
            failed = next((a for _, a in mine if isinstance(a, (KeyRefused, UnreadReason))), None)
            if failed is not None:
                yield place, failed
                continue
            statics = None
            if mine and mine[0][0].statics:
                for row in mine.pop(0)[1].current_rows:
                    statics = self._of_statics(row)
            pages = (page for query, answer in mine for page, _ in self._pages(query, answer, consistency))
            yield place, (statics, self._alive(chain.from_iterable(pages)))

    def _of_range(self, key: Key, bounds: Bounds) -> list[RowQuery]:
        statics = [self._queries.statics(key)] if self.table.statics else []
        of_rows = [self._queries.slice(key, one) for one in slices(bounds)]
        return [*statics, *of_rows]

    def _alive(self, rows: Iterable[RawRow]) -> Rows:
        for row in rows:
            # A partition with static columns alone answers with one row that has no clustering key.
            if None not in row[self._pk_width : self._key_width]:
                yield row[: self._key_width], self._images([row])[0]

    def _grouped(self, keys: Collection[Key], width: int, statics: bool = False) -> Iterator[RowQuery]:
        """Queries of these keys' first columns: of rows by their size, of partitions as many as one may ask for."""
        home = self._home()
        grouping = Grouping(self._pk_width, width, self.group_size, home)
        size = self._keys_at_once if width == self._key_width else lambda: self.group_size
        groups = grouping.groups(keys, (lambda: 1) if self.is_single else size)
        queries = (self._queries.group(span, members, width, statics) for span, members in groups)
        if width < self._key_width or self.is_single or not self._sends_together():
            return queries
        return self._together(queries, home or (lambda _: None))

    def _together(self, queries: Iterable[RowQuery], home: Callable[[Key], Hashable]) -> Iterator[RowQuery]:
        """Queries of few keys, some of one home as one that is sent together; any other alone, but in the same way."""
        held: dict[Hashable, tuple[list[RowQuery], list[Key]]] = {}
        full = min(self._together_size, self._keys_at_once())
        for query in queries:
            if len(query.keys) * 2 > full:
                yield together([query], query.keys)
                full = min(self._together_size, self._keys_at_once())
                continue
            place = home(query.keys[0][: self._pk_width])
            parts, members = held.setdefault(place, ([], []))
            parts.append(query)
            members += query.keys
            if len(members) >= full:
                yield together(*held.pop(place))
                full = min(self._together_size, self._keys_at_once())
        for parts, members in held.values():
            yield together(parts, members)

    def _home(self) -> Callable[[Key], Hashable] | None:
        """Gives for a partition key the nodes that hold it, and how many before it compare equal and are another.

        Cassandra reads such keys of one `IN` as one. None where all are at home together.
        """
        metadata = self.session.cluster.metadata
        alone = len(metadata.all_hosts()) == 1
        if alone and not self._codec.has_several_forms:
            return None
        seen: dict[bytes, dict[Key, int]] = {}

        @cache
        def home(key: Key) -> Hashable:
            same = seen.setdefault(self._codec.comparison_bytes(key), {}) if self._codec.has_several_forms else {}
            turn = same.setdefault(key, len(same))
            if alone:
                return turn
            hosts = metadata.get_replicas(self.table.keyspace, routing_key(key))
            return turn, frozenset(host.host_id for host in hosts)

        return home

    def _token(self) -> Callable[[Key], int]:
        """Gives the token of a key's partition."""
        width = self._pk_width

        @cache
        def token(partition: Key) -> int:
            hashed: int = Murmur3Token.hash_fn(routing_key(partition))
            return hashed

        return lambda key: token(key[:width])

    def _keys_at_once(self) -> int:
        """How many keys to ask for in one statement, by the size of the rows that came lately, and how many lived."""
        return max(1, min(self.group_size, int(BUDGET / 8 / (self._row_bytes * self._live))))

    def _masked(self) -> HelenusError:
        what = "Cassandra answers with other keys than were asked for"
        advice = "if key columns are masked, GRANT UNMASK on the table to the role of cassandra.username"
        return HelenusError(Kind.CASSANDRA_AUTH, what, self.table.full_name, advice)

    def _images(self, rows: Iterable[RawRow]) -> list[Image]:
        if self._of_rows is not self._timed:  # a node has not the function that shows more
            self._of_rows, self._shown = self._timed, self._times_of(self._timed)
        expires = self._first_expiry if self.asks_ttl else None
        return make_images(rows, self._key_width, self._width, len(self._timed), self._shown, expires)

    def _first_expiry(self, row: RawRow) -> int | None:
        """When the first cell expires, by the s that are left to each, s since the epoch."""
        ttls = row[len(row) - len(self._expiring) :]
        if ttls.count(None) == len(ttls):
            return None
        self.saw_ttl = True
        return int(time.time()) + min(int.from_bytes(ttl, "big") for ttl in ttls if ttl)

    def _times_of(self, timed: Sequence[tuple[Column, str]]) -> TimedColumns:
        columns = [column for column, _ in timed]
        return TimedColumns.from_columns(columns, _without(self.table.regulars, columns))

    def _of_statics(self, row: RawRow) -> Image:
        """The static columns, of a row of them alone."""
        end = self._pk_width + len(self.table.statics)
        values = dict(zip([c.name for c in self.table.statics], row[self._pk_width : end], strict=True))
        return Image(tuple(values.get(c.name) for c in self.table.values), *_times(row[end:]), self._statics_timed)

    def _static_part(self, row: RawRow) -> Image | None:
        """The static columns that come with a row."""
        if not self.table.statics:
            return None
        start, end = self._key_width + len(self.table.regulars), self._width
        last = len(row) - (len(self._expiring) if self.asks_ttl else 0)
        times = row[last - len(self._timed_statics) : last]
        return Image((*[None] * len(self.table.regulars), *row[start:end]), *_times(times), self._statics_timed)


def _without(columns: Sequence[Column], some: Sequence[Column]) -> list[Column]:
    return [column for column in columns if column not in some]


class _Failed(HelenusError):
    """A read that failed when a part of its rows was there."""


class _Whole(Iterator[RawRow]):
    """The rows of pages; `failure` is why there are no more of them."""

    def __init__(self, pages: Iterable[RowPage]) -> None:
        self._rows = chain.from_iterable(pages)
        self.failure: HelenusError | None = None

    def __next__(self) -> RawRow:
        try:
            return next(self._rows)
        except HelenusError as error:
            self.failure = error
            raise _Failed(error.kind, error.what, error.where, error.advice) from None


def stripe_of(partition_key: Key) -> int:
    """The stripe of the ring that holds a partition."""
    return placement.stripe(Murmur3Token.hash_fn(routing_key(partition_key)))


def _times(times: tuple[bytes | None, ...]) -> tuple[int | None, tuple[bytes | None, ...]]:
    """The newest of some write times, and all of them."""
    return newest_write_time(times), times
