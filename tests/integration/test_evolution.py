"""A table changes while it is written to: nothing stops, and readers with older and newer schemas read on."""

from __future__ import annotations

import gc
import io
import json
import struct
import threading
import time
import urllib.request
import uuid
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from shutil import rmtree
from typing import Any
from weakref import ref

import fastavro
import pytest
from cassandra import ConsistencyLevel, InvalidRequest
from cassandra.concurrent import execute_concurrent_with_args
from confluent_kafka.schema_registry import SchemaRegistryClient
from integration.pipeline import Lasting, Pipeline
from patience import eventually

from helenus_connector.cassandra_rows import _pipelined, table_definition
from helenus_connector.cassandra_rows.raw_rows import RawProtocolHandler, row_factory
from helenus_connector.cassandra_rows.row_reader import KeyRefused, RowReader
from helenus_connector.config.connector import ConnectorSettings
from helenus_connector.interfaces.resolver import SchemaChanged
from helenus_connector.shape.encoding.registry import Registry
from helenus_connector.shape.row.row import RowShape
from helenus_schemas.cql.table import Column, Table, read_tables
from helenus_schemas.cql.types import parse
from helenus_schemas.errors import HelenusError, Kind
from helenus_schemas.event.change import Scope
from helenus_schemas.event.wire import decode
from helenus_schemas.service.cassandra import connect
from helenus_stack.records import messages
from helenus_stack.status import Status

pytestmark = pytest.mark.integration

TABLE = "evolution.t"
AGAIN = "evolution.again"
DROPPED = "evolution.dropped"
CREATE_DROPPED = f"CREATE TABLE {DROPPED} (k int, c int, v int, PRIMARY KEY (k, c)) WITH cdc = true"
TIME = uuid.uuid1().bytes
ALTERS = (
    ("TABLE {t} WITH comment = 'as it was made'", "(k, c, v) VALUES (9, 1, 'first')"),
    ("TABLE {t} ADD added map<text, int>", "(k, c, added) VALUES (9, 2, {{'a': 1}})"),
    ("TABLE {t} DROP n", "(k, c, v) VALUES (9, 3, 'dropped')"),
    ("TABLE {t} ADD n int", "(k, c, n) VALUES (9, 4, 3)"),
    ("TYPE evolution.place ADD town text", "(k, c, pl) VALUES (9, 5, {{street: 's', no: 1, town: 'w'}})"),
    ("TYPE evolution.place RENAME no TO number", "(k, c, pl) VALUES (9, 6, {{street: 's', number: 2}})"),
    ("TABLE {t} RENAME c TO d", "(k, d, v) VALUES (9, 7, 'renamed')"),
)
"""What is altered, and a row that is written after it: the first with c = 1, and so on."""


@pytest.fixture(scope="module", autouse=True)
def keyspace(session: Any) -> None:
    session.execute("CREATE KEYSPACE evolution WITH replication = {'class': 'SimpleStrategy', 'replication_factor': 1}")


@pytest.fixture(scope="module")
def pipeline(session: Any, lasting: Lasting) -> Iterator[Pipeline]:
    session.execute("CREATE TYPE evolution.place (street text, no int)")
    session.execute(
        f"CREATE TABLE {TABLE} (k int, c int, v text, n int, pl frozen<place>, PRIMARY KEY (k, c)) WITH cdc = true"
    )
    session.execute(f"CREATE TABLE {AGAIN} (k int PRIMARY KEY, v int) WITH cdc = true")
    session.execute(CREATE_DROPPED)
    tables = {key: {"schema.on.incompatible": "new-topic"} for key in (TABLE, AGAIN, DROPPED)}
    with lasting("kafka").connected(tables) as pipeline:
        yield pipeline


@pytest.fixture
def registry(status: Status) -> Iterator[SchemaRegistryClient]:
    client = SchemaRegistryClient({"url": status.registry_url})
    yield client
    client.close()


