"""The whole path on each Cassandra that people run beside 5.0: one worker with a connector of each mode."""

from __future__ import annotations

import os
import re
import subprocess
import threading
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any

import pytest
from integration.pipeline import Pipeline, script, write_properties
from integration.test_path import TYPES, columns
from integration.test_state import write as write_rows
from integration.test_verify import command as verify
from integration.workload import SCHEMA, Workload, create
from patience import PATIENCE_S, eventually

from helenus_schemas.service.cassandra import connect
from helenus_schemas.settings.shared import CassandraSettings
from helenus_stack.java import spark_java_home
from helenus_stack.progress import Silent
from helenus_stack.stack import Stack
from helenus_stack.status import Status

pytestmark = [pytest.mark.integration, pytest.mark.timeout(900)]

VERSIONS = ("6.0",)
LONG_VERSIONS = ("3.11", "4.0", "4.1")
YAML_OF_4_0 = {"commitlog_segment_size_in_mb": 4, "cdc_total_space_in_mb": 512}
YAML = {"commitlog_segment_size": "4MiB", "cdc_total_space": "512MiB"}
STATE_TABLE = (
    "CREATE TABLE {} (p int, c int, d text, v text, n int, {} PRIMARY KEY (p, c, d))"
    " WITH CLUSTERING ORDER BY (c DESC, d ASC) AND cdc = true"
)
MODES: dict[str, dict[str, object]] = {
    "kinds": {},
    "types": {"snapshot.mode": "initial"},
    "gated": {"gate": "local_quorum"},
    "written": {"resolver": "none", "output.format": "debezium", "query.group": "written"},
    "live": {"state": "keys", "markers": "false", "query.group": "live"},
    "merged": {"state": "rows", "query.group": "merged"},
}
"""What the connector of each table is set to."""


@dataclass
class Run:
    """A node of one version, with an agent and a worker for the tables of its keyspace."""

    version: str
    keyspace: str
    types: dict[str, tuple[str, str]]
    session: Any
    pipeline: Pipeline


@contextmanager
def filling_segments(session: Any, version: str) -> Iterator[None]:
    """A node of 3.11 moves a segment to cdc_raw when all in it is flushed, so others have to follow it."""
    stop = threading.Event()
    if version == "3.11":
        session.execute("CREATE TABLE filler.t (k int PRIMARY KEY, b blob)")

    def fill() -> None:
        insert = session.prepare("INSERT INTO filler.t (k, b) VALUES (?, ?)")
        while not stop.wait(0.1):
            session.execute(insert, (0, bytes(100_000)))

    thread = threading.Thread(target=fill if version == "3.11" else stop.is_set)
    thread.start()
    try:
        yield
    finally:
        stop.set()
        thread.join()


@pytest.fixture(scope="module", params=[*VERSIONS, *(pytest.param(v, marks=pytest.mark.long) for v in LONG_VERSIONS)])
def run(request: pytest.FixtureRequest, status: Status, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Run]:
    version, directory = request.param, tmp_path_factory.mktemp("run")
    keyspace = f"on_{version.replace('.', '_')}"
    types = {name: kind for name, kind in TYPES.items() if version >= "5" or not kind[0].startswith("vector")}
    yaml = {"3.11": {"cdc_total_space_in_mb": 512}, "4.0": YAML_OF_4_0}.get(version, YAML)
    with Stack(directory / "stack", only=["cassandra"], cassandra=version, cassandra_yaml=yaml) as stack:
        node = stack.status()
        session = connect(CassandraSettings.from_properties(node.cassandra(), "status"))
        release = session.execute("SELECT release_version FROM system.local").one().release_version
        assert release.startswith(version)
        servers = replace(
            status.only("kafka"),
            contact_points=node.contact_points,
            cql_port=node.cql_port,
            local_dc=node.local_dc,
            nodes=node.nodes,
        )
        pipeline = Pipeline(servers, directory / "pipeline")
        try:
            create_tables(session, version, keyspace, types)
            with (pipeline.directory / "agent.properties").open("a") as file:
                file.write(f"cells.include.list={keyspace}\\.(written|merged)\n")
            pipeline.agent.start().ready()
            pipeline.connect().start().ready()
            connectors = {f"{keyspace}.{table}": more for table, more in MODES.items()}
            with pipeline.connected(connectors), filling_segments(session, version):
                yield Run(version, keyspace, types, session, pipeline)
            assert (pipeline.connector.stop(), pipeline.agent.stop()) == (0, 0)
        finally:
            pipeline.stop()
            session.cluster.shutdown()


def create_tables(session: Any, version: str, keyspace: str, types: Mapping[str, tuple[str, str]]) -> None:
    """Make a table for each mode, with rows in the one that is snapshotted."""
    session.execute("CREATE KEYSPACE filler WITH replication = {'class': 'SimpleStrategy', 'replication_factor': 1}")
    create(session, keyspace, "kinds")
    for table in ("gated", "written"):
        session.execute(SCHEMA[1].format(ks=keyspace, table=table))
    session.execute(STATE_TABLE.format(f"{keyspace}.live", "m map<text, int>,"))
    session.execute(STATE_TABLE.format(f"{keyspace}.merged", "" if version < "5" else "m map<text, int>,"))
    session.execute(f"CREATE TABLE {keyspace}.types (k int PRIMARY KEY, {columns(types)}) WITH cdc = false")
    for k in range(20):
        insert_every_type(session, f"{keyspace}.types", types, k)
    session.execute(f"ALTER TABLE {keyspace}.types WITH cdc = true")


