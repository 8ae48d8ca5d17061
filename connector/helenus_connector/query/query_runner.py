"""The life of a streaming query, from `start` to its end: one for all kinds of queries.

A thread runs the query again and again (`QueryRunner.run_once`). What ends a run decides what follows:

1. the query was asked to `stop`: the runner ends without a failure, even if the run ended with an error;
2. Spark's Java process is gone: the runner ends, and `failure` says so. Nothing but a new worker helps;
3. any other error: the kind of query reports it (`note_failure`) and says after which pause there is another run, or
   raises it, and the runner ends with that as its `failure`. Pauses double with each failure in a row;
4. no error: there was nothing to run, or it is not wanted any more. The next run follows at once.

Errors have three back-offs, each of what failed alone:

| what failed | pause | where |
|---|---|---|
| a run of a query: Spark, a file next to the checkpoint | 1 s to 30 s | `QueryRunner.backoff_s` |
| a table's part of a batch; with `state=rows`, a run | 0.5 s to `errors.retry.delay.max.ms` | `control.status.Task` |
| the proof of an unconfirmed key | `settle.timeout.ms` to a minute | `unconfirmed.keys` |

Without a broker no batch is planned, and no run fails: the planner looks again each second (`_batch_planner`).
"""

from __future__ import annotations

import contextlib
import math
import re
import threading
import time
from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

import structlog

from helenus_connector.control.backoff import pause
from helenus_connector.query._start_turn import start_in_turn
from helenus_connector.query.handover import MicroBatch, start_query
from helenus_connector.query.spark_session import is_spark_alive
from helenus_connector.query.stream import local_url
from helenus_schemas.errors import HelenusError, Kind, error_in
from helenus_schemas.service import descriptors

_log = structlog.get_logger(__name__)
_FIRST_PAUSE_S, _LONGEST_PAUSE_S = 1.0, 30.0
_BROKER_AWAY_AFTER_S = 5.0
"""A broker that is restarted answers again within seconds: no reason to call the query unready."""
NO_BATCH = "starting: no batch done yet"


@dataclass
class RunProgress:
    """How far one run is. `started_at` is when its stream was started, monotonic s.

    No batch of a run overlaps the next run: Java's `BatchHandover.addBatch`, or its call of Python for `foreachBatch`,
    returns only when Python has done the batch, and Spark ends or stops a query only after that. Each run has an object
    of its own all the same, so that nothing of one run could count for another.
    """

    started_at: float = math.inf
    has_begun: bool = False
    batches_done: int = 0
    batch_error: BaseException | None = None


