"""What is in the records, through the real path: every type in every form, in keys too, and read by Java."""

from __future__ import annotations

import json
import subprocess
import time
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import fastavro
import pytest
from confluent_kafka import Producer
from confluent_kafka.schema_registry import Schema, SchemaRegistryClient
from integration.odd_tables import ODD
from integration.pipeline import Lasting, Pipeline, script, write_properties
from patience import eventually
from schemas.java import Reader, plain

from helenus_connector.config.connector import ConnectorSettings
from helenus_connector.shape.encoding.registry import Registry
from helenus_connector.shape.row.row import RowShape
from helenus_schemas.cql.table import read_tables
from helenus_schemas.errors import HelenusError
from helenus_sinks.kafka.log import KafkaLog
from helenus_stack.records import Record, bare, messages, read
from helenus_stack.status import Status

pytestmark = pytest.mark.integration

UUID = "123e4567-e89b-12d3-a456-426614174000"
SCALARS = {
    "ascii": "'plain'",
    "bigint": "-9223372036854775808",
    "blob": "0x00ff",
    "boolean": "true",
    "date": "'-0044-03-15'",
    "decimal": "-12345678901234567890.123456789",
    "double": "-1.5e300",
    "duration": "-1y2mo3w4d5h6m7s8ms9us10ns",
    "float": "0.1",
    "inet": "'2001:db8::1'",
    "int": "-2147483648",
    "smallint": "-32768",
    "text": "'ünïcode ✓ \"quoted\" \\ \n'",
    "time": "'23:59:59.123456789'",
    "timestamp": "'1969-12-31T23:59:59.999Z'",
    "timeuuid": "50554d6e-29bb-11e5-b345-feff819cdc9f",
    "tinyint": "-128",
    "uuid": UUID,
    "varint": "-170141183460469231731687303715884105729",
}
IN_COLLECTIONS = ("date", "decimal", "inet", "time", "timestamp", "tinyint", "varint", "blob", "uuid", "double")
ELEMENTS = {**SCALARS, "date": "'2024-02-29'"}
NESTED = {
    "frozen<list<frozen<map<text, int>>>>": "[{'a': 1}, {}]",
    "map<frozen<list<int>>, text>": "{[1, 2]: 'x'}",
    "map<frozen<tuple<int, text>>, frozen<set<date>>>": "{(1, 'a'): {'2024-02-29'}}",
    "map<frozen<point>, inet>": "{{x: 1, y: null}: '::1'}",
    "tuple<int, text, frozen<tuple<bigint, date>>>": "(1, null, (2, '2024-02-29'))",
    "frozen<point>": "{x: 1, y: 2.50}",
    "point": "{x: 2}",
    'frozen<"Odd Type">': '{"a b": {x: 1, y: 1}, "1": [\'01:02:03.000000004\']}',
    "list<frozen<point>>": "[{x: 1, y: 2}, {x: null, y: 3}]",
    "vector<float, 3>": "[1.5, -2, 0.25]",
    "vector<text, 2>": "['a', '']",
    "vector<frozen<tuple<date, inet>>, 1>": "[('2024-02-29', '::1')]",
    "vector<vector<int, 2>, 2>": "[[1, 2], [3, 4]]",
    "vector<smallint, 2>": "[-1, 2]",
    "list<duration>": "[1d, 2h]",
}
TYPES = {
    **{f"s_{name}": (name, literal) for name, literal in SCALARS.items()},
    **{f"l_{name}": (f"list<{name}>", f"[{ELEMENTS[name]}]") for name in IN_COLLECTIONS},
    **{f"m_{name}": (f"map<{name}, {name}>", f"{{{ELEMENTS[name]}: {ELEMENTS[name]}}}") for name in IN_COLLECTIONS},
    **{f"n_{i}": (name, literal) for i, (name, literal) in enumerate(NESTED.items())},
    "decimal_2": ("decimal", "1E+100"),
    "counted": ("set<text>", "{'x', 'y', ''}"),
    "empty_text": ("text", "''"),
    "empty_list": ("frozen<list<int>>", "[]"),
    "empty_int": ("int", "blob_as_int(0x)"),
    "null_int": ("int", "null"),
}
KEYS = {
    "frozen<list<int>>": "[1, 2]",
    "tuple<int, text>": "(1, 'a')",
    "frozen<map<uuid, frozen<list<time>>>>": f"{{{UUID}: ['01:02:03.000000004']}}",
    "frozen<point>": "{x: 1, y: 2.50}",
    "vector<float, 2>": "[1.5, -2]",
    "vector<text, 1>": "['a']",
    "frozen<set<date>>": "{'2024-02-29'}",
    "frozen<map<text, tinyint>>": "{'a': -1}",
    "tinyint": "-1",
    "time": "'01:02:03.000000004'",
}
FORMS = {"wide": {}, "kv": {"output.format": "key-value-json"}, "js": {"output.format": "json"}}
MORE = {
    **FORMS,
    "compat": {"key.compat": "datastax", "headers": "node,segpos,digest"},
    "custom": {"columns": "a.*"},
    "keyed": {},
    "Odd": {},
    "equal": {},
    "counters": {},
    "many": {},
    "hollow": {},
    "hollows": {},
    "hollows_json": {"output.format": "key-value-json"},
    "hollow_keys": {},
    "grown": {},
    "modes": {"decimal.handling.mode": "string", "varint.handling.mode": "long"},
    "far": {},
    **{f"odd_{name}": {} for name in ODD},
}


