"""The driver's spans: one for each batch, whatever becomes of it, and those of its results."""

from __future__ import annotations

from collections.abc import Iterable
from typing import cast

import pytest
import structlog

from helenus_connector.pipeline.batch_trace import TracedBatch
from helenus_connector.query._worker_task import TopicResult
from helenus_connector.query.batch_spans import BatchSpans
from helenus_schemas.errors import HelenusError, Kind
from helenus_schemas.service.span_exporter import SpanQueue
from helenus_schemas.service.spans import FinishedSpan, new_trace


class MemoryQueue:
    """Keeps the spans that it is given."""

    def __init__(self) -> None:
        self.spans: list[FinishedSpan] = []

    def add(self, spans: Iterable[FinishedSpan]) -> None:
        self.spans += spans


def test_a_batch_has_a_span_and_its_log_lines_the_ids() -> None:
    queue = MemoryQueue()
    spans = BatchSpans(cast(SpanQueue, queue), 0.25)
    table_span = FinishedSpan("table ks.t", new_trace(), 1, 2)

    def process(batch: TracedBatch) -> dict[str, str]:
        assert batch.ratio == 0.25
        spans.add_results([TopicResult("a"), TopicResult("b", spans=(table_span,))])
        return dict(structlog.contextvars.get_contextvars())

    ids = spans.run("default", 7, process)
    assert queue.spans[0] == table_span
    batch = queue.spans[1]
    assert ids == {"trace_id": batch.context.trace_id, "span_id": batch.context.span_id}
    assert batch.name == "batch default"
    assert batch.attributes == {"helenus.query_group": "default", "helenus.batch": 7}
    assert (batch.parent, batch.error) == (None, None)
    assert 0 < batch.start_ns <= batch.end_ns


def test_a_batch_that_fails_has_one_too() -> None:
    queue = MemoryQueue()

    def process(batch: TracedBatch) -> None:
        raise HelenusError(Kind.BATCH_FAILED, "a secret", "there")

    with pytest.raises(HelenusError):
        BatchSpans(cast(SpanQueue, queue), 1).run("default", 7, process)
    assert [span.error for span in queue.spans] == ["HelenusError"]
    assert structlog.contextvars.get_contextvars() == {}
