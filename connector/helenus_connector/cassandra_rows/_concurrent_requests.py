"""Sends many statements at once, within bounds, and divides those that are too large.

A run takes the futures of its queries in the order in which these were sent. Each has one outcome:

    QueryAnswer   the first page of the query's rows, or why its keys are not read: KeyRefused, UnreadReason
    Divided       it was too much: other queries are sent in its place
    Adjusted      it was refused for something that it no longer has: it is sent once more
"""

from __future__ import annotations

import math
import time
from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from typing import Any, NamedTuple

from cassandra import InvalidRequest, OperationTimedOut, Unavailable
from cassandra.cluster import NoHostAvailable

from helenus_connector.cassandra_rows._pipelined import NotPipelined, PipelinedStatements, pipeline_attempts
from helenus_connector.cassandra_rows._projection import Projection
from helenus_connector.cassandra_rows._read_errors import READ_ERRORS, is_load, read_error
from helenus_connector.cassandra_rows._requests import (
    MAX_PENDING_BYTES,
    RowRequests,
    await_answer,
    unread_reason,
)
from helenus_connector.cassandra_rows._statements import RowQuery
from helenus_connector.config.connector import ConnectorSettings
from helenus_connector.interfaces.resolver import SchemaChanged
from helenus_schemas.cql.table import Table
from helenus_schemas.errors import HelenusError, Kind

_MAX_STUCK_KEYS = 10  # keys that may fail one by one while others are read: with more, the cluster is too slow
_MAX_TOGETHER = 32  # statements that are sent to a node together, at most
_APART_AFTER_FAILURE_S = 10.0
"""Until a table's statements are sent together again after one was answered in time, but not with rows alone."""


class QueryAnswer(NamedTuple):
    """The answer to a query: the first page of its rows, KeyRefused or UnreadReason."""

    answer: Any


class Divided(NamedTuple):
    """The queries that are sent in place of one."""

    queries: Sequence[RowQuery]


class Adjusted(NamedTuple):
    """Of a query that is sent once more: it is bound anew, without what the server refused."""


class QueryRun:
    """The queries of one run. `parts` are those to send before the others, and `in_flight` those that were sent, with
    their futures: together they request `requested_rows` rows by `statements` statements.

    `stuck_keys` counts the keys that could not be read. Once a read came after the deadline, `deadline_error` says so:
    then no more queries are sent.
    """

    def __init__(self, queries: Iterable[RowQuery], consistency: int) -> None:
        self.consistency = consistency
        self.parts: list[RowQuery] = []
        self.in_flight = deque[tuple[RowQuery, Any]]()
        self.requested_rows = self.statements = 0
        self.stuck_keys = 0
        self.deadline_error: HelenusError | None = None
        self._queries = iter(queries)

    def next_query(self) -> RowQuery | None:
        """Return the query to send next; None if there are no more."""
        return self.parts.pop() if self.parts else next(self._queries, None)

    def note_sent(self, query: RowQuery) -> None:
        """Count a query as sent."""
        self.requested_rows += query.rows or len(query.keys)
        self.statements += query.count

    def take_oldest(self) -> tuple[RowQuery, Any]:
        """Return the query that was sent first, and its future."""
        query, future = self.in_flight.popleft()
        self.requested_rows -= query.rows or len(query.keys)
        self.statements -= query.count
        return query, future