def declared(types: dict[str, tuple[str, str]]) -> str:
    return ", ".join(f'"{name}" {t}' for name, (t, _) in types.items())


@pytest.fixture(scope="module")
def pipeline(status: Status, session: Any, lasting: Lasting) -> Iterator[Pipeline]:
    assert len(TYPES) >= 60
    # One partition each: the records do not depend on their number. The agent makes those that are not there.
    log = KafkaLog({"bootstrap.servers": status.bootstrap_servers})
    for name in MORE:
        log.create(f"events-rec.{name}", 1, {})
    log.close()
    replication = "{'class': 'SimpleStrategy', 'replication_factor': 1}"
    session.execute(f"CREATE KEYSPACE rec WITH replication = {replication}")
    session.execute("USE rec")
    session.execute("CREATE TYPE point (x int, y decimal)")
    session.execute('CREATE TYPE "Odd Type" ("a b" frozen<point>, "1" frozen<list<time>>)')
    session.execute('CREATE TYPE "Odd" (v int)')
    for name in FORMS:
        session.execute(f"CREATE TABLE {name} (k int PRIMARY KEY, {declared(TYPES)}) WITH cdc = true")
    keys = {f"k{i}": (t, literal) for i, (t, literal) in enumerate(KEYS.items())}
    session.execute(
        f"CREATE TABLE keyed ({declared(keys)}, v int, PRIMARY KEY ((k0, k1, k2), {', '.join(list(keys)[3:])}))"
        " WITH cdc = true"
    )
    session.execute(
        "CREATE TABLE equal (p int, k frozen<tuple<int, text>>, d decimal, v int, PRIMARY KEY (p, k, d))"
        " WITH cdc = true"
    )
    session.execute("CREATE TABLE counters (k text PRIMARY KEY, c counter) WITH cdc = true")
    session.execute("CREATE TABLE compat (k tinyint, t time, a inet, v int, PRIMARY KEY (k, t, a)) WITH cdc = true")
    custom = "'org.apache.cassandra.db.marshal.LexicalUUIDType'"
    session.execute(f"CREATE TABLE custom (k int PRIMARY KEY, a int, ab int, b {custom}, c int) WITH cdc = true")
    session.execute(
        'CREATE TABLE "Odd" ("The key" int PRIMARY KEY, "my col" int, "my-col" int, "1st" int, "größe" text,'
        ' own frozen<"Odd">) WITH cdc = true'
    )
    many = ", ".join(f"c{i} {'int' if i % 2 else 'decimal'}" for i in range(300))
    session.execute(f"CREATE TABLE many (k int PRIMARY KEY, {many}) WITH cdc = true")
    session.execute("CREATE TYPE growing (x int)")
    session.execute(
        "CREATE TABLE hollow (p int, a int, b uuid, s int static, v int, l list<int>, PRIMARY KEY (p, a, b))"
        " WITH cdc = true"
    )
    for name in ("hollows", "hollows_json"):
        session.execute(
            f"CREATE TABLE {name} (p int, q text, c int, s int static, v int, PRIMARY KEY ((p, q), c)) WITH cdc = true"
        )
    session.execute("CREATE TABLE hollow_keys (p decimal, q uuid, PRIMARY KEY ((p, q))) WITH cdc = true")
    session.execute("CREATE TABLE grown (p int, c frozen<growing>, v int, PRIMARY KEY (p, c)) WITH cdc = true")
    session.execute("CREATE TABLE modes (k decimal PRIMARY KEY, d list<decimal>, v varint) WITH cdc = true")
    session.execute("CREATE TABLE far (k timestamp PRIMARY KEY, v timestamp, m map<timestamp, date>) WITH cdc = true")
    for name, odd in ODD.items():
        for made in odd.types:
            session.execute(f"CREATE TYPE {made}")
        options = f"{odd.options} AND " if odd.options else ""
        session.execute(f"CREATE TABLE odd_{name} ({odd.columns}) WITH {options}cdc = true")
    without = {"value.converter.schema.registry.url": None}
    each = {f"rec.{name}": {**more, **(without if "output.format" in more else {})} for name, more in MORE.items()}
    with lasting("kafka").connected(each) as pipeline:
        yield pipeline


