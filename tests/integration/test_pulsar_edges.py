"""Pulsar at its edges: Java's readers, schemas that are refused, events that are dropped, topics of others."""

from __future__ import annotations

import hashlib
import json
import random
import subprocess
import time
import uuid
from base64 import b64encode
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any

import pulsar
import pytest
from connector.test_pulsar_events import trim
from integration.pipeline import Pipeline, script, write_properties
from integration.test_many_connectors import Rest
from patience import eventually
from sinks.java_reader import JavaReader

from helenus_schemas.codec.key import KeyCodec
from helenus_schemas.cql.table import Table, read_tables
from helenus_schemas.errors import HelenusError, Kind
from helenus_schemas.event import datastax
from helenus_schemas.event.change import Change
from helenus_schemas.event.wire import encode
from helenus_schemas.names import counted
from helenus_sinks.chunks import BadChunks, MessageChunkReference
from helenus_sinks.kafka.log import KafkaLog
from helenus_sinks.pulsar._admin import Admin
from helenus_sinks.pulsar.config import PulsarConfig
from helenus_sinks.pulsar.log import PulsarLog
from helenus_sinks.pulsar_chunk_reader import PulsarChunkReader
from helenus_stack.records import Record
from helenus_stack.settings import LogName
from helenus_stack.stack import Stack
from helenus_stack.status import Status

pytestmark = pytest.mark.integration

NAMESPACE = "persistent/public/default"
CLASS = {"connector.class": "helenus.CassandraSource"}
TABLE = "(id int, name text, a text, c text, PRIMARY KEY (id, name)) WITH cdc = true"
PARTITIONS = 2


@pytest.fixture(scope="module")
def both(stack: Stack) -> Iterator[Status]:
    """A stack with Kafka and Pulsar, which does not run on beside other tests: it is never idle."""
    stack.start("pulsar")
    yield stack.status()
    stack.stop("pulsar")


@pytest.fixture(scope="module")
def on_pulsar(both: Status) -> Status:
    return both.only("pulsar")


@pytest.fixture(scope="module")
def pipeline(on_pulsar: Status, session: Any, directory: Path) -> Iterator[Pipeline]:
    """An agent, and a worker whose connectors are made over its REST API."""
    session.execute("CREATE KEYSPACE edge WITH replication = {'class': 'SimpleStrategy', 'replication_factor': 1}")
    pipeline = Pipeline(on_pulsar, directory)
    with Path(pipeline.agent.arguments[1]).open("a") as file:
        file.write(f"topic.partitions={PARTITIONS}\ntable.include.list=edge\\..*\n")
    try:
        pipeline.agent.start().ready()
        pipeline.connect().start().ready()
        yield pipeline
    finally:
        pipeline.stop()


@pytest.fixture(scope="module")
def rest_api(pipeline: Pipeline) -> Rest:
    return Rest(pipeline.connector.port)


@pytest.fixture(scope="module")
def admin(on_pulsar: Status) -> Admin:
    assert on_pulsar.pulsar_admin_url
    return Admin(on_pulsar.pulsar_admin_url, config(on_pulsar).access)


@pytest.fixture(scope="module")
def java(on_pulsar: Status, tmp_path_factory: pytest.TempPathFactory) -> JavaReader:
    assert on_pulsar.pulsar_url
    return JavaReader(tmp_path_factory.mktemp("java"), on_pulsar.pulsar_url)


def config(status: Status) -> PulsarConfig:
    assert status.pulsar_url
    return PulsarConfig(status.pulsar_url, status.pulsar_admin_url)


def connect(pipeline: Pipeline, rest_api: Rest, table: str, name: str = "", **more: object) -> str:
    """Make a connector for a table of the keyspace `edge`, or change it."""
    name = name or table
    keys = {key.replace("_", "."): str(value) for key, value in more.items()}
    own = {k: str(v) for k, v in pipeline.connector_properties(f"edge.{table}").items()}
    rest_api("PUT", f"/connectors/{name}/config", {**CLASS, **own, "name": name, "settle.timeout.ms": "500", **keys})
    return name


def running(pipeline: Pipeline, rest_api: Rest, name: str) -> None:
    eventually(lambda: rest_api.task(name)["state"] == "RUNNING", lambda: f"{name} runs\n{pipeline.connector.tail()}")


