"""Spans: ids that processes agree on, what switches traces on, and an exporter for which nobody waits."""

from __future__ import annotations

import subprocess
import sys
import time
import uuid
from collections.abc import Iterator
from typing import Any

import pytest
import structlog
from hypothesis import given
from hypothesis import strategies as st
from opentelemetry.sdk.trace.sampling import Decision, TraceIdRatioBased
from otel.receiver import Receiver, receiving
from patience import eventually
from prometheus_client import CollectorRegistry, Counter

from helenus_schemas.errors import HelenusError, Kind
from helenus_schemas.event.change import Change, Scope
from helenus_schemas.event.wire import encode
from helenus_schemas.service.span_exporter import SpanQueue, check_traces, traced_ratio
from helenus_schemas.service.spans import (
    ChangeSampler,
    FinishedSpan,
    SpanContext,
    agent_span,
    logged_context,
    new_trace,
    parse_traceparent,
)
from helenus_schemas.settings.shared import TraceSettings

NODE = str(uuid.UUID(int=1))
OTHER = str(uuid.UUID(int=2))
DIGEST = "0123456789abcdef" * 2
ON = {"otel.traces.exporter": "otlp"}
digests = st.integers(0, 2**128 - 1).map("{:032x}".format)


def settings(**properties: str) -> TraceSettings:
    return TraceSettings.from_properties({key.replace("_", "."): text for key, text in properties.items()}, "test")


def span(name: str = "a") -> FinishedSpan:
    return FinishedSpan(name, new_trace(), time.time_ns(), time.time_ns())


def new_counter() -> Counter:
    return Counter("spans", "Spans.", ["outcome"], registry=CollectorRegistry())


def outcomes(counter: Counter) -> dict[str, float]:
    samples = next(iter(counter.collect())).samples
    return {sample.labels["outcome"]: sample.value for sample in samples if sample.name == "spans_total"}