class Writer(threading.Thread):
    """Writes a column of rows until it is stopped; `clustering` is its name for the second key column."""

    def __init__(self, session: Any) -> None:
        super().__init__(daemon=True)
        self.session = session
        self.clustering = "c"
        self.written = 0
        self._stop_it = threading.Event()

    def __enter__(self) -> Writer:
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop_it.set()
        self.join()

    def run(self) -> None:
        while not self._stop_it.wait(0.005):
            i = self.written
            try:
                self.session.execute(
                    f"INSERT INTO {TABLE} (k, {self.clustering}, v) VALUES ({i % 5}, {i % 50}, 'v{i}')"
                )
            except Exception:  # between a rename and its news
                continue
            finally:
                self.written += 1


def test_alter_table_and_type_at_load(pipeline: Pipeline, session: Any, registry: SchemaRegistryClient) -> None:
    with Writer(session) as writer:
        for step, (alter, insert) in enumerate(ALTERS, 1):
            session.execute("ALTER " + alter.format(t=TABLE))
            writer.clustering = "d" if "RENAME c" in alter else "c"
            session.execute(f"INSERT INTO {TABLE} " + insert.format())
            eventually(lambda: last_key(pipeline)[9] == step, f"a record after ALTER {alter}")  # noqa: B023
    assert writer.written > 300
    # A field's value is under its name of then, in a record of before, until the row is written again.
    session.execute(f"INSERT INTO {TABLE} (k, d, pl) VALUES (9, 5, {{street: 's', number: 1, town: 'w'}})")
    pipeline.converges(TABLE)
    shown = {tuple(r.key.values()): r.value for r in pipeline.records(TABLE) if r.key["k"] == 9}
    assert [bool(shown[9, c]) for c in range(1, 8)] == [True] * 7
    assert shown[9, 2]["added"] == {"a": 1}  # type: ignore[index]
    assert shown[9, 5]["pl"]["town"] == "w"  # type: ignore[index]
    assert shown[9, 6]["pl"]["number"] == 2  # type: ignore[index]
    assert {tuple(r.key) for r in pipeline.records(TABLE)} == {("k", "c")}, (
        "a key is the same for all of a table's life"
    )
    assert registry.get_compatibility(f"data-{TABLE}-value") == "BACKWARD"
    assert registry.get_versions(f"data-{TABLE}-key") == [1]


def test_old_and_new_readers_read_every_record(pipeline: Pipeline, registry: SchemaRegistryClient) -> None:
    subject = f"data-{TABLE}-value"
    versions = [registry.get_version(subject, v) for v in registry.get_versions(subject)]
    parsed = {v.schema_id: fastavro.parse_schema(json.loads(v.schema.schema_str)) for v in versions}
    assert len(parsed) >= 5
    schema_ids = set()
    for message in messages(pipeline.status.bootstrap_servers, f"data-{TABLE}"):
        if message.value() is None:
            continue
        number = int.from_bytes(message.value()[1:5], "big")
        schema_ids.add(number)
        for reader in parsed.values():
            record = fastavro.schemaless_reader(io.BytesIO(message.value()[5:]), parsed[number], reader)
            assert record.keys() == {f["name"] for f in reader["fields"]}
    assert schema_ids == set(parsed), "there are records of every version"


