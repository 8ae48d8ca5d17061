"""Sends statements to Cassandra and reads their answers page by page: many at once, divided if they are too large."""

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

_READ_ERRORS = (NoHostAvailable, RequestExecutionException, ConnectionException, Unauthorized)
_LOAD_ERRORS = (ReadTimeout, OperationTimedOut, ReadFailure)
_ATTEMPTS_PER_KEY = 3
_MAX_STUCK_KEYS = 10  # keys that may fail one by one while others are read: with more, the cluster is too slow
_PAGE_ROWS = 500  # rows of an answer in memory at once
MAX_PENDING_BYTES = 32 << 20  # bytes of rows that are requested, and that the caller has not received yet
_ASSUMED_ROW_BYTES = 4 << 20  # assumed size of a row until some are read: too high is slow, too low takes memory
_PROBE_AFTER_S = 600.0  # until MAXWRITETIME is tried again after a node did not know it
_MAX_TOGETHER = 32  # statements that are sent to a node together, at most
_APART_AFTER_FAILURE_S = 10.0
"""Until a table's statements are sent together again after one was answered in time, but not with rows alone."""
_MAXWRITETIME = "MAXWRITETIME"  # new in Cassandra 5.0


class KeyRefused(Exception):
    """The server refuses a key, or bounds, and accepts others: no row of this table can have them."""


class UnreadReason(NamedTuple):
    """Why a key was not read, while others were. `is_away` says that replicas are down: the key is not the cause."""

    error: HelenusError
    is_away: bool


