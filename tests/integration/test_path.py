"""The path, real: what is written to Cassandra is what the data topic says."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from typing import Any

import pytest
from integration.pipeline import Lasting, Pipeline
from integration.workload import Workload, create
from patience import eventually

from helenus_stack.records import Record
from helenus_stack.settings import LogName

pytestmark = pytest.mark.integration

TYPES = {
    "a": ("ascii", "'plain'"),
    "b": ("bigint", "-9223372036854775808"),
    "bl": ("blob", "0x00ff"),
    "bo": ("boolean", "true"),
    "d": ("date", "'2024-02-29'"),
    "de": ("decimal", "-12345678901234567890.123456789"),
    "de2": ("decimal", "1E+100"),
    "do": ("double", "-1.5e300"),
    "du": ("duration", "1y2mo3w4d5h6m7s8ms9us10ns"),
    "f": ("float", "3.4e38"),
    "i": ("inet", "'2001:db8::1'"),
    "i4": ("inet", "'192.0.2.1'"),
    "n": ("int", "-2147483648"),
    "si": ("smallint", "-32768"),
    "te": ("text", "'ünïcode ✓'"),
    "ti": ("time", "'23:59:59.123456789'"),
    "ts": ("timestamp", "'1969-12-31T23:59:59.999Z'"),
    "tu": ("timeuuid", "50554d6e-29bb-11e5-b345-feff819cdc9f"),
    "ty": ("tinyint", "-128"),
    "u": ("uuid", "123e4567-e89b-12d3-a456-426614174000"),
    "vi": ("varint", "-170141183460469231731687303715884105729"),
    "l": ("list<int>", "[3, 1, 2]"),
    "s": ("set<text>", "{'x', 'y'}"),
    "m": ("map<text, timestamp>", "{'k': '2024-01-01T00:00:00Z'}"),
    "ll": ("frozen<list<frozen<map<text, int>>>>", "[{'a': 1}, {}]"),
    "sd": ("set<date>", "{'2024-01-01'}"),
    "sti": ("list<time>", "['00:00:00.000000001']"),
    "si2": ("set<inet>", "{'127.0.0.1'}"),
    "mi": ("map<int, text>", "{-1: 'x'}"),
    "mu": ("map<uuid, boolean>", "{123e4567-e89b-12d3-a456-426614174000: true}"),
    "mt": ("map<timestamp, int>", "{'1969-12-31T23:59:59.999Z': 1}"),
    "md": ("frozen<map<date, decimal>>", "{'2024-02-29': 1.50}"),
    "mz": ("map<time, double>", "{'01:02:03.000000004': 0.1}"),
    "mb": ("map<boolean, inet>", "{true: '::1'}"),
    "tp": ("tuple<int, text, tuple<bigint, date>>", "(1, null, (2, '2024-02-29'))"),
    "vc": ("vector<float, 3>", "[1.5, -2, 0.25]"),
}
KEYS = {
    "tinyint": "-1",
    "smallint": "-2",
    "time": "'01:02:03.000000001'",
    "timestamp": "'1969-12-31T23:59:59.999Z'",
    "date": "'1969-12-31'",
    "decimal": "1.10",
    "varint": "-129",
    "inet": "'::1'",
    "uuid": "123e4567-e89b-12d3-a456-426614174000",
    "double": "-0.5",
    "boolean": "false",
    "text": "''",
    "blob": "0x",
}


@pytest.fixture(scope="module")
def ks(log: LogName) -> str:
    return f"path_{log}"


@pytest.fixture(scope="module")
def pipeline(log: LogName, ks: str, session: Any, lasting: Lasting) -> Iterator[Pipeline]:
    create(session, ks, "all_kinds")
    session.execute(f"CREATE TABLE {ks}.types (k int PRIMARY KEY, {columns(TYPES)}) WITH cdc = true")
    keys = {f"k{i}": t for i, t in enumerate(KEYS)}
    declared = ", ".join(f"{name} {t}" for name, t in keys.items())
    session.execute(
        f'CREATE TABLE {ks}.keys ({declared}, "Q v" int, PRIMARY KEY (({", ".join(list(keys)[:3])}),'
        f" {', '.join(list(keys)[3:])})) WITH cdc = true"
    )
    session.execute(f"CREATE TABLE {ks}.only_keys (a int, b text, PRIMARY KEY (a, b)) WITH cdc = true")
    session.execute(f"CREATE TABLE {ks}.narrow (k text PRIMARY KEY, v int) WITH cdc = true")
    session.execute(f"CREATE TABLE {ks}.silent (k text PRIMARY KEY, v int)")
    tables = [f"{ks}.{name}" for name in ("all_kinds", "types", "keys", "only_keys", "narrow")]
    # Of two tasks: the partitions of a topic are divided, also where a small batch has no job for them.
    more = {"errors.tolerance": "all", "tasks.max": 2}
    with lasting(log).connected(dict.fromkeys(tables, more)) as pipeline:
        yield pipeline


def columns(types: dict[str, tuple[str, str]]) -> str:
    return ", ".join(f"{name} {t}" for name, (t, _) in types.items())


def test_every_scalar_and_collection_exactly(pipeline: Pipeline, session: Any, ks: str) -> None:
    names, values = ", ".join(TYPES), ", ".join(literal for _, literal in TYPES.values())
    session.execute(f"INSERT INTO {ks}.types (k, {names}) VALUES (1, {values})")
    session.execute(f"INSERT INTO {ks}.types (k) VALUES (2)")
    pipeline.converges(f"{ks}.types")
    full = next(r for r in pipeline.records(f"{ks}.types") if r.key["k"] == 1)
    assert full.value is not None
    assert None not in full.value.values()
    assert {"schema_id", "writetime"} <= set(full.headers)


def test_keys_of_every_type(pipeline: Pipeline, session: Any, ks: str) -> None:
    where = " AND ".join(f"k{i} = {literal}" for i, literal in enumerate(KEYS.values()))
    names, values = ", ".join(f"k{i}" for i in range(len(KEYS))), ", ".join(KEYS.values())
    session.execute(f'INSERT INTO {ks}.keys ({names}, "Q v") VALUES ({values}, 7)')
    pipeline.converges(f"{ks}.keys")
    (record,) = pipeline.records(f"{ks}.keys")
    assert record.value == {"Q_v_7c627647": 7}
    session.execute(f"DELETE FROM {ks}.keys WHERE {where}")
    pipeline.converges(f"{ks}.keys")
    assert pipeline.records(f"{ks}.keys")[-1].value is None


def test_a_table_of_key_columns_only(pipeline: Pipeline, session: Any, ks: str) -> None:
    session.execute(f"INSERT INTO {ks}.only_keys (a, b) VALUES (1, 'x')")
    pipeline.converges(f"{ks}.only_keys")
    assert pipeline.records(f"{ks}.only_keys")[-1].value == {"a": 1, "b": "x"}


def test_random_statements_converge(pipeline: Pipeline, session: Any, ks: str) -> None:
    workload = Workload(session, f"{ks}.all_kinds", seed=1)
    workload.run(1000)
    pipeline.converges(f"{ks}.all_kinds")


def test_a_range_delete_is_a_marker_and_the_rows_that_live(pipeline: Pipeline, session: Any, ks: str) -> None:
    for b in "abcd":
        session.execute(f"INSERT INTO {ks}.only_keys (a, b) VALUES (9, '{b}')")
    session.execute(f"DELETE FROM {ks}.only_keys WHERE a = 9 AND b >= 'b' AND b < 'd'")
    pipeline.converges(f"{ks}.only_keys")
    markers = [r for r in pipeline.records(f"{ks}.only_keys") if r.headers.get("scope") == b"range"]
    # Once more for each read of its proof, if rows of its partition were published after it.
    assert [(r.key, r.value) for r in markers] in ([({"a": 9, "b": None}, None)] * n for n in (1, 2, 3))
    assert json.loads(markers[0].headers["start"]) == {"inclusive": True, "values": {"b": "b"}, "descending": []}
    assert json.loads(markers[0].headers["end"]) == {"inclusive": False, "values": {"b": "d"}, "descending": []}
    # Two ranges of one mutation, and a row that lives for its newer time in the range: the marker comes before it.
    session.execute(
        f"BEGIN UNLOGGED BATCH DELETE FROM {ks}.only_keys USING TIMESTAMP 5 WHERE a = 8 AND b < 'm';"
        f"DELETE FROM {ks}.only_keys USING TIMESTAMP 5 WHERE a = 8 AND b > 'x';"
        f"INSERT INTO {ks}.only_keys (a, b) VALUES (8, 'c') USING TIMESTAMP 6; APPLY BATCH"
    )
    pipeline.converges(f"{ks}.only_keys")
    published = [r for r in pipeline.records(f"{ks}.only_keys") if r.key["a"] == 8]
    first, second = ([i for i, r in enumerate(published) if bound in r.headers] for bound in ("end", "start"))
    assert 1 <= len(first) <= 3
    assert 1 <= len(second) <= 3
    assert "c" in [r.key["b"] for r in published[first[-1] :]]


def test_a_truncation_is_a_marker_in_every_partition(pipeline: Pipeline, session: Any, ks: str) -> None:
    for a in range(20):
        session.execute(f"INSERT INTO {ks}.only_keys (a, b) VALUES ({a}, 'gone')")
    pipeline.converges(f"{ks}.only_keys")
    session.execute(f"TRUNCATE {ks}.only_keys")
    for a in range(5):
        session.execute(f"INSERT INTO {ks}.only_keys (a, b) VALUES ({a}, 'new')")
    eventually(lambda: len(truncations(pipeline, ks)) >= 4, "a marker in each of the four partitions")
    pipeline.converges(f"{ks}.only_keys")
    assert sorted(r.partition for r in truncations(pipeline, ks)) == [0, 1, 2, 3]
    named = {"table": f"{ks}.only_keys"} if pipeline.status.log == "kafka" else {}  # a key of Pulsar has one schema
    assert all(r.key == named and r.value is None for r in truncations(pipeline, ks))


def truncations(pipeline: Pipeline, ks: str) -> list[Record]:
    return [r for r in pipeline.records(f"{ks}.only_keys") if r.headers.get("scope") == b"table"]


def test_a_table_without_cdc_has_no_topic(pipeline: Pipeline, session: Any, ks: str) -> None:
    session.execute(
        f"BEGIN BATCH INSERT INTO {ks}.silent (k, v) VALUES ('a', 1); "
        f"INSERT INTO {ks}.narrow (k, v) VALUES ('a', 1); APPLY BATCH"
    )
    pipeline.converges(f"{ks}.narrow")
    assert pipeline.records(f"{ks}.narrow")[-1].key == {"k": "a"}
    topics = pipeline.reader.topics()
    assert f"events-{ks}.narrow" in topics
    assert f"events-{ks}.silent" not in topics


def test_a_column_added_by_alter_appears_within_a_second_of_the_next_write(
    pipeline: Pipeline, session: Any, ks: str
) -> None:
    session.execute(f"INSERT INTO {ks}.narrow (k, v) VALUES ('alter', 1)")
    pipeline.converges(f"{ks}.narrow")
    before = pipeline.records(f"{ks}.narrow")[-1].schema_id
    session.execute(f"ALTER TABLE {ks}.narrow ADD added map<text, int>")
    session.execute(f"INSERT INTO {ks}.narrow (k, v, added) VALUES ('alter', 2, {{'x': 1}})")
    written = time.time()
    record = eventually(
        lambda: next((r for r in pipeline.records(f"{ks}.narrow") if r.value and r.value.get("added")), None),
        "added",
    )
    assert record.value == {"added": {"x": 1}, "v": 2}
    assert record.schema_id != before
    pipeline.converges(f"{ks}.narrow")
    # A second, with room for a test machine that is busy with five servers.
    assert record.timestamp / 1000 - written < 5
    session.execute(f"ALTER TABLE {ks}.narrow DROP v")
    session.execute(f"INSERT INTO {ks}.narrow (k, added) VALUES ('alter', {{'y': 2}})")
    pipeline.converges(f"{ks}.narrow")


def test_copies_of_confirmed_changes_are_dropped(pipeline: Pipeline, session: Any, ks: str) -> None:
    """A second replica's agent reports the same mutations: nothing is read or published again."""
    session.execute(f"INSERT INTO {ks}.narrow (k, added) VALUES ('copy', {{'a': 1}})")
    pipeline.converges(f"{ks}.narrow")
    copies = list(pipeline.reader.messages(f"events-{ks}.narrow"))
    before = len(pipeline.records(f"{ks}.narrow"))

    def confirmed() -> float:
        return pipeline.connector.total("helenus_connector_events_total", connector=f"{ks}-narrow", outcome="confirmed")

    already = confirmed()
    with pipeline.log() as log:
        for copy in copies:
            log.append(copy.topic(), copy.partition(), copy.key(), copy.value())
    eventually(lambda: confirmed() >= already + len(copies), "copies are counted as confirmed")
    pipeline.adds_up(f"{ks}-narrow")
    assert len(pipeline.records(f"{ks}.narrow")) == before


def test_an_event_that_cannot_be_decoded_goes_to_the_dead_letter_topic(pipeline: Pipeline, ks: str) -> None:
    with pipeline.log() as log:
        log.append(f"events-{ks}.narrow", 0, b"key", b"no event")

    def dead() -> list[Any]:
        return list(pipeline.reader.messages(f"dlq-{ks}.narrow"))

    (dead_letter,) = eventually(dead, "the dead letter is there")
    headers = dict(dead_letter.headers())
    assert (dead_letter.key(), dead_letter.value()) == (b"key", b"no event")
    assert headers["__connect.errors.topic"] == f"events-{ks}.narrow".encode()
    assert headers["__connect.errors.partition"] == b"0"
    assert b"not an event" in headers["__connect.errors.exception.message"]
    pipeline.converges(f"{ks}.narrow")
