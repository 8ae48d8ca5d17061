"""The scenarios of DataStax's own tests, by their names, through the whole path and in the three forms of records.

Where another test has a scenario already, this table says which.

| theirs | here |
|---|---|
| **connector, each in key-value-avro, key-value-json and json** | |
| testSinglePk | test_single_pk |
| testClusteringKey | test_clustering_key |
| testCompoundPk | test_compound_pk |
| testOnlyPk | test_only_pk |
| testSchema | test_records.py::test_every_type_in_every_form |
| testStaticColumn | test_static_column |
| testBatchInsert | test_batch_insert |
| testTimestampInCollection | test_timestamp_in_collection |
| testReadTimeout | test_read_timeout |
| testConnectionFailure | test_failures.py::test_cassandra_stopped, ::test_cassandra_killed; test_three_nodes.py::test_a_paused_replica_gets_hints |
| **agent, one node** | |
| testSchema | test_agent_schema |
| testStaticColumn | test_static_column |
| testMultithreadProcessing | test_agent_multithread_processing |
| testNearRealTimeProcessing | test_agent_near_real_time_processing |
| testInvalidSchema | agent/test_schema_live.py::test_recreated_with_another_key_under_writes (they skip, we go on) |
| testPulsarReconnection | agent/test_live.py::test_broker_away; test_failures.py::test_brokers_stopped |
| testPartitionedTopic | test_agent_partitioned_topic |
| **agent, two nodes** | |
| testProducer | test_three_nodes.py::test_a_batch_of_a_thousand_rows_over_many_micro_batches (one digest, three nodes) |
| testUnorderedMutations | test_three_nodes.py::test_a_paused_replica_gets_hints, ::test_hints_are_lost, ::test_repair_is_reported_again |
| **agent and connector on Kafka** | |
| testBasicProducer, testMultipleTablesProducer | test_path.py: its five tables |
| testAvroPipeline, testJsonPipeline | test_records.py::test_every_type_in_every_form |
| schema registered and decodable | test_records.py::test_java_reads_what_python_reads |
| new version after ALTER | test_evolution.py::test_alter_table_and_type_at_load |
| auto-register off blocks | test_evolution.py::test_schemas_are_not_registered_where_they_may_not_be |
| **units** | |
| MutationCacheTests | connector/test_cache.py |
| finishTaskRetryTest | agent/test_agent.py::test_a_refused_append_loses_nothing, ::test_a_refused_flush_loses_nothing |
| SegmentOffsetFileWriterTests | agent/test_positions.py |
| testPoll | agent/test_follow.py |
| parameters and environment | agent/test_config.py, connector/test_aliases.py |

Theirs fail where ours have more: `docs/tests.md` lists their faults and the tests that show ours has none of them.
"""  # noqa: E501

from __future__ import annotations

import datetime
import io
import os
import signal
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import fastavro
import pytest
from cassandra.metadata import Murmur3Token
from cassandra.query import BatchStatement, BatchType
from confluent_kafka import Message, Producer
from integration.pipeline import Lasting, Pipeline
from patience import eventually

from helenus_schemas.avro import build as avro
from helenus_schemas.cql.table import read_tables
from helenus_schemas.event import placement
from helenus_schemas.event.wire import decode
from helenus_sinks.kafka.log import KafkaLog
from helenus_stack.records import Record, bare, messages, read
from helenus_stack.stack import Stack
from helenus_stack.status import Status

pytestmark = pytest.mark.integration