def failed(pipeline: Pipeline, rest_api: Rest, name: str) -> str:
    """Wait until the connector's task has failed; gives what it says, which is one line."""
    eventually(lambda: rest_api.task(name)["state"] == "FAILED", lambda: f"{name} fails\n{pipeline.connector.tail()}")
    trace: str = rest_api.task(name)["trace"]
    assert "\n" not in trace
    assert "Traceback" not in trace
    return trace


def records(pipeline: Pipeline, topic: str) -> list[Record]:
    """All of a topic that may not be there yet."""
    if topic not in pipeline.reader.topics():
        return []
    return [pipeline.reader.record(message) for message in pipeline.reader.messages(topic)]


def values(pipeline: Pipeline, topic: str) -> list[tuple[Any, Any]]:
    return [(tuple(r.key.values()), r.value and r.value.get("a")) for r in records(pipeline, topic)]


def comes(pipeline: Pipeline, topic: str, key: tuple[Any, ...], a: str | None) -> None:
    """Wait for a record."""
    eventually(
        lambda: (key, a) in values(pipeline, topic),
        lambda: f"{key} {a} in {values(pipeline, topic)}\n{pipeline.connector.tail()}\n{pipeline.agent.tail()}",
    )


@pytest.mark.long  # sinks/test_pulsar_java.py reads the same in Java
def test_java_reads_what_the_connector_writes(
    pipeline: Pipeline, session: Any, rest_api: Rest, java: JavaReader
) -> None:
    """Every form, by the schemas that Java knows from Pulsar: rows, deletes, both sides of an ALTER, all markers."""
    session.execute(f"CREATE TABLE edge.t {TABLE}")
    forms = ("key-value-avro", "key-value-json", "json")
    for form in forms:
        group = form.replace("-", "")
        connect(pipeline, rest_api, "t", form, output_format=form, data_topic=f"java-{form}", query_group=group)

    def in_each_form(check: Any) -> None:
        for form in forms:
            eventually(
                lambda form=form: check(f"java-{form}"),
                lambda form=form: f"{form}\n{values(pipeline, f'java-{form}')}\n{pipeline.connector.tail()}",
            )

    def count(number: int) -> Any:
        return lambda topic: len({tuple(r.key.values()) for r in records(pipeline, topic)}) >= number

    session.execute("INSERT INTO edge.t (id, name, a) VALUES (1, 'x', '1')")
    session.execute("INSERT INTO edge.t (id, name, a, c) VALUES (-60, 'ä€', 'ä€', '3')")
    in_each_form(count(2))
    session.execute("DELETE FROM edge.t WHERE id = 1 AND name = 'x'")
    session.execute("DELETE FROM edge.t WHERE id = -60")
    in_each_form(count(3))
    session.execute("ALTER TABLE edge.t ADD b text")
    session.execute("INSERT INTO edge.t (id, name, a, b, c) VALUES (2, 'n', '1', '2', '3')")
    in_each_form(lambda topic: any((r.value or {}).get("b") == "2" for r in records(pipeline, topic)))
    session.execute("TRUNCATE edge.t")
    in_each_form(lambda topic: sum(r.headers.get("scope") == b"table" for r in records(pipeline, topic)) == PARTITIONS)

    first_key, two, three = {"id": 1, "name": "x"}, {"id": -60, "name": "ä€"}, {"id": 2, "name": "n"}
    marker = {"id": -60, "name": None}
    old = [(first_key, {"a": "1", "c": None}), (two, {"a": "ä€", "c": "3"}), (first_key, None), (marker, None)]
    new = (three, {"a": "1", "b": "2", "c": "3"})
    gone = [(None, None)] * PARTITIONS

    def seen(messages: list[dict[str, Any]]) -> list[tuple[Any, Any]]:
        return distinct((m["record"]["key"], m["record"]["value"]) for m in messages)

    def distinct(pairs: Any) -> list[tuple[Any, Any]]:
        """Each once: a row is published again until it is proven. In any order: partitions are read in turns."""
        return sorted({json.dumps(pair, ensure_ascii=False): pair for pair in pairs}.items())

    with ThreadPoolExecutor(2) as pool:
        reads = [("key-value-avro", "auto"), ("key-value-avro", "typed"), ("key-value-json", "auto"), ("json", "auto")]
        auto, typed, objects, plain = pool.map(lambda read: java.read(f"java-{read[0]}", read[1]), reads)
    assert seen(auto) == distinct([*old, new, *gone])
    assert {m["version"] for m in auto} == {0, 1}
    assert seen(objects) == distinct([*old, new, *gone])
    shown_before = [(key, value and {"a": value["a"], "c": value["c"]}) for key, value in (*old, new)]
    assert seen(typed) == distinct([*shown_before, *gone])
    plain_records = [m["record"] for m in plain]
    assert {"a": "1", "b": "2", "c": "3", **three} in plain_records
    assert plain_records.count(None) >= PARTITIONS


