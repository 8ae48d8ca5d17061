"""Run slices as Spark jobs of one task each, several at once, in a scheduler pool of their own: streaming goes on."""

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
        self._one_partition = spark.sparkContext.parallelize([0], 1)
        self._context = spark.sparkContext
        self._requests: queue.SimpleQueue[tuple[ScanSlice, Future[ScanResult]]] = queue.SimpleQueue()
        self._idle = threading.Semaphore(0)

    @property
    def max_slices(self) -> int:
        """Return how many slices may run at once now: one task less than Spark runs, so that streaming goes on."""
        return max(1, task_slots(self._spark) - 1)

    def submit(self, slice_: ScanSlice) -> Future[ScanResult]:
        """Run a slice. The future never raises: an error of Spark's is in the result."""
        future: Future[ScanResult] = Future()
        self._requests.put((slice_, future))
        if not self._idle.acquire(blocking=False):
            threading.Thread(target=self._run_requests, name="snapshot-slices", daemon=True).start()
        return future

    def _run_requests(self) -> None:
        self._context.setLocalProperty("spark.scheduler.pool", _POOL)
        while True:
            slice_, future = self._requests.get()
            started_at = time.monotonic()
            try:
                [result] = self._one_partition.mapPartitions(task(slice_)).collect()
            except Exception as error:  # Py4J's, of some kinds; a task that died
                problem = f"a task of the snapshot failed: {str(error).splitlines()[0][:300]}"
                result = ScanResult(error=HelenusError(Kind.BATCH_FAILED, problem, slice_.table.full_name))
            seconds = round(time.monotonic() - started_at, 3)
            _log.debug(
                "snapshot.slice", table=slice_.table.full_name, rows=result.rows, seconds=seconds, own=result.seconds
            )
            self._idle.release()  # before the next slice is asked for
            future.set_result(result)
