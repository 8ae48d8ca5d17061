"""Sends statements to Cassandra and reads their answers page by page, with retries."""

from __future__ import annotations

import math
import time
from collections.abc import Iterator
from typing import Any, NamedTuple

import tenacity
from cassandra import InvalidRequest, ReadFailure
from cassandra.query import BoundStatement

from helenus_connector.cassandra_rows._projection import Projection
from helenus_connector.cassandra_rows._read_errors import READ_ERRORS, SchemaDisagreement, is_load, read_error
from helenus_connector.cassandra_rows._statements import RowQuery, Statements
from helenus_connector.cassandra_rows.budget import ReadBudget
from helenus_connector.cassandra_rows.raw_rows import RawRow, RowPage
from helenus_connector.config.connector import ConnectorSettings
from helenus_connector.interfaces.resolver import SchemaChanged
from helenus_schemas.cql.table import Table
from helenus_schemas.errors import HelenusError
from helenus_schemas.service.cassandra import is_page_refused, known_releases

_ATTEMPTS_PER_KEY = 3
_PAGE_ROWS = 500  # rows of an answer in memory at once
MAX_PENDING_BYTES = 32 << 20  # bytes of rows that are requested, and that the caller has not received yet
_ASSUMED_ROW_BYTES = 4 << 20  # assumed size of a row until some are read: too high is slow, too low takes memory


class KeyRefused(Exception):
    """The server refuses a key, or bounds, and accepts others: no row of this table can have them."""


class UnreadReason(NamedTuple):
    """Why a key was not read, while others were. `is_away` says that replicas are down, or lag behind an ALTER: the key
    is not the cause.
    """

    error: HelenusError
    is_away: bool


def unread_reason(error: HelenusError, is_away: bool = False) -> UnreadReason:
    """Return why a key was not read; one that lags is as one that is down."""
    return UnreadReason(error, is_away or isinstance(error, SchemaDisagreement))


def refuses_groups(session: Any, table: Table) -> bool:
    """Return whether a node refuses `IN` of clustering columns where an unfrozen collection is selected: one of
    Cassandra 3.11 does.
    """
    has_collections = any(column.type.multicell for column in table.values)
    releases = known_releases(session) if table.clustering and has_collections else ()
    return any(release.startswith("3.") for release in releases)


class RowRequests:
    """Reads what a projection selects of one version of a table.

    `statements` counts the statements sent, `seconds` adds up the time until they were answered.

    A read that times out is repeated, in parts. After `retry_deadline`, monotonic s, no read is repeated.
    `is_current` says that the table's definition is known to be current: then a refusal concerns the key.
    """

    def __init__(self, session: Any, table: Table, settings: ConnectorSettings, projection: Projection[Any]) -> None:
        self.session = session
        self.table = table
        self.concurrency = settings.query_concurrency
        self.group_size = 1 if refuses_groups(session, table) else settings.query_group_size
        self.statements = 0
        self.seconds = 0.0
        self.retry_deadline = math.inf
        self.is_current = False
        self.budget: ReadBudget | None = None
        self._projection = projection
        self._queries = Statements(table, self.group_size)
        self._page_rows = _PAGE_ROWS
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
            except READ_ERRORS as error:
                if not is_load(error):
                    raise read_error(error, self.table) from None
                self._slow_down(error)
                return self._retry(query, consistency, error, max(1, rows // 8), state)
            except InvalidRequest as error:
                if self._is_adjusted(error, query, rows):
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
        if time.monotonic() > self.retry_deadline:
            raise read_error(error, self.table)
        try:
            for attempt in tenacity.Retrying(
                stop=tenacity.stop_after_attempt(1 if query.has_hung else _ATTEMPTS_PER_KEY)
                | tenacity.stop_after_delay(self.retry_deadline - time.monotonic()),
                wait=tenacity.wait_random_exponential(0.1, max=2),
                retry=tenacity.retry_if_exception(is_load),
                reraise=True,
            ):
                with attempt:
                    return await_answer(self._send(query, consistency, rows, state))
        except READ_ERRORS as failure:
            error = failure
        raise read_error(error, self.table)

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
        except READ_ERRORS as failure:
            raise read_error(failure, self.table) from None
        return KeyRefused(str(error))

    def _is_adjusted(self, error: InvalidRequest, query: RowQuery, rows: int | None) -> bool:
        """Return whether a refused query can be sent once more, as it is bound now: without a function that the node
        does not know, or with smaller pages.
        """
        cql = query.statement.query_string
        return self._projection.leave_out_unknown(error, cql) or self._shrink_pages(error, rows)

    def _shrink_pages(self, error: InvalidRequest, rows: int | None) -> bool:
        """Return whether a guardrail requires smaller pages, and use smaller ones from now on."""
        if rows is None or rows < 2 or not is_page_refused(error):
            return False
        self._page_rows = rows // 2
        return True

    def _slow_down(self, error: BaseException) -> None:
        """Reduce the rate after a timeout, which is a sign of load. Reads with a deadline don't count: at their level a
        single replica that is down is enough. A read failure, as for too many tombstones, is no sign of load.
        """
        if self.budget and self.retry_deadline == math.inf and not isinstance(error, ReadFailure):
            self.budget.note_timeout()

    def _send(
        self, query: RowQuery, consistency: int, rows: int | None = None, state: bytes | None = None, host: Any = None
    ) -> Any:
        """Request a page of `rows` rows. None requests all at once, if there are as few rows as keys: a paged answer to
        a group costs Cassandra a fifth more.
        """
        query.sent_at = time.monotonic()
        bound = self._bind(query, consistency)
        bound.fetch_size = rows
        self.statements += 1
        return self.session.execute_async(bound, paging_state=state, host=host)

    def _bind(self, query: RowQuery, consistency: int) -> BoundStatement:
        query.statement = self._projection.statement_for(query)
        bound = BoundStatement(query.statement, consistency_level=consistency, routing_key=query.routing_key)
        bound.values = query.values
        bound.consistency_level = consistency
        bound.is_idempotent = True
        return bound


def await_answer(future: Any) -> Any:
    """Wait for a statement's answer. The driver's future and its timer refer to each other: the reference is removed,
    so that the rows are freed when they are no longer used, and not by the next cyclic garbage collection.
    """
    try:
        return future.result()
    finally:
        future._timer = None