@pytest.fixture(autouse=True)
def _no_variables(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OTEL_BSP_SCHEDULE_DELAY", "50")


@pytest.fixture
def receiver(monkeypatch: pytest.MonkeyPatch) -> Iterator[Receiver]:
    with receiving() as receiver:
        monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", receiver.url)
        yield receiver


@given(digests, st.floats(0, 1))
def test_changes_are_sampled_as_the_sdk_samples_their_trace_ids(digest: str, ratio: float) -> None:
    expected = TraceIdRatioBased(ratio).should_sample(None, int(digest, 16), "any").decision
    value = encode(Change(digest, NODE, segment=1, position=2))
    assert ChangeSampler(ratio).samples(value) == (expected is Decision.RECORD_AND_SAMPLE)


@given(digests, st.floats(0, 1), st.floats(0, 1))
def test_a_lower_ratio_samples_a_part_of_what_a_higher_one_does(digest: str, ratio: float, other: float) -> None:
    value = encode(Change(digest, NODE))
    lower, higher = ChangeSampler(min(ratio, other)), ChangeSampler(max(ratio, other))
    assert higher.samples(value) or not lower.samples(value)


def test_nothing_without_a_digest_is_sampled() -> None:
    for value in (b"", b"\0" * 80, encode(Change(None, NODE)), encode(Change(None, None)), b"\2" * 90):
        assert not ChangeSampler(1).samples(value)


def test_replicas_share_a_trace_and_have_spans_of_their_own() -> None:
    first, repeated, other = (agent_span(Change(DIGEST, n, segment=1, position=2)) for n in (NODE, NODE, OTHER))
    assert first is not None
    assert other is not None
    assert first == repeated
    assert first.trace_id == other.trace_id == DIGEST
    assert first.span_id != other.span_id
    second_part = agent_span(Change(DIGEST, NODE, part=1, parts=2, segment=1, position=2))
    assert second_part is not None
    assert second_part.span_id != first.span_id


def test_another_agents_event_has_no_span_of_ours_before_it() -> None:
    assert agent_span(Change(DIGEST, NODE, foreign=True)) is None
    assert agent_span(Change(None, None, Scope.ROW, segment=1)) is None


def test_traceparent_goes_there_and_back() -> None:
    context = SpanContext(DIGEST, "0123456789abcdef")
    assert context.traceparent == b"00-" + DIGEST.encode() + b"-0123456789abcdef-01"
    assert parse_traceparent(context.traceparent) == context
    for wrong in (None, b"", b"x", context.traceparent + b"-more", context.traceparent.replace(b"00-", b"ff-", 1)):
        assert parse_traceparent(wrong) is None
    for no_ids in (SpanContext("0" * 32, context.span_id), SpanContext(DIGEST, "0" * 16)):
        assert parse_traceparent(no_ids.traceparent) is None


@pytest.mark.parametrize(
    ("properties", "variables", "ratio"),
    [
        ({}, {}, None),
        (ON, {}, 0.01),
        ({}, {"OTEL_TRACES_EXPORTER": "otlp"}, 0.01),
        ({"otel.traces.exporter": "none"}, {"OTEL_TRACES_EXPORTER": "otlp"}, None),
        (ON, {"OTEL_SDK_DISABLED": "true"}, None),
        (ON, {"OTEL_TRACES_SAMPLER": "always_off"}, None),
        (ON, {"OTEL_TRACES_SAMPLER": "parentbased_always_on"}, 1.0),
        (ON, {"OTEL_TRACES_SAMPLER": "traceidratio", "OTEL_TRACES_SAMPLER_ARG": "0.25"}, 0.25),
        (ON, {"OTEL_TRACES_SAMPLER": "parentbased_traceidratio"}, 1.0),
        ({**ON, "otel.traces.sampler.arg": "0.5"}, {"OTEL_TRACES_SAMPLER": "always_on"}, 0.5),
        ({**ON, "otel.traces.sampler.arg": "0"}, {}, 0.0),
    ],
)
def test_what_switches_traces_on(properties: dict[str, str], variables: dict[str, str], ratio: float | None) -> None:
    assert traced_ratio(settings(**properties), variables) == ratio


@pytest.mark.parametrize(
    ("variable", "text"),
    [
        ("OTEL_TRACES_EXPORTER", "zipkin"),
        ("OTEL_EXPORTER_OTLP_PROTOCOL", "grpc"),
        ("OTEL_EXPORTER_OTLP_ENDPOINT", "collector:4318"),
        ("OTEL_EXPORTER_OTLP_TRACES_ENDPOINT", "http://user:hidden@collector:4318/v1/traces"),
        ("OTEL_TRACES_SAMPLER", "jaeger_remote"),
    ],
)
def test_a_variable_that_cannot_work_is_named_and_not_shown(variable: str, text: str) -> None:
    variables = {"OTEL_TRACES_EXPORTER": "otlp", variable: text}
    with pytest.raises(HelenusError, match=variable) as error:
        traced_ratio(settings(), variables)
    assert error.value.kind is Kind.CONFIG
    assert "hidden" not in str(error.value)
    assert text not in str(error.value)


@pytest.mark.parametrize("text", ["2", "-0.1", "nan", "half"])
def test_a_ratio_is_from_0_to_1(text: str) -> None:
    variables = {"OTEL_TRACES_SAMPLER": "traceidratio", "OTEL_TRACES_SAMPLER_ARG": text}
    with pytest.raises(HelenusError, match="0 to 1"):
        traced_ratio(settings(**ON), variables)
    with pytest.raises(HelenusError, match=r"otel\.traces\.sampler\.arg"):
        settings(**{"otel.traces.sampler.arg": text})


def test_a_missing_extra_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "opentelemetry.sdk.trace.export", None)
    check_traces(settings())
    for check in (lambda: check_traces(settings(**ON)), lambda: SpanQueue(settings(**ON), "any", new_counter())):
        with pytest.raises(HelenusError, match="install the extra otel") as error:
            check()
        assert error.value.kind is Kind.CONFIG


def test_nothing_of_opentelemetry_is_loaded_where_traces_are_off() -> None:
    modules = "helenus_agent.cli, helenus_agent.agent_run, helenus_connector.query.events_query"
    code = (
        f"import sys, {modules}\n"
        "from helenus_schemas.service.span_exporter import check_traces\n"
        "from helenus_schemas.settings.shared import TraceSettings\n"
        "check_traces(TraceSettings.from_properties({}, 'test'))\n"
        "print([name for name in sys.modules if name.startswith('opentelemetry')])"
    )
    command = [sys.executable, "-c", code]
    done_process = subprocess.run(command, capture_output=True, text=True, timeout=120, check=True)
    assert done_process.stdout.strip() == "[]"