FORMS = [(form, kind) for form in ("debezium", "debezium-cassandra", "cep44") for kind in ("avro", "json")]


@pytest.mark.parametrize("places", [FORMS[:1], pytest.param(FORMS[1:], marks=pytest.mark.long)], ids=["one", "others"])
def test_envelopes_on_pulsar(
    pipeline: Pipeline, session: Any, rest_api: Rest, java: JavaReader, places: list[tuple[str, str]]
) -> None:
    """In Avro and JSON, by the schemas that the topics declare, as Java reads them."""
    table = f"enveloped_{len(places)}"
    session.execute(f"CREATE TABLE edge.{table} {TABLE}")
    converter = {
        "avro": {},
        "json": {
            "value_converter": "org.apache.kafka.connect.json.JsonConverter",
            "value_converter_schemas_enable": "false",
        },
    }
    topics = {form_and_kind: "-".join(form_and_kind) for form_and_kind in places}
    for (form, kind), topic in topics.items():
        more = {**converter[kind], "query_group": topic.replace("-", "")}
        connect(pipeline, rest_api, table, topic, output_format=form, data_topic=topic, **more)
    session.execute(f"INSERT INTO edge.{table} (id, name, a) VALUES (1, 'x', '1')")

    def in_each(check: Any) -> None:
        for form_and_kind, topic in topics.items():
            eventually(
                lambda form_and_kind=form_and_kind, topic=topic: check(form_and_kind[0], records(pipeline, topic)),
                lambda topic=topic: f"{topic}\n{records(pipeline, topic)}\n{pipeline.connector.tail()}",
            )

    def shows(form: str, records_of_topic: list[Record]) -> bool:
        rows = [
            record.value["payload" if form == "cep44" else "after"]["a"] for record in records_of_topic if record.value
        ]
        cell = {"value": "1", "deletion_ts": None, "set": True}
        return bool(rows) and rows[0] == (cell if form == "debezium-cassandra" else "1")

    in_each(shows)
    session.execute(f"DELETE FROM edge.{table} WHERE id = 1 AND name = 'x'")
    in_each(lambda _, records_of_topic: any(is_delete(record.value or {}) for record in records_of_topic))
    for (form, _), topic in topics.items():
        read = [m["record"] for m in java.read(topic)]
        assert {tuple(record["key"].values()) for record in read} == {(1, "x")}
        assert any(is_delete(record["value"] or {}) for record in read)
        assert any(record["value"] is None for record in read) == (form != "debezium-cassandra")


def is_delete(value: dict[str, Any]) -> bool:
    return value.get("op", value.get("operationType")) in ("d", "DELETE")


def updates(admin: Admin, allowed: bool) -> None:
    """Whether schemas may change by themselves. The namespace's policy takes a moment."""
    admin.ask("POST", "namespaces/public/default/isAllowAutoUpdateSchema", allowed)
    time.sleep(2)