def test_a_table_recreated_with_another_key_goes_on_in_a_new_topic(pipeline: Pipeline, session: Any) -> None:
    for k in range(20):
        session.execute(f"INSERT INTO {AGAIN} (k, v) VALUES ({k}, 1)")
    pipeline.converges(AGAIN)
    for k in range(20):
        session.execute(f"INSERT INTO {AGAIN} (k, v) VALUES ({k}, 2)")
    session.execute(f"DROP TABLE {AGAIN}")
    time.sleep(1)
    session.execute(f"CREATE TABLE {AGAIN} (a text, b int, v int, PRIMARY KEY (a, b)) WITH cdc = true")
    for b in range(20):
        session.execute(f"INSERT INTO {AGAIN} (a, b, v) VALUES ('x', {b}, 3)")
    made = session.execute("SELECT id FROM system_schema.tables WHERE keyspace_name='evolution' AND table_name='again'")
    topic = f"{AGAIN}-{str(made.one().id)[:8]}"
    records = eventually(lambda: complete(pipeline, topic), f"records on data-{topic}: {pipeline.connector.tail()}")
    assert {(r.key["a"], r.key["b"], r.value["v"]) for r in records} == {("x", b, 3) for b in range(20)}
    assert all("k" in r.key for r in pipeline.records(AGAIN))
    eventually(lambda: not pipeline.connector.total("helenus_connector_keys_unconfirmed"), "no key waits for ever")
    pipeline.adds_up("evolution-again")


@pytest.mark.parametrize("agent_runs", [True, pytest.param(False, marks=pytest.mark.long)])
def test_a_dropped_table_leaves_no_row_behind(pipeline: Pipeline, session: Any, agent_runs: bool) -> None:
    """Its rows are gone for who reads the topic, also those whose keys the table that is made again never gets."""
    for k in range(10):
        session.execute(f"INSERT INTO {DROPPED} (k, c, v) VALUES ({k}, 1, 1)")
    pipeline.converges(DROPPED)
    before = drops(pipeline)
    if not agent_runs:
        pipeline.agent.stop()
    session.execute(f"INSERT INTO {DROPPED} (k, c, v) VALUES (10, 1, 1)")
    session.execute(f"DROP TABLE {DROPPED}")
    if agent_runs:
        eventually(lambda: drops(pipeline) == before + 4, "the drop is in each partition, though the table is gone")
    session.execute(CREATE_DROPPED)
    for k in range(3):
        session.execute(f"INSERT INTO {DROPPED} (k, c, v) VALUES ({k}, 2, 2)")
    if not agent_runs:
        pipeline.agent.start().ready()
    pipeline.converges(DROPPED)
    assert drops(pipeline) == before + 4
    marked = [r.partition for r in pipeline.records(DROPPED) if r.headers.get("scope") == b"table"]
    assert set(marked) == {0, 1, 2, 3}


def drops(pipeline: Pipeline) -> int:
    """How often the events topic says that all rows are gone."""
    events = messages(pipeline.status.bootstrap_servers, f"events-{DROPPED}")
    return sum(event.key() is None and decode(event.value()).scope is Scope.TABLE for event in events)


def last_key(pipeline: Pipeline) -> dict[int, int]:
    """The last clustering key of each partition on the topic."""
    return {9: 0} | dict(tuple(r.key.values()) for r in pipeline.records(TABLE))


def complete(pipeline: Pipeline, topic: str) -> list[Any]:
    try:
        records = [r for r in pipeline.records(topic) if r.headers.get("scope") != b"table"]
    except Exception:  # there is no such topic yet
        return []
    return records if len({tuple(r.key.values()) for r in records}) == 20 else []


def shape(status: Status, table: Table, tmp_path: Path, **more: str) -> RowShape:
    properties = {
        "name": "n",
        "keyspace": table.keyspace,
        "table": table.name,
        "value.converter.schema.registry.url": status.registry_url,
        **{key.replace("_", "."): value for key, value in more.items()},
    }
    settings = ConnectorSettings.from_properties(properties, "test")
    registry = Registry(settings, tmp_path / "schemas")
    try:
        return RowShape(table, settings, registry)
    finally:
        registry.close()


def table(name: str, *columns: tuple[str, str]) -> Table:
    made = [Column("k", parse("int"), "partition_key", 0), *(Column(n, parse(t)) for n, t in columns)]
    return Table("evolution", name, uuid.uuid1(), tuple(made), cdc=True)


