"""Sends statements to a cluster: many at once, within a rate, and again as long as their errors are transient."""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import structlog
from cassandra import DriverException, RequestValidationException, Unauthorized
from cassandra.cluster import NoHostAvailable
from cassandra.concurrent import execute_concurrent
from cassandra.connection import ConnectionException
from tenacity import (
    RetryCallState,
    Retrying,
    retry_if_exception,
    stop_after_attempt,
    stop_never,
    wait_random_exponential,
)

from helenus_schemas.errors import Action, HelenusError, Kind

_MAX_PAUSE_S = 30.0
_ONCE_ATTEMPTS = 4  # with pauses of some seconds together: who calls it may call it again
_TRANSIENT = frozenset({Kind.CASSANDRA_WRITE, Kind.CASSANDRA_READ, Kind.CASSANDRA_UNREACHABLE})
_log = structlog.get_logger(__name__)
DRIVER_ERRORS = (DriverException, NoHostAvailable, ConnectionException)


@dataclass
class Patience:
    """How transient errors are waited for: for ever, or with `once` for some attempts. `wait` is called with the
    seconds of a pause, and may do something else meanwhile.
    """

    once: bool = False
    wait: Callable[[float], None] = field(default=time.sleep)

    def retry(self, attempt: Callable[[], Any], kinds: Collection[Kind] = _TRANSIENT) -> Any:
        """Return what `attempt` returns; it is called again after an error of one of these kinds."""
        retrying = Retrying(
            retry=retry_if_exception(lambda e: isinstance(e, HelenusError) and e.kind in kinds),
            stop=stop_after_attempt(_ONCE_ATTEMPTS) if self.once else stop_never,
            wait=wait_random_exponential(max=_MAX_PAUSE_S, min=0.5),
            sleep=self.wait,
            before_sleep=_log_retry,
            reraise=True,
        )
        return retrying(attempt)


def _log_retry(state: RetryCallState) -> None:
    error = state.outcome.exception() if state.outcome else None
    _log.warning("replicate.retried", attempt=state.attempt_number, error=str(error))


class RequestSender:
    """Sends statements through a session. `name` is the cluster's and the table's in errors. Not for several threads
    at once.
    """

    def __init__(self, session: Any, name: str, patience: Patience, concurrency: int = 64, per_second: int = 0) -> None:
        self._session = session
        self._name = name
        self._patience = patience
        self._concurrency = concurrency
        self._per_second = per_second
        self._next_at = 0.0

    def send(self, statements: Sequence[Any]) -> list[list[Any]]:
        """Execute statements, in any order, and return their rows in order. Those that fail for a transient cause are
        sent again. One may be a function that returns it, called each time that it is sent, as of what expires
        meanwhile. Raises HelenusError by the cause of any other failure.
        """
        answers: dict[int, list[Any]] = {}
        size = min(self._per_second, 1000) or 1000
        for first in range(0, len(statements), size):
            chunk = range(first, min(first + size, len(statements)))
            self._wait_for_rate(len(chunk))
            self._patience.retry(partial(self._send_once, statements, chunk, answers))
        return [answers[n] for n in range(len(statements))]

    def send_unrepeated(self, statements: Sequence[Any]) -> None:
        """Execute statements, each at most once. Raises HelenusError as `send`, also for transient causes: then it may
        have been executed.
        """
        self._send_once(statements, range(len(statements)), {})

    def _wait_for_rate(self, count: int) -> None:
        if self._per_second:
            now = time.monotonic()
            if self._next_at > now:
                self._patience.wait(self._next_at - now)
            self._next_at = max(now, self._next_at) + count / self._per_second

    def _send_once(self, statements: Sequence[Any], chunk: range, answers: dict[int, list[Any]]) -> None:
        pending = [n for n in chunk if n not in answers]
        requests = [(_make(statements[n]), None) for n in pending]
        results = execute_concurrent(self._session, requests, concurrency=self._concurrency, raise_on_first_error=False)
        failures: list[HelenusError] = []
        for n, (is_success, result) in zip(pending, results, strict=True):
            if is_success:
                try:
                    answers[n] = list(result) if result is not None else []
                except DRIVER_ERRORS as error:  # of a later page
                    failures.append(request_error(error, self._name))
            else:
                failures.append(request_error(result, self._name))
        if failures:
            raise next((e for e in failures if e.action is not Action.RETRY), failures[0])


def _make(statement: Any) -> Any:
    return statement() if callable(statement) else statement


def request_error(error: Exception, name: str) -> HelenusError:
    """Return a driver's error by its cause."""
    reason = str(error)
    if isinstance(error, HelenusError):
        return error
    if isinstance(error, Unauthorized):
        advice = f"GRANT SELECT and MODIFY on {name} to the role"
        return HelenusError(Kind.CASSANDRA_AUTH, f"Cassandra refuses the role: {reason}", name, advice)
    if isinstance(error, RequestValidationException):
        is_changed = "unconfigured table" in reason.lower() or "Undefined" in reason or "Unknown identifier" in reason
        kind = Kind.SCHEMA_BEHIND if is_changed else Kind.TABLE_UNSUPPORTED
        advice = "" if is_changed else "compare the two tables' definitions, and see the cluster's guardrails"
        return HelenusError(kind, f"Cassandra refuses a statement: {reason}", name, advice)
    if isinstance(error, DRIVER_ERRORS):
        return HelenusError(Kind.CASSANDRA_WRITE, f"Cassandra did not answer: {reason}", name)
    raise error
