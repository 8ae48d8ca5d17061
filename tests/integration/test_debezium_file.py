"""One file of Debezium's connector, as its documentation has it, starts agent and worker, and records come out."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import spark_start
from integration.pipeline import Command, Pipeline, free_port, write_properties
from patience import eventually

from helenus_stack.records import Record
from helenus_stack.status import Status

pytestmark = pytest.mark.integration

REPLICATION = "WITH replication = {'class': 'SimpleStrategy', 'replication_factor': 1}"
MINE = "debezium_.*"  # other tests have tables in the same cluster


def file_of(pipeline: Pipeline, agent: int, worker: int) -> Path:
    """The example of Debezium's documentation with the places of this stack, and what this test limits."""
    status, home = pipeline.status, pipeline.directory
    registry = {
        f"{side}.converter{key}": value
        for side in ("key", "value")
        for key, value in (
            ("", "io.confluent.connect.avro.AvroConverter"),
            (".schema.registry.url", status.registry_url),
        )
    }
    theirs = {
        "connector.name": "test_connector",
        "commit.log.relocation.dir": f"{home}/relocation/",
        "http.port": agent,
        "cassandra.config": status.nodes[0].cassandra_yaml,
        "cassandra.hosts": status.nodes[0].address,
        "cassandra.port": status.cql_port,
        "kafka.producer.bootstrap.servers": status.bootstrap_servers,
        "kafka.producer.retries": 3,
        "kafka.producer.retry.backoff.ms": 1000,
        "topic.prefix": "fulfillment",
        **registry,
        "offset.backing.store.dir": f"{home}/offsets",
        "snapshot.consistency": "ONE",
        "snapshot.mode": "ALWAYS",
        "snapshot.scan.interval.ms": 1000,
        "latest.commit.log.only": "true",
        "field.exclude.list": "debezium_a.t.secret,debezium_b.t.other",
    }
    ours = {
        "agent.table.include.list": MINE + r"\\.t",
        "agent.topic.partitions": 2,
        "connector.keyspace": MINE,
        "connector.listeners": f"http://127.0.0.1:{worker}",
        "connector.spark.master": "local[2,4]",
        **{f"connector.{key}": value for key, value in spark_start.settings().items()},
    }
    named = {f"helenus.{key}": value for key, value in ours.items()}
    return write_properties(home / "debezium.properties", {**theirs, **named})


@pytest.fixture
def pipeline(status: Status, directory: Path) -> Iterator[Pipeline]:
    pipeline = Pipeline(status.only("kafka"), directory / "debezium-file")
    agent, worker = free_port(), free_port()
    path = str(file_of(pipeline, agent, worker))
    pipeline.agent = Command(["helenus-agent", path], pipeline.directory / "agent.log", agent)
    pipeline.connector = Command(["helenus-connector", path], pipeline.directory / "connector.log", worker)
    try:
        yield pipeline
    finally:
        pipeline.stop()


def records_of(pipeline: Pipeline, table: str, count: int) -> list[Record]:
    records: list[Record] = []

    def there() -> bool:
        messages = pipeline.reader.messages(f"fulfillment.{table}")
        records[:] = [pipeline.reader.record(message) for message in messages]
        return len(records) >= count

    eventually(there, lambda: f"{count} records, {len(records)} are there:\n{pipeline.connector.tail()}")
    return records


def test_one_file_of_debezium_s_starts_both(pipeline: Pipeline, session: Any) -> None:
    """A row of before, a change, a delete, a column that is left out, and a keyspace that comes later."""
    session.execute(f"CREATE KEYSPACE debezium_a {REPLICATION}")
    session.execute("CREATE TABLE debezium_a.t (k int PRIMARY KEY, v int, secret text) WITH cdc = true")
    pipeline.agent.start().ready()
    pipeline.connector.start().ready()
    session.execute("INSERT INTO debezium_a.t (k, v, secret) VALUES (1, 1, 'hush')")
    session.execute("DELETE FROM debezium_a.t WHERE k = 1")
    first, second = records_of(pipeline, "debezium_a.t", 2)
    assert first.key == second.key == {"k": 1}
    assert first.value is not None
    assert second.value is not None
    assert (first.value["op"], first.value["after"]["v"]["value"], second.value["op"]) == ("i", 1, "d")
    assert "hush" not in str(first.value)
    source = first.value["source"]
    assert (source["name"], source["keyspace"], source["table"]) == ("fulfillment", "debezium_a", "t")

    session.execute(f"CREATE KEYSPACE debezium_b {REPLICATION}")
    session.execute("CREATE TABLE debezium_b.t (k int PRIMARY KEY, v int, other text) WITH cdc = true")
    session.execute("INSERT INTO debezium_b.t (k, v, other) VALUES (5, 6, 'x')")
    record, *_ = records_of(pipeline, "debezium_b.t", 1)  # the snapshot and the event may be of two batches
    assert (record.key, record.value and record.value["after"]["v"]["value"]) == ({"k": 5}, 6)

    for command in (pipeline.agent, pipeline.connector):
        assert command.stop() == 0
        lines = [line for line in command.log.read_text().splitlines() if " config." in line]
        assert len(lines) == 1, lines
        assert "config.debezium" in lines[0]
        assert "latest.commit.log.only" in lines[0]
