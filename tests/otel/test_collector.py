"""What we export is what OpenTelemetry's own collector takes."""

from __future__ import annotations

from pathlib import Path

import pytest
from otel.collector import collecting
from patience import eventually
from prometheus_client import CollectorRegistry, Counter

from helenus_schemas.service.span_exporter import SpanQueue
from helenus_schemas.service.spans import FinishedSpan, SpanContext, new_trace
from helenus_schemas.settings.shared import TraceSettings

pytestmark = pytest.mark.long


def test_the_collector_takes_our_spans(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    parent, link = new_trace(), new_trace()
    context = SpanContext(parent.trace_id, "00000000000000ab")
    with collecting(tmp_path) as collector:
        monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", collector.url)
        settings = TraceSettings.from_properties({"otel.traces.exporter": "otlp"}, "test")
        counter = Counter("collected_spans", "Spans.", ["outcome"], registry=CollectorRegistry())
        queue = SpanQueue(settings, "helenus-test", counter)
        attributes = {"db.namespace": "ks", "helenus.position": 7, "helenus.has_record": True}
        queue.add([FinishedSpan("send t", context, 1000, 3000, parent, "producer", attributes, [link])])
        queue.close()
        eventually(collector.received, lambda: f"the span arrived: {collector.log.read_text()[-1000:]}")
        (span,) = collector.received()
    assert (span.service, span.name, span.kind) == ("helenus-test", "send t", 4)
    assert (span.trace_id, span.span_id, span.parent_id) == (*context, parent.span_id)
    assert (span.start, span.end, span.links) == (1000, 3000, (tuple(link),))
    assert span.attributes == {"db.namespace": "ks", "helenus.position": "7", "helenus.has_record": True}
