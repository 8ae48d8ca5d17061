"""Statements that are sent to Cassandra and answered: many at once, split where they are too much, page by page."""

from __future__ import annotations

import math
import time
from collections import deque
from collections.abc import Iterable, Iterator
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
from cassandra.protocol import OverloadedErrorMessage
from cassandra.query import BoundStatement

from helenus_connector.cassandra_rows._pipelined import NotPipelined, PipelinedStatements, pipeline_attempts
from helenus_connector.cassandra_rows._statements import RowQuery, Statements
from helenus_connector.cassandra_rows.budget import ReadBudget
from helenus_connector.cassandra_rows.raw_rows import RawRow, RowPage
from helenus_connector.cassandra_rows.table_definition import GRANT
from helenus_connector.config.connector import ConnectorSettings
from helenus_connector.interfaces.resolver import SchemaChanged
from helenus_schemas.cql.table import Column, Table
from helenus_schemas.cql.types import quote
from helenus_schemas.errors import HelenusError, Kind
from helenus_schemas.service.cassandra import is_page_refused

_FAILURES = (NoHostAvailable, RequestExecutionException, ConnectionException, Unauthorized)
_TOO_MUCH = (ReadTimeout, OperationTimedOut, ReadFailure)
_SINGLE_ATTEMPTS = 3
_MOST_STUCK = 10  # single keys that may fail where others are read: with more, the cluster is too slow
_PAGE = 500  # rows of an answer that are held at once
BUDGET = 32 << 20  # bytes of rows that are asked for and not given to the caller yet
_ROW = 4 << 20  # bytes a row is taken for until some are seen
_PROBE_S = 600.0  # until nodes are asked again for what one of them did not know
_TOGETHER = 32  # statements that go to a node together, at most
_APART_S = 10.0
"""Until a table's statements go together again after one of some was answered in time, but not with rows alone."""
_OF_MANY = "MAXWRITETIME"  # new in Cassandra 5.0


class KeyRefused(Exception):
    """The server refuses a key, or bounds, and takes others: no row of this table can have them."""


class UnreadReason(NamedTuple):
    """Why a key was not read, while others were. `is_away`: for replicas that are not there, so it is not the key's."""

    error: HelenusError
    is_away: bool


