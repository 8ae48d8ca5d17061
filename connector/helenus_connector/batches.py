"""The driver's side of a batch: run the stage, decide on errors, keep pending keys and count."""

from __future__ import annotations

import pickle
import threading
import time
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import structlog
import tenacity
from pyspark.errors import PySparkException

from helenus_connector import metrics
from helenus_connector.plan import Plan
from helenus_connector.settle import Pending, PendingKeys
from helenus_connector.stage import Outcome
from helenus_connector.tasks import OUTCOME, task
from helenus_schemas.errors import Action, HelenusError, Kind, told_in
from helenus_schemas.failpoints import reach

_log = structlog.get_logger()
_MISSING_S = 30.0


class Batches:
    """Processes the micro-batches of one streaming query. `failure` holds the error that ended it, if one did.

    `prepare` runs before each attempt; what it raises is an error of the batch.
    """

    def __init__(self, plan: Plan, prepare: Callable[[], None]) -> None:
        self.plan = plan
        self._prepare = prepare
        self.pending = PendingKeys(
            {t: c.settle_timeout_ms / 1000 for t, c in plan.connectors.items()},
            {t: c.settle_replay_ms / 1000 for t, c in plan.connectors.items()},
            plan.pending_file,
        )
        self.pending.load(time.time())
        self.failure: BaseException | None = None
        self.trouble: str | None = None
        self._missing_since: float | None = None
        self.done = 0
        self._stopping = threading.Event()

    def stop(self) -> None:
        """End the waiting between attempts."""
        self._stopping.set()

    def process(self, frame: Any, batch_id: int) -> None:
        """The function for `foreachBatch`. Repeats the batch while its errors are of a kind to retry."""
        start = time.monotonic()
        try:
            for attempt in tenacity.Retrying(
                retry=tenacity.retry_if_exception(self._may_pass),
                wait=tenacity.wait_random_exponential(0.5, max=10),
                stop=tenacity.stop_when_event_set(self._stopping),
                sleep=tenacity.sleep_using_event(self._stopping),
                before_sleep=self._report,
                reraise=True,
            ):
                with attempt:
                    outcomes = self._attempt(frame, first=attempt.retry_state.attempt_number == 1)
        except BaseException as error:
            self.failure = error
            raise
        self.trouble = self._missing_since = None
        self._apply(outcomes)
        self.done += 1
        reach("connector.before-commit")
        metrics.BATCH_SECONDS.observe(time.monotonic() - start)
        _log.debug("batch.done", batch=batch_id, seconds=round(time.monotonic() - start, 3))

    def _attempt(self, frame: Any, first: bool) -> list[Outcome]:
        self._prepare()
        due: dict[str, list[Pending]] = {}
        for pending in self.pending.due(time.time()):
            due.setdefault(pending.topic, []).append(pending)
        try:
            rows = frame.mapInArrow(task(self.plan, due, trust_images=first), OUTCOME).collect()
        except PySparkException as failure:
            # The stage returns its errors; those of the source come as the text of a failed task.
            raise told_in(str(failure)) or failure from None
        outcomes: list[Outcome] = [pickle.loads(row.outcome) for row in rows]
        errors = [o.error for o in outcomes if o.error is not None]
        if errors:
            # An error that stops goes before one that may pass.
            raise min(errors, key=lambda e: e.action is Action.RETRY)
        return outcomes

    def _may_pass(self, error: BaseException) -> bool:
        """Whether to do the batch again. A table that was there may be dropped to be made anew, and has time for it."""
        if not isinstance(error, HelenusError):
            return False
        if error.kind is Kind.TABLE_MISSING:
            self._missing_since = self._missing_since or time.monotonic()
            return time.monotonic() - self._missing_since < _MISSING_S
        return error.action is Action.RETRY

    def _report(self, state: tenacity.RetryCallState) -> None:
        error = state.outcome.exception() if state.outcome else None
        if isinstance(error, HelenusError):
            self.trouble = str(error)
            metrics.ERRORS.labels(error.kind.value).inc()
            _log.warning("batch.retry", kind=error.kind.value, error=str(error), attempt=state.attempt_number)

    def _apply(self, outcomes: Iterable[Outcome]) -> None:
        now = time.time()
        for outcome in outcomes:
            self.pending.apply(outcome.resolved, outcome.found, now)
            name = outcome.connector
            metrics.EVENTS_READ.labels(name).inc(outcome.read)
            for result in ("published", "unchanged", "settled", "outdated", "dead_lettered"):
                metrics.EVENTS.labels(name, result).inc(getattr(outcome, result))
            metrics.RECORDS.labels(name).inc(outcome.records)
            metrics.RECORDS_TOO_LARGE.labels(name).inc(outcome.too_large)
            metrics.EVENTS_LOST.labels(name).inc(outcome.lost)
            if outcome.lost:
                _log.warning("events.lost", connector=name, events=outcome.lost, advice="copy the table anew")
            metrics.KEYS_READ.labels(name).inc(outcome.keys_read)
            metrics.STATEMENTS.labels(name).inc(outcome.statements)
            if outcome.newest_write_time is not None:
                metrics.REPLICATION_SECONDS.labels(name).set(max(0.0, now - outcome.newest_write_time / 1e6))
        self.pending.save(now)
        for topic, connector in self.plan.connectors.items():
            keys, copies = self.pending.counts(topic)
            metrics.KEYS_PENDING.labels(connector.name).set(keys)
            metrics.EVENTS_PENDING.labels(connector.name).set(copies)
        due = self.pending.next_due()
        path = Path(self.plan.due_file)
        temporary = path.with_suffix(".new")
        temporary.write_text("" if due is None else repr(due))
        temporary.replace(path)
