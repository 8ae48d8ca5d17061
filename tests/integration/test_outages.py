"""Servers that hang, and events that are gone before they were read: reported, bounded, and ended within seconds."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import Producer, TopicPartition
from confluent_kafka.admin import AdminClient
from integration.pipeline import Lasting, Pipeline
from integration.staged import Staged, keys
from patience import eventually

from helenus_connector.log._kafka_reader import read
from helenus_connector.log.events import OffsetRange
from helenus_schemas.errors import HelenusError, Kind
from helenus_sinks.kafka.log import KafkaLog
from helenus_stack.records import messages
from helenus_stack.stack import Stack
from helenus_stack.status import Status

pytestmark = pytest.mark.integration

TABLE = "outages.t"
STOPS_WITHIN_S = 20
"""Seconds, with room for a busy machine: the connector hands its batch back, it does not wait for a node."""


@pytest.fixture(scope="module", autouse=True)
def table(session: Any) -> str:
    session.execute("CREATE KEYSPACE outages WITH replication = {'class': 'SimpleStrategy', 'replication_factor': 1}")
    session.execute("CREATE TABLE outages.t (k int PRIMARY KEY, v text) WITH cdc = true")
    session.execute("CREATE TABLE outages.staged (k int PRIMARY KEY, v text) WITH cdc = true")
    for k in range(200):
        session.execute(f"INSERT INTO outages.staged (k, v) VALUES ({k}, 'v') USING TIMESTAMP 1")
    return TABLE


@pytest.fixture
def staged(status: Status, tmp_path: Path) -> Iterator[Staged]:
    staged = Staged(status, tmp_path, "outages.staged", cassandra_request_timeout_ms=1000)
    yield staged
    staged.close()


@pytest.fixture(scope="module")
def pipeline(table: str, lasting: Lasting) -> Iterator[Pipeline]:
    with lasting("kafka").connected({table: {"errors.data.loss": "continue"}}) as pipeline:
        yield pipeline


def test_a_node_that_hangs_fails_the_batch_soon(staged: Staged, stack: Stack) -> None:
    """No group is split down to its keys in vain, and no more than a few requests are tried again."""
    events = [staged.event(key) for key in keys(200)]
    staged.run([])
    before = staged.stage._resolver.reader.statements
    stack.pause("cassandra")
    try:
        with pytest.raises(HelenusError) as error:
            staged.run(events)
    finally:
        stack.resume("cassandra")
    assert error.value.kind is Kind.CASSANDRA_READ
    assert staged.stage._resolver.reader.statements - before < 60
    staged.log.close()
    outcome = eventually(lambda: published(staged, events), "the node answers again")
    assert outcome.published == 200


def published(staged: Staged, events: list[Any]) -> Any:
    try:
        return staged.run(events)
    except HelenusError:
        return None


def test_a_node_that_hangs_for_a_moment_is_waited_for(staged: Staged, stack: Stack) -> None:
    events = [staged.event(key) for key in keys(200)]
    staged.run([])
    stack.pause("cassandra")
    timer = threading.Timer(0.5, stack.resume, ["cassandra"])
    timer.start()
    try:
        outcome = published(staged, events) or eventually(lambda: published(staged, events), "the node answers")
    finally:
        timer.join()
    assert outcome.published == 200


def test_events_that_are_gone_are_counted_or_stop(status: Status) -> None:
    log = KafkaLog({"bootstrap.servers": status.bootstrap_servers})
    log.create("gone", 1, {})
    for n in range(10):
        log.append("gone", 0, b"k", b"%d" % n)
    log.flush(10)
    delete_before(status, "gone", 4)
    config = {"bootstrap.servers": status.bootstrap_servers}

    def values(start: int, end: int, data_loss: str, lost: list[int]) -> list[bytes]:
        def failed(_: OffsetRange, error: HelenusError) -> None:
            raise error

        places = [OffsetRange("gone", 0, start, end)]
        chunks = read(config, places, data_loss, lambda _, events: lost.append(events), failed)
        return [m.value() for chunk in chunks for m in chunk]

    lost: list[int] = []
    assert values(2, 8, "continue", lost) == [b"4", b"5", b"6", b"7"]
    assert lost == [2]
    lost.clear()
    assert values(0, 3, "continue", lost) == []
    assert lost == [3]
    with pytest.raises(HelenusError, match=r"topic gone, partition 0, offsets 2 to 8.*errors\.data\.loss") as error:
        values(2, 8, "fail", lost)
    assert error.value.kind is Kind.OFFSETS_LOST
    assert values(4, 6, "fail", lost) == [b"4", b"5"], "the same process reads on"
    delete_before(status, "gone", 10)
    lost.clear()
    assert values(5, 10, "continue", lost) == []
    assert lost == [5]
    log.close()


def test_stopped_while_cassandra_hangs(pipeline: Pipeline, session: Any, stack: Stack) -> None:
    """It ends within seconds, and what was under way is done at the next start."""
    session.execute("INSERT INTO outages.t (k, v) VALUES (1, 'a')")
    pipeline.converges(TABLE)
    read_before = pipeline.connector.total("helenus_connector_events_read_total")
    stack.pause("cassandra")
    try:
        produce(pipeline.status, pipeline)
        time.sleep(3)
        assert pipeline.connector.total("helenus_connector_events_read_total") == read_before, "the batch hangs"
        start = time.monotonic()
        assert pipeline.connector.stop() == 0
        assert time.monotonic() - start < STOPS_WITHIN_S
    finally:
        stack.resume("cassandra")
    session.execute("INSERT INTO outages.t (k, v) VALUES (2, 'b')")


def produce(status: Status, pipeline: Pipeline) -> None:
    """A copy of the topic's last event, for the connector to read while nothing can be written."""

    last = list(messages(status.bootstrap_servers, f"events-{TABLE}"))[-1]
    producer = Producer({"bootstrap.servers": status.bootstrap_servers})
    producer.produce(f"events-{TABLE}", last.value()[:2] + b"f" * 32 + last.value()[34:], last.key(), last.partition())
    producer.flush()


def test_events_that_expire_while_the_connector_is_down(pipeline: Pipeline, session: Any) -> None:
    """Those of the last test, and more: they are counted, and the connector goes on."""
    eventually(lambda: events_of(pipeline.status) >= 3, "the agent goes on")
    ends = delete_before(pipeline.status, f"events-{TABLE}", -1)
    assert ends
    pipeline.connector.start().ready()
    name = TABLE.replace(".", "-")
    eventually(
        lambda: pipeline.connector.total("helenus_connector_events_lost_total", connector=name) >= 2,
        "lost events are counted",
    )
    assert "events.lost" in pipeline.connector.log.read_text()
    session.execute("UPDATE outages.t SET v = 'later' WHERE k = 1")
    session.execute("UPDATE outages.t SET v = 'later' WHERE k = 2")
    pipeline.converges(TABLE)


def events_of(status: Status) -> int:

    return sum(1 for _ in messages(status.bootstrap_servers, f"events-{TABLE}"))


def delete_before(status: Status, topic: str, offset: int) -> list[int]:
    """As retention does. -1 is the end; returns the first offsets that are left."""
    admin = AdminClient({"bootstrap.servers": status.bootstrap_servers})
    partitions = admin.list_topics(timeout=10).topics[topic].partitions
    places = [TopicPartition(topic, p, offset) for p in partitions]
    return [future.result().low_watermark for future in admin.delete_records(places).values()]