@pytest.mark.long  # agent/test_pulsar_live.py has a schema refused
def test_a_namespace_whose_schemas_must_not_change(
    pipeline: Pipeline, session: Any, rest_api: Rest, admin: Admin, tmp_path: Path
) -> None:
    """The error says at once what to change; then a restart over REST suffices, or an uploaded schema."""
    session.execute(f"CREATE TABLE edge.fixed {TABLE}")
    session.execute("INSERT INTO edge.fixed (id, name, a) VALUES (1, 'x', '1')")
    eventually(lambda: list(pipeline.reader.messages("events-edge.fixed")), "the event is there")
    updates(admin, False)
    try:
        connect(pipeline, rest_api, "fixed", schema_on_incompatible="new-topic")
        trace = failed(pipeline, rest_api, "fixed")
        assert "isAllowAutoUpdateSchema" in trace
        assert "data-edge.fixed" in trace
        assert trace.endswith("[broker-refused]")
        updates(admin, True)
        rest_api("POST", "/connectors/fixed/restart?includeTasks=true")
        comes(pipeline, "data-edge.fixed", (1, "x"), "1")
        updates(admin, False)
        session.execute("ALTER TABLE edge.fixed ADD b text")
        session.execute("INSERT INTO edge.fixed (id, name, a) VALUES (1, 'x', '2')")
        assert "isAllowAutoUpdateSchema" in failed(pipeline, rest_api, "fixed")
        assert not [topic for topic in pipeline.reader.topics() if topic.startswith("data-edge.fixed-")]
        uploads = schemas(pipeline, "fixed", tmp_path)
        before = admin.ask("GET", "schemas/public/default/events-edge.fixed/schemas")
        for topic, schema in uploads.items():
            admin.ask("POST", f"schemas/public/default/{topic}/schema", schema)
        after = admin.ask("GET", "schemas/public/default/events-edge.fixed/schemas")
        assert after == before, "the events' schema is the agent's"
        rest_api("POST", "/connectors/fixed/restart?includeTasks=true")
        comes(pipeline, "data-edge.fixed", (1, "x"), "2")
    finally:
        updates(admin, True)


@pytest.mark.long  # test_evolution.py has one
def test_a_table_recreated_with_another_key(pipeline: Pipeline, session: Any, rest_api: Rest) -> None:
    """The agent goes on; the connector stops, or goes on in another topic."""
    session.execute(f"CREATE TABLE edge.recreated {TABLE}")
    connect(pipeline, rest_api, "recreated")
    on = {"schema_on_incompatible": "new-topic"}
    connect(
        pipeline,
        rest_api,
        "recreated",
        "json",
        output_format="key-value-json",
        data_topic="json",
        query_group="json",
        **on,
    )
    session.execute("INSERT INTO edge.recreated (id, name, a) VALUES (1, 'x', '1')")
    for topic in ("data-edge.recreated", "json"):
        comes(pipeline, topic, (1, "x"), "1")
    session.execute("DROP TABLE edge.recreated")
    session.execute("CREATE TABLE edge.recreated (id text, name text, a text, PRIMARY KEY (id, name)) WITH cdc = true")
    session.execute("INSERT INTO edge.recreated (id, name, a) VALUES ('one', 'x', '1')")
    trace = failed(pipeline, rest_api, "recreated")
    assert trace.endswith("[registry-refused]")
    assert "schema.on.incompatible=new-topic" in trace
    assert len(trace) < 1200, trace
    connect(pipeline, rest_api, "recreated", **on)
    rest_api("POST", "/connectors/recreated/restart?includeTasks=true")
    for first in ("data-edge.recreated-", "json-"):
        topics = eventually(
            lambda first=first: [t for t in pipeline.reader.topics() if t.startswith(first)], pipeline.connector.tail
        )
        (topic,) = topics
        comes(pipeline, topic, ("one", "x"), "1")
    assert pipeline.agent.health()[0] == 200


@pytest.mark.long  # test_records.py has odd names
def test_a_name_that_is_illegal_in_avro(pipeline: Pipeline, session: Any, rest_api: Rest) -> None:
    session.execute('CREATE TABLE edge.named (id int PRIMARY KEY, "my col" text) WITH cdc = true')
    session.execute("INSERT INTO edge.named (id, \"my col\") VALUES (1, '1')")
    connect(pipeline, rest_api, "named")
    connect(
        pipeline, rest_api, "named", "namedjson", output_format="key-value-json", data_topic="j", query_group="json"
    )
    trace = failed(pipeline, rest_api, "namedjson")
    assert "my col" in trace
    assert "leave the column out" in trace
    assert trace.endswith("[table-unsupported]")
    eventually(lambda: records(pipeline, "data-edge.named"), pipeline.connector.tail)
    (value,) = {json.dumps(r.value) for r in records(pipeline, "data-edge.named")}
    assert value == '{"my_col_ad025cc7": "1"}'


