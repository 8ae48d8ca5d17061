"""Slices as Spark jobs of one task each, several at once, in a scheduler pool of their own: streaming goes on."""

from __future__ import annotations

import queue
import threading
import time
from concurrent.futures import Future
from typing import Any

import structlog

from helenus_connector.query.spark_session import task_slots
from helenus_connector.snapshot._scan import ScanResult, ScanSlice, task
from helenus_schemas.errors import HelenusError, Kind

_log = structlog.get_logger(__name__)
_POOL = "snapshots"


class SnapshotJobs:
    """Runs slices, each in a thread. Its threads end with the process, which does not wait for them."""

    def __init__(self, spark: Any) -> None:
        self._spark = spark
        self._one = spark.sparkContext.parallelize([0], 1)
        self._context = spark.sparkContext
        self._asked: queue.SimpleQueue[tuple[ScanSlice, Future[ScanResult]]] = queue.SimpleQueue()
        self._idle = threading.Semaphore(0)

    @property
    def most(self) -> int:
        """How many slices may run at once now: one task less than Spark runs, so that streaming goes on."""
        return max(1, task_slots(self._spark) - 1)

    def submit(self, slice_: ScanSlice) -> Future[ScanResult]:
        """The result of a slice, once it is there. It never raises: an error of Spark's is in the result."""
        future: Future[ScanResult] = Future()
        self._asked.put((slice_, future))
        if not self._idle.acquire(blocking=False):
            threading.Thread(target=self._work, name="snapshot-slices", daemon=True).start()
        return future

    def _work(self) -> None:
        self._context.setLocalProperty("spark.scheduler.pool", _POOL)
        while True:
            slice_, future = self._asked.get()
            begun = time.monotonic()
            try:
                [done] = self._one.mapPartitions(task(slice_)).collect()
            except Exception as error:  # Py4J's, of some kinds; a task that died
                what = f"a task of the snapshot failed: {str(error).splitlines()[0][:300]}"
                done = ScanResult(error=HelenusError(Kind.BATCH_FAILED, what, slice_.table.full_name))
            seconds = round(time.monotonic() - begun, 3)
            _log.debug(
                "snapshot.slice", table=slice_.table.full_name, rows=done.rows, seconds=seconds, own=done.seconds
            )
            self._idle.release()  # before the next slice is asked for
            future.set_result(done)