FORMS = {"av": "key-value-avro", "kv": "key-value-json", "js": "json"}
TABLES = {
    "single": "id text PRIMARY KEY, a int",
    "clustering": "a text, b date, c uuid, d int, PRIMARY KEY (a, b, c)",
    "compound": "a text, b int, c int, PRIMARY KEY ((a, b))",
    "only_pk": "a text, b int, PRIMARY KEY (a, b)",
    "statics": "a text, b text, c text, d text static, PRIMARY KEY (a, b)",
    "batches": "project text, url text, size int, PRIMARY KEY (project, url)",
    "moments": "k int PRIMARY KEY, m map<text, timestamp>, l list<timestamp>, s set<timestamp>,"
    " t tuple<timestamp, int>, ml map<text, frozen<list<timestamp>>>, mk map<timestamp, int>",
    "cut": "k int PRIMARY KEY, v text",
}
KEY = {
    "text": ("'a'", "a"),
    "ascii": ("'b'", "b"),
    "boolean": ("true", True),
    "blob": ("0x0102", b"\1\2"),
    "timestamp": ("'2020-01-01T00:00:00.123Z'", 1_577_836_800_123),
    "time": ("'01:02:03.000000004'", 3_723_000_000_004),
    "date": ("'2020-01-01'", 18_262),
    "uuid": ("123e4567-e89b-12d3-a456-426614174000", "123e4567-e89b-12d3-a456-426614174000"),
    "timeuuid": ("50554d6e-29bb-11e5-b345-feff819cdc9f", "50554d6e-29bb-11e5-b345-feff819cdc9f"),
    "tinyint": ("-1", -1),
    "smallint": ("-2", -2),
    "int": ("-3", -3),
    "bigint": ("-4", -4),
    "double": ("1.5", 1.5),
    "float": ("-0.5", -0.5),
    "inet": ("'2001:db8::1'", "2001:db8::1"),
    "varint": ("-129", b"\xff\x7f"),
    "decimal": ("-1.50", {"bigint": b"\xf1", "scale": 1}),
    "varchar": ("''", ""),
}
"""A key of 19 columns: literals, and what the event's Avro holds."""
UUID = "123e4567-e89b-12d3-a456-426614174000"
NODE = "ad310466-96a7-4cb2-acf4-59535a960812"
DIGEST = "0123456789abcdef0123456789abcde"
"""31 characters of one: each event has its own."""


@pytest.fixture(scope="module")
def forms(request: pytest.FixtureRequest) -> list[str]:
    """Those that are tested: each table costs work all the time."""
    mine = [item for item in request.session.items if item.path == request.path and hasattr(item, "callspec")]
    selected_forms = {item.callspec.params.get("form") for item in mine}
    return [form for form in FORMS if form in selected_forms or form == "av"]


@pytest.fixture(scope="module")
def pipeline(status: Status, session: Any, forms: list[str], lasting: Lasting) -> Iterator[Pipeline]:
    log = KafkaLog({"bootstrap.servers": status.bootstrap_servers})
    log.create("events-av.theirs", 1, {})  # an agent of theirs reports it
    log.create("events-av.agent", 3, {})
    log.close()
    for form in forms:
        session.execute(
            f"CREATE KEYSPACE {form} WITH replication = {{'class': 'SimpleStrategy', 'replication_factor': 1}}"
        )
        for table, columns in TABLES.items():
            session.execute(f"CREATE TABLE {form}.{table} ({columns}) WITH cdc = true")
    keys = {f"k{i:02}": kind for i, kind in enumerate(KEY)}
    order = ", ".join(f"{name} {'DESC' if i % 2 else 'ASC'}" for i, name in enumerate(list(keys)[2:]))
    session.execute(
        f"CREATE TABLE av.keys ({', '.join(f'{n} {t}' for n, t in keys.items())}, v int,"
        f" PRIMARY KEY ((k00, k01), {', '.join(list(keys)[2:])})) WITH CLUSTERING ORDER BY ({order}) AND cdc = true"
    )
    session.execute("CREATE TABLE av.agent (k int PRIMARY KEY, v blob) WITH cdc = true")
    key = "PRIMARY KEY (a, t, s)"
    session.execute(f"CREATE TABLE av.theirs (a tinyint, t time, s smallint, v int, {key}) WITH cdc = true")
    session.execute(
        """CREATE KEYSPACE "Case" WITH replication = {'class': 'SimpleStrategy', 'replication_factor': 1}"""
    )
    session.execute('CREATE TYPE "Case"."Point" ("X" int)')
    session.execute('CREATE TABLE "Case"."T" ("K" int PRIMARY KEY, p frozen<"Point">) WITH cdc = true')
    tables = [f"{form}.{table}" for form in forms for table in TABLES] + ["av.keys", "av.theirs", "Case.T"]
    each = {table: {"output.format": FORMS.get(table[:2], "key-value-avro")} for table in tables}
    with lasting("kafka").connected(each) as pipeline:
        yield pipeline


@pytest.fixture(params=["av", *(pytest.param(form, marks=pytest.mark.long) for form in FORMS if form != "av")])
def form(request: pytest.FixtureRequest) -> str:
    return str(request.param)


def last(pipeline: Pipeline, table: str) -> dict[tuple[Any, ...], Record]:
    """The last record of every key."""
    return {tuple(r.key.values()): r for r in pipeline.records(table)}