@pytest.mark.long  # connector/test_pulsar_events.py has them
def test_events_that_are_dropped_while_the_connector_is_away(
    pipeline: Pipeline, session: Any, rest_api: Rest, admin: Admin
) -> None:
    """As by a message TTL, which moves the subscription on: then what nobody waits for goes."""
    session.execute(f"CREATE TABLE edge.lost {TABLE}")
    connect(pipeline, rest_api, "lost")
    places = [f"{NAMESPACE}/events-edge.lost-partition-{n}" for n in range(PARTITIONS)]

    def write(first: int) -> None:
        for number in range(first, first + 10):
            session.execute("INSERT INTO edge.lost (id, name, a) VALUES (%s, 'y', '1')", (number,))
        eventually(lambda: len(list(pipeline.reader.messages("events-edge.lost"))) == first, f"{first} events")

    write(10)
    for number in range(10, 20):  # in every partition
        comes(pipeline, "data-edge.lost", (number, "y"), "1")
    rest_api("PUT", "/connectors/lost/pause")
    write(20)
    ledgers = [admin.ask("GET", f"{partition}/internalStats")["ledgers"][-1]["ledgerId"] for partition in places]
    admin.ask("PUT", f"{NAMESPACE}/events-edge.lost/unload")
    write(30)
    time.sleep(2)
    for partition, ledger in zip(places, ledgers, strict=True):
        admin.ask("POST", f"{partition}/subscription/helenus-lost/expireMessages/1")
        trim(admin, partition, ledger)
    rest_api("PUT", "/connectors/lost/resume")
    trace = failed(pipeline, rest_api, "lost")
    assert "events were dropped before helenus-lost had read them" in trace
    assert "events-edge.lost" in trace
    assert trace.endswith("[offsets-lost]")
    connect(pipeline, rest_api, "lost", errors_data_loss="continue")
    rest_api("POST", "/connectors/lost/restart?includeTasks=true")
    session.execute("INSERT INTO edge.lost (id, name, a) VALUES (2, 'x', '1')")
    comes(pipeline, "data-edge.lost", (2, "x"), "1")
    comes(pipeline, "data-edge.lost", (39, "y"), "1")  # what was still there is read

    def lost() -> float:
        return pipeline.connector.total("helenus_connector_events_lost_total", connector="lost")

    eventually(lambda: lost() == PARTITIONS, lambda: f"{lost()} lost\n{pipeline.connector.tail()}")
    # A connector that is deleted lets go of its subscription, which can be deleted then.
    rest_api("DELETE", "/connectors/lost")

    def consumers() -> list[Any]:
        stats = [admin.ask("GET", f"{partition}/stats")["subscriptions"]["helenus-lost"] for partition in places]
        return [consumer for subscription in stats for consumer in subscription["consumers"]]

    eventually(lambda: not consumers(), lambda: f"{consumers()}\n{pipeline.connector.tail()}")
    admin.ask("DELETE", f"{NAMESPACE}/events-edge.lost/subscription/helenus-lost")
    assert all("helenus-lost" not in admin.ask("GET", f"{partition}/subscriptions") for partition in places)


def schemas(pipeline: Pipeline, name: str, directory: Path) -> dict[str, Any]:
    """By topic, what `helenus-connector schemas` prints."""
    own = write_properties(directory / f"{name}.properties", pipeline.connector_properties(f"edge.{name}"))
    command = [script("helenus-connector"), "schemas", pipeline.connector.arguments[1], str(own)]
    process = subprocess.run(command, capture_output=True, text=True, timeout=60)
    assert process.returncode == 0, process.stderr
    return {schema["topic"]: schema["schema"] for schema in map(json.loads, process.stdout.splitlines())}


def definition(session: Any, name: str) -> Table:
    return next(t for t in read_tables(session, "edge").values() if t.name == name)


def test_events_of_another_agent_on_a_topic_without_partitions(
    pipeline: Pipeline, session: Any, rest_api: Rest, admin: Admin, java: JavaReader
) -> None:
    """As DataStax's agents have it where brokers make topics by themselves."""
    session.execute(f"CREATE TABLE edge.theirs {TABLE}")
    table = definition(session, "theirs")
    admin.ask("PUT", f"{NAMESPACE}/theirs-edge.theirs")
    session.execute("INSERT INTO edge.theirs (id, name, a) VALUES (7, 'x', '1')")
    key = KeyCodec(table).encode([(7).to_bytes(4, "big"), b"x"])
    java.write("theirs-edge.theirs", datastax.key_schema(table), b64encode(key).decode())
    connect(pipeline, rest_api, "theirs", events_topic="theirs-edge.theirs")
    comes(pipeline, "data-edge.theirs", (7, "x"), "1")
    assert admin.ask("GET", f"{NAMESPACE}/data-edge.theirs/partitions")["partitions"] == 1


