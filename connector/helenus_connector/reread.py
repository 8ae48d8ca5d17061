"""The resolver `reread`: the current rows of many keys, in few statements.

Keys are read in groups, as `groups` says. Groups that time out are split, down to single keys.
"""

from __future__ import annotations

import math
import struct
import time
from collections import deque
from collections.abc import Callable, Collection, Hashable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any, NamedTuple

import tenacity
from cassandra import (
    InvalidRequest,
    OperationTimedOut,
    ReadFailure,
    ReadTimeout,
    RequestExecutionException,
    Unauthorized,
    Unavailable,
)
from cassandra.cluster import NoHostAvailable
from cassandra.connection import ConnectionException
from cassandra.metadata import Murmur3Token
from cassandra.protocol import OverloadedErrorMessage
from cassandra.query import BoundStatement

from helenus_connector.budget import Budget
from helenus_connector.config import ConnectorSettings
from helenus_connector.groups import Grouping, Span
from helenus_connector.proof import Timed
from helenus_connector.ranges import Bounds, Slice, slices
from helenus_connector.rows import Page, RawRow, collection, tuple_value
from helenus_schemas import names
from helenus_schemas.cql import quote
from helenus_schemas.errors import HelenusError, Kind
from helenus_schemas.key import Key, KeyCodec
from helenus_schemas.table import Column, Table

_FAILURES = (NoHostAvailable, RequestExecutionException, ConnectionException, Unauthorized)
_TOO_MUCH = (ReadTimeout, OperationTimedOut, ReadFailure)
_SINGLE_ATTEMPTS = 3
_PAGE = 500  # rows of an answer that are held at once
_BUDGET = 32 << 20  # bytes of rows that are asked for and not handed on yet
_ROW = 4 << 20  # bytes a row is taken for until some are seen


class SchemaChanged(Exception):
    """The server refused a statement because the table is not what it was."""


class KeyRefused(Exception):
    """The server refuses a key, or bounds, and takes others: no row of this table can have them."""


class Image(NamedTuple):
    """A row as a read found it. `values`: CQL bytes in the order of the data record's value.

    `write_time`: µs, the newest of its own cells as far as CQL shows it, None if it shows none. `times`: all of them as
    CQL bytes, if there are several; `timed` are their columns.
    """

    values: tuple[bytes | None, ...]
    write_time: int | None
    times: Sequence[bytes | None] = ()
    timed: Timed = Timed()

    def oldest(self) -> int | None:
        """The oldest of its cells' write times."""
        return min((int.from_bytes(time, "big", signed=True) for time in self.times if time), default=self.write_time)

    def shows(self, write_time: int | None, effect: int = 0) -> bool:
        """Whether one of its own cells was written at that very time; with an `effect`, one in its columns."""
        if write_time is None:
            return False
        told = write_time.to_bytes(8, "big", signed=True)
        if effect and self.times:
            return any(time == told and bit & effect for time, bit in zip(self.times, self.timed.bits, strict=True))
        return write_time == self.write_time or told in self.times


@dataclass(slots=True)
class _Query:
    statement: Any
    values: list[bytes]
    keys: list[Key]
    routing_key: bytes | None = None
    span: Span | None = None
    hung: bool = False
    sent: float = 0.0