def test_single_pk(pipeline: Pipeline, session: Any, form: str) -> None:
    table = f"{form}.single"
    for n in (1, 2, 3):
        session.execute(f"INSERT INTO {table} (id, a) VALUES ('{n}', {n})")
    pipeline.converges(table)
    assert [(r.key, r.value and r.value["a"]) for r in sorted(pipeline.records(table), key=lambda r: r.key["id"])] == [
        ({"id": str(n)}, n) for n in (1, 2, 3)
    ], "one record each"
    session.execute(f"ALTER TABLE {table} ADD b double")
    session.execute(f"INSERT INTO {table} (id, a, b) VALUES ('1', 1, 1.5)")
    pipeline.converges(table)
    value = last(pipeline, table)["1",].value
    assert value is not None
    assert (value["a"], value["b"]) == (1, 1.5)
    session.execute(f"DELETE FROM {table} WHERE id = '1'")
    pipeline.converges(table)
    assert last(pipeline, table)["1",].value is None


def test_clustering_key(pipeline: Pipeline, session: Any, form: str) -> None:
    table = f"{form}.clustering"
    dates = ("2023-11-04", "-0044-03-15")
    for a in "xy":
        for date in dates:
            session.execute(f"INSERT INTO {table} (a, b, c, d) VALUES ('{a}', '{date}', {UUID}, 1)")
    pipeline.converges(table)
    assert {r.value and r.value["d"] for r in pipeline.records(table)} == {1}
    session.execute(f"DELETE FROM {table} WHERE a = 'x'")
    pipeline.converges(table)
    gone = pipeline.records(table)[-1]
    assert (tuple(gone.key.values()), gone.value, gone.headers["scope"]) == (("x", None, None), None, b"partition")
    session.execute(f"DELETE FROM {table} WHERE a = 'y' AND b = '{dates[0]}' AND c = {UUID}")
    pipeline.converges(table)
    row = pipeline.records(table)[-1]
    assert (row.key["a"], row.value, "scope" in row.headers) == ("y", None, False)
    assert str(row.key["c"]) == UUID
    if form != "av":
        assert row.key["b"] == (datetime.date(2023, 11, 4) - datetime.date(1970, 1, 1)).days


def test_compound_pk(pipeline: Pipeline, session: Any, form: str) -> None:
    table = f"{form}.compound"
    for n in (1, 2, 3):
        session.execute(f"INSERT INTO {table} (a, b, c) VALUES ('{n}', {n}, {n})")
    pipeline.converges(table)
    session.execute(f"CREATE TYPE {form}.zudt (a text, b boolean)")
    session.execute(f"ALTER TABLE {table} ADD d {form}.zudt")
    session.execute(f"INSERT INTO {table} (a, b, c, d) VALUES ('1', 1, 4, {{a: 'asdf', b: true}})")
    pipeline.converges(table)
    value = last(pipeline, table)["1", 1].value
    assert value is not None
    assert (value["c"], value["d"]) == (4, {"a": "asdf", "b": True})
    session.execute(f"DELETE FROM {table} WHERE a = '1' AND b = 1")
    pipeline.converges(table)
    assert last(pipeline, table)["1", 1].value is None


def test_only_pk(pipeline: Pipeline, session: Any, form: str) -> None:
    table = f"{form}.only_pk"
    for n in (1, 2, 3):
        session.execute(f"INSERT INTO {table} (a, b) VALUES ('{n}', {n})")
    pipeline.converges(table)
    assert {k: r.value for k, r in last(pipeline, table).items()} == {
        (str(n), n): {"a": str(n), "b": n} for n in (1, 2, 3)
    }
    session.execute(f"DELETE FROM {table} WHERE a = '1' AND b = 1")
    pipeline.converges(table)
    assert last(pipeline, table)["1", 1].value is None


def test_static_column(pipeline: Pipeline, session: Any, form: str) -> None:
    table = f"{form}.statics"
    session.execute(f"INSERT INTO {table} (a, b, c, d) VALUES ('a', 'b', 'c', 'd1')")
    pipeline.converges(table)
    records = last(pipeline, table)
    row, whole = records["a", "b"].value, records["a", None].value
    assert row is not None
    assert whole is not None
    assert (row["c"], row["d"], whole["c"], whole["d"]) == ("c", "d1", None, "d1")
    session.execute(f"UPDATE {table} SET d = 'd2' WHERE a = 'a'")
    pipeline.converges(table)
    record = pipeline.records(table)[-1]
    assert tuple(record.key.values()) == ("a", None)
    assert record.value is not None
    assert (record.value["c"], record.value["d"]) == (None, "d2")
    session.execute(f"DELETE FROM {table} WHERE a = 'a'")
    pipeline.converges(table)
    assert pipeline.records(table)[-1].value is None
    events = [decode(m.value()).scope.name for m in messages(pipeline.status.bootstrap_servers, f"events-{table}")]
    assert events == ["STATIC", "ROW", "STATIC", "PARTITION"]


