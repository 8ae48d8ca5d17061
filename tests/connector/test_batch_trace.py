"""The trace of a batch of one table: sampled changes, their records' header, and the steps."""

from __future__ import annotations

import pickle
import uuid
from collections.abc import Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from agent.writer import Cell, Row, Update, table_of
from connector.celled import NONE
from connector.celled import events as celled_events
from connector.staged import CLUSTERED, DATA, EVENTS, NODE, Staged, int32, rows

from helenus_connector.interfaces.event import Event
from helenus_connector.pipeline.batch_outcome import BatchOutcome
from helenus_connector.pipeline.batch_trace import TableTrace, TracedBatch, begin_traced_batch
from helenus_connector.testing.log import MemoryRecord
from helenus_schemas.errors import HelenusError, Kind
from helenus_schemas.event.change import Change, Scope
from helenus_schemas.event.wire import encode
from helenus_schemas.service.spans import FinishedSpan, agent_span, new_trace
from helenus_sinks.pulsar import wire as pulsar_wire

LOW, HIGH = "f" * 16 + "0" * 16, "0" * 16 + "f" * 16
"""Digests of changes that every ratio samples, and none below 1."""
OTHER = str(uuid.UUID(int=2))


class Traced(Staged):
    """A stage that is given a trace for each batch; `spans` are those of the last."""

    def __init__(self, definition: Any, directory: Path, monkeypatch: pytest.MonkeyPatch, **more: str) -> None:
        super().__init__(definition, directory, monkeypatch, **more)
        self.trace_batch: TracedBatch = begin_traced_batch(0.5)
        self.spans: Sequence[FinishedSpan] = ()
        self.offset = 0
        self.live.update(rows(((int32(1), int32(1)), int32(5)), ((int32(1), int32(2)), int32(6))))

    def key(self, clustering: int) -> bytes:
        return self.codec.encode((int32(1), int32(clustering)))

    def change(self, digest: str | None = LOW, node: str = NODE, **more: Any) -> Change:
        return Change(digest, node, segment=3, position=40, write_time=1, **more)

    def traced(self, *changes: tuple[int, Change], systems: tuple[str, str] = ("kafka", "kafka")) -> BatchOutcome:
        events = []
        for clustering, change in changes:
            self.offset += 1
            events.append(Event(EVENTS, 0, self.offset, 1000, self.key(clustering), encode(change)))
        trace = TableTrace(self.trace_batch, self.stage.settings, events, systems)
        outcome = self.stage.run(events, [], trust_images=True, trace=trace)
        self.spans = pickle.loads(pickle.dumps(trace.finish(outcome, None)))
        return outcome

    def named(self, name: str) -> list[FinishedSpan]:
        return [span for span in self.spans if span.name == name]

    @property
    def records(self) -> list[MemoryRecord]:
        return [record for record in self.appended if record.topic == DATA]

    @property
    def parents(self) -> list[bytes | None]:
        """The header of each record of the data topic."""
        return [dict(record.headers).get("traceparent") for record in self.records]