def test_dead_letters_are_replayed_once(
    pipeline: Pipeline, on_pulsar: Status, session: Any, rest_api: Rest, tmp_path: Path
) -> None:
    session.execute(f"CREATE TABLE edge.poison {TABLE}")
    connect(pipeline, rest_api, "poison", errors_tolerance="all")
    session.execute("INSERT INTO edge.poison (id, name, a) VALUES (1, 'x', '1')")
    comes(pipeline, "data-edge.poison", (1, "x"), "1")
    log = PulsarLog(config(on_pulsar))
    log.append("events-edge.poison", 1, b"\xff", b"no event", [("from", b"nowhere")])
    log.flush(20)
    log.close()
    dead_letters = "dlq-edge.poison"
    eventually(lambda: list(pipeline.reader.messages(dead_letters)), pipeline.connector.tail)
    (dead_letter,) = pipeline.reader.messages(dead_letters)
    assert dead_letter.value() == b"no event"
    assert dict(dead_letter.headers())["__connect.errors.partition"] == b"1"
    rest_api("PUT", "/connectors/poison/pause")
    before = len(list(pipeline.reader.messages("events-edge.poison")))
    own = pipeline.connector_properties("edge.poison")
    table = write_properties(tmp_path / "poison.properties", {**own, "name": "poison", "errors.tolerance": "all"})
    command = [script("helenus-connector"), "replay", pipeline.connector.arguments[1], str(table)]
    for count in (1, 0):
        process = subprocess.run(command, capture_output=True, text=True, timeout=120)
        assert (
            f"poison: {counted(count, 'event')} replayed from {dead_letters} to events-edge.poison" in process.stdout
        ), process.stderr
    assert len(list(pipeline.reader.messages("events-edge.poison"))) == before + 1
    rest_api("PUT", "/connectors/poison/resume")
    eventually(lambda: len(list(pipeline.reader.messages(dead_letters))) == 2, pipeline.connector.tail)
    second_dead_letter = list(pipeline.reader.messages(dead_letters))[-1]
    assert (second_dead_letter.key(), second_dead_letter.value()) == (dead_letter.key(), dead_letter.value())


LARGE_COLUMNS = {column: random.Random(column).randbytes(750_000).hex() for column in "uvwxyz"}
"""9 MB, where a broker takes 5."""


@pytest.mark.long  # test_chunks.py has Kafka's
def test_large_records_in_chunks(
    pipeline: Pipeline, session: Any, rest_api: Rest, on_pulsar: Status, admin: Admin, java: JavaReader
) -> None:
    """A row of 9 MB is read whole, in Python and Java, from what is compacted too."""
    texts = ", ".join(f"{column} text" for column in LARGE_COLUMNS)
    session.execute(f"CREATE TABLE edge.large (id int PRIMARY KEY, a int, {texts}) WITH cdc = true")
    connect(pipeline, rest_api, "large", errors_large_record="chunk", output_format="key-value-json")
    session.execute("INSERT INTO edge.large (id, a, u) VALUES (2, 2, 'small')")
    for column, text in LARGE_COLUMNS.items():  # Cassandra takes no statement of more than 2 MB
        session.execute(f"UPDATE edge.large SET {column} = %s WHERE id = 1", (text,))
    topic = "persistent://public/default/data-edge.large"
    client = pulsar.Client(str(on_pulsar.pulsar_url))
    reader = PulsarChunkReader(client)

    def last_messages(is_compacted: bool = False) -> dict[str, Any]:
        return {message.partition_key(): message for message in read_all(client, topic, is_compacted)}

    def columns(message: Any) -> dict[str, Any]:
        row: dict[str, Any] = json.loads(reader.read(message).value)
        return row

    def read_in_java() -> dict[str, Any]:
        return [line for line in java.read(topic, "chunks") if line["key"] == large.partition_key()][-1]

    def is_complete() -> bool:
        if "data-edge.large" not in pipeline.reader.topics():
            return False
        rows = [columns(message) for message in last_messages().values() if message.data()]
        return {"a": None, **LARGE_COLUMNS} in rows and len(rows) == 2

    try:
        eventually(is_complete, lambda: f"both rows are there\n{pipeline.connector.tail()}")
        by_id = {len(reader.read(message).value) > 1_000_000: message for message in last_messages().values()}
        large, small = by_id[True], by_id[False]
        assert "chunks" not in small.properties()
        # Who knows nothing of chunks has the record without its largest columns.
        left_out = json.loads(large.properties()["left_out"])
        assert left_out
        assert all(json.loads(large.data())[column] is None for column in left_out)
        assert {"chunks", "left_out"}.isdisjoint(reader.read(large).properties)
        # What no connector wrote is refused.
        reference = MessageChunkReference.parse(large.properties()["chunks"].encode())
        assert reference.count == 2
        for wrong, why in (({"sha256": "0" * 64}, "SHA-256"), ({"partition": 9}, "no partition 9")):
            with pytest.raises(BadChunks, match=why):
                reader.value(topic, replace(reference, **wrong))
        with pytest.raises(BadChunks, match="1000 are allowed"):
            PulsarChunkReader(client, max_bytes=1000).read(large)
        with pytest.raises(HelenusError) as error:
            reader.value("persistent://public/default/another", reference)
        assert error.value.kind is Kind.TOPIC_MISSING
        digest = hashlib.sha256(reader.read(large).value).hexdigest()
        answer = read_in_java()
        assert answer["sha256"] == digest
        assert "1000 are allowed" in answer["limited"]
        # From a compacted copy.
        path = f"{NAMESPACE}/{{}}-partition-{reference.partition}"
        admin.ask("PUT", f"{path.format('data-edge.large')}/compaction")
        status = lambda: admin.ask("GET", f"{path.format('data-edge.large')}/compaction")["status"]  # noqa: E731
        eventually(lambda: status() == "SUCCESS", "it is compacted")
        compacted = last_messages(is_compacted=True)[large.partition_key()]
        assert columns(compacted) == {"a": None, **LARGE_COLUMNS}
    finally:
        client.close()