def last(pipeline: Pipeline, table: str) -> Record:
    return pipeline.records(table)[-1]


@pytest.mark.parametrize("name", FORMS)
def test_every_type_in_every_form(pipeline: Pipeline, session: Any, name: str) -> None:
    names = ", ".join(f'"{n}"' for n in TYPES)
    session.execute(f"INSERT INTO rec.{name} (k, {names}) VALUES (1, {', '.join(v for _, v in TYPES.values())})")
    session.execute(f"INSERT INTO rec.{name} (k) VALUES (2)")
    pipeline.converges(f"rec.{name}")
    full = next(r for r in pipeline.records(f"rec.{name}") if r.key["k"] == 1)
    assert full.value is not None
    assert [n for n, v in full.value.items() if v is None] == ["empty_int", "null_int"]
    assert json.loads(full.headers["empty"]) == ["empty_int"]
    assert full.value["empty_text"] == ""
    assert full.is_json == (name != "wide")
    session.execute(f"DELETE FROM rec.{name} WHERE k = 1")
    eventually(lambda: last(pipeline, f"rec.{name}").value is None, "the row is gone")
    raw = list(messages(pipeline.status.bootstrap_servers, f"data-rec.{name}"))[-1]
    assert raw.value() == (b"{}" if name == "js" else None)
    pipeline.converges(f"rec.{name}")


def test_keys_of_collections_tuples_types_and_vectors(pipeline: Pipeline, session: Any) -> None:
    names, values = ", ".join(f"k{i}" for i in range(len(KEYS))), ", ".join(KEYS.values())
    session.execute(f"INSERT INTO rec.keyed ({names}, v) VALUES ({values}, 1)")
    pipeline.converges("rec.keyed")
    record = last(pipeline, "rec.keyed")
    assert record.value == {"v": 1}
    assert record.key["k0"] == [1, 2]
    assert record.key["k2"][0]["value"] == [3_723_000_000_004]
    where = " AND ".join(f"k{i} = {literal}" for i, literal in enumerate(KEYS.values()))
    session.execute(f"DELETE FROM rec.keyed WHERE {where}")
    pipeline.converges("rec.keyed")
    assert last(pipeline, "rec.keyed").value is None