@pytest.fixture
def traced(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Traced:
    return Traced(CLUSTERED, tmp_path, monkeypatch)


def test_a_sampled_change_goes_on_in_its_record(traced: Traced) -> None:
    traced.traced((1, traced.change()), (2, traced.change(HIGH)))
    (process,), (send,) = traced.named(f"process {EVENTS}"), traced.named(f"send {DATA}")
    (table,) = traced.named("table ks.t")
    assert process.parent == agent_span(traced.change())
    assert process.context.trace_id == send.context.trace_id == LOW
    assert (send.parent, send.kind, process.kind) == (process.context, "producer", "consumer")
    assert process.links == [table.context]
    assert table.parent == traced.trace_batch.context
    assert process.attributes["helenus.has_record"] is True
    assert process.attributes["messaging.kafka.offset"] == 1
    assert traced.parents == [send.context.traceparent, None]
    assert process.start_ns <= send.start_ns <= send.end_ns == process.end_ns


def test_the_table_has_its_steps_and_numbers(traced: Traced) -> None:
    traced.traced((1, traced.change(HIGH)))
    table, *steps = traced.spans
    assert [step.name for step in steps] == ["gate", "publish", "flush"]
    assert all(step.parent == table.context for step in steps)
    assert all(first.end_ns == second.start_ns for first, second in pairwise(steps))
    assert table.attributes["helenus.events"] == table.attributes["helenus.records"] == 1
    assert table.attributes["helenus.connector"] == "n"


def test_no_attribute_is_a_value_of_a_row(traced: Traced) -> None:
    traced.live.update(rows(((int32(1), int32(1)), int32(987654321))))
    traced.traced((1, traced.change()))
    assert "987654321" not in repr(traced.spans)


def test_a_replicas_copy_is_in_the_same_trace(traced: Traced) -> None:
    traced.traced((1, traced.change()), (1, traced.change(node=OTHER)))
    first, copied = traced.named(f"process {EVENTS}")
    assert (first.parent, copied.parent) == tuple(agent_span(traced.change(node=node)) for node in (NODE, OTHER))
    assert {span.context.trace_id for span in (first, copied)} == {LOW}
    assert len(traced.records) == 1


def test_a_copy_in_a_later_batch_has_no_record(traced: Traced) -> None:
    for node in (NODE, OTHER):
        traced.traced((1, traced.change(node=node)))
    (process,) = traced.named(f"process {EVENTS}")
    assert process.attributes["helenus.has_record"] is (len(traced.records) == 2)


def test_of_several_changes_of_a_key_the_record_names_the_last(traced: Traced) -> None:
    second = "0" * 15 + "1" + "0" * 16
    traced.traced((1, traced.change()), (1, traced.change(second)))
    assert len(traced.records) == 1
    (header,) = traced.parents
    assert header is not None and header.split(b"-")[1] == second.encode()  # noqa: PT018
    assert len(traced.named(f"process {EVENTS}")) == 2


def test_what_the_log_did_not_take_has_no_record_and_says_why(traced: Traced) -> None:
    events = [Event(EVENTS, 0, 1, 1000, traced.key(1), encode(traced.change()))]
    trace = TableTrace(traced.trace_batch, traced.stage.settings, events, ("kafka", "kafka"))
    spans = trace.finish(None, HelenusError(Kind.APPEND_FAILED, "secret text", "there"))
    assert [span.name for span in spans] == ["table ks.t", f"process {EVENTS}"]
    assert {span.error for span in spans} == {Kind.APPEND_FAILED.value}
    assert spans[1].attributes["helenus.has_record"] is False


def test_without_a_trace_no_record_has_the_header(traced: Traced) -> None:
    traced.run(traced.change(), traced.key(1))
    assert traced.parents == [None]


def test_a_batch_without_sampled_changes_takes_the_usual_way(traced: Traced) -> None:
    trace = TableTrace(traced.trace_batch, traced.stage.settings, [], ("kafka", "kafka"))
    assert trace.traced_versions(traced.stage.versions) is traced.stage.versions


def test_an_applications_header_stays_and_is_linked(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    application = new_trace()
    transform = {  # as one that takes both from columns does
        "transforms": "own, baggage",
        "transforms.own.type": "org.apache.kafka.connect.transforms.InsertHeader",
        "transforms.own.header": "traceparent",
        "transforms.own.value.literal": application.traceparent.decode(),
        "transforms.baggage.type": "org.apache.kafka.connect.transforms.InsertHeader",
        "transforms.baggage.header": "baggage",
        "transforms.baggage.value.literal": "tenant=7",
        "header.converter": "org.apache.kafka.connect.storage.StringConverter",
        "value.converter": "org.apache.kafka.connect.json.JsonConverter",
        "key.converter": "org.apache.kafka.connect.json.JsonConverter",
    }
    traced = Traced(CLUSTERED, tmp_path, monkeypatch, **transform)
    traced.traced((1, traced.change()))
    assert traced.parents == [application.traceparent]
    assert dict(traced.records[0].headers)["baggage"] == b"tenant=7"
    assert traced.named(f"send {DATA}")[0].links == [application]


def test_no_baggage_is_made(traced: Traced) -> None:
    traced.traced((1, traced.change()))
    names = {name for record in traced.records for name, _ in record.headers}
    assert "traceparent" in names
    assert not names & {"baggage", "tracestate"}


@pytest.mark.parametrize("value", [b"", b"\2@" + b"z" * 40, b"\2@" + b"0" * 32, b"\2@" + b"zz" + b"0" * 30 + b"\0\0"])
def test_an_event_that_is_none_ends_no_batch(traced: Traced, value: bytes) -> None:
    events = [Event(EVENTS, 0, 1, 1000, traced.key(1), value), Event(EVENTS, 0, 2, 1000, None, None)]
    trace = TableTrace(traced.trace_batch, traced.stage.settings, events, ("kafka", "kafka"))
    assert [span.name for span in trace.finish(None, None)] == ["table ks.t"]


@pytest.mark.parametrize(
    "digest", ["0" * 32, "-" + "0" * 30 + "1", "0x" + "0" * 29 + "1", "0_" * 15 + "01", " " * 31 + "1"]
)
def test_a_digest_that_is_no_trace_id_has_no_span(traced: Traced, digest: str) -> None:
    """Python reads most of them as a number. No receiver takes the spans beside it."""
    traced.trace_batch = begin_traced_batch(1)
    traced.traced((1, traced.change(digest)))
    assert traced.parents == [None]
    assert {span.context.trace_id for span in traced.spans} == {traced.trace_batch.context.trace_id}


def test_a_delete_has_the_header_and_a_truncation_no_span(traced: Traced) -> None:
    traced.live.clear()
    traced.traced((1, traced.change()))
    assert [record.value for record in traced.records] == [None]
    assert traced.parents != [None]
    notice = Event(EVENTS, 0, 9, 1000, None, encode(traced.change(scope=Scope.TABLE)))
    trace = TableTrace(traced.trace_batch, traced.stage.settings, [notice], ("kafka", "kafka"))
    assert len(trace.finish(None, None)) == 1


def test_pulsars_messages_have_the_header_as_a_property(traced: Traced) -> None:
    traced.traced((1, traced.change()), systems=("pulsar", "pulsar"))
    (process,), (record,) = traced.named(f"process {EVENTS}"), traced.records
    assert process.attributes["messaging.system"] == "pulsar"
    assert "messaging.kafka.offset" not in process.attributes
    metadata = pulsar_wire.keyed(record.key, record.value, record.headers, False)
    (parent,) = traced.parents
    assert parent is not None
    properties = {pair["key"]: pair["value"] for pair in metadata["properties"]}
    assert properties["traceparent"] == parent.decode()


def test_without_a_read_each_change_has_its_own_trace(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    table = table_of("t", "p int pk, c int ck, v int")
    staged = Traced(table, tmp_path, monkeypatch, **NONE)
    updates = [Update(table, int32(1), [Row((int32(1),), {"v": Cell(int32(value))}, time=value)]) for value in (5, 6)]
    events = celled_events(*updates)
    trace = TableTrace(begin_traced_batch(1), staged.stage.settings, events, ("kafka", "kafka"))
    outcome = staged.stage.run(events, [], trust_images=True, trace=trace)
    sent = [span.context.traceparent for span in trace.finish(outcome, None) if span.name == f"send {DATA}"]
    assert staged.parents == sent
    assert len({parent.split(b"-")[1] for parent in sent}) == 2