def failure(pipeline: Pipeline, connector: str) -> str:
    """Why the only task of a connector failed, or nothing."""
    url = f"http://127.0.0.1:{pipeline.connector.port}/connectors/{connector}/status"
    with urllib.request.urlopen(url, timeout=60) as answer:
        (task,) = json.load(answer)["tasks"]
    return str(task["trace"]) if task["state"] == "FAILED" else ""


def test_an_excluded_column_is_not_published_under_another_name(pipeline: Pipeline, session: Any) -> None:
    """Nor for a typing error: its table stops alone, says which columns there are, and goes on when it is corrected."""
    table, key = "evolution.hidden", "column.exclude.list"

    def values() -> list[dict[str, Any]]:
        return [record.value for record in pipeline.records(table) if record.value]

    def publishes(v: str) -> None:
        eventually(
            lambda: any(value["v"] == v for value in values()),
            lambda: f"{v} is published\n{pipeline.connector.tail()}",
        )

    session.execute(f"CREATE TABLE {table} (k int PRIMARY KEY, v text, secret text) WITH cdc = true")
    with pipeline.connected({table: {key: f"{table}.secret"}}):
        session.execute(f"INSERT INTO {table} (k, v, secret) VALUES (1, 'first', 'hush')")
        publishes("first")
        session.execute(f"ALTER TABLE {table} DROP secret")
        session.execute(f"INSERT INTO {table} (k, v) VALUES (2, 'dropped')")
        publishes("dropped")
        session.execute(f"ALTER TABLE {table} ADD secrets text")
        session.execute(f"INSERT INTO {table} (k, v, secrets) VALUES (3, 'renamed', 'hush')")
        eventually(lambda: "secrets added later" in failure(pipeline, "evolution-hidden"))
        pipeline.configure(table, {key: f"{table}.secrte"})
        eventually(lambda: "There are k, secrets, v" in failure(pipeline, "evolution-hidden"))
        assert not failure(pipeline, "evolution-t")
        pipeline.configure(table, {key: f"{table}.secrets"})
        publishes("renamed")
        assert "hush" not in str(values())


def test_an_error_of_the_registry_comes_with_advice(
    status: Status, registry: SchemaRegistryClient, tmp_path: Path
) -> None:
    shape(status, table("refused", ("v", "int")), tmp_path)
    with pytest.raises(HelenusError, match=r"subject data-evolution.refused-value.*schema\.on\.incompatible") as error:
        shape(status, table("refused", ("v", "text")), tmp_path)
    assert error.value.kind is Kind.REGISTRY_REFUSED


def test_a_level_of_compatibility_that_an_operator_chose_stays(
    status: Status, registry: SchemaRegistryClient, tmp_path: Path
) -> None:
    subject = "data-evolution.level-value"
    shape(status, table("level", ("v", "bigint")), tmp_path)
    assert registry.get_compatibility(subject) == "BACKWARD"
    with pytest.raises(HelenusError, match="refuses the schema"):  # a column that was dropped and added again may be so
        shape(status, table("level", ("v", "varint")), tmp_path)
    registry.set_compatibility(subject, "NONE")
    shape(status, table("level", ("v", "varint")), tmp_path)
    assert registry.get_compatibility(subject) == "NONE"
    assert registry.get_versions(subject) == [1, 2]


def test_columns_that_are_added_again_with_a_type_that_cassandra_takes(
    status: Status, session: Any, tmp_path: Path
) -> None:
    """Types with which Avro reads earlier records. Others, as a decimal as blob, are refused by the registry."""
    pairs = ("ascii text", "text blob", "varint blob", "timestamp bigint", "bigint timestamp", "timeuuid uuid")
    for before, now in (*map(str.split, pairs), ("bigint", "varint")):
        name = f"again_{before}_{now}"
        session.execute(f"CREATE TABLE evolution.{name} (k int PRIMARY KEY, v {before}, w int)")
        session.execute(f"ALTER TABLE evolution.{name} DROP v")
        if now == "varint":
            with pytest.raises(InvalidRequest, match="incompatible"):
                session.execute(f"ALTER TABLE evolution.{name} ADD v {now}")
            continue
        session.execute(f"ALTER TABLE evolution.{name} ADD v {now}")
        for kind in (before, now):
            shape(status, table(name, ("v", kind)), tmp_path)