class RowRequests:
    """Reads one version of a table. `statements` counts what was sent, `seconds` sums up how long the answers took.
    `shows_all_times` says that no cell's write time is hidden, as it is in columns of many cells before Cassandra 5.0.
    With `asks_ttl` rows are read with their cells' TTL, as far as CQL shows it, and `saw_ttl` says that some have one;
    without `times` not even with those of their writes.

    What times out is asked for again, in parts. With a time in `until`, monotonic s, it is not after that, and hardly
    before. `is_current` says that the table is known to be as it is here: what is refused, is for its key.
    """

    def __init__(self, session: Any, table: Table, settings: ConnectorSettings, times: bool = True) -> None:
        self.session = session
        self.table = table
        self.concurrency = settings.query_concurrency
        self.group_size = settings.query_group_size
        self.statements = 0
        self.seconds = 0.0
        self.until = math.inf
        self.is_current = False
        self.budget: ReadBudget | None = None
        self._prepared: dict[str, Any] = {}
        self._made: dict[tuple[str, bool, bool, bool], Any] = {}
        self._queries = Statements(table, self.group_size)
        self._probe_at = math.inf
        self.shows_all_times = True
        self._timed = self._columns_with_write_time() if times else []
        statics = table.statics if times else ()
        self._timed_statics = [c for c in statics if not c.type.multicell and c.type.name != "counter"]
        self._expiring = [c for c in table.regulars if not c.type.multicell and c.type.name != "counter"]
        self.asks_ttl = self.saw_ttl = False
        self._page = _PAGE
        self._attempts = pipeline_attempts(session)
        self._apart_until = 0.0
        self._together_size = min(_TOGETHER, self.concurrency // 2)  # while some are answered, others are asked for
        self._row_bytes = float(_ROW)

    def _rows_at_once(self, most: int) -> int:
        """How many rows to have answered at once, by the size of those that came lately."""
        return max(1, min(most, int(BUDGET / 8 / self._row_bytes)))

    def _first_page(self, query: RowQuery) -> int | None:
        """How many rows a query's first page may have; None for all, where they are few, or not much more."""
        if query.parts:
            return None
        most = self._page if query.is_paged else len(query.keys)
        rows = self._rows_at_once(most)
        return rows if query.is_paged or most > 2 * rows else None

    def _saw(self, page: RowPage) -> None:
        if page:
            self._row_bytes = max(page.size / len(page), self._row_bytes / 2)

    def _run(self, queries: Iterable[RowQuery], consistency: int) -> Iterator[tuple[RowQuery, Any]]:
        """Send the queries, a bounded number at a time, and yield their first answers, or why there are none:
        KeyRefused, Unread. Splits a group that is too much; what is of one key is answered in order.
        """
        waiting = deque[tuple[RowQuery, Any]]()
        queue = iter(queries)
        split: list[RowQuery] = []
        asked = running = 0  # rows, statements
        stuck = 0
        late: HelenusError | None = None
        while True:
            while late is None and running < self.concurrency and (not waiting or asked * self._row_bytes < BUDGET):
                query = split.pop() if split else next(queue, None)
                if query is None:
                    break
                if query.parts and not self._may_go_together(query):
                    split += query.parts
                    continue
                if waiting and running + query.count > self.concurrency:
                    split.append(query)
                    break
                if self.budget and not query.is_paged:
                    self.budget.take(len(query.keys))
                query.rows = self._first_page(query)
                waiting.append((query, self._send(query, consistency, query.rows)))
                asked += query.rows or len(query.keys)
                running += query.count
            if not waiting:
                if late is not None:
                    raise late
                return
            query, future = waiting.popleft()
            asked -= query.rows or len(query.keys)
            running -= query.count
            try:
                answer = answered(future)
                self.seconds += time.monotonic() - query.sent
                if query.parts:
                    self._attempts.answered(query.sent)
            except NotPipelined as apart:
                if apart.is_late:
                    self._attempts.late(query.sent)
                else:
                    self._attempts.undecided(query.sent)
                    self._apart_until = time.monotonic() + _APART_S
                split += query.parts
                continue
            except (*_FAILURES, OperationTimedOut) as error:
                if time.monotonic() > self.until:
                    late = self._failed(error)
                    if len(query.keys) > 1 or not _is_load(error):
                        raise late from None
                    yield query, UnreadReason(late, False)
                    continue
                if not _is_load(error):
                    # Of these keys' replicas: those of others may be there.
                    if isinstance(error, Unavailable) or (self.until < math.inf and isinstance(error, NoHostAvailable)):
                        yield query, UnreadReason(self._failed(error), True)
                        continue
                    raise self._failed(error) from None
                self._slow_down(error)
                if len(query.keys) > 1 and not query.hung:
                    split += self._queries.halves(query)
                    for part in split[-2:]:
                        # The server's own limit comes first: who met ours has a node that does not answer.
                        part.hung = isinstance(error, OperationTimedOut)
                    continue
                try:
                    if len(query.keys) == 1 and self.until < math.inf:
                        raise self._failed(error)
                    query.hung |= stuck > 0
                    answer = self._insist(query, consistency, error, query.rows)
                except HelenusError as failure:
                    stuck += self.until == math.inf
                    if failure.kind is not Kind.CASSANDRA_READ or len(query.keys) > 1 or stuck > _MOST_STUCK:
                        raise
                    yield query, UnreadReason(failure, False)
                    continue
            except InvalidRequest as error:
                if self._is_unknown(error, query.statement.query_string) or self._is_too_large(error, query.rows):
                    query.rows = self._first_page(query)
                    waiting.appendleft((query, self._send(query, consistency, query.rows)))
                    asked += query.rows or len(query.keys)
                    running += 1
                elif len(query.keys) == 1:
                    refusal = self._refusal(future, consistency, error, query.rows)
                    if isinstance(refusal, SchemaChanged):
                        raise refusal from None
                    yield query, refusal
                else:
                    if "Guardrail" in str(error) and "in_select" in str(error):  # by partition keys, or by all of them
                        self.group_size = min(self.group_size, (len(query.keys) + 1) // 2)
                        self._queries.most = self.group_size
                    split += self._queries.halves(query)
                continue
            yield query, answer

    def _pages(self, query: RowQuery, answer: Any, consistency: int) -> Iterator[tuple[RowPage, bool]]:
        """The pages of an answer however many they are, and which one is the last: each is asked for when the one
        before was given.
        """
        while True:
            page, state = answer.current_rows, answer.paging_state
            self._saw(page)
            if self.budget and query.is_paged:
                self.budget.take(len(page))
            yield page, state is None
            if state is None:
                return
            answer = self._answer(query, consistency, state)

    def _answer(self, query: RowQuery, consistency: int, state: bytes | None = None) -> Any:
        """A page, asked for until it is there."""
        while True:
            rows = self._rows_at_once(self._page)
            future = self._send(query, consistency, rows, state)
            try:
                answer = answered(future)
                self.seconds += time.monotonic() - query.sent
                return answer
            except (*_FAILURES, OperationTimedOut) as error:
                if not _is_load(error):
                    raise self._failed(error) from None
                self._slow_down(error)
                return self._insist(query, consistency, error, max(1, rows // 8), state)
            except InvalidRequest as error:
                if self._is_unknown(error, query.statement.query_string) or self._is_too_large(error, rows):
                    continue
                if query.keys == [()] or len(query.keys) > 1:
                    raise SchemaChanged(str(error)) from None
                raise self._refusal(future, consistency, error, rows) from None

    def _scan(self, query: RowQuery, consistency: int) -> Iterator[RawRow]:
        """The rows of a statement however many they are."""
        for page, _ in self._pages(query, self._answer(query, consistency), consistency):
            yield from page

    def _insist(
        self, query: RowQuery, consistency: int, error: Exception, rows: int | None = None, state: bytes | None = None
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
                    return answered(self._send(query, consistency, rows, state))
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
        try:
            self._send(self._queries.nowhere(), consistency, rows, host=answer.coordinator_host).result()
        except InvalidRequest:
            return SchemaChanged(str(error))
        except (*_FAILURES, OperationTimedOut) as failure:
            raise self._failed(failure) from None
        return KeyRefused(str(error))

    def _is_too_large(self, error: InvalidRequest, rows: int | None) -> bool:
        """Whether a guardrail wants smaller pages: they are from now on."""
        if rows is None or rows < 2 or not is_page_refused(error):
            return False
        self._page = rows // 2
        return True

    def _is_unknown(self, error: Exception, cql: str) -> bool:
        """Whether the node that was asked is of a Cassandra before 5.0, and others are not: do without what it does not
        know, for a while, and ask again.
        """
        if _OF_MANY.lower() not in str(error).lower() or _OF_MANY not in cql:
            return False
        if self.shows_all_times:
            self._timed = [(c, selected) for c, selected in self._timed if not selected.startswith(_OF_MANY)]
            self.shows_all_times, self._probe_at = False, time.monotonic() + _PROBE_S
            self._made.clear()
        return True

    def _probe(self) -> None:
        """Ask again, once in a while, for what a node did not know: it may be of a newer Cassandra by now."""
        if time.monotonic() > self._probe_at:
            self.shows_all_times, self._probe_at = True, math.inf
            self._timed = self._columns_with_write_time()
            self._made.clear()

    def _slow_down(self, error: BaseException) -> None:
        """A timeout is a sign of load; at the level of a proof it may be of one replica alone that is away. What a
        replica fails to read, as for too many tombstones, is none.
        """
        if self.budget and self.until == math.inf and not isinstance(error, ReadFailure):
            self.budget.timed_out()

    def _failed(self, error: Exception) -> HelenusError:
        is_refused = isinstance(error, Unauthorized)
        kind, advice = (Kind.CASSANDRA_AUTH, GRANT) if is_refused else (Kind.CASSANDRA_READ, "")
        return HelenusError(kind, f"cannot read rows: {error}", self.table.full_name, advice)

    def _send(
        self, query: RowQuery, consistency: int, rows: int | None = None, state: bytes | None = None, host: Any = None
    ) -> Any:
        """Ask for a page of so many rows; for all where they are as few as the keys: a paged answer to a group costs
        Cassandra a fifth more.
        """
        query.sent = time.monotonic()
        if query.parts:
            return self._send_together(query, consistency)
        bound = self._bound(query, consistency)
        bound.fetch_size = rows
        self.statements += 1
        return self.session.execute_async(bound, paging_state=state, host=host)

    def _send_together(self, query: RowQuery, consistency: int) -> PipelinedStatements:
        self._attempts.begin()
        sent = PipelinedStatements(len(query.parts))
        sent.send(self.session, [self._bound(part, consistency) for part in query.parts])
        self.statements += len(query.parts)
        return sent

    def _sends_together(self) -> bool:
        """Whether statements may be sent together now."""
        is_time = time.monotonic() >= self._apart_until
        return is_time and self.until == math.inf and self._attempts.are_made

    def _may_go_together(self, query: RowQuery) -> bool:
        """Whether its statements may: their rows may have become too large to come at once."""
        return self._sends_together() and len(query.keys) <= 2 * self._rows_at_once(len(query.keys))

    def _bound(self, query: RowQuery, consistency: int) -> BoundStatement:
        # With the rows of whole partitions come their static columns, with their own times.
        is_whole = query.is_paged and query.span is not None
        name = query.where, query.statics, is_whole, self.asks_ttl
        made = self._made.get(name)
        if made is None:
            made = self._statics_of(query.where) if query.statics else self._select(query.where, is_whole)
            self._made[name] = made
        query.statement = made
        bound = BoundStatement(query.statement, consistency_level=consistency, routing_key=query.routing_key)
        bound.values = query.values
        bound.consistency_level = consistency
        bound.is_idempotent = True
        return bound

    def _select(self, where: str, is_whole: bool) -> Any:
        columns = [quote(c.name) for c in self.table.primary_key + self.table.values]
        condition = f" WHERE {where}" if where else ""
        more = [f"WRITETIME({quote(c.name)})" for c in self._timed_statics] if is_whole else []
        more += [f"TTL({quote(c.name)})" for c in self._expiring if self.asks_ttl]
        while True:
            selected = [*columns, *(expression for _, expression in self._timed), *more]
            cql = f"SELECT {', '.join(selected)} FROM {self._name()}{condition}"
            try:
                return self._prepare(cql)
            except SchemaChanged as error:
                if not self._is_unknown(error, cql):
                    raise

    def _statics_of(self, where: str) -> Any:
        columns = [quote(c.name) for c in self.table.partition_key + self.table.statics]
        times = [f"WRITETIME({quote(c.name)})" for c in self._timed_statics]
        return self._prepare(f"SELECT DISTINCT {', '.join(columns + times)} FROM {self._name()} WHERE {where}")

    def _columns_with_write_time(self) -> list[tuple[Column, str]]:
        """The columns whose write time CQL shows. Before Cassandra 5.0 it shows none of a column of many cells."""
        if any(c.type.name == "counter" for c in self.table.regulars):
            return []
        simple = [(c, f"WRITETIME({quote(c.name)})") for c in self.table.regulars if not c.type.multicell]
        many = [(c, f"{_OF_MANY}({quote(c.name)})") for c in self.table.regulars if c.type.multicell]
        if not many:
            return simple
        try:
            self._prepare(f"SELECT {many[0][1]} FROM {self._name()}")
        except SchemaChanged:
            self.shows_all_times, self._probe_at = False, time.monotonic() + _PROBE_S
            return simple
        return simple + many

    def _prepare(self, cql: str) -> Any:
        if cql not in self._prepared:
            try:
                self._prepared[cql] = self.session.prepare(cql)
            except InvalidRequest as error:
                raise SchemaChanged(str(error)) from None
            except (*_FAILURES, OperationTimedOut) as error:
                raise self._failed(error) from None
        return self._prepared[cql]

    def _name(self) -> str:
        return f"{quote(self.table.keyspace)}.{quote(self.table.name)}"


def answered(future: Any) -> Any:
    """The answer, when it is there. The driver's timer and what it waits for refer to each other: apart, they are freed
    with the answer's rows when these are read, and not when Python next searches for cycles.
    """
    try:
        return future.result()
    finally:
        future._timer = None


def _is_load(error: BaseException) -> bool:
    """Whether a read failed as reads of less may not. Each node that is overloaded sends the driver to the next one."""
    overloaded = isinstance(error, NoHostAvailable) and any(
        isinstance(answer, OverloadedErrorMessage) for answer in error.errors.values()
    )
    return overloaded or isinstance(error, _TOO_MUCH)