def test_clustering_keys_that_are_equal_are_one_record(pipeline: Pipeline, session: Any) -> None:
    """Cassandra keeps one row, under the key that came first."""
    for value, (k, d) in enumerate([("(1)", "1.50"), ("(1, null)", "1.5"), ("(1)", "1.500")]):
        session.execute(f"INSERT INTO rec.equal (p, k, d, v) VALUES (1, {k}, {d}, {value})")
    pipeline.converges("rec.equal")
    records = pipeline.records("rec.equal")
    assert {repr(record.key) for record in records} == {
        "{'p': 1, 'k': {'index_0': 1, 'index_1': None}, 'd': {'bigint': b'\\x0f', 'scale': 1}}"
    }
    assert records[-1].value == {"v": 2}
    session.execute("DELETE FROM rec.equal WHERE p = 1 AND k = (1, null) AND d = 1.5000")
    pipeline.converges("rec.equal")


def test_counters(pipeline: Pipeline, session: Any) -> None:
    for step in ("+ 5", "- 2"):
        session.execute(f"UPDATE rec.counters SET c = c {step} WHERE k = 'x'")
    pipeline.converges("rec.counters")
    assert last(pipeline, "rec.counters").value == {"c": 3}


def test_names_that_avro_forbids(pipeline: Pipeline, session: Any) -> None:
    session.execute(
        'INSERT INTO rec."Odd" ("The key", "my col", "my-col", "1st", "größe", own) VALUES (1, 2, 3, 4, \'x\', {v: 5})'
    )
    pipeline.converges("rec.Odd")
    record = last(pipeline, "rec.Odd")
    assert record.key == {"The_key_8a45d6d1": 1}
    assert record.value == {
        "my_col_ad025cc7": 2,
        "my_col_7e10c095": 3,
        "_1st_ec31383c": 4,
        "gr__e_fdbb3a56": "x",
        "own": {"v": 5},
    }


def test_a_registry_without_registration(pipeline: Pipeline, tmp_path: Path) -> None:
    properties = {**pipeline.connector_properties("rec.wide"), "value.converter.auto.register.schemas": "false"}
    registry = Registry(
        ConnectorSettings.from_properties({k: str(v) for k, v in properties.items()}, "test"), tmp_path / "ids"
    )
    client = SchemaRegistryClient({"url": pipeline.status.registry_url})
    registered = client.get_latest_version("data-rec.wide-value")
    assert registry.register("data-rec.wide-value", registered.schema.schema_str) == registered.schema_id
    with pytest.raises(HelenusError, match=r"has not this schema, and value\.converter\.auto\.register\.schemas=false"):
        registry.register("data-rec.wide-value", '{"type":"record","name":"other","fields":[]}')
    assert len(client.get_versions("data-rec.wide-value")) == 1
    client.close()
    registry.close()


def test_a_registry_that_somebody_else_fills(pipeline: Pipeline, session: Any, tmp_path: Path) -> None:
    """The command prints what to register; what is missing is named."""
    off = {"data.topic": "filled", "value.converter.auto.register.schemas": "false"}
    properties = {**pipeline.connector_properties("rec.hollow"), **off}
    files = [pipeline.directory / "worker.properties", write_properties(tmp_path / "filled.properties", properties)]
    printed = subprocess.run(
        [script("helenus-connector"), "schemas", *map(str, files)], capture_output=True, text=True, timeout=120
    )
    assert printed.returncode == 0, printed.stderr
    subjects = [json.loads(line) for line in printed.stdout.splitlines()]
    assert [subject["subject"] for subject in subjects] == ["filled-key", "filled-value", "filled-truncation"]
    settings = ConnectorSettings.from_properties({k: str(v) for k, v in properties.items()}, "test")
    (table,) = [t for t in read_tables(session, "rec").values() if t.name == "hollow"]
    registry = Registry(settings, tmp_path / "ids")
    client = SchemaRegistryClient({"url": pipeline.status.registry_url})
    for subject in subjects:
        with pytest.raises(HelenusError, match=f"helenus-connector schemas.*subject {subject['subject']}"):
            RowShape(table, settings, registry).truncation(None)
        client.register_schema(subject["subject"], Schema(subject["schema"], "AVRO"))
    assert RowShape(table, settings, registry).truncation(None).key[:1] == b"\0"
    client.close()
    registry.close()


