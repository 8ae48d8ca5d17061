"""A query's micro-batches, which a thread of Python fetches from Java.

PySpark's `foreachBatch` has Java call Python. For that, Python listens on a port which takes calls from whoever may
connect, and gives a query batches that Spark never planned. Here Python calls Java, as it does for everything else: by
Java's port, which asks for the secret of this run. Where our class of Java is not to be had it is `foreachBatch` after
all, with a guard at that port (`_callback_port`).
"""

from __future__ import annotations

import io
import pickle
import threading
import time
import traceback
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from typing import Any

from pyspark import TaskContext

from helenus_connector.query._callback_port import guard
from helenus_connector.query.internals import own_classes
from helenus_schemas.service import descriptors

_BATCH_NUMBER_PROPERTY = "helenus.batch"
"""The local property of a job that `MicroBatch.collect` runs, by which its tasks know the batch; also of
`BatchHandover.java`.
"""
_SINK = "helenus.BatchSink"
_RETRY_S = 1.0
"""After which a call of Java is tried again for which no file could be opened: others close theirs within seconds."""


@dataclass(frozen=True)
class MicroBatch:
    """A micro-batch: its number, and its rows for who needs them."""

    number: int
    _open_frame: Callable[[], Any]
    _collect: Callable[[], list[Any]]

    @property
    def frame(self) -> Any:
        """Return the rows, as a DataFrame of the query's session."""
        return self._open_frame()

    def collect(self) -> list[Any]:
        """Return what its rows have, of which each is one pickled object. In a query that needs nothing else of a
        batch, this takes one call of Java, where a DataFrame takes dozens. The tasks may ask for `batch_number`.
        """
        return self._collect()


def batch_number() -> int:
    """Return the number of the batch whose `collect` a task is of. Raises RuntimeError where there is no such batch."""
    context = TaskContext.get()
    number = None if context is None else context.getLocalProperty(_BATCH_NUMBER_PROPERTY)
    if number is None:
        raise RuntimeError("this task is of no batch that is collected")
    return int(number)


def start_query(context: Any, writer: Any, process: Callable[[MicroBatch], None]) -> Any:
    """Start the query of a DataStreamWriter and return it. `process` is called for each of its batches, in a thread of
    its own, in the pool and the job group of the query. What it raises ends the query.
    """
    classes = own_classes(context)
    if classes is None:
        guard(context)
        return _start_publicly(writer, process)
    java = classes.BatchHandover(context._jsc.sc())
    query = writer.format(_SINK).option("handover", java.name()).start()
    try:
        serve = threading.Thread(target=_serve, args=(context, java, query, process), name="batches", daemon=True)
        serve.start()
    except BaseException:
        query.stop()  # or nobody serves it, and Spark refuses the next start, beside this one
        raise
    return query


def _start_publicly(writer: Any, process: Callable[[MicroBatch], None]) -> Any:
    one_at_a_time = threading.Lock()

    def process_frame(frame: Any, number: int) -> None:
        # Spark calls for one batch after the other. Where the port can't be guarded, others may call beside it.
        with one_at_a_time:
            process(MicroBatch(number, lambda: frame, partial(_collect_publicly, frame, number)))

    return writer.foreachBatch(process_frame).start()


def _collect_publicly(frame: Any, number: int) -> list[Any]:
    frame.sparkSession.sparkContext.setLocalProperty(_BATCH_NUMBER_PROPERTY, str(number))
    return [pickle.loads(row[0]) for row in frame.collect()]


def _collect(java: Any) -> list[Any]:
    rows = io.BytesIO(java.collect())
    return [pickle.loads(rows.read(int.from_bytes(length, "big"))) for length in iter(lambda: rows.read(4), b"")]


def _open_frame(context: Any, java: Any) -> Any:
    from pyspark.sql.dataframe import DataFrame
    from pyspark.sql.session import SparkSession

    rows = java.frame()
    return DataFrame(rows, SparkSession(context, rows.sparkSession()))


def _serve(context: Any, java: Any, query: Any, process: Callable[[MicroBatch], None]) -> None:
    error: str | None = None
    while True:
        try:
            number = java.next(query._jsq, error)
        except Exception as failure:
            # A thread's first call of Java opens a connection.
            if descriptors.are_exhausted(failure):
                time.sleep(_RETRY_S)
                continue
            _abandon(java, query, failure)
            return
        if number < 0:
            return
        try:
            process(MicroBatch(number, partial(_open_frame, context, java), partial(_collect, java)))
            error = None
        except BaseException:
            error = traceback.format_exc()


def _abandon(java: Any, query: Any, failure: Exception) -> None:
    """End a query whose batches can't be fetched any more.

    Java has ended as a rule, and its queries with it. If it has not, it still waits for the end of the last batch, even
    once the query is stopped; and whoever watches the query must see that it has no batches any more.
    """
    is_ending = False
    with suppress(Exception):
        is_ending = java.abandon(f"Python can't fetch batches any more: {type(failure).__name__}: {failure}")
    if not is_ending:
        with suppress(Exception):
            query.stop()
