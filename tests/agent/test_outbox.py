"""Topics that are deleted, or recreated, while the agent runs."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from agent.fakes import FakeLog, write_of
from agent.test_agent import TABLE, Bench
from agent.writer import table_of

from helenus_agent import agent as module
from helenus_agent.commitlog.decoder import DecodedBatch
from helenus_agent.config import AgentSettings
from helenus_agent.delivery.notices import Notice
from helenus_agent.delivery.outbox import Outbox
from helenus_connector.testing.log import MemoryRecord
from helenus_schemas.cql.table import Column, Table
from helenus_schemas.cql.types import CqlType, parse
from helenus_schemas.errors import HelenusError, Kind
from helenus_schemas.event import datastax, wire
from helenus_schemas.event.change import Change, Scope
from helenus_sinks.log import DeclaredSchemas, TopicError

OTHER = table_of("other", "pk int pk, v int")
TOPIC = "events-ks.t"


class Broker(FakeLog):
    """Refuses what is for a topic or a partition that is not there, as Kafka does: when it is flushed."""

    def __init__(self) -> None:
        super().__init__()
        self.created: list[str] = []

    def create(self, topic: str, partitions: int, config: Any) -> int:
        self.created.append(topic)
        return super().create(topic, partitions, config)

    def append(self, topic: str, partition: int, key: bytes | None, value: bytes | None, headers: Any = ()) -> None:
        self.waiting.append(MemoryRecord(topic, partition, key, value, headers))

    def flush(self, timeout: float) -> None:
        if any(partition >= self.counts.get(topic, 0) for topic, partition, *_ in self.waiting):
            self.waiting.clear()
            raise HelenusError(Kind.APPEND_FAILED, "unknown topic or partition", "fake")
        super().flush(timeout)


@pytest.fixture
def bench(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Bench]:
    monkeypatch.setattr(module, "_COMMIT", 0.0)
    monkeypatch.setattr(module, "_LIST", -1.0)
    bench = Bench(tmp_path)
    bench.log = Broker()
    bench.cassandra.set(TABLE, OTHER)
    bench.raw.segment(10)
    bench.raw.write(10, write_of(TABLE, 1))
    bench.start(topic_partitions="1")
    bench.run_agent()
    assert bench.keys == [1]
    yield bench
    bench.state.close()
    if bench.agent is not None:
        bench.agent._queue.close()


def test_a_deleted_topic_is_created_again(bench: Bench) -> None:
    """Cassandra is not asked for that: it may be away."""
    del bench.log.counts[TOPIC]
    queries_before = bench.cassandra.asked
    bench.raw.write(10, write_of(TABLE, 2), write_of(TABLE, 3))
    bench.run(seconds=5, until=3)
    assert bench.keys == [1, 2, 3]
    assert bench.log.counts[TOPIC] == 1
    assert bench.cassandra.asked == queries_before


def test_a_topic_recreated_with_other_partitions_stops_the_agent(bench: Bench) -> None:
    bench.log.counts[TOPIC] = 8
    bench.log.refuse_flush = 1  # what it held when the topic went
    bench.raw.write(10, write_of(TABLE, 2))
    with pytest.raises(
        HelenusError, match=r"had 1 partition and has 8.*\(events-ks\.t\).*start the agent again"
    ) as error:
        bench.run(seconds=5)
    assert error.value.kind is Kind.PARTITIONS_CHANGED
    assert bench.keys == [1]
    # What the operator does then: the new number counts for what comes.
    bench.start()
    bench.run_agent()
    assert bench.keys == [1, 2]


def test_topics_are_checked_only_after_a_failure(bench: Bench) -> None:
    assert isinstance(bench.log, Broker)
    bench.log.created.clear()
    for key in range(5):
        bench.raw.write(10, write_of(TABLE, key), write_of(OTHER, key))
        bench.run_agent()
    assert bench.log.created == []
    bench.log.refuse_flush = 1
    bench.raw.write(10, write_of(TABLE, 9))
    bench.run(seconds=5, until=12)
    assert sorted(bench.log.created) == ["events-ks.other", TOPIC]


def test_the_topic_of_a_dropped_table_is_not_created_again(bench: Bench) -> None:
    bench.cassandra.set(TABLE)
    bench.cassandra.is_changed = True
    bench.run_agent()
    bench.raw.segment(11)
    bench.raw.write(11, write_of(TABLE, 2))
    bench.run_agent()  # nothing more can come of the other
    del bench.log.counts["events-ks.other"]
    bench.log.refuse_flush = 1
    bench.raw.write(11, write_of(TABLE, 3))
    bench.run(seconds=5, until=len(bench.log.acknowledged) + 1)
    assert bench.keys == [1, 2, 3]
    assert list(bench.log.counts) == [TOPIC]


def test_on_pulsar_events_have_schemas_and_their_columns_first() -> None:
    log = FakeLog()
    settings = AgentSettings.from_properties(
        {"state.dir": "/s", "cdc.raw.dir": "/r", "log": "pulsar", "pulsar.service.url": "pulsar://b"}, "f"
    )
    outbox = Outbox(log, settings)
    outbox.open([(0, TABLE)])
    value = wire.encode(Change("0" * 32, "5a1c395e-b41f-11e5-9f22-ba0be0483c18"))
    outbox.append(DecodedBatch([(0, b"\0\0\0\1", b"\2", value)], 0, 0, [], [], False, False, None))
    outbox.append_notice(0, Notice(Scope.TABLE, TABLE.id, 1, 2, 3, 4), "5a1c395e-b41f-11e5-9f22-ba0be0483c18")
    assert log.declared[TOPIC] == DeclaredSchemas(
        datastax.key_schema(TABLE), datastax.VALUE, value_properties=datastax.VALUE_PROPERTIES
    )
    assert len(log.waiting) == 1 + log.counts[TOPIC]
    assert all(sent is not None and sent[:3] == b"\0\2@" for _, _, _, sent, _ in log.waiting)
    assert datastax.unsorted_value(log.waiting[0].value or b"") == value


def _pulsar() -> tuple[FakeLog, Outbox]:
    log = FakeLog()
    properties = {"state.dir": "/s", "cdc.raw.dir": "/r", "log": "pulsar", "pulsar.service.url": "pulsar://b"}
    return log, Outbox(log, AgentSettings.from_properties(properties, "f"))


def test_on_pulsar_an_altered_key_is_declared_again() -> None:
    """A type in it gets a field, a column another name; and what alters nothing of the key costs nothing."""
    log, outbox = _pulsar()
    udt = CqlType("udt", (parse("int"), parse("int")), True, "a", ("x", "y"))
    key = Column("pk", parse("int"), "partition_key", 0)

    def table_with(t: CqlType, name: str = "ck", *values: Column) -> Table:
        return replace(TABLE, columns=(key, Column(name, t, "clustering", 0), *values))

    before = replace(udt, args=udt.args[:1], fields=udt.fields[:1])
    for table in (table_with(before), table_with(udt), table_with(udt, "renamed")):
        assert outbox.open([(0, table)]) == []
        assert log.declared[TOPIC].key == datastax.key_schema(table)
    log.refuse_create = 1
    assert outbox.open([(0, table_with(udt, "renamed", Column("v", parse("int"))))]) == []
    assert log.refuse_create == 1


def test_on_pulsar_an_altered_key_that_the_topic_refuses(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its table is left out; the others go on."""
    log, outbox = _pulsar()
    assert outbox.open([(0, TABLE), (1, OTHER)]) == []
    error = TopicError(Kind.REGISTRY_REFUSED, "does not fit", "fake", TOPIC)

    def refuse(topic: str, schemas: DeclaredSchemas) -> None:
        raise error

    monkeypatch.setattr(log, "declare", refuse)
    altered = replace(TABLE, columns=(replace(TABLE.columns[0], name="id"), *TABLE.columns[1:]))
    assert outbox.open([(0, altered), (1, OTHER)]) == [(altered, error)]
    assert outbox.open([(0, altered), (1, OTHER)]) == [(altered, error)]  # nothing may go there until it is taken