def test_300_columns(pipeline: Pipeline, session: Any) -> None:
    names = ", ".join(f"c{i}" for i in range(300))
    session.execute(f"INSERT INTO rec.many (k, {names}) VALUES (1, {', '.join(map(str, range(300)))})")
    pipeline.converges("rec.many")


def test_the_keys_of_datastax_and_source_headers(pipeline: Pipeline, session: Any) -> None:
    session.execute("INSERT INTO rec.compat (k, t, a, v) VALUES (-1, '01:02:03.000000004', '2001:db8::1', 5)")
    record = eventually(lambda: pipeline.records("rec.compat"), "the record is there")[-1]
    assert (record.key["k"], str(record.key["t"]), record.value) == (255, "01:02:03", {"v": 5})
    assert record.key["a"] == "2001:db8:0:0:0:0:0:1"
    assert set(record.headers) == {"node", "segpos", "digest", "exact_key"}
    session.execute("DELETE FROM rec.compat WHERE k = -1 AND t = '01:02:03.000000004' AND a = '2001:db8::1'")
    gone = eventually(lambda: pipeline.records("rec.compat")[1:], "the row's null is there")[-1]
    assert (gone.key, gone.value) == (record.key, None)


def test_a_column_that_cannot_be_published_is_left_out(pipeline: Pipeline, session: Any) -> None:
    session.execute(f"INSERT INTO rec.custom (k, a, ab, b, c) VALUES (1, 2, 3, {UUID}, 4)")
    record = eventually(lambda: pipeline.records("rec.custom"), "the record is there")[-1]
    assert record.value == {"a": 2, "ab": 3}


def test_odd_tables(pipeline: Pipeline, session: Any) -> None:
    for name, odd in ODD.items():
        for statement in odd.statements:
            session.execute(statement.replace("{t}", f"rec.odd_{name}"))
    for name in ODD:
        pipeline.converges(f"rec.odd_{name}")


def test_values_of_no_bytes_where_none_are_a_value(pipeline: Pipeline, session: Any) -> None:
    """In clustering columns they are null, alone or together; in a collection they leave their column out."""
    no_int, no_uuid = "blob_as_int(0x)", "blob_as_uuid(0x)"
    keys = [(no_int, UUID), ("1", no_uuid), (no_int, no_uuid), ("1", UUID)]
    for v, (a, b) in enumerate(keys):
        session.execute(f"INSERT INTO rec.hollow (p, a, b, v) VALUES (1, {a}, {b}, {v})")
    session.execute(f"UPDATE rec.hollow SET l = [1, {no_int}] WHERE p = 1 AND a = 1 AND b = {UUID}")

    def values() -> dict[Any, Any]:
        published = last_of_each(pipeline, "rec.hollow")
        return {key: v for key, record in published.items() if record.value and (v := record.value["v"]) is not None}

    expected = {(1, None, UUID): 0, (1, 1, None): 1, (1, None, None): 2, (1, 1, UUID): 3}
    eventually(lambda: values() == expected, "the rows are published")
    published = last_of_each(pipeline, "rec.hollow")
    assert json.loads(published[1, None, UUID].headers["empty"]) == ["a"]
    assert json.loads(published[1, None, None].headers["empty"]) == ["a", "b"]
    full = eventually(lambda: _with(last_of_each(pipeline, "rec.hollow")[1, 1, UUID], "left_out"), "the list")
    assert (full.value["l"], full.headers["left_out"]) == (None, b'["l"]')
    for a, b in keys[:3]:
        session.execute(f"DELETE FROM rec.hollow WHERE p = 1 AND a = {a} AND b = {b}")
    eventually(lambda: values() == {(1, 1, UUID): 3}, "they are gone")
    assert not pipeline.agent.total("helenus_agent_skipped_total", reason="malformed_key")