def insert_every_type(session: Any, table: str, types: Mapping[str, tuple[str, str]], k: int) -> None:
    values = ", ".join(literal for _, literal in types.values())
    session.execute(f"INSERT INTO {table} (k, {', '.join(types)}) VALUES ({k}, {values})")


def test_equal_write_times(run: Run) -> None:
    """Whatever order they come in, state=rows keeps the value that the node keeps."""
    session, table, is_3 = run.session, f"{run.keyspace}.merged", run.version == "3.11"
    pairs = [
        ("v = 'a'", "v = 'é'", "a" if is_3 else "é"),
        ("v = 'x'", "v = 'xé'", "xé"),
        ("n = 1", "n = -1", 1 if is_3 else -1),
        ("v = 'b'", "v = 'a' USING TTL 100000", "b" if is_3 else "a"),
    ]
    expected = {}
    for c, (*values, winner) in enumerate(pairs):
        for d, order in (("a", values), ("b", values[::-1])):
            written_at = time.time_ns() // 1000
            for value in order:
                assignment, _, ttl = value.partition(" USING ")
                using = f"TIMESTAMP {written_at}" + (f" AND {ttl}" if ttl else "")
                session.execute(f"UPDATE {table} USING {using} SET {assignment} WHERE p = 9 AND c = {c} AND d = '{d}'")
            column = assignment[0]
            row = session.execute(f"SELECT {column} FROM {table} WHERE p = 9 AND c = {c} AND d = '{d}'").one()
            assert row[0] == winner, assignment
            expected[c, d] = column, winner

    def published() -> dict[Any, Any]:
        rows = {(record.key["c"], record.key["d"]): record.value for record in run.pipeline.records(table)}
        return {key: (column, (rows.get(key) or {}).get(column)) for key, (column, _) in expected.items()}

    eventually(lambda: published() == expected, "the values that the node keeps")
    exit_status, report, errors = verify(run.pipeline, table, "--patience", "60")
    assert exit_status == 0, f"{report}\n{errors}\n{run.pipeline.connector.tail()}"
    assert published() == expected


def test_every_mode(run: Run) -> None:
    """Rows of before, every type, random statements, TTL, LWT, ALTER, TRUNCATE: the topic has what the table has."""
    session, pipeline, keyspace = run.session, run.pipeline, run.keyspace
    kinds, types, live, merged = (f"{keyspace}.{table}" for table in ("kinds", "types", "live", "merged"))
    for seed, table in enumerate(("kinds", "gated"), 1):
        Workload(session, f"{keyspace}.{table}", seed).run(100)
    for seed, table in enumerate((live, merged), 3):
        write_rows(session, table, 100, seed)
    insert_every_type(session, types, run.types, 100)
    session.execute(f"INSERT INTO {types} (k) VALUES (101)")
    session.execute(f"UPDATE {types} USING TTL 100000 SET n = 7 WHERE k = 1")
    session.execute(f"UPDATE {types} SET te = 'applied' WHERE k = 2 IF n = -2147483648")
    session.execute(f"ALTER TABLE {types} ADD later text")
    session.execute(f"UPDATE {types} SET later = 'x' WHERE k = 3")
    session.execute(f"ALTER TABLE {types} DROP a")
    session.execute(f"TRUNCATE {merged}")
    write_rows(session, merged, 50, seed=9)
    for table in (kinds, types, f"{keyspace}.gated"):
        pipeline.converges(table)
    assert {record.key["k"] for record in pipeline.records(types)} == {*range(20), 100, 101}
    for table in (live, merged):
        exit_status, report, errors = verify(pipeline, table, "--patience", "60")
        assert exit_status == 0, f"{report}\n{errors}\n{pipeline.connector.tail()}"


def test_columns_whose_write_times_cannot_be_read_are_refused(run: Run) -> None:
    table = f"{run.keyspace}.live"
    more = {**MODES["merged"], "name": "whole", "query.group": "whole", "data.topic": f"whole-{table}"}
    write_properties(run.pipeline.directory / "whole.properties", {**run.pipeline.connector_properties(table), **more})
    validation = subprocess.run(
        [script("helenus-connector"), "validate", "--connect", run.pipeline.connector.arguments[1], "whole.properties"],
        cwd=run.pipeline.directory,
        capture_output=True,
        text=True,
        env={**os.environ, "JAVA_HOME": str(spark_java_home(Silent()))},
        timeout=PATIENCE_S,
    )
    problem = f"Cassandra {run.version}.* does not show of unfrozen collections and UDTs: m"
    assert (re.search(problem, validation.stdout + validation.stderr) is not None) == (run.version < "5"), validation


def test_each_change_as_it_was_written(run: Run) -> None:
    """With resolver=none a statement is a record, with its own values."""
    table, rows = f"{run.keyspace}.written", "p = 1 AND q = 'a' AND c = 1 AND d = 50554d6e-29bb-11e5-b345-feff819cdc9f"
    for n in range(5):
        run.session.execute(f"UPDATE {table} SET n = {n}, m = m + {{'k{n}': {n}}} WHERE {rows}")
    run.session.execute(f"DELETE FROM {table} WHERE {rows}")
    eventually(lambda: len(run.pipeline.records(table)) >= 6, "a record for each statement")
    operations = [record.value["op"] for record in run.pipeline.records(table) if record.value]
    assert [operation for operation in operations if operation != "d"] == ["u"] * 5
    assert operations[-1] == "d"