def test_spans_arrive_as_they_are(receiver: Receiver) -> None:
    counter = new_counter()
    queue = SpanQueue(settings(**ON), "helenus-test", counter)
    parent, link = new_trace(), new_trace()
    context = SpanContext(parent.trace_id, "00000000000000ab")
    attributes: dict[str, Any] = {"db.namespace": "ks", "helenus.position": 7, "helenus.has_record": True}
    queue.add([FinishedSpan("send t", context, 1000, 3000, parent, "producer", attributes, [link], "poison_event")])
    queue.close()
    (received,) = receiver.spans
    assert (received.service, received.name, received.kind) == ("helenus-test", "send t", 4)
    assert (received.trace_id, received.span_id, received.parent_id) == (*context, parent.span_id)
    assert (received.start, received.end, received.status) == (1000, 3000, 2)
    assert received.attributes == attributes
    assert received.links == (tuple(link),)
    assert outcomes(counter) == {"exported": 1}


def test_the_process_is_named_as_opentelemetrys_variables_say(
    receiver: Receiver, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OTEL_RESOURCE_ATTRIBUTES", "service.name=first,deployment.environment.name=test")
    queue = SpanQueue(settings(**ON), "helenus-test", new_counter())
    queue.add([span()])
    queue.close()
    monkeypatch.setenv("OTEL_SERVICE_NAME", "second")
    queue = SpanQueue(settings(**ON), "helenus-test", new_counter())
    queue.add([span()])
    queue.close()
    assert [received.service for received in receiver.spans] == ["first", "second"]


def test_a_receiver_that_is_away_is_counted_and_logged_once(monkeypatch: pytest.MonkeyPatch) -> None:
    with receiving() as receiver:
        url, port = receiver.url, receiver.port
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", url)
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_TIMEOUT", "1")
    counter = new_counter()
    with structlog.testing.capture_logs() as lines:
        queue = SpanQueue(settings(**ON), "any", counter)
        for failed in (1, 2):
            queue.add([span()])
            eventually(lambda count=failed: outcomes(counter).get("failed") == count, "it was not exported")
        with receiving(port):
            queue.add([span()])
            eventually(lambda: outcomes(counter).get("exported") == 1, "it was exported")
            queue.close()
    assert [line["event"] for line in lines] == ["traces.not_exported", "traces.exported"]


def test_a_queue_that_is_full_drops_and_counts(receiver: Receiver, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OTEL_BSP_MAX_QUEUE_SIZE", "3")
    monkeypatch.setenv("OTEL_BSP_MAX_EXPORT_BATCH_SIZE", "3")
    monkeypatch.setenv("OTEL_BSP_SCHEDULE_DELAY", "600000")
    monkeypatch.setattr("helenus_schemas.service.span_exporter._counted", lambda exporter, queue: exporter)
    counter = new_counter()
    queue = SpanQueue(settings(**ON), "any", counter)  # with nobody to note what left it
    queue.add([span() for _ in range(5)])
    assert outcomes(counter) == {"dropped": 2}
    queue.close()
    assert len(receiver.spans) == 3


def test_headers_reach_the_receiver_and_no_log(
    receiver: Receiver, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    from helenus_schemas.service import logs

    logs.configure("debug")
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_HEADERS", "authorization=Basic%20hidden,broken hidden")
    for receiver.status_code in (403, 200):
        queue = SpanQueue(settings(**ON), "any", new_counter())
        queue.add([span()])
        queue.close()
    assert receiver.headers["authorization"] == "Basic hidden"
    assert "hidden" not in "".join(capsys.readouterr())


def test_the_end_waits_for_no_receiver(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("helenus_schemas.service.span_exporter._CLOSE_S", 0.1)
    with receiving() as receiver:
        receiver.status_code = 503  # which the SDK tries again, with pauses
        monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", receiver.url)
        queue = SpanQueue(settings(**ON), "any", new_counter())
        queue.add([span()])
        queue.close()
        assert receiver.requests <= 2


def test_log_lines_carry_the_ids() -> None:
    context = new_trace()
    ids = {"trace_id": context.trace_id, "span_id": context.span_id}
    with logged_context(context):
        assert structlog.contextvars.get_contextvars() == ids
    assert structlog.contextvars.get_contextvars() == {}


def test_what_the_sdk_refuses_is_said(receiver: Receiver, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OTEL_BSP_MAX_QUEUE_SIZE", "5")  # less than the size of a batch
    with pytest.raises(HelenusError, match="max_export_batch_size") as error:
        SpanQueue(settings(**ON), "any", new_counter())
    assert error.value.kind is Kind.CONFIG