def test_column_names_that_an_earlier_key_schema_would_make_wrong(
    status: Status, registry: SchemaRegistryClient, tmp_path: Path
) -> None:
    first_table = table("swapped", ("v", "int"))
    two = replace(
        first_table,
        id=uuid.uuid1(),
        columns=tuple(replace(c, name={"k": "v", "v": "k"}[c.name]) for c in first_table.columns),
    )
    shape(status, first_table, tmp_path)
    with pytest.raises(
        HelenusError, match=r"written as \(k\), and the table was recreated with the key \(v\)"
    ) as error:
        shape(status, two, tmp_path)
    assert error.value.kind is Kind.REGISTRY_REFUSED
    shape(status, replace(first_table, id=two.id), tmp_path)
    assert registry.get_versions("data-evolution.swapped-key") == [1]


def test_nodes_say_when_a_definition_was_altered(session: Any) -> None:
    session.execute("CREATE TYPE evolution.part (a int)")
    session.execute("CREATE TABLE evolution.altered (k int PRIMARY KEY, v frozen<part>)")
    properties = {"name": "n", "keyspace": "evolution", "table": "altered", "output.format": "json"}
    settings = ConnectorSettings.from_properties(properties, "test")
    times = []
    for alter in (
        "",
        "TABLE evolution.altered ADD w int",
        "TYPE evolution.part ADD b int",
        "TABLE evolution.altered DROP w",
    ):
        if alter:
            session.execute(f"ALTER {alter}")
        altered_at, definition = table_definition._read_on_node(session.execute, settings, alone=False)
        assert definition is not None
        times.append(altered_at)
    assert times == sorted(set(times)), "by tables first, then by types"
    assert min(times[0]) > 0


def test_schemas_are_not_registered_where_they_may_not_be(
    status: Status, registry: SchemaRegistryClient, tmp_path: Path
) -> None:
    off = {"value_converter_auto_register_schemas": "false"}
    with pytest.raises(HelenusError, match="has not this schema"):
        shape(status, table("manual", ("v", "int")), tmp_path, **off)
    assert not [s for s in registry.get_subjects() if "manual" in s]
    shape(status, table("manual", ("v", "int")), tmp_path)
    registry.set_compatibility("data-evolution.manual-value", "NONE")
    rmtree(tmp_path / "schemas")
    shape(status, table("manual", ("v", "int")), tmp_path, **off)
    assert registry.get_compatibility("data-evolution.manual-value") == "NONE", "what is there is left as it is"


def test_tasks_that_register_a_schema_at_the_same_moment(
    status: Status, registry: SchemaRegistryClient, tmp_path: Path
) -> None:
    """As the tasks of a new table do: the registry may refuse one of two that set a subject up."""
    tasks = 4
    together = threading.Barrier(tasks)

    def register(task: int, n: int) -> None:
        directory = tmp_path / f"{n}-{task}"
        directory.mkdir()
        together.wait(30)
        shape(status, table(f"together{n}", ("v", "int")), directory)

    with ThreadPoolExecutor(tasks) as pool:
        for n in range(15):
            for registration in [pool.submit(register, task, n) for task in range(tasks)]:
                registration.result()
    assert registry.get_compatibility("data-evolution.together0-value") == "BACKWARD"
    assert registry.get_versions("data-evolution.together0-value") == [1]