class Reader:
    """Reads one version of a table. `statements` counts what was sent, `seconds` sums up how long the answers took.
    `tells_all_times` says that no cell's write time is hidden, as it is in columns of many cells before Cassandra 5.0.

    What times out is asked for again, in parts. With a time in `until`, monotonic s, it is not after that, and single
    keys, or those whose replicas are away, are left out. `is_current` says that the table is known to be as it is here:
    what is refused, is for its key.
    """

    def __init__(self, session: Any, table: Table, settings: ConnectorSettings) -> None:
        self.session = session
        self.table = table
        self.concurrency = settings.query_concurrency
        self.group_size = settings.query_group_size
        self.statements = 0
        self.seconds = 0.0
        self.until = math.inf
        self.is_current = False
        self.budget: Budget | None = None
        self._codec = KeyCodec(table)
        self._key_width = len(table.primary_key)
        self._pk_width = len(table.partition_key)
        self._prepared: dict[str, Any] = {}
        self.tells_all_times = True
        self._timed = self._columns_with_write_time()
        self._timed_statics = [c for c in table.statics if not c.type.multicell and c.type.name != "counter"]
        self._told = _timed([c for c, _ in self._timed], table.regulars)
        self._told_statics = _timed(self._timed_statics, table.statics)
        self._page = _PAGE
        self._row_bytes = float(_ROW)
        self._by_span: dict[tuple[Span | None, int], Any] = {}

    def rows(self, keys: Collection[Key], consistency: int) -> Iterator[tuple[Key, Image | KeyRefused | None]]:
        """Each of these keys once with its row, None if it has none, in the order of the answers.

        Raises HelenusError CASSANDRA_READ after retries, CASSANDRA_AUTH where keys are masked, and SchemaChanged: all
        may come when some keys are answered.
        """
        same, width = self._codec.same, self._key_width
        for query, page in self._run(self._queries(keys), consistency):
            if isinstance(page, KeyRefused):
                yield query.keys[0], page
                continue
            # A row answers with its key in the form it was first written in, which need not be the one asked for.
            found = {same(row[:width]): row for row in page}
            rows = [found.get(same(key)) for key in query.keys]
            if len(found) > len(rows) - rows.count(None):
                what = "Cassandra answers with other keys than were asked for: are key columns masked? Grant UNMASK"
                raise HelenusError(Kind.CASSANDRA_AUTH, what, self.table.full_name)
            for key, row in zip(query.keys, rows, strict=True):
                yield key, None if row is None else self._image(row)

    def statics(self, key: Key, consistency: int) -> Image | None:
        """The static columns of a key's partition; None if it is gone or the table has none. Raises as `rows`."""
        if not self.table.statics:
            return None
        image = None
        for row in self._scan(_Query(self._statics_statement(), self._partition_of(key), [key]), consistency):
            end = self._pk_width + len(self.table.statics)
            values = dict(zip([c.name for c in self.table.statics], row[self._pk_width : end], strict=True))
            image = Image(tuple(values.get(c.name) for c in self.table.values), *_times(row[end:]), self._told_statics)
        return image

    def range(self, key: Key, bounds: Bounds, consistency: int) -> Iterator[tuple[Key, Image]]:
        """The live rows of a key's partition within bounds, read as they are asked for. Raises as `rows`."""
        for one in slices(bounds):
            yield from self._live(self._slice(key, one), consistency)

    def part(self, partition: int, parts: int, consistency: int) -> Iterator[tuple[Key, Image]]:
        """All live rows of the table that belong to one of a topic's partitions. Raises as `rows`."""
        for key, image in self._live(_Query(self._select(), [], [()]), consistency):
            if names.partition(Murmur3Token.hash_fn(routing_key(key[: self._pk_width])), parts) == partition:
                yield key, image

    def _live(self, query: _Query, consistency: int) -> Iterator[tuple[Key, Image]]:
        for row in self._scan(query, consistency):
            # A partition with static columns alone answers with one row that has no clustering key.
            if None not in row[self._pk_width : self._key_width]:
                yield row[: self._key_width], self._image(row)

    def _slice(self, key: Key, one: Slice) -> _Query:
        columns = self.table.primary_key[: self._pk_width + len(one.equal)]
        conditions = [f"{quote(c.name)} = ?" for c in columns]
        values = [*self._partition_of(key), *one.equal]
        for limit, ascending, descending in ((one.low, ">", "<"), (one.high, "<", ">")):
            if limit is not None:
                column = self.table.primary_key[len(columns)]
                sign = (descending if column.reversed else ascending) + ("=" if limit.inclusive else "")
                conditions.append(f"{quote(column.name)} {sign} ?")
                values += limit.values
        return _Query(self._select(" AND ".join(conditions)), values, [key])

    def _partition_of(self, key: Key) -> list[bytes]:
        return [value or b"" for value in key[: self._pk_width]]

    def _queries(self, keys: Collection[Key]) -> Iterator[_Query]:
        grouping = Grouping(self._pk_width, self._key_width, self.group_size, self._home())
        for span, members in grouping.groups(keys, lambda: self._at_once(self.group_size)):
            yield self._group(span, members)

    def _home(self) -> Callable[[Key], Hashable]:
        """Tells of a partition key the nodes that hold it, and how many before it compare equal and are another.

        Cassandra reads such keys of one `IN` as one.
        """
        metadata = self.session.cluster.metadata
        alone = len(metadata.all_hosts()) == 1
        seen: dict[bytes, dict[Key, int]] = {}

        @cache
        def home(key: Key) -> Hashable:
            same = seen.setdefault(self._codec.compared(key), {}) if self._codec.several_forms else {}
            turn = same.setdefault(key, len(same))
            if alone:
                return turn
            hosts = metadata.get_replicas(self.table.keyspace, routing_key(key))
            return turn, frozenset(host.host_id for host in hosts)

        return home

    def _group(self, span: Span, keys: list[Key]) -> _Query:
        """One statement for keys that agree but for a span.

        Values go each for itself, those of the span filling up to one of a few numbers. A list of them Cassandra takes
        apart and makes anew: it would ask for other bytes than it was given, of a mapped inet say, or refuse what it
        holds. Lists of tuples it leaves as they are.
        """
        first = [v or b"" for v in keys[0]]
        if len(keys) == 1:
            return _Query(self._select_of(None, 1), first, keys)
        before, behind = first[: span.start], first[span.end :]
        asked = [tuple(v or b"" for v in k[span.start : span.end]) for k in keys]
        if span.end - span.start > 1:
            values, size = [collection([tuple_value(v) for v in asked])], 0
        else:
            size = max(len(keys), min(1 << (len(keys) - 1).bit_length(), self.group_size))
            values = [v for (v,) in asked]
            values += values[-1:] * (size - len(keys))
        place = routing_key(tuple(first[: self._pk_width]))
        return _Query(self._select_of(span, size), [*before, *values, *behind], keys, place, span)

    def _select_of(self, span: Span | None, size: int) -> Any:
        """The statement that reads one key, or one of so many that differ in a span; 0 for any number of tuples."""
        if (span, size) not in self._by_span:
            columns = [quote(c.name) for c in self.table.primary_key]
            where = [f"{column} = ?" for column in columns]
            if span is not None:
                several = f"IN ({', '.join('?' * size)})" if size else "IN ?"
                differing = ", ".join(columns[span.start : span.end])
                where[span.start : span.end] = [f"{differing} {several}" if size else f"({differing}) {several}"]
            self._by_span[span, size] = self._select(" AND ".join(where))
        return self._by_span[span, size]

    def _at_once(self, most: int) -> int:
        """How many rows to ask for in one statement, by the size of those that came lately."""
        return max(1, min(most, int(_BUDGET / 8 / self._row_bytes)))

    def _saw(self, page: Page) -> None:
        if page:
            self._row_bytes = max(page.size / len(page), self._row_bytes / 2)

    def _run(self, queries: Iterable[_Query], consistency: int) -> Iterator[tuple[_Query, Page | KeyRefused]]:
        """Send the queries, a bounded number at a time, and yield their answers. Splits a group that is too much."""
        waiting = deque[tuple[_Query, Any]]()
        queue = iter(queries)
        split: list[_Query] = []
        asked = 0  # rows
        while True:
            while len(waiting) < self.concurrency and (not waiting or asked * self._row_bytes < _BUDGET):
                query = split.pop() if split else next(queue, None)
                if query is None:
                    break
                if self.budget:
                    self.budget.take(len(query.keys))
                waiting.append((query, self._send(query, consistency)))
                asked += len(query.keys)
            if not waiting:
                return
            query, future = waiting.popleft()
            asked -= len(query.keys)
            try:
                page = future.result().current_rows
                self.seconds += time.monotonic() - query.sent
            except (*_FAILURES, OperationTimedOut) as error:
                if time.monotonic() > self.until:
                    raise self._failed(error) from None
                if not _is_load(error):
                    if self.until < math.inf and isinstance(error, (Unavailable, NoHostAvailable)):
                        continue  # of these keys' replicas: those of others may be there
                    raise self._failed(error) from None
                self._slow_down()
                if len(query.keys) == 1 and self.until < math.inf:
                    continue
                if len(query.keys) == 1 or query.hung:
                    page = self._insist(query, consistency, error).current_rows
                else:
                    split += self._halves(query)
                    for part in split[-2:]:
                        # The server's own limit comes first: who met ours has a node that does not answer.
                        part.hung = isinstance(error, OperationTimedOut)
                    continue
            except InvalidRequest as error:
                if len(query.keys) == 1:
                    refusal = self._refusal(future, consistency, error)
                    if isinstance(refusal, SchemaChanged):
                        raise refusal from None
                    yield query, refusal
                else:
                    if "Guardrail" in str(error) and "in_select" in str(error):  # by partition keys, or by all of them
                        self.group_size = min(self.group_size, (len(query.keys) + 1) // 2)
                    split += self._halves(query)
                continue
            self._saw(page)
            yield query, page

    def _halves(self, query: _Query) -> list[_Query]:
        half = len(query.keys) // 2
        assert query.span is not None  # of what is more than one key
        return [self._group(query.span, query.keys[:half]), self._group(query.span, query.keys[half:])]

    def _scan(self, query: _Query, consistency: int) -> Iterator[RawRow]:
        """The rows of a statement however many they are: a page is asked for when the one before is done with."""
        state: bytes | None = None
        while True:
            rows = self._at_once(self._page)
            future = self._send(query, consistency, rows, state)
            try:
                answer = future.result()
                self.seconds += time.monotonic() - query.sent
            except (*_FAILURES, OperationTimedOut) as error:
                if not _is_load(error):
                    raise self._failed(error) from None
                self._slow_down()
                answer = self._insist(query, consistency, error, max(1, rows // 8), state)
            except InvalidRequest as error:
                if "Guardrail page_size" in str(error) and rows > 1:
                    self._page = rows // 2
                    continue
                of_all = query.keys == [()]
                raise SchemaChanged(str(error)) if of_all else self._refusal(future, consistency, error, rows) from None
            page = answer.current_rows
            self._saw(page)
            if self.budget:
                self.budget.take(len(page))
            yield from page
            state = answer.paging_state
            if state is None:
                return

    def _insist(
        self, query: _Query, consistency: int, error: Exception, rows: int | None = None, state: bytes | None = None
    ) -> Any:
        """What timed out and can't be split: some more attempts, then the error."""
        if time.monotonic() > self.until:
            raise self._failed(error)
        try:
            for attempt in tenacity.Retrying(
                stop=tenacity.stop_after_attempt(1 if query.hung else _SINGLE_ATTEMPTS)
                | tenacity.stop_after_delay(self.until - time.monotonic()),
                wait=tenacity.wait_random_exponential(0.1, max=2),
                retry=tenacity.retry_if_exception(_is_load),
                reraise=True,
            ):
                with attempt:
                    return self._send(query, consistency, rows, state).result()
        except (*_FAILURES, OperationTimedOut) as failure:
            error = failure
        raise self._failed(error)

    def _refusal(
        self, answer: Any, consistency: int, error: InvalidRequest, rows: int | None = None
    ) -> SchemaChanged | KeyRefused:
        """What a refused statement says. It is for its key if the same node takes another: one that lags behind an
        ALTER knows fewer columns, and a guardrail may refuse the level, or a page of so many rows.
        """
        if not self.is_current:
            return SchemaChanged(str(error))
        columns = ", ".join(quote(c.name) for c in self.table.partition_key)
        nowhere = _Query(self._select(f"token({columns}) = ?"), [bytes(8)], [])
        try:
            self._send(nowhere, consistency, rows, host=answer.coordinator_host).result()
        except InvalidRequest:
            return SchemaChanged(str(error))
        except (*_FAILURES, OperationTimedOut) as failure:
            raise self._failed(failure) from None
        return KeyRefused(str(error))

    def _slow_down(self) -> None:
        """A timeout is a sign of load; at the level of a proof it may be of one replica alone that is away."""
        if self.budget and self.until == math.inf:
            self.budget.timed_out()

    def _failed(self, error: Exception) -> HelenusError:
        kind = Kind.CASSANDRA_AUTH if isinstance(error, Unauthorized) else Kind.CASSANDRA_READ
        return HelenusError(kind, f"cannot read rows: {error}", self.table.full_name)

    def _send(
        self, query: _Query, consistency: int, rows: int | None = None, state: bytes | None = None, host: Any = None
    ) -> Any:
        """Ask for a page of so many rows; for all where they are as few as the keys: a paged answer to a group costs
        Cassandra a fifth more.
        """
        bound = BoundStatement(query.statement, consistency_level=consistency, routing_key=query.routing_key)
        bound.values = query.values
        bound.consistency_level = consistency
        bound.is_idempotent = True
        bound.fetch_size = rows
        self.statements += 1
        query.sent = time.monotonic()
        return self.session.execute_async(bound, paging_state=state, host=host)

    def _select(self, where: str = "") -> Any:
        columns = [quote(c.name) for c in self.table.primary_key + self.table.values]
        columns += [expression for _, expression in self._timed]
        return self._prepare(f"SELECT {', '.join(columns)} FROM {self._name()}" + (f" WHERE {where}" if where else ""))

    def _statics_statement(self) -> Any:
        columns = [quote(c.name) for c in self.table.partition_key + self.table.statics]
        where = " AND ".join(f"{quote(c.name)} = ?" for c in self.table.partition_key)
        times = [f"WRITETIME({quote(c.name)})" for c in self._timed_statics]
        return self._prepare(f"SELECT DISTINCT {', '.join(columns + times)} FROM {self._name()} WHERE {where}")

    def _columns_with_write_time(self) -> list[tuple[Column, str]]:
        """The columns whose write time CQL tells. Before Cassandra 5.0 it tells none of a column of many cells."""
        if any(c.type.name == "counter" for c in self.table.regulars):
            return []
        simple = [(c, f"WRITETIME({quote(c.name)})") for c in self.table.regulars if not c.type.multicell]
        many = [(c, f"MAXWRITETIME({quote(c.name)})") for c in self.table.regulars if c.type.multicell]
        if not many:
            return simple
        try:
            self._prepare(f"SELECT {many[0][1]} FROM {self._name()}")
        except SchemaChanged:
            self.tells_all_times = False
            return simple
        return simple + many

    def _prepare(self, cql: str) -> Any:
        if cql not in self._prepared:
            try:
                self._prepared[cql] = self.session.prepare(cql)
            except InvalidRequest as error:
                raise SchemaChanged(str(error)) from None
            except (NoHostAvailable, OperationTimedOut, ConnectionException, Unauthorized) as error:
                raise self._failed(error) from None
        return self._prepared[cql]

    def _name(self) -> str:
        return f"{quote(self.table.keyspace)}.{quote(self.table.name)}"

    def _image(self, row: RawRow) -> Image:
        end = self._key_width + len(self.table.values)
        values = row[self._key_width : end] or row[: self._key_width]
        return Image(values, *_times(row[end:]), self._told)


def _timed(told: Sequence[Column], columns: Sequence[Column]) -> Timed:
    return Timed.of(told, [column for column in columns if column not in told])


def _is_load(error: BaseException) -> bool:
    """Whether a read failed as reads of less may not. Each node that is overloaded sends the driver to the next one."""
    overloaded = isinstance(error, NoHostAvailable) and any(
        isinstance(told, OverloadedErrorMessage) for told in error.errors.values()
    )
    return overloaded or isinstance(error, _TOO_MUCH)


def routing_key(key: Key) -> bytes:
    """A partition key as Cassandra hashes it: several columns are each ushort length, bytes, 0."""
    values = [value or b"" for value in key]
    if len(values) == 1:
        return values[0]
    return b"".join(struct.pack(">H", len(value)) + value + b"\0" for value in values)


def _times(times: Sequence[bytes | None]) -> tuple[int | None, Sequence[bytes | None]]:
    """The newest of some write times, and all of them."""
    return _newest(times), times


def _newest(times: Sequence[bytes | None]) -> int | None:
    first = times[0] if times else None
    if first is not None and times.count(first) == len(times):  # as of a row that was written at once
        newest = first
    else:
        told = [time for time in times if time]
        if not told:
            return None
        newest = max(told)
    if newest[0] < 0x80:  # as bytes they are in the order of numbers, unless some are negative
        return int.from_bytes(newest, "big")
    return max(int.from_bytes(time, "big", signed=True) for time in told)