def test_values_of_no_bytes_in_a_partition_key(pipeline: Pipeline, session: Any) -> None:
    """Such a row is another than the one with a zero there, and its key is null under a schema of its own."""
    for name in ("hollows", "hollows_json"):
        table = f"rec.{name}"
        for n, (p, q) in enumerate((("blob_as_int(0x)", "''"), ("0", "''"), ("blob_as_int(0x)", "'a'"))):
            session.execute(f"INSERT INTO {table} (p, q, c, v) VALUES ({p}, {q}, 1, {n})")
        expected = {(None, "", 1): 0, (0, "", 1): 1, (None, "a", 1): 2}
        eventually(lambda: _values(pipeline, table) == expected, "the rows are published")  # noqa: B023
        assert json.loads(last_of_each(pipeline, table)[None, "a", 1].headers["empty"]) == ["p"]
        session.execute(f"DELETE FROM {table} WHERE p = blob_as_int(0x) AND q = '' AND c = 1")
        session.execute(f"UPDATE {table} SET v = 7 WHERE p = 0 AND q = '' AND c = 1")
        session.execute(f"DELETE FROM {table} WHERE p = blob_as_int(0x) AND q = 'a'")
        session.execute(f"INSERT INTO {table} (p, q, c, v) VALUES (blob_as_int(0x), 'a', 2, 9)")
        live_rows = {(None, "", 1): None, (0, "", 1): 7, (None, "a", 2): 9, (None, "a", None): None, (None, "a", 1): 2}
        eventually(lambda: _values(pipeline, table) == live_rows, "what is deleted is gone")  # noqa: B023
    keys = [("blob_as_decimal(0x)", "blob_as_uuid(0x)"), ("blob_as_decimal(0x)", UUID), ("0", UUID)]
    for p, q in keys:
        session.execute(f"INSERT INTO rec.hollow_keys (p, q) VALUES ({p}, {q})")
    zero = {"bigint": b"\0", "scale": 0}

    def values() -> list[Any]:
        return sorted(str((r.key, r.value)) for r in pipeline.records("rec.hollow_keys"))

    rows = [{"p": p, "q": q and uuid.UUID(q)} for p, q in ((None, None), (None, UUID), (zero, UUID))]
    eventually(lambda: values() == sorted(str((row, row)) for row in rows), lambda: f"the keys, {values()}")
    assert not pipeline.agent.total("helenus_agent_skipped_total", reason="malformed_key")


def _values(pipeline: Pipeline, table: str) -> dict[tuple[Any, ...], Any]:
    return {key: record.value and record.value["v"] for key, record in last_of_each(pipeline, table).items()}


def last_of_each(pipeline: Pipeline, table: str) -> dict[tuple[Any, ...], Record]:
    """The last record of every key."""
    records = pipeline.records(table)
    return {tuple(str(v) if isinstance(v, uuid.UUID) else v for v in r.key.values()): r for r in records}


def _with(record: Record, header: str) -> Record | None:
    return record if header in record.headers else None


def test_a_type_in_a_key_gets_a_field(pipeline: Pipeline, session: Any) -> None:
    """While an event of before waits on the topic: it names the row that it named."""
    session.execute("INSERT INTO rec.grown (p, c, v) VALUES (1, {x: 1}, 1)")
    pipeline.converges("rec.grown")
    (event,) = messages(pipeline.status.bootstrap_servers, "events-rec.grown")
    session.execute("ALTER TYPE rec.growing ADD y text")
    session.execute("INSERT INTO rec.grown (p, c, v) VALUES (1, {x: 2, y: 'a'}, 2)")
    eventually(lambda: len(pipeline.records("rec.grown")) == 2, "the record of the type as it is now")
    session.execute("UPDATE rec.grown SET v = 3 WHERE p = 1 AND c = {x: 1}")
    producer = Producer({"bootstrap.servers": pipeline.status.bootstrap_servers})
    value = event.value()
    producer.produce(event.topic(), value[:2] + b"f" * 32 + value[34:], event.key(), event.partition())
    producer.flush()
    pipeline.converges("rec.grown")
    last = {tuple(r.key["c"].items()): r.value for r in pipeline.records("rec.grown")}
    assert last[("x", 1), ("y", None)] == {"v": 3}