def test_batch_insert(pipeline: Pipeline, session: Any, form: str) -> None:
    table = f"{form}.batches"
    insert = session.prepare(f"INSERT INTO {table} (project, url, size) VALUES (?, ?, ?)")
    for project in range(3):
        batch = BatchStatement(BatchType.UNLOGGED)
        for n in range(1000):
            batch.add(insert, (f"p{project}", f"http://{n}", n))
        session.execute(batch)
    pipeline.converges(table)
    assert len(pipeline.records(table)) == 3000, "exactly"


def test_timestamp_in_collection(pipeline: Pipeline, session: Any, form: str) -> None:
    table, ts = f"{form}.moments", "'2024-02-29T12:30:15.123Z'"
    session.execute(
        f"INSERT INTO {table} (k, m, l, s, t, ml, mk) VALUES (1, {{'a': {ts}}}, [{ts}], {{{ts}}}, ({ts}, 1),"
        f" {{'a': [{ts}]}}, {{{ts}: 1}})"
    )
    pipeline.converges(table)
    (record,) = pipeline.records(table)
    assert record.value is not None
    assert record.value["mk"] == {"2024-02-29T12:30:15.123Z": 1}
    assert None not in record.value.values()


def test_read_timeout(pipeline: Pipeline, session: Any, stack: Stack, forms: list[str]) -> None:
    """The node hears nothing until reads have failed, while events come. DataStax's tests wait 100 s instead."""
    process = pipeline.agent.process
    assert process is not None

    def retries() -> int:
        return pipeline.connector.log.read_text().count("task.retry")

    before = retries()
    os.kill(process.pid, signal.SIGSTOP)
    try:
        for form in forms:
            for n in (1, 2, 3):
                session.execute(f"INSERT INTO {form}.cut (k, v) VALUES ({n}, 'v')")
        time.sleep(2)  # the commit log is synced
        stack.pause("cassandra")
    finally:
        os.kill(process.pid, signal.SIGCONT)
    eventually(lambda: retries() > before, "a batch failed, and is done again")
    assert not pipeline.records("av.cut")
    stack.resume("cassandra")
    assert pipeline.connector.process is not None
    pid = pipeline.connector.process.pid
    for form in forms:
        pipeline.converges(f"{form}.cut")
        assert len(last(pipeline, f"{form}.cut")) == 3
    assert pipeline.connector.process.pid == pid
    assert pipeline.connector.process.poll() is None, "no restart"


def events(pipeline: Pipeline, table: str) -> list[Message]:
    return list(messages(pipeline.status.bootstrap_servers, f"events-{table}"))


def test_agent_schema(pipeline: Pipeline, session: Any) -> None:
    names, literals = ", ".join(f"k{i:02}" for i in range(19)), ", ".join(literal for literal, _ in KEY.values())
    session.execute(f"INSERT INTO av.keys ({names}, v) VALUES ({literals}, 1)")
    pipeline.converges("av.keys")
    (event,) = events(pipeline, "av.keys")
    (definition,) = [t for t in read_tables(session, "av").values() if t.name == "keys"]
    key = read(event.key(), bare(avro.key_schema(definition)))
    assert list(key.values()) == [value for _, value in KEY.values()]
    (record,) = pipeline.records("av.keys")
    assert record.value == {"v": 1}


def test_agent_multithread_processing(pipeline: Pipeline, session: Any) -> None:
    """60 mutations of a quarter of a segment; each is emitted once, and the segments go."""
    insert = session.prepare("INSERT INTO av.agent (k, v) VALUES (?, ?)")
    quarter = bytes(1 << 20)
    for k in range(60):
        session.execute(insert, (k, quarter))
    eventually(lambda: len(events(pipeline, "av.agent")) >= 60, "60 events")
    changes = [decode(m.value()) for m in events(pipeline, "av.agent")]
    assert len({(c.segment, c.position) for c in changes}) == len(changes) == 60
    raw = Path(pipeline.status.nodes[0].cdc_raw)
    eventually(lambda: len(list(raw.glob("*.log"))) <= 3, "the segments are deleted")


