"""Traces, real: agent and connector export to a receiver, and what they write of one change is one trace."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from integration.pipeline import Pipeline, total
from otel.collector import Collector, collecting
from otel.receiver import ReceivedSpan, Receiver, receiving
from patience import eventually

from helenus_stack.status import Status

pytestmark = pytest.mark.integration

KEYS = range(8)
PRODUCER, CONSUMER = 4, 5


@pytest.fixture(scope="module", params=["receiver", pytest.param("collector", marks=pytest.mark.long)])
def receiver(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Receiver | Collector]:
    """A receiver of the test's, and the collector that people run."""
    if request.param == "collector":
        with collecting(tmp_path_factory.mktemp("collector")) as collector:
            yield collector
    else:
        with receiving() as receiver:
            yield receiver


@pytest.fixture(scope="module")
def pipeline(
    status: Status, session: Any, receiver: Receiver | Collector, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Pipeline]:
    """Agent and connector with traces of all changes, switched on by OpenTelemetry's variables alone."""
    replication = "{'class': 'SimpleStrategy', 'replication_factor': 1}"
    keyspace = "traces" if isinstance(receiver, Receiver) else "collected"
    session.execute(f"CREATE KEYSPACE {keyspace} WITH replication = {replication}")
    session.execute(f"CREATE TABLE {keyspace}.t (k int PRIMARY KEY, v text) WITH cdc = true")
    variables = {
        "OTEL_TRACES_EXPORTER": "otlp",
        "OTEL_TRACES_SAMPLER": "always_on",
        "OTEL_EXPORTER_OTLP_ENDPOINT": receiver.url,
        "OTEL_EXPORTER_OTLP_HEADERS": "x-token=hidden-login",
        "OTEL_BSP_SCHEDULE_DELAY": "200",
        "OTEL_EXPORTER_OTLP_TIMEOUT": "2",
    }
    pipeline = Pipeline(status.only("kafka"), tmp_path_factory.mktemp(keyspace))
    try:
        pipeline.agent.start(**variables)
        pipeline.connect(f"{keyspace}.t").start(**variables).ready()
        pipeline.agent.ready()
        yield pipeline
    finally:
        pipeline.stop()


@pytest.fixture(scope="module")
def table(receiver: Receiver | Collector) -> str:
    return "traces.t" if isinstance(receiver, Receiver) else "collected.t"


def parent_of(spans: list[ReceivedSpan], span: ReceivedSpan) -> ReceivedSpan:
    (parent,) = [other for other in spans if other.span_id == span.parent_id and other.trace_id == span.trace_id]
    return parent


def test_a_write_is_one_trace_to_its_record(
    pipeline: Pipeline, session: Any, table: str, receiver: Receiver | Collector
) -> None:
    for key in KEYS:
        session.execute(f"INSERT INTO {table} (k, v) VALUES ({key}, 'secret-value')")
    eventually(lambda: len({r.key["k"] for r in pipeline.records(table)}) == len(KEYS), "all rows are published")
    records = {record.key["k"]: record for record in pipeline.records(table)}
    for record in records.values():
        version, trace_id, span_id, flags = record.headers["traceparent"].decode().split("-")
        assert (version, flags) == ("00", "01")

        def arrived(trace_id: str = trace_id, span_id: str = span_id) -> bool:
            names = {s.name for s in receiver.received() if s.trace_id == trace_id}
            return names >= {f"send events-{table}", f"process events-{table}", f"send data-{table}"}

        eventually(arrived, lambda: f"its spans arrived\n{pipeline.agent.tail(5)}\n{pipeline.connector.tail(20)}")
        spans = receiver.received()
        send = next(span for span in spans if (span.trace_id, span.span_id) == (trace_id, span_id))
        process = parent_of(spans, send)
        agent = parent_of(spans, process)
        assert [span.service for span in (agent, process, send)] == [
            "helenus-agent",
            "helenus-connector",
            "helenus-connector",
        ]
        assert [span.kind for span in (agent, process, send)] == [PRODUCER, CONSUMER, PRODUCER]
        assert (send.name, process.name) == (f"send data-{table}", f"process events-{table}")
        assert agent.name == f"send events-{table}"
        assert agent.parent_id == ""
        assert agent.start <= process.start <= send.start <= send.end
        (link,) = process.links
        tables = [s for s in spans if (s.trace_id, s.span_id) == link]
        assert [span.name for span in tables] == [f"table {table}"]
        eventually(
            lambda span=tables[0]: any(
                s.name == "batch default" and s.span_id == span.parent_id for s in receiver.received()
            ),
            "the batch's span arrived",
        )
    assert "secret-value" not in repr(receiver.received())


def test_log_lines_of_a_batch_have_its_ids(pipeline: Pipeline, receiver: Receiver | Collector) -> None:
    batches = {span.trace_id for span in receiver.received() if span.name == "batch default"}
    lines = [line for line in pipeline.connector.log.read_text().splitlines() if "batch.done" in line]
    assert lines
    ids = {word.partition("=")[2] for line in lines for word in line.split() if word.startswith("trace_id=")}
    assert batches & ids
    for command in (pipeline.agent, pipeline.connector):
        assert "hidden-login" not in command.log.read_text()


def test_without_a_receiver_records_go_on(
    pipeline: Pipeline, session: Any, table: str, receiver: Receiver | Collector
) -> None:
    if isinstance(receiver, Collector):
        pytest.skip("the receiver of the test says no more easily")
    receiver.status_code = 503
    failures = pipeline.agent.log.read_text().count("traces.not_exported")
    try:
        session.execute(f"INSERT INTO {table} (k, v) VALUES (100, 'x')")
        eventually(lambda: 100 in {r.key["k"] for r in pipeline.records(table)}, "the row is published")

        def counted() -> bool:
            agent, connector = pipeline.agent.metrics(), pipeline.connector.metrics()
            return bool(
                total(agent, "helenus_agent_spans_total", outcome="failed")
                and total(connector, "helenus_connector_spans_total", outcome="failed")
            )

        eventually(counted, "the lost spans are counted")
        assert pipeline.agent.health()[0] == pipeline.connector.health()[0] == 200
        assert pipeline.agent.log.read_text().count("traces.not_exported") == failures + 1
    finally:
        receiver.status_code = 200
    session.execute(f"INSERT INTO {table} (k, v) VALUES (101, 'x')")
    eventually(lambda: "traces.exported" in pipeline.agent.log.read_text(), "spans arrive again")


def test_the_ends_are_quick_and_clean(pipeline: Pipeline, receiver: Receiver | Collector) -> None:
    sent = len(receiver.received())
    assert pipeline.agent.stop() == 0
    assert pipeline.connector.stop() == 0
    assert len(receiver.received()) >= sent
