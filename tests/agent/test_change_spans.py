"""The agent's spans: of sampled changes that the broker has acknowledged, and of no others."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import cast

import pytest
from agent.fakes import HOST, write_of
from agent.test_agent import TABLE, Bench

from helenus_agent import agent as module
from helenus_agent.delivery.change_spans import ChangeSpans
from helenus_schemas.errors import HelenusError
from helenus_schemas.event.wire import decode
from helenus_schemas.service.span_exporter import SpanQueue
from helenus_schemas.service.spans import FinishedSpan, agent_span


class MemoryQueue:
    """Keeps the spans that it is given."""

    def __init__(self) -> None:
        self.spans: list[FinishedSpan] = []

    def add(self, spans: Iterable[FinishedSpan]) -> None:
        self.spans += spans


@pytest.fixture
def bench(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Bench]:
    monkeypatch.setattr(module, "_COMMIT", 0.0)
    bench = Bench(tmp_path)
    bench.raw.segment(10)
    yield bench
    bench.state.close()


def start(bench: Bench, ratio: float = 1.0) -> MemoryQueue:
    queue = MemoryQueue()
    bench.start()._spans = ChangeSpans(cast(SpanQueue, queue), ratio, "kafka", "events-")
    return queue


def test_a_change_has_the_span_that_its_event_tells_of(bench: Bench) -> None:
    queue = start(bench)
    bench.raw.write(10, write_of(TABLE, 1), write_of(TABLE, 2))
    bench.run_agent()
    changes = [decode(record.value or b"") for record in bench.log.acknowledged]
    assert {span.context for span in queue.spans} == {agent_span(change) for change in changes}
    span = queue.spans[0]
    assert (span.name, span.kind, span.parent) == ("send events-ks.t", "producer", None)
    assert span.context.trace_id == changes[0].digest
    assert 0 < span.start_ns <= span.end_ns
    assert span.attributes == {
        "messaging.system": "kafka",
        "messaging.destination.name": "events-ks.t",
        "messaging.operation.type": "send",
        "db.system.name": "cassandra",
        "db.namespace": "ks",
        "db.collection.name": "t",
        "helenus.scope": "row",
        "helenus.node": HOST,
        "helenus.segment": 10,
        "helenus.position": changes[0].position,
        "helenus.write_time": changes[0].write_time,
    }
    assert all(record.headers == () for record in bench.log.acknowledged)


def test_the_ratio_decides(bench: Bench) -> None:
    queue = start(bench, 0.5)
    bench.raw.write(10, *(write_of(TABLE, key) for key in range(100)))
    bench.run_agent()
    digests = {decode(record.value or b"").digest or "" for record in bench.log.acknowledged}
    assert {span.context.trace_id for span in queue.spans} == {d for d in digests if int(d[16:], 16) < 1 << 63}
    assert 0 < len(queue.spans) < 100


def test_what_is_not_acknowledged_has_no_span_until_it_is_sent_again(bench: Bench) -> None:
    queue = start(bench)
    bench.log.refuse_flush = 1
    bench.raw.write(10, write_of(TABLE, 1))
    with pytest.raises(HelenusError):
        bench.run_agent()
    assert bench.agent is not None
    bench.agent._rewind()
    assert queue.spans == []
    bench.run_agent()
    assert len(queue.spans) == 1


def test_an_agent_without_traces_makes_none(bench: Bench) -> None:
    assert bench.start()._spans is None
    bench.raw.write(10, write_of(TABLE, 1))
    bench.run_agent()
    assert len(bench.log.acknowledged) == 1