def test_agent_near_real_time_processing(pipeline: Pipeline, session: Any) -> None:
    before = len(events(pipeline, "av.agent"))
    for n in range(10):
        session.execute(f"INSERT INTO av.agent (k, v) VALUES ({1000 + n}, 0x)")
        eventually(lambda: len(events(pipeline, "av.agent")) == before + n + 1, "the event is there")  # noqa: B023
    changes = [decode(m.value()) for m in events(pipeline, "av.agent")]
    assert len({(c.segment, c.position) for c in changes}) == before + 10


def test_agent_partitioned_topic(pipeline: Pipeline, session: Any) -> None:
    for k in range(2000, 2100):
        session.execute(f"INSERT INTO av.agent (k, v) VALUES ({k}, 0x)")

    def received() -> list[Message]:
        return [m for m in events(pipeline, "av.agent") if 2000 <= _int(m.key()) < 2100]

    agent_events = eventually(lambda: len(received()) == 100 and received(), "100 events")
    for event in agent_events:
        token = Murmur3Token.hash_fn(_int(event.key()).to_bytes(4, "big"))
        assert event.partition() == placement.partition(token, 3)
    assert {event.partition() for event in agent_events} == {0, 1, 2}


def _int(key: bytes) -> int:
    return int(read(key, {"type": "record", "name": "r", "fields": [{"name": "k", "type": "int"}]})["k"])


def test_events_of_their_agents(pipeline: Pipeline, session: Any) -> None:
    """In both orders of fields, with unsigned numbers and µs in keys: the right row is read, and no delete is false.

    Their own connector takes a row whose time has ns for one that is gone.
    """
    rows = [(-1, "01:02:03.000004567", -2, 5), (-1, "01:02:03.000004", -2, 6), (-128, "00:00:00", 32767, 7)]
    for a, t, s, v in rows:
        session.execute(f"INSERT INTO av.theirs (a, t, s, v) VALUES ({a}, '{t}', {s}, {v})")
    keys = [_theirs(255, 3_723_000_004, 65534), _theirs(128, 0, 32767), _theirs(128, 0, 5), _theirs(1, None, None)]
    producer = Producer({"bootstrap.servers": pipeline.status.bootstrap_servers})
    for n, key in enumerate(keys):
        digest, node = b"\2@" + f"{DIGEST}{n}".encode(), b"\2H" + NODE.encode()
        for value in (digest + node + b"\0", b"\0" + digest + node, b"\2\x20BACK_FILL_INSERT\0\0"):
            producer.produce("events-av.theirs", value, key)
    producer.flush()
    pipeline.converges("av.theirs")
    session.execute("DELETE FROM av.theirs WHERE a = -1 AND t = '01:02:03.000004567' AND s = -2")
    producer.produce("events-av.theirs", b"\2@" + f"{DIGEST}9".encode() + b"\2H" + NODE.encode() + b"\0", keys[0])
    producer.flush()
    pipeline.converges("av.theirs")
    assert pipeline.connector.total("helenus_connector_events_read_total", connector="av-theirs") == 13


def _theirs(a: int, t: int | None, s: int | None) -> bytes:
    """A key as their agent writes it."""
    fields = [{"name": "a", "type": "int"}, *({"name": n, "type": ["null", "long"]} for n in "ts")]
    out = io.BytesIO()
    schema = fastavro.parse_schema({"type": "record", "name": "theirs", "fields": fields})
    fastavro.schemaless_writer(out, schema, {"a": a, "t": t, "s": s})
    return out.getvalue()


def test_types_of_a_case_sensitive_keyspace(pipeline: Pipeline, session: Any) -> None:
    insert = 'INSERT INTO "Case"."T" ("K", p) VALUES (1, {"X": 1})'
    session.execute(insert)
    pipeline.converges("Case.T")
    session.execute('ALTER TYPE "Case"."Point" ADD "Y" text')
    session.execute(insert.replace('"X": 1', """"X": 1, "Y": 'y'"""))
    pipeline.converges("Case.T")
    assert pipeline.records("Case.T")[-1].value == {"p": {"X": 1, "Y": "y"}}
    session.execute('ALTER TABLE "Case"."T" DROP p')
    session.execute('DROP TYPE "Case"."Point"')
    session.execute('INSERT INTO "Case"."T" ("K") VALUES (2)')
    # The record of row 1 stays as it was when the table had another column.
    record = eventually(lambda: last(pipeline, "Case.T").get((2,)), "the record of a table of its key alone")
    assert record.value == {"K": 2}
