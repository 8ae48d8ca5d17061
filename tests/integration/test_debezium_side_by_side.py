"""`output.format=debezium-cassandra` and Debezium's connector on one node: the same records of the same statements."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import closing
from itertools import zip_longest
from pathlib import Path
from typing import Any

import pytest
from bench.debezium_peer import debezium, file_of, has_maven
from cassandra.cluster import Cluster
from integration.pipeline import Pipeline
from patience import eventually

from helenus_sinks.kafka.log import KafkaLog
from helenus_stack.stack import Stack

pytestmark = [
    pytest.mark.integration,
    pytest.mark.long,
    pytest.mark.skipif(not has_maven(), reason="Debezium's connector is downloaded with Maven"),
]

TABLES = {"side.t": 31, "side.one": 3, "side.wide": 5}
"""How many records they get."""
DEFINITIONS = [
    "CREATE KEYSPACE side WITH replication = {'class': 'SimpleStrategy', 'replication_factor': 1}",
    "CREATE TYPE side.addr (street text, zip int)",
    "CREATE TABLE side.t (k int, c text, v int, w text, m map<text, int>, n map<int, text>, l list<int>, st set<text>, "
    "f frozen<addr>, tu tuple<int, text>, tiny tinyint, small smallint, big bigint, fl float, dbl double, bo boolean, "
    "b blob, asci ascii, de decimal, vi varint, du duration, ine inet, u uuid, tiu timeuuid, ts timestamp, da date, "
    "ti time, fll frozen<list<frozen<list<int>>>>, fm map<frozen<set<int>>, text>, lu list<uuid>, PRIMARY KEY (k, c)) "
    "WITH CLUSTERING ORDER BY (c DESC) AND cdc = true",
    "CREATE TABLE side.one (k int PRIMARY KEY, v int) WITH cdc = true",
    "CREATE TABLE side.wide (a int, b text, c int, d timestamp, e double, v int, PRIMARY KEY ((a, b), c, d, e)) "
    "WITH CLUSTERING ORDER BY (c ASC, d DESC, e ASC) AND cdc = true",
]
ROW = "WHERE k = 1 AND c = 'a'"
STATEMENTS = [
    "INSERT INTO side.t (k, c, v, w) VALUES (1, 'a', 1, 'x') USING TIMESTAMP 1700000000000001",
    f"UPDATE side.t SET v = 2 {ROW}",
    f"UPDATE side.t SET v = null {ROW}",
    f"DELETE w FROM side.t {ROW}",
    "INSERT INTO side.t (k, c, v) VALUES (1, 'b', 1) USING TTL 86400",
    f"UPDATE side.t USING TTL 86400 SET m = {{'a': 1}}, w = 'y' {ROW}",
    "INSERT INTO side.t (k, c) VALUES (1, 'only key')",
    "INSERT INTO side.t (k, c, m, n, l, st) VALUES (1, 'c', {'a': 1, 'b': 2}, {1: 'x'}, [3, 1, 2], {'p', 'q'})",
    f"UPDATE side.t SET m = m + {{'z': 26}}, l = l + [9], st = st + {{'r'}} {ROW}",
    f"UPDATE side.t SET l = [7, 8] {ROW}",
    f"UPDATE side.t SET l[0] = 5 {ROW}",
    f"DELETE l[1] FROM side.t {ROW}",
    f"DELETE m['z'] FROM side.t {ROW}",
    f"DELETE m, l, st FROM side.t {ROW}",
    "INSERT INTO side.t (k, c, f, tu) VALUES (1, 'd', {street: 'Main', zip: null}, (1, null))",
    "INSERT INTO side.t (k, c, tiny, small, big, fl, dbl, bo, b, asci) "
    "VALUES (1, 'e', -1, -2, -3, 1.5, 0.1, true, 0x00ff, 'asc')",
    "INSERT INTO side.t (k, c, de, vi, du, ine, u, tiu, ts, da, ti) VALUES (1, 'f', 12.50, 12345678901, 1mo2d3h, "
    "'10.0.0.1', 11111111-1111-1111-1111-111111111111, 50554d6e-29bb-11e5-b345-feff819cdc9f, 1700000000123, "
    "'2024-02-29', '12:30:15.123456789')",
    "INSERT INTO side.t (k, c, ine, da, ts) VALUES (1, 'g', '2001:db8::1', '1969-12-31', -1)",
    "INSERT INTO side.t (k, c, fll, fm, lu) VALUES (1, 'h', [[1], [2, 3]], {{1}: 'x'}, "
    "[11111111-1111-1111-1111-111111111111])",
    "UPDATE side.t SET v = 3 WHERE k = 2 AND c = 'a' IF v = null",
    "INSERT INTO side.t (k, c, v) VALUES (3, 'a', 1) IF NOT EXISTS",
    f"DELETE FROM side.t {ROW}",
    "DELETE FROM side.t WHERE k = 1 AND c > 'a' AND c <= 'c'",
    "DELETE FROM side.t WHERE k = 1 AND c >= 'g'",
    "DELETE FROM side.t WHERE k = 1",
    "BEGIN BATCH INSERT INTO side.t (k, c, v) VALUES (4, 'a', 1); INSERT INTO side.t (k, c, v) VALUES (4, 'b', 2); "
    "UPDATE side.t SET v = 3 WHERE k = 5 AND c = 'a'; APPLY BATCH",
    "BEGIN BATCH USING TIMESTAMP 1700000000000002 DELETE FROM side.t WHERE k = 6; "
    "INSERT INTO side.t (k, c, v, m) VALUES (7, 'a', 1, {'a': 1}); "
    "INSERT INTO side.t (k, c, v) VALUES (7, 'b', 1) USING TTL 86400; APPLY BATCH",
    "INSERT INTO side.one (k, v) VALUES (1, 1)",
    "UPDATE side.one SET v = 2 WHERE k = 1",
    "DELETE FROM side.one WHERE k = 1",
    "INSERT INTO side.wide (a, b, c, d, e) VALUES (1, 'x', 1, 2, 3.5)",
    "DELETE FROM side.wide WHERE a = 1 AND b = 'x' AND c = 1",
    "DELETE FROM side.wide WHERE a = 1 AND b = 'x' AND c = 1 AND d > 2 AND d < 9",
    "DELETE FROM side.wide WHERE a = 1 AND b = 'x' AND c = 1 AND d = 2 AND e >= 1.5",
    "DELETE FROM side.wide WHERE a = 1 AND b = 'x'",
]


@pytest.fixture
def pipeline(tmp_path: Path) -> Iterator[Pipeline]:
    """Of servers of its own: a table with a vector, anywhere, and Debezium publishes nothing."""
    with Stack(tmp_path / "stack", only=["cassandra", "kafka", "registry"]) as stack:
        pipeline = Pipeline(stack.status(), tmp_path)
        with (tmp_path / "agent.properties").open("a") as file:
            file.write("cells.include.list=side\\..*\n")
        yield pipeline
        pipeline.stop()


def test_of_the_same_statements_the_same_records(pipeline: Pipeline) -> None:
    status = pipeline.status
    with Cluster(status.contact_points, port=status.cql_port) as cluster:
        session = cluster.connect()
        for statement in DEFINITIONS:
            session.execute(statement)
        pipeline.agent.start().ready()
        more = {
            "output_format": "debezium-cassandra",
            "resolver": "none",
            "value_converter": "org.apache.kafka.connect.json.JsonConverter",
            "value_converter_schemas_enable": "false",
            "data_topic": "ours.${keyspace}.${table}",
        }
        pipeline.connect(*TABLES, **more).start().ready()
        with closing(KafkaLog({"bootstrap.servers": status.bootstrap_servers})) as log:
            for table in TABLES:  # the broker makes none by itself
                log.create(f"theirs.{table}", 1, {})
        with debezium(file_of(status, pipeline.directory / "debezium", "theirs")) as theirs:
            eventually(theirs.started, theirs.tail)
            for statement in STATEMENTS:
                session.execute(statement)
            eventually(lambda: not differences(pipeline), lambda: "\n".join(differences(pipeline)))


def differences(pipeline: Pipeline) -> list[str]:
    """Where the records of a key are not the same, in their order."""
    differing = []
    for table, count in TABLES.items():
        ours, theirs = records(pipeline, f"ours.{table}"), records(pipeline, f"theirs.{table}")
        counts = [sum(map(len, of_key.values())) for of_key in (ours, theirs)]
        if counts != [count, count]:
            differing.append(f"{table} {counts[0]} and {counts[1]} records of {count}")
        for key in {**ours, **theirs}:
            pairs = zip_longest(ours.get(key, []), theirs.get(key, []))
            differing += [f"{table} {key}\n  ours   {ours}\n  theirs {other}" for ours, other in pairs if ours != other]
    return differing


def records(pipeline: Pipeline, topic: str) -> dict[str, list[Any]]:
    """The records of each key, as far as they are to be the same. Debezium may publish some twice, and has sets,
    and the columns of a range's ends, in the order of a hash.
    """
    values_by_key: dict[str, list[Any]] = {}
    for message in pipeline.reader.messages(topic):
        value = json.loads(message.value() or b"null")
        for name in ("ts_ms", "written"):
            value.pop(name, None)
        for name in ("version", "name", "node"):
            value["source"].pop(name, None)
        if value["after"].get("st"):
            value["after"]["st"]["value"] = sorted(value["after"]["st"]["value"] or [])
        for end in filter(None, map(value["after"].get, ("_range_start", "_range_end"))):
            end["values"].sort(key=lambda column: column["name"])
        of_key = values_by_key.setdefault((message.key() or b"").decode(), [])
        if value not in of_key:
            of_key.append(value)
    return values_by_key