class ConcurrentRequests(RowRequests):
    """Reads a table by many statements at once. Those of few keys that one node holds are sent together.

    With `repeats_reads` a read that timed out and can't be divided is repeated. Without, its keys are left unread, as
    many as they are.
    """

    def __init__(self, session: Any, table: Table, settings: ConnectorSettings, projection: Projection[Any]) -> None:
        super().__init__(session, table, settings, projection)
        self.repeats_reads = True
        self._attempts = pipeline_attempts(session)
        self._apart_until = 0.0
        self._together_size = min(_MAX_TOGETHER, self.concurrency // 2)  # while some are answered, others are asked for

    def _run(self, queries: Iterable[RowQuery], consistency: int) -> Iterator[tuple[RowQuery, Any]]:
        """Send the queries, a bounded number at a time, and yield their first answers, or why there are none:
        KeyRefused or UnreadReason. Divides a group that is too large; queries of single keys are answered in order.
        """
        run = QueryRun(queries, consistency)
        while True:
            self._send_next(run)
            if not run.in_flight:
                break
            query, future = run.take_oldest()
            match self._outcome(run, query, future):
                case QueryAnswer(answer):
                    yield query, answer
                case Divided(parts):
                    run.parts += parts
                case Adjusted():
                    run.in_flight.appendleft((query, self._send_query(run, query)))
        if run.deadline_error is not None:
            raise run.deadline_error

    def _send_next(self, run: QueryRun) -> None:
        """Send queries while their statements, and the rows that they request, are within the bounds."""
        while (
            run.deadline_error is None
            and run.statements < self.concurrency
            and (not run.in_flight or run.requested_rows * self._row_bytes < MAX_PENDING_BYTES)
        ):
            query = run.next_query()
            if query is None:
                return
            if query.parts and not self._may_go_together(query):
                run.parts += query.parts
                continue
            if run.in_flight and run.statements + query.count > self.concurrency:
                run.parts.append(query)
                return
            if self.budget and not query.is_paged:
                self.budget.take(len(query.keys))
            run.in_flight.append((query, self._send_query(run, query)))

    def _send_query(self, run: QueryRun, query: RowQuery) -> Any:
        """Request the first page of a query, and return its future."""
        query.rows = self._first_page(query)
        if query.parts:
            future = self._send_together(query, run.consistency)
        else:
            future = self._send(query, run.consistency, query.rows)
        run.note_sent(query)
        return future

    def _outcome(self, run: QueryRun, query: RowQuery, future: Any) -> QueryAnswer | Divided | Adjusted:
        """Wait for the answer to a query. Raises HelenusError and SchemaChanged if other queries can't be read then
        either.
        """
        try:
            answer = await_answer(future)
        except NotPipelined as not_pipelined:
            return self._send_apart(query, not_pipelined)
        except READ_ERRORS as error:
            return self._after_failure(run, query, error)
        except InvalidRequest as error:
            return self._after_refusal(run, query, future, error)
        self.seconds += time.monotonic() - query.sent_at
        if query.parts:
            self._attempts.note_answered(query.sent_at)
        return QueryAnswer(answer)

    def _send_apart(self, query: RowQuery, not_pipelined: NotPipelined) -> Divided:
        """Have statements sent one by one that were sent together, and were not answered so."""
        if not_pipelined.is_late:
            self._attempts.note_late(query.sent_at)
        else:
            self._attempts.note_undecided(query.sent_at)
            self._apart_until = time.monotonic() + _APART_AFTER_FAILURE_S
        return Divided(query.parts)

    def _after_failure(self, run: QueryRun, query: RowQuery, error: Exception) -> QueryAnswer | Divided:
        """Decide what becomes of a query that failed, the first of these that applies."""
        # 1. It is too late to repeat it.
        if time.monotonic() > self.retry_deadline:
            failure = read_error(error, self.table)
            if len(query.keys) > 1 or not is_load(error):
                raise failure from None
            run.deadline_error = failure
            return QueryAnswer(unread_reason(failure))
        # 2. A smaller one would fail too. If replicas of these keys are down, those of other keys may be up.
        if not is_load(error):
            may_wait = self.retry_deadline < math.inf or not self.repeats_reads
            if isinstance(error, Unavailable) or (may_wait and isinstance(error, NoHostAvailable)):
                return QueryAnswer(unread_reason(read_error(error, self.table), is_away=True))
            raise read_error(error, self.table) from None
        self._slow_down(error)
        # 3. Smaller ones may be answered.
        if len(query.keys) > 1 and not query.has_hung:
            halves = self._queries.halves(query)
            for half in halves:
                # The server's timeout is shorter than the driver's: if that one passed, a node does not answer.
                half.has_hung = isinstance(error, OperationTimedOut)
            return Divided(halves)
        # 4. It can only be repeated; with a deadline a single key is not, since only a proof is wanted.
        if not self.repeats_reads:
            return QueryAnswer(unread_reason(read_error(error, self.table), isinstance(error, NoHostAvailable)))
        if len(query.keys) == 1 and self.retry_deadline < math.inf:
            return QueryAnswer(unread_reason(read_error(error, self.table)))
        return self._repeat(run, query, error)

    def _repeat(self, run: QueryRun, query: RowQuery, error: Exception) -> QueryAnswer:
        """Read a query again that timed out and can't be divided. If it fails, its key may wait while others are read:
        unless there are many such keys.
        """
        query.has_hung |= run.stuck_keys > 0
        try:
            return QueryAnswer(self._retry(query, run.consistency, error, query.rows))
        except HelenusError as failure:
            if len(query.keys) > 1 or failure.kind is not Kind.CASSANDRA_READ:
                raise
            run.stuck_keys += 1
            if run.stuck_keys > _MAX_STUCK_KEYS:
                raise
            return QueryAnswer(unread_reason(failure))

    def _after_refusal(
        self, run: QueryRun, query: RowQuery, future: Any, error: InvalidRequest
    ) -> QueryAnswer | Divided | Adjusted:
        """Decide what becomes of a query that the server refused."""
        if self._is_adjusted(error, query, query.rows):
            return Adjusted()
        if len(query.keys) == 1:
            refusal = self._explain_refusal(future, run.consistency, error, query.rows)
            if isinstance(refusal, SchemaChanged):
                raise refusal from None
            return QueryAnswer(refusal)
        if "Guardrail" in str(error) and "in_select" in str(error):  # by partition keys, or by all of them
            self.group_size = min(self.group_size, (len(query.keys) + 1) // 2)
            self._queries.max_keys = self.group_size
        return Divided(self._queries.halves(query))

    def _send_together(self, query: RowQuery, consistency: int) -> PipelinedStatements:
        query.sent_at = time.monotonic()
        self._attempts.note_sent()
        statements = PipelinedStatements(len(query.parts))
        statements.send(self.session, [self._bind(part, consistency) for part in query.parts])
        self.statements += len(query.parts)
        return statements

    def _sends_together(self) -> bool:
        """Return whether statements may be sent together now."""
        is_time = time.monotonic() >= self._apart_until
        return is_time and self.retry_deadline == math.inf and self._attempts.are_allowed

    def _may_go_together(self, query: RowQuery) -> bool:
        """Return whether a query's statements may be sent together: their rows may have become too large for that."""
        return self._sends_together() and len(query.keys) <= 2 * self._rows_at_once(len(query.keys))