def read_all(client: pulsar.Client, topic: str, is_compacted: bool) -> Iterator[Any]:
    """The messages of a topic, partition by partition."""
    for partition in client.get_topic_partitions(topic):
        reader = client.create_reader(partition, pulsar.MessageId.earliest, is_read_compacted=is_compacted)
        while reader.has_message_available():
            yield reader.read_next(30_000)
        reader.close()


@pytest.mark.parametrize(
    ("log", "data"), [("pulsar", "kafka"), pytest.param("kafka", "pulsar", marks=pytest.mark.long)]
)
def test_events_on_one_log_and_records_on_the_other(
    pipeline: Pipeline, both: Status, session: Any, tmp_path: Path, log: LogName, data: LogName
) -> None:
    pipeline.connector.stop()  # its tests are done, and one worker at a time starts sooner
    name = f"from{log}"
    session.execute(f"CREATE TABLE edge.{name} {TABLE}")
    session.execute(f"INSERT INTO edge.{name} (id, name, a) VALUES (1, 'x', '1')")
    if log == "kafka":  # the agent's are on Pulsar
        key = KeyCodec(definition(session, name)).encode([(1).to_bytes(4, "big"), b"x"])
        events = KafkaLog({"bootstrap.servers": both.bootstrap_servers})
        events.create(f"events-edge.{name}", PARTITIONS, {})
        events.append(f"events-edge.{name}", 1, key, encode(Change("0" * 32, str(uuid.uuid4()))))
        events.append(f"events-edge.{name}", 1, b"\xff", b"no event")
        events.flush(30)
        events.close()
    own = Pipeline(both.only(data), tmp_path)
    try:
        own.connect(f"edge.{name}", errors_tolerance="all")
        with Path(own.connector.arguments[1]).open("a") as file:
            file.write(f"log={log}\ndata.log={data}\nbootstrap.servers={both.bootstrap_servers}\n")
            file.writelines(f"{k}={v}\n" for k, v in both.pulsar().items())
        own.connector.start().ready()
        comes(own, f"data-edge.{name}", (1, "x"), "1")
        if log == "kafka":
            eventually(lambda: list(own.reader.messages(f"dlq-edge.{name}")), own.connector.tail)
            process = subprocess.run(
                [script("helenus-connector"), "replay", *own.connector.arguments[1:]],
                capture_output=True,
                text=True,
                timeout=120,
            )
            assert "1 event replayed" in process.stdout, process.stderr
    finally:
        own.stop()
