"""The spans of a query's batches, in the driver: it exports those that the tasks hand to it with their results, too.

So executors need neither the extra `otel` nor a way to the receiver, and a Python worker that Spark ends takes no spans
with it.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import TypeVar

from helenus_connector.pipeline.batch_trace import TracedBatch, begin_traced_batch
from helenus_connector.query._worker_task import TopicResult
from helenus_schemas.service.span_exporter import SpanQueue
from helenus_schemas.service.spans import AttributeValue, FinishedSpan, logged_context

T = TypeVar("T")


class BatchSpans:
    """Makes and exports the spans of batches; a `ratio` of the changes has spans too. Several threads may use it."""

    def __init__(self, queue: SpanQueue, ratio: float) -> None:
        self._queue = queue
        self._ratio = ratio

    def run(self, group: str, batch_id: int, process: Callable[[TracedBatch], T]) -> T:
        """Process a batch of a query within a span, whose ids its log lines carry. Raises as `process`."""
        batch, begin_ns = begin_traced_batch(self._ratio), time.time_ns()
        attributes: dict[str, AttributeValue] = {"helenus.query_group": group, "helenus.batch": batch_id}
        span = FinishedSpan(f"batch {group}", batch.context, begin_ns, begin_ns, attributes=attributes)
        try:
            with logged_context(batch.context):
                return process(batch)
        except Exception as error:
            span.error = type(error).__name__
            raise
        finally:
            span.end_ns = time.time_ns()
            self._queue.add([span])

    def add_results(self, results: Sequence[TopicResult]) -> None:
        """Export the spans of a batch's results."""
        for result in results:
            self._queue.add(result.spans)