class QueryRunner(ABC):
    """Keeps one streaming query alive, from `start` until `stop` or `failure`. `title` names its group or connector in
    errors, `thread` names its thread, `pool` is Spark's scheduler pool for its jobs, `checkpoint` where Spark keeps its
    offsets.

    A kind of query fills in `run_once` and `note_failure`, and those of `is_wanted`, `release` and `away_file` whose
    default does not do. The runner's thread alone calls the first four. A run calls `begin_in_turn`, with a function
    that ends in `start_stream`, and then `watch`. Other threads call `start`, `stop`, `join` and the properties.
    """

    keeps_rows: ClassVar[bool] = False
    """Whether it is a query of `state=rows`."""
    check_every_s: ClassVar[float] = 0.1
    """How often `watch` looks at the query, and so for how long at most one runs on that is not wanted any more."""

    def __init__(self, title: str, thread: str, pool: str, checkpoint: Path) -> None:
        self.checkpoint = checkpoint
        self.failure: HelenusError | None = None
        self.last_error: HelenusError | None = None
        self.progress = RunProgress()
        self._title = title
        self._thread_name = thread
        self._pool = pool
        self._failures = 0  # in a row
        self._stopping = threading.Event()
        self._thread: threading.Thread | None = None

    @abstractmethod
    def run_once(self, spark: Any) -> None:
        """Run the query until it ends, is not wanted any more, or is to stop. Raises what ended it."""

    @abstractmethod
    def note_failure(self, error: HelenusError) -> float:
        """Report why a run failed. Return after how many seconds to run again: `backoff_s`, where nothing else says so.
        Raises the error if there is to be no other run.
        """

    def is_wanted(self) -> bool:
        """Return whether the current run is to go on."""
        return not self.is_stopped

    def release(self) -> None:  # noqa: B027
        """Give back what the query has for itself: called once, after `stop`, when no run follows.

        Most kinds have nothing.
        """

    def start(self, spark: Any) -> None:
        """Start the query, in a thread of its own."""
        self._thread = threading.Thread(target=self._run, args=(spark,), name=self._thread_name, daemon=True)
        self._thread.start()

    def stop(self) -> None:
        """Ask the query to end. A batch that is not complete is repeated at the next start."""
        self._stopping.set()

    @property
    def is_stopped(self) -> bool:
        """Return whether the query was asked to end."""
        return self._stopping.is_set()

    @property
    def is_over(self) -> bool:
        """Return whether the query has ended, after `stop` or a failure."""
        return self._thread is not None and not self._thread.is_alive()

    @property
    def has_done_batches(self) -> bool:
        """Return whether the query has done a batch since its last start."""
        return self.progress.batches_done > 0

    @property
    def is_running(self) -> bool:
        """Return whether the query has done a batch since its last start, or has none to do."""
        return self.has_done_batches

    def join(self) -> None:
        """Wait until the query has ended."""
        if self._thread is not None:
            self._thread.join()

    def trouble(self) -> HelenusError | str | None:
        """Return why the query is not ready, or None."""
        return self._broker_error() or self.last_error or (None if self.is_running else NO_BATCH)

    def away_file(self) -> Path | None:
        """Return the file where the planner of the current run writes why it can plan no batch, or None."""
        return None

    def _broker_error(self) -> str | None:
        """Return why no batch has been planned for some seconds, or None."""
        file = self.away_file()
        with contextlib.suppress(FileNotFoundError):
            if file is not None and time.time() - file.stat().st_mtime > _BROKER_AWAY_AFTER_S:
                return file.read_text()
        return None

    def _run(self, spark: Any) -> None:
        """Run the query until one of the ends in the module's docstring."""
        try:
            spark.sparkContext.setLocalProperty("spark.scheduler.pool", self._pool)
            while not self.is_stopped:
                error = self._run_until_end(spark)
                # Waiting at the fence, or for a turn to start, is no sign of health. A batch is one, of however few
                # events: a batch that failed is repeated first, so that there is none before the same failure.
                run_s = time.monotonic() - self.progress.started_at
                is_recovered = self.has_done_batches or run_s > _LONGEST_PAUSE_S
                pause_s = 0.0
                if error is not None and not self.is_stopped:
                    self._failures = 1 if is_recovered else self._failures + 1
                    pause_s = self.note_failure(error)
                self.progress = RunProgress()
                if pause_s:
                    self._stopping.wait(pause_s)
            self.release()
        except HelenusError as error:
            self.failure = error
        except Exception as error:
            self.failure = HelenusError(Kind.BATCH_FAILED, f"the query ended: {str(error)[:500]}", self._title)
            self.failure.__cause__ = error

    @property
    def backoff_s(self) -> float:
        """Return the pause after this failure, which doubles with each in a row, s."""
        return pause(self._failures, _FIRST_PAUSE_S, _LONGEST_PAUSE_S)

    def _run_until_end(self, spark: Any) -> HelenusError | None:
        """Return what ended a run, or None. Raises HelenusError(BATCH_FAILED) if Spark is gone."""
        try:
            self.run_once(spark)
        except HelenusError as error:  # as of a full disk
            return error
        except Exception as error:
            if self.is_stopped or descriptors.are_exhausted(error) or is_spark_alive(spark):
                return spark_error(str(error))
            problem = "Spark's Java process has ended: killed, as for want of memory, or crashed"
            raise HelenusError(Kind.BATCH_FAILED, problem, self._title) from None
        return None

    def begin_in_turn(self, begin: Callable[[], Any]) -> Any | None:
        """Start the stream with `begin` when this query has its turn, and return it once it has begun a batch. Returns
        None, without a start, if it is not wanted any more before. Raises what `begin` raises.
        """
        return start_in_turn(begin, lambda: self.progress.has_begun, lambda: not self.is_wanted())

    def start_stream(
        self, spark: Any, name: str, rows: Any, interval_ms: int, process: Callable[[MicroBatch], None]
    ) -> Any:
        """Start a stream of these rows, whose batches `process` gets, at most one in an interval."""
        progress = self.progress

        def process_batch(batch: MicroBatch) -> None:
            progress.has_begun = True
            try:
                process(batch)
            except BaseException as error:
                progress.batch_error = error
                raise
            progress.batches_done += 1
            if progress is self.progress:
                self.last_error = None

        _remove_torn_files(self.checkpoint)
        writer = (
            rows.writeStream.queryName(name)
            .option("checkpointLocation", local_url(self.checkpoint))
            .trigger(processingTime=f"{interval_ms} milliseconds")
        )
        query = start_query(spark.sparkContext, writer, process_batch)
        progress.started_at = time.monotonic()
        return query

    def watch(self, query: Any) -> None:
        """Wait until the stream ends, or stop it when it is not wanted any more. Raises HelenusError if it ended by
        itself.
        """
        try:
            while query.isActive and self.is_wanted() and not self._stopping.wait(self.check_every_s):
                pass
        except BaseException:
            query.stop()  # or Spark refuses the next start, beside this one
            raise
        if query.isActive:
            query.stop()
        elif self.is_wanted():
            raise failure_cause(query, self.progress.batch_error, self.checkpoint)


def _remove_torn_files(checkpoint: Path) -> None:
    """Remove half-written files of a killed run: Spark refuses to start where it finds one."""
    for name in ("offsets", "commits"):
        for torn in checkpoint.glob(f"{name}/.*.tmp"):
            torn.unlink(missing_ok=True)
            _log.info("checkpoint.torn", file=str(torn))


def failure_cause(query: Any, batch_error: BaseException | None, checkpoint: Path) -> HelenusError:
    """Return why a query ended by itself: our own error from a batch, or Spark's error."""
    if isinstance(batch_error, HelenusError):
        return batch_error
    message = str(query.exception() or batch_error or "the query ended")
    if "STATE_STORE_CHECKPOINT_LOCATION_NOT_EMPTY" in message:
        problem = (
            "no batch was begun yet, and Spark finds files in offsets or commits that are not its own: move them away"
        )
        return HelenusError(Kind.STATE, problem, str(checkpoint))
    return spark_error(message)


def spark_error(message: str) -> HelenusError:
    """Return an error of Spark's, given its message as Py4J shows it: its cause, or what a Python worker raised."""
    # Py4J begins the lines of Java's own message so.
    lines = [line.strip().removeprefix(": ") for line in message.splitlines() if line.strip()]
    exception_lines = [line for line in lines if re.match(r"[\w.]*(Error|Exception)\b", line)]
    cause = (exception_lines or lines[:1] or ["the query ended"])[-1]
    return error_in(message) or HelenusError(Kind.BATCH_FAILED, cause[:500])