def settings_of(status: Status) -> ConnectorSettings:
    properties = {
        "name": "n",
        "keyspace": "evolution",
        "table": "t",
        "output.format": "json",
        "cassandra.contact.points": ",".join(status.contact_points),
        "cassandra.port": str(status.cql_port),
        "cassandra.local.dc": str(status.local_dc),
    }
    return ConnectorSettings.from_properties(properties, "test")


def test_a_key_that_the_server_refuses_is_not_taken_for_a_changed_schema(status: Status, session: Any) -> None:
    """Of a recreated table: the old keys' bytes may have the form of new ones."""
    settings = settings_of(status)
    raw = connect(settings, protocol_handler=RawProtocolHandler, row_factory=row_factory, metadata=True)
    tables = {
        "empty": ("k text PRIMARY KEY, v list<int>", [(b"",), (b"a",)]),
        "no_utf8": ("k text, c int, v int, PRIMARY KEY (k, c)", [(b"\xff", bytes(4)), (b"a", bytes(4))]),
        "no_time": ("a timeuuid, b int, v int, PRIMARY KEY ((a, b))", [(bytes(16), bytes(4)), (TIME, bytes(4))]),
    }
    try:
        for name, (columns, keys) in tables.items():
            session.execute(f"CREATE TABLE evolution.{name} ({columns})")
            definition = next(t for t in read_tables(raw, "evolution").values() if t.name == name)
            reader = RowReader(raw, definition, settings)
            with pytest.raises(SchemaChanged):
                list(reader.read_rows(keys, ConsistencyLevel.ONE))
            reader.is_current = True
            bad, good = keys
            answers = dict(reader.read_rows(keys, ConsistencyLevel.ONE))
            assert isinstance(answers[bad], KeyRefused), name
            assert answers[good] is None
            if definition.clustering:
                with pytest.raises(KeyRefused):
                    list(reader.read_range(bad, (None, None), ConsistencyLevel.ONE))
            session.execute(f"ALTER TABLE evolution.{name} DROP v")
            with pytest.raises(SchemaChanged):
                list(reader.read_rows([bad], ConsistencyLevel.ONE))
    finally:
        raw.cluster.shutdown()


def test_what_was_read_is_freed_without_a_search_for_cycles(
    status: Status, session: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Keys in groups, which go without the driver's own requests; and a partition of several pages, of which each
    request and its timer refer to each other.
    """
    monkeypatch.setattr(_pipelined, "_WAIT_S", 30)  # a node may be slow here
    settings = settings_of(status)
    session.execute("CREATE TABLE evolution.freed (k int, c int, v int, PRIMARY KEY (k, c))")
    insert = session.prepare("INSERT INTO evolution.freed (k, c, v) VALUES (?, ?, 1)")
    execute_concurrent_with_args(session, insert, [(k, c) for k in range(2) for c in range(1200)])
    raw = connect(settings, protocol_handler=RawProtocolHandler, row_factory=row_factory, metadata=True)
    requests: list[Any] = []
    execute_async = raw.execute_async

    def noted(*arguments: Any, **named: Any) -> Any:
        made = execute_async(*arguments, **named)
        requests.append(ref(made))
        return made

    try:
        reader = RowReader(raw, next(t for t in read_tables(raw, "evolution").values() if t.name == "freed"), settings)
        keys = [(struct.pack(">i", 0), struct.pack(">i", c)) for c in range(1200)]
        dict(reader.read_rows(keys[:200], ConsistencyLevel.ONE))  # the first pages are small: rows may be large
        raw.execute_async = noted
        gc.disable()
        assert all(dict(reader.read_rows(keys, ConsistencyLevel.ONE)).values())
        assert not requests
        assert len(list(reader.read_range((struct.pack(">i", 1),), (None, None), ConsistencyLevel.ONE))) == 1200
        assert len(requests) > 1
        eventually(lambda: not [request for request in requests if request() is not None], 15)
    finally:
        gc.enable()
        raw.cluster.shutdown()