class RowRequests:
    """Reads one version of a table.

    `statements` counts the statements sent, `seconds` adds up the time until they were answered. `shows_all_times` says
    that the write times of all cells are read; before Cassandra 5.0 those of unfrozen collections and UDTs are not.
    With `asks_ttl` the TTLs of cells are read, as far as CQL shows them, and `saw_ttl` says that some cell has one.
    Without `times` no write times are read.

    A read that times out is repeated, in parts. `until` is the deadline, monotonic s, after which no read is repeated.
    `is_current` says that the table's definition is known to be current: then a refusal concerns the key.
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
        self._statements_by_shape: dict[tuple[str, bool, bool, bool], Any] = {}
        self._queries = Statements(table, self.group_size)
        self._probe_at = math.inf
        self.shows_all_times = True
        self._timed = self._columns_with_write_time() if times else []
        statics = table.statics if times else ()
        self._timed_statics = [c for c in statics if not c.type.multicell and c.type.name != "counter"]
        self._expiring = [c for c in table.regulars if not c.type.multicell and c.type.name != "counter"]
        self.asks_ttl = self.saw_ttl = False
        self._page_rows = _PAGE_ROWS
        self._attempts = pipeline_attempts(session)
        self._apart_until = 0.0
        self._together_size = min(_MAX_TOGETHER, self.concurrency // 2)  # while some are answered, others are asked for
        self._row_bytes = float(_ASSUMED_ROW_BYTES)

    def _rows_at_once(self, max_rows: int) -> int:
        """Return how many rows to read at once, by the size of those that were read lately."""
        return max(1, min(max_rows, int(MAX_PENDING_BYTES / 8 / self._row_bytes)))

    def _first_page(self, query: RowQuery) -> int | None:
        """Return how many rows a query's first page may have; None for all, if they are few or not many more."""
        if query.parts:
            return None
        max_rows = self._page_rows if query.is_paged else len(query.keys)
        page_rows = self._rows_at_once(max_rows)
        return page_rows if query.is_paged or max_rows > 2 * page_rows else None

    def _note_row_size(self, page: RowPage) -> None:
        if page:
            self._row_bytes = max(page.size / len(page), self._row_bytes / 2)

    def _run(self, queries: Iterable[RowQuery], consistency: int) -> Iterator[tuple[RowQuery, Any]]:
        """Send the queries, a bounded number at a time, and yield their first answers, or why there are none:
        KeyRefused or UnreadReason. Divides a group that is too large; queries of single keys are answered in order.
        """
        waiting = deque[tuple[RowQuery, Any]]()
        queue = iter(queries)
        parts: list[RowQuery] = []
        requested_rows = running_statements = 0  # rows, statements
        stuck_keys = 0
        deadline_error: HelenusError | None = None
        while True:
            while (
                deadline_error is None
                and running_statements < self.concurrency
                and (not waiting or requested_rows * self._row_bytes < MAX_PENDING_BYTES)
            ):
                query = parts.pop() if parts else next(queue, None)
                if query is None:
                    break
                if query.parts and not self._may_go_together(query):
                    parts += query.parts
                    continue
                if waiting and running_statements + query.count > self.concurrency:
                    parts.append(query)
                    break
                if self.budget and not query.is_paged:
                    self.budget.take(len(query.keys))
                query.rows = self._first_page(query)
                waiting.append((query, self._send(query, consistency, query.rows)))
                requested_rows += query.rows or len(query.keys)
                running_statements += query.count
            if not waiting:
                if deadline_error is not None:
                    raise deadline_error
                return
            query, future = waiting.popleft()
            requested_rows -= query.rows or len(query.keys)
            running_statements -= query.count
            try:
                answer = await_answer(future)
                self.seconds += time.monotonic() - query.sent_at
                if query.parts:
                    self._attempts.note_answered(query.sent_at)
            except NotPipelined as not_pipelined:
                if not_pipelined.is_late:
                    self._attempts.note_late(query.sent_at)
                else:
                    self._attempts.note_undecided(query.sent_at)
                    self._apart_until = time.monotonic() + _APART_AFTER_FAILURE_S
                parts += query.parts
                continue
            except (*_READ_ERRORS, OperationTimedOut) as error:
                if time.monotonic() > self.until:
                    deadline_error = self._read_error(error)
                    if len(query.keys) > 1 or not _is_load(error):
                        raise deadline_error from None
                    yield query, UnreadReason(deadline_error, False)
                    continue
                if not _is_load(error):
                    # Replicas of these keys are down; those of other keys may be up.
                    if isinstance(error, Unavailable) or (self.until < math.inf and isinstance(error, NoHostAvailable)):
                        yield query, UnreadReason(self._read_error(error), True)
                        continue
                    raise self._read_error(error) from None
                self._slow_down(error)
                if len(query.keys) > 1 and not query.has_hung:
                    parts += self._queries.halves(query)
                    for part in parts[-2:]:
                        # The server's timeout is shorter than the driver's: if that one passed, a node does not answer.
                        part.has_hung = isinstance(error, OperationTimedOut)
                    continue
                try:
                    if len(query.keys) == 1 and self.until < math.inf:
                        raise self._read_error(error)
                    query.has_hung |= stuck_keys > 0
                    answer = self._retry(query, consistency, error, query.rows)
                except HelenusError as failure:
                    stuck_keys += self.until == math.inf
                    if failure.kind is not Kind.CASSANDRA_READ or len(query.keys) > 1 or stuck_keys > _MAX_STUCK_KEYS:
                        raise
                    yield query, UnreadReason(failure, False)
                    continue
            except InvalidRequest as error:
                if self._lacks_maxwritetime(error, query.statement.query_string) or self._shrink_pages(
                    error, query.rows
                ):
                    query.rows = self._first_page(query)
                    waiting.appendleft((query, self._send(query, consistency, query.rows)))
                    requested_rows += query.rows or len(query.keys)
                    running_statements += 1
                elif len(query.keys) == 1:
                    refusal = self._explain_refusal(future, consistency, error, query.rows)
                    if isinstance(refusal, SchemaChanged):
                        raise refusal from None
                    yield query, refusal
                else:
                    if "Guardrail" in str(error) and "in_select" in str(error):  # by partition keys, or by all of them
                        self.group_size = min(self.group_size, (len(query.keys) + 1) // 2)
                        self._queries.max_keys = self.group_size
                    parts += self._queries.halves(query)
                continue
            yield query, answer

    def _pages(self, query: RowQuery, answer: Any, consistency: int) -> Iterator[tuple[RowPage, bool]]:
        """Yield the pages of an answer, each with whether it is the last one. A page is requested once the caller has
        finished with the one before.
        """
        while True:
            page, state = answer.current_rows, answer.paging_state
            self._note_row_size(page)
            if self.budget and query.is_paged:
                self.budget.take(len(page))
            yield page, state is None
            if state is None:
                return
            answer = self._answer(query, consistency, state)

    def _answer(self, query: RowQuery, consistency: int, state: bytes | None = None) -> Any:
        """Read one page, with retries."""
        while True:
            rows = self._rows_at_once(self._page_rows)
            future = self._send(query, consistency, rows, state)
            try:
                answer = await_answer(future)
                self.seconds += time.monotonic() - query.sent_at
                return answer
            except (*_READ_ERRORS, OperationTimedOut) as error:
                if not _is_load(error):
                    raise self._read_error(error) from None
                self._slow_down(error)
                return self._retry(query, consistency, error, max(1, rows // 8), state)
            except InvalidRequest as error:
                if self._lacks_maxwritetime(error, query.statement.query_string) or self._shrink_pages(error, rows):
                    continue
                if query.keys == [()] or len(query.keys) > 1:
                    raise SchemaChanged(str(error)) from None
                raise self._explain_refusal(future, consistency, error, rows) from None

    def _scan(self, query: RowQuery, consistency: int) -> Iterator[RawRow]:
        """Yield all rows of a statement, page by page."""
        for page, _ in self._pages(query, self._answer(query, consistency), consistency):
            yield from page

    def _retry(
        self, query: RowQuery, consistency: int, error: Exception, rows: int | None = None, state: bytes | None = None
    ) -> Any:
        """Retry a read that timed out and can't be divided; after some attempts raise the error."""
        if time.monotonic() > self.until:
            raise self._read_error(error)
        try:
            for attempt in tenacity.Retrying(
                stop=tenacity.stop_after_attempt(1 if query.has_hung else _ATTEMPTS_PER_KEY)
                | tenacity.stop_after_delay(self.until - time.monotonic()),
                wait=tenacity.wait_random_exponential(0.1, max=2),
                retry=tenacity.retry_if_exception(_is_load),
                reraise=True,
            ):
                with attempt:
                    return await_answer(self._send(query, consistency, rows, state))
        except (*_READ_ERRORS, OperationTimedOut) as failure:
            error = failure
        raise self._read_error(error)

    def _explain_refusal(
        self, answer: Any, consistency: int, error: InvalidRequest, rows: int | None = None
    ) -> SchemaChanged | KeyRefused:
        """Return why a statement was refused. The cause is its key if the same node accepts another key: a node that
        lags behind an ALTER knows fewer columns, and a guardrail may refuse the level or the page size.
        """
        if not self.is_current:
            return SchemaChanged(str(error))
        try:
            self._send(self._queries.nowhere(), consistency, rows, host=answer.coordinator_host).result()
        except InvalidRequest:
            return SchemaChanged(str(error))
        except (*_READ_ERRORS, OperationTimedOut) as failure:
            raise self._read_error(failure) from None
        return KeyRefused(str(error))

    def _shrink_pages(self, error: InvalidRequest, rows: int | None) -> bool:
        """Return whether a guardrail requires smaller pages, and use smaller ones from now on."""
        if rows is None or rows < 2 or not is_page_refused(error):
            return False
        self._page_rows = rows // 2
        return True

    def _lacks_maxwritetime(self, error: Exception, cql: str) -> bool:
        """Return whether the node has a Cassandra before 5.0 while others do not, so that it does not know
        MAXWRITETIME. Then read without it for a while.
        """
        if _MAXWRITETIME.lower() not in str(error).lower() or _MAXWRITETIME not in cql:
            return False
        if self.shows_all_times:
            self._timed = [(c, selected) for c, selected in self._timed if not selected.startswith(_MAXWRITETIME)]
            self.shows_all_times, self._probe_at = False, time.monotonic() + _PROBE_AFTER_S
            self._statements_by_shape.clear()
        return True

    def _probe(self) -> None:
        """Use MAXWRITETIME again, once in a while, after a node did not know it: the node may be upgraded by now."""
        if time.monotonic() > self._probe_at:
            self.shows_all_times, self._probe_at = True, math.inf
            self._timed = self._columns_with_write_time()
            self._statements_by_shape.clear()

    def _slow_down(self, error: BaseException) -> None:
        """Reduce the rate after a timeout, which is a sign of load. Reads with a deadline don't count: at their level a
        single replica that is down is enough. A read failure, as for too many tombstones, is no sign of load.
        """
        if self.budget and self.until == math.inf and not isinstance(error, ReadFailure):
            self.budget.note_timeout()

    def _read_error(self, error: Exception) -> HelenusError:
        is_refused = isinstance(error, Unauthorized)
        kind, advice = (Kind.CASSANDRA_AUTH, GRANT) if is_refused else (Kind.CASSANDRA_READ, "")
        return HelenusError(kind, f"cannot read rows: {error}", self.table.full_name, advice)

    def _send(
        self, query: RowQuery, consistency: int, rows: int | None = None, state: bytes | None = None, host: Any = None
    ) -> Any:
        """Request a page of `rows` rows. None requests all at once, if there are as few rows as keys: a paged answer to
        a group costs Cassandra a fifth more.
        """
        query.sent_at = time.monotonic()
        if query.parts:
            return self._send_together(query, consistency)
        bound = self._bind(query, consistency)
        bound.fetch_size = rows
        self.statements += 1
        return self.session.execute_async(bound, paging_state=state, host=host)

    def _send_together(self, query: RowQuery, consistency: int) -> PipelinedStatements:
        self._attempts.note_sent()
        statements = PipelinedStatements(len(query.parts))
        statements.send(self.session, [self._bind(part, consistency) for part in query.parts])
        self.statements += len(query.parts)
        return statements

    def _sends_together(self) -> bool:
        """Return whether statements may be sent together now."""
        is_time = time.monotonic() >= self._apart_until
        return is_time and self.until == math.inf and self._attempts.are_allowed

    def _may_go_together(self, query: RowQuery) -> bool:
        """Return whether a query's statements may be sent together: their rows may have become too large for that."""
        return self._sends_together() and len(query.keys) <= 2 * self._rows_at_once(len(query.keys))

    def _bind(self, query: RowQuery, consistency: int) -> BoundStatement:
        # With the rows of whole partitions come their static columns, with their own times.
        is_whole = query.is_paged and query.span is not None
        statement_key = query.where, query.statics, is_whole, self.asks_ttl
        prepared = self._statements_by_shape.get(statement_key)
        if prepared is None:
            prepared = self._select_statics(query.where) if query.statics else self._select(query.where, is_whole)
            self._statements_by_shape[statement_key] = prepared
        query.statement = prepared
        bound = BoundStatement(query.statement, consistency_level=consistency, routing_key=query.routing_key)
        bound.values = query.values
        bound.consistency_level = consistency
        bound.is_idempotent = True
        return bound

    def _select(self, where: str, is_whole: bool) -> Any:
        columns = [quote(c.name) for c in self.table.primary_key + self.table.values]
        condition = f" WHERE {where}" if where else ""
        extra_columns = [f"WRITETIME({quote(c.name)})" for c in self._timed_statics] if is_whole else []
        extra_columns += [f"TTL({quote(c.name)})" for c in self._expiring if self.asks_ttl]
        while True:
            selected = [*columns, *(expression for _, expression in self._timed), *extra_columns]
            cql = f"SELECT {', '.join(selected)} FROM {self._quoted_name()}{condition}"
            try:
                return self._prepare(cql)
            except SchemaChanged as error:
                if not self._lacks_maxwritetime(error, cql):
                    raise

    def _select_statics(self, where: str) -> Any:
        columns = [quote(c.name) for c in self.table.partition_key + self.table.statics]
        times = [f"WRITETIME({quote(c.name)})" for c in self._timed_statics]
        return self._prepare(f"SELECT DISTINCT {', '.join(columns + times)} FROM {self._quoted_name()} WHERE {where}")

    def _columns_with_write_time(self) -> list[tuple[Column, str]]:
        """Return the columns whose write time CQL shows. Before Cassandra 5.0 these have one cell only."""
        if any(c.type.name == "counter" for c in self.table.regulars):
            return []
        single_cell = [(c, f"WRITETIME({quote(c.name)})") for c in self.table.regulars if not c.type.multicell]
        multicell = [(c, f"{_MAXWRITETIME}({quote(c.name)})") for c in self.table.regulars if c.type.multicell]
        if not multicell:
            return single_cell
        try:
            self._prepare(f"SELECT {multicell[0][1]} FROM {self._quoted_name()}")
        except SchemaChanged:
            self.shows_all_times, self._probe_at = False, time.monotonic() + _PROBE_AFTER_S
            return single_cell
        return single_cell + multicell

    def _prepare(self, cql: str) -> Any:
        if cql not in self._prepared:
            try:
                self._prepared[cql] = self.session.prepare(cql)
            except InvalidRequest as error:
                raise SchemaChanged(str(error)) from None
            except (*_READ_ERRORS, OperationTimedOut) as error:
                raise self._read_error(error) from None
        return self._prepared[cql]

    def _quoted_name(self) -> str:
        return f"{quote(self.table.keyspace)}.{quote(self.table.name)}"


def await_answer(future: Any) -> Any:
    """Wait for a statement's answer. The driver's future and its timer refer to each other: the reference is removed,
    so that the rows are freed when they are no longer used, and not by the next cyclic garbage collection.
    """
    try:
        return future.result()
    finally:
        future._timer = None


def _is_load(error: BaseException) -> bool:
    """Return whether a read failed for load, so that a smaller one may not. An overloaded node is skipped by the
    driver.
    """
    overloaded = isinstance(error, NoHostAvailable) and any(
        isinstance(answer, OverloadedErrorMessage) for answer in error.errors.values()
    )
    return overloaded or isinstance(error, _LOAD_ERRORS)