def test_decimals_and_varints_as_asked_for(pipeline: Pipeline, session: Any) -> None:
    session.execute("INSERT INTO rec.modes (k, d, v) VALUES (1.50, [-0.10, 1E+10], -9223372036854775808)")
    record = eventually(lambda: pipeline.records("rec.modes"), "the record is there")[-1]
    assert record.value == {"d": ["-0.10", "1E+10"], "v": -(2**63)}
    assert record.key["k"] == {"bigint": b"\x00\x96", "scale": 2}


def test_times_beyond_those_of_java_and_python(pipeline: Pipeline, session: Any) -> None:
    earliest, latest = "blob_as_timestamp(0x8000000000000000)", "blob_as_timestamp(0x7fffffffffffffff)"
    session.execute(
        f"INSERT INTO rec.far (k, v, m) VALUES ({earliest}, {latest}, {{{earliest}: blob_as_date(0xffffffff)}})"
    )
    record = eventually(lambda: pipeline.records("rec.far"), "the record is there")[-1]
    assert (record.key, record.value) == (
        {"k": -(2**63)},
        {"v": 2**63 - 1, "m": {"-292275055-05-16T16:47:04.192Z": 2**31 - 1}},
    )


def test_the_expiry_of_a_row_is_published(pipeline: Pipeline, session: Any) -> None:
    session.execute("INSERT INTO rec.hollow (p, a, b, v) VALUES (7, 7, uuid(), 1) USING TTL 10000")
    now = time.time()
    record = eventually(lambda: [r for r in pipeline.records("rec.hollow") if r.key["p"] == 7], "the record")[-1]
    assert abs(int(record.headers["expires"]) - now - 10_000) < 60
    assert all("expires" not in r.headers for r in pipeline.records("rec.wide"))


def test_a_later_record_of_a_row_has_the_expiry_of_its_older_cell(pipeline: Pipeline, session: Any) -> None:
    """A compacted topic keeps the last record alone."""

    def records() -> list[Any]:
        return [r for r in pipeline.records("rec.hollow") if r.key["p"] == 8]

    unique = uuid.uuid4()
    session.execute("INSERT INTO rec.hollow (p, a, b, v) VALUES (8, 8, %s, 1) USING TTL 20000", (unique,))
    now = time.time()
    eventually(records, "the record")
    session.execute("INSERT INTO rec.hollow (p, a, b) VALUES (8, 8, %s)", (unique,))
    later = eventually(lambda: len(records_now := records()) > 1 and records_now, "the record of the second change")[-1]
    assert abs(int(later.headers["expires"]) - now - 20_000) < 60


def test_java_reads_what_python_reads(pipeline: Pipeline, tmp_path: Path) -> None:
    registry = SchemaRegistryClient({"url": pipeline.status.registry_url})
    texts_and_data, expected = [], []
    for table in (
        "wide",
        "keyed",
        "Odd",
        "many",
        "hollow",
        "hollows",
        "hollow_keys",
        "modes",
        *(f"odd_{name}" for name in ODD),
    ):
        for message in messages(pipeline.status.bootstrap_servers, f"data-rec.{table}"):
            for data in (message.key(), message.value()):
                if data is not None:
                    text = registry.get_schema(int.from_bytes(data[1:5], "big")).schema_str
                    texts_and_data.append((text, data[5:]))
                    expected.append(plain(read(data[5:], fastavro.parse_schema(bare(json.loads(text))))))
    registry.close()
    answers = Reader(tmp_path).read(texts_and_data)
    assert [a.get("error") for a in answers] == [None] * len(texts_and_data)
    assert [a["value"] for a in answers] == expected
    assert max(len(value) for value in expected) == 300
