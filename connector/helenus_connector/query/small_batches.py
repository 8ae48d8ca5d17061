"""Batches of few events, without a job of Spark's: one takes longer than they do (docs/performance.md).

Spark plans such a batch and notes that it is done, as any other. What its tasks would do, a Python process of the
worker does in between (`_small_batch_process`). It is to the rest what one of Spark's Python workers is: it keeps the
same things (`worker_process`), enters the same fences, and takes turns with those. There is one process for queries
without state, and one for those of `state=rows`, each for one batch at a time. A batch that it does not take is a job:

- one with more events than `small.batch.events`, or one whose request is too large to be sent at once;
- one that comes while it has another query's, which is not done within what a job takes longer;
- one that comes while another is started in place of one that failed.

What a batch's function has to `ask`, as of state, the worker answers in between.

It is there from the start, and forked from the worker's own process, with whose modules it shares the memory: nothing
that the first batches of a worker need is loaded a second time. Spark loads them for its own Python workers with the
first job that has one. Only where the process can't be forked, as later, it is started as a program of its own.

On a cluster there is none: what executors keep in memory is of use to executors.
"""

from __future__ import annotations

import math
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from typing import TypeVar, cast

import structlog
from pyspark.serializers import CloudPickleSerializer

from helenus_connector.config.worker import WorkerSettings
from helenus_connector.query._process_connection import Answers, BatchProcess
from helenus_connector.query.batch_parts import TaskRanges
from helenus_schemas.errors import HelenusError

T = TypeVar("T")
_log = structlog.get_logger(__name__)
_START_AFTER_S = 10.0
"""After the first batch it would take, and after the end of one that failed: a worker that is to end soon starts none,
and a start is not slower for it.
"""
_LOADING_S = 20.0
"""How long the first batches wait for a process that loads its modules: Spark's Python workers would load the same."""
_PAUSE_S = 600.0
"""Before another one is started where one could not be, or ended without a batch: jobs do as well."""
_MOST_BYTES = 1 << 16
"""Of a request: the system takes so many at once, also for a process that was stopped. To send more could wait for it
without end.
"""
_TURN_S = 0.04
"""How long a batch waits for one of another query: a job takes longer by more than that."""
_POLL_S = 0.02
_asking: list[Callable[[bytes], bytes]] = []
"""In the process: what its questions go through."""


def ask(question: bytes) -> bytes:
    """Return the worker's answer. Called by a batch's function, in the process: that of `SmallBatches.run` has who
    answers.
    """
    return _asking[0](question)


def answer_by(send: Callable[[bytes], bytes]) -> None:
    """Have `ask` send its questions so, in this process."""
    _asking[:] = [send]


class SmallBatches:
    """The process of a worker, until `close`. Queries use it from their threads."""

    def __init__(self, worker: WorkerSettings) -> None:
        self._most_events = worker.small_batch_events if worker.is_local else 0
        self._in_use = threading.Lock()
        self._process: BatchProcess | None = None
        self._start_at = math.inf  # monotonic s; infinite before the first batch
        self._load_until = -math.inf  # monotonic s
        self._closed = False

    @property
    def are_taken(self) -> bool:
        """Return whether there is to be a process."""
        return self._most_events > 0

    def fork(self) -> None:
        """Fork the process from this one, which has loaded its modules and has no other thread yet."""
        if self.are_taken and self._process is None and threading.active_count() == 1:
            with suppress(OSError):  # then `start` tries
                self._process = BatchProcess.fork()

    def start(self) -> None:
        """Have the process there for the first batch: start it, if it was not forked. Returns at once: one that has a
        batch is there.
        """
        if not self._in_use.acquire(blocking=False):
            return
        try:
            if self.are_taken and self._process is None:
                self._start_at = time.monotonic()
                self._ready_process()
            self._load_until = time.monotonic() + _LOADING_S
        finally:
            self._in_use.release()

    def run(
        self,
        parts: Sequence[TaskRanges],
        function: Callable[[Iterator[TaskRanges]], Iterator[T]],
        waiting: int,
        is_wanted: Callable[[], bool],
        answers: Answers | None = None,
    ) -> list[T] | None:
        """Return what a function yields for all parts of a batch, in one call; None if the batch is to be a job.
        `waiting` keys and changes are done with it. Once it is not wanted any more, it gets seconds to end. What the
        function asks goes to `answers`.

        Raises HelenusError: what the function raised, and BATCH_FAILED if it was something else or if the process
        ended; and what `answers` raise. Nobody knows then what it has published.
        """
        events = waiting + sum(topic_ranges.events for part in parts for topic_ranges in part.parts)
        if events > self._most_events or not self._in_use.acquire(timeout=_TURN_S):
            return None
        try:
            process = self._ready_process()
            while process is None and self._is_loading() and is_wanted():
                time.sleep(_POLL_S)
                process = self._ready_process()
            request = b"" if process is None else CloudPickleSerializer().dumps((function, list(parts)))
            if process is None or len(request) > _MOST_BYTES:
                return None
            return cast(list[T], process.run(request, is_wanted, answers))
        except BaseException:
            self._end()  # it may still have what it has not published
            raise
        finally:
            self._in_use.release()

    def close(self) -> None:
        """End the process. Called when no query runs any more."""
        with self._in_use:
            self._closed = True
            self._end()

    def _is_loading(self) -> bool:
        return self._process is not None and time.monotonic() < self._load_until

    def _ready_process(self) -> BatchProcess | None:
        """Return the process if it can take a batch now, and start it where it is time for that."""
        if self._process is None and self._start_at is math.inf:
            self._start_at = time.monotonic() + _START_AFTER_S
        if self._closed or (self._process is None and time.monotonic() < self._start_at):
            return None
        try:
            if self._process is None:
                self._process = BatchProcess.spawn()
            return self._process if self._process.is_ready() else None
        except (OSError, HelenusError) as error:
            self._end()
            self._start_at = time.monotonic() + _PAUSE_S
            effect = "small batches are jobs of Spark's meanwhile"
            _log.warning("small_batches.away", reason=str(error), again_in_s=_PAUSE_S, effect=effect)
            return None

    def _end(self) -> None:
        if self._process is not None:
            self._process.end()
            self._process = None
            self._start_at, self._load_until = time.monotonic() + _START_AFTER_S, -math.inf
