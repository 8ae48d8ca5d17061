"""The recipes in sinks/recipes, as they are: a table of DuckDB, of Delta and Parquet files become Cassandra's table."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import duckdb
import pytest
from deltalake import DeltaTable
from integration.pipeline import Lasting, Pipeline
from patience import eventually
from schemas.java import Program

from helenus_stack.jars import fetch, parse_lock
from helenus_stack.java import java_home
from helenus_stack.progress import Silent
from helenus_stack.resolve import resolve

pytestmark = pytest.mark.integration

RECIPES = Path(__file__).parents[2] / "sinks" / "recipes"
TABLE, TOPIC = "recipes.goods", "data-recipes.goods"
COLUMNS = """k int, c text, t text, n bigint, b boolean, f double, de decimal, at timestamp, da date, ti time, u uuid,
    i inet, bl blob, du duration, a frozen<address>, l list<int>, s set<text>, m map<text, int>,
    tu frozen<tuple<int, text>>, tt timeuuid, ve vector<float, 3>, PRIMARY KEY (k, c)"""
NAMES = "k, c, t, n, b, f, de, at, da, ti, u, i, bl, du, a, l, s, m, tu, tt, ve"
VALUES = """'ünïcode', 5000000000, true, 0.5, -1.50, '1969-12-31 23:59:59.123', '0001-01-01', '12:30:15.123456789',
    8f9e0b4c-5a3d-4b5e-9c1d-000000000001, '::1', 0x00ff, 1mo2d3ns, {street: 'Elm', number: 5}, [1, 2], {'x', 'y'},
    {'one': 1}, (7, 'seven'), 50554d6e-29bb-11e5-b345-feff819cdc9f, [1.5, -2, 0.25]"""


@pytest.fixture(scope="module")
def pipeline(session: Any, lasting: Lasting) -> Iterator[Pipeline]:
    session.execute("CREATE KEYSPACE recipes WITH replication = {'class': 'SimpleStrategy', 'replication_factor': 1}")
    session.execute("CREATE TYPE recipes.address (street text, number int)")
    session.execute(f"CREATE TABLE {TABLE} ({COLUMNS}) WITH cdc = true")
    more = {"state": "keys", "markers": "false", "decimal.handling.mode": "string"}
    with lasting("kafka").connected({TABLE: more}) as pipeline:
        yield pipeline


def of_cassandra(session: Any) -> dict[tuple[int, str], str | None]:
    return {(row.k, row.c): row.t for row in session.execute(f"SELECT k, c, t FROM {TABLE}")}


def is_on_the_topic(pipeline: Pipeline, session: Any) -> None:
    """Wait until the last record of every key is its row."""

    def agree() -> bool:
        last = {(r.key["k"], r.key["c"]): r.value for r in pipeline.records(TABLE)}
        return {key: row["t"] for key, row in last.items() if row is not None} == of_cassandra(session)

    eventually(agree, lambda: f"the topic has the rows\n{pipeline.connector.tail()}")


def stored(pipeline: Pipeline, directory: Path) -> dict[str, list[dict[str, Any]]]:
    """Run each recipe to the end of the topic; what each store has, by its key."""
    status = pipeline.status
    files = {"to_duckdb": ["db", "goods"], "to_delta": ["delta"], "to_parquet": ["parquet"]}
    for recipe, (place, *more) in files.items():
        where = [status.bootstrap_servers, status.registry_url, TOPIC, str(directory / place), *more, "--once"]
        done = subprocess.run([sys.executable, str(RECIPES / f"{recipe}.py"), *map(str, where)], capture_output=True)
        assert done.returncode == 0, done.stderr.decode()
    found = {}
    delta = DeltaTable(str(directory / "delta")).to_pyarrow_table()
    newest = (
        f"(SELECT * FROM (FROM read_parquet('{directory}/parquet/*.parquet', union_by_name = true) QUALIFY"
        " row_number() OVER (PARTITION BY k, c ORDER BY _batch DESC) = 1) WHERE NOT _deleted)"
    )
    with duckdb.connect(str(directory / "db")) as db:
        db.register("of_delta", delta)
        for name, table in (("duckdb", "goods"), ("delta", "of_delta"), ("parquet", newest)):
            rows = db.sql(f"SELECT * FROM {table} ORDER BY k, c").to_arrow_table()
            found[name] = [
                {column: value for column, value in row.items() if not column.startswith("_")}
                for row in rows.to_pylist()
            ]
    return found


def test_each_store_becomes_the_table(pipeline: Pipeline, session: Any, tmp_path: Path) -> None:
    for k in range(3):
        for c in "abc":
            session.execute(f"INSERT INTO {TABLE} ({NAMES}) VALUES ({k}, '{c}', {VALUES})")
    session.execute(f"INSERT INTO {TABLE} (k, c) VALUES (0, 'bare')")
    is_on_the_topic(pipeline, session)
    first = stored(pipeline, tmp_path)
    session.execute(f"ALTER TABLE {TABLE} ADD later text")
    session.execute(f"UPDATE {TABLE} SET t = 'new', later = 'x' WHERE k = 0 AND c = 'a'")
    session.execute(f"DELETE FROM {TABLE} WHERE k = 0 AND c = 'b'")
    session.execute(f"DELETE FROM {TABLE} WHERE k = 1")
    session.execute(f"INSERT INTO {TABLE} (k, c, t) VALUES (1, 'z', 'again')")
    is_on_the_topic(pipeline, session)
    for which, found in ((10, first), (len(of_cassandra(session)), stored(pipeline, tmp_path))):
        assert {name: len(rows) for name, rows in found.items()} == dict.fromkeys(found, which)
        assert found["delta"] == found["duckdb"]
        assert found["parquet"] == found["duckdb"]
    rows = found["duckdb"]
    assert {(row["k"], row["c"]): row["t"] for row in rows} == of_cassandra(session)
    assert [(row["k"], row["later"]) for row in rows if row["later"]] == [(0, "x")]
    (bare,) = (row for row in rows if (row["k"], row["c"]) == (0, "bare"))
    assert {value for name, value in bare.items() if name not in ("k", "c")} == {None}
    (whole,) = (row for row in rows if (row["k"], row["c"]) == (2, "c"))
    assert json.loads(json.dumps(whole, default=str)) == {
        "k": 2,
        "c": "c",
        "t": "ünïcode",
        "n": 5000000000,
        "b": True,
        "f": 0.5,
        "de": "-1.50",
        "at": "1969-12-31 23:59:59.123000+00:00",
        "da": "0001-01-01",
        "ti": 45015123456789,
        "u": "8f9e0b4c-5a3d-4b5e-9c1d-000000000001",
        "i": "::1",
        "bl": "b'\\x00\\xff'",
        "du": {"months": 1, "days": 2, "nanoseconds": 3},
        "a": {"street": "Elm", "number": 5},
        "l": [1, 2],
        "s": ["x", "y"],
        "m": [["one", 1]],
        "tu": {"index_0": 7, "index_1": "seven"},
        "tt": "50554d6e-29bb-11e5-b345-feff819cdc9f",
        "ve": [1.5, -2.0, 0.25],
        "later": None,
    }


@pytest.mark.long  # other readers of the same topic; each starts a JVM
def test_java_and_spark(pipeline: Pipeline, session: Any, tmp_path: Path) -> None:
    """Records of two schemas, read by Follow.java and by Spark's from_avro."""
    for c in "abc":
        session.execute(f"INSERT INTO {TABLE} ({NAMES}) VALUES (7, '{c}', {VALUES})")
    is_on_the_topic(pipeline, session)
    session.execute(f"ALTER TABLE {TABLE} ADD latest text")
    session.execute(f"UPDATE {TABLE} SET t = 'new', latest = 'x' WHERE k = 7 AND c = 'a'")
    session.execute(f"DELETE FROM {TABLE} WHERE k = 7 AND c = 'b'")
    session.execute(f"INSERT INTO {TABLE} (k, c, t) VALUES (8, 'z', 'gone')")
    session.execute(f"DELETE FROM {TABLE} WHERE k = 8")
    is_on_the_topic(pipeline, session)
    expected = of_cassandra(session)
    last = by_java(pipeline, tmp_path)
    assert {key: row["t"] for key, row in last.items() if row is not None} == expected
    assert last[7, "b"] is None
    assert last[8, "z"] is None
    rows = by_spark(pipeline, tmp_path)
    assert {(row["k"], row["c"]): row.get("t") for row in rows} == expected
    assert {(row["k"], row["c"]): row["latest"] for row in rows if row.get("latest")} == {(7, "a"): "x"}
    (whole,) = (row for row in rows if (row["k"], row["c"]) == (7, "c"))
    assert {name: value for name, value in whole.items() if name not in ("later", "latest")} == {
        "k": 7,
        "c": "c",
        "t": "ünïcode",
        "n": 5000000000,
        "b": True,
        "f": 0.5,
        "de": "-1.50",
        "at": "1969-12-31T23:59:59.123Z",
        "da": "0001-01-01",
        "ti": 45015123456789,
        "u": "8f9e0b4c-5a3d-4b5e-9c1d-000000000001",
        "i": "::1",
        "bl": "AP8=",
        "du": {"months": 1, "days": 2, "nanoseconds": 3},
        "a": {"street": "Elm", "number": 5},
        "l": [1, 2],
        "s": ["x", "y"],
        "m": {"one": 1},
        "tu": {"index_0": 7, "index_1": "seven"},
        "tt": "50554d6e-29bb-11e5-b345-feff819cdc9f",
        "ve": [1.5, -2.0, 0.25],
    }


def by_java(pipeline: Pipeline, directory: Path) -> dict[tuple[int, str], dict[str, Any] | None]:
    """The last row of each key that Follow.java prints."""
    program = Program(directory, RECIPES / "Follow.java", "avro", "kafka")
    status = pipeline.status
    said = program.run(status.bootstrap_servers, status.registry_url, TOPIC, "--once")
    lines = (line.split("\t") for line in said.split("\n") if line)
    return {(key["k"], key["c"]): json.loads(row) for key, row in ((json.loads(k), row) for k, row in lines)}


def by_spark(pipeline: Pipeline, directory: Path) -> list[dict[str, Any]]:
    """The rows that to_spark.py stores, as Spark's JSON has them."""
    lock = Path(__file__).with_name("spark_avro.lock")
    jars = ",".join(map(str, fetch(parse_lock(lock.read_text(), lock.name), Silent(), resolve)))
    environment = {
        **os.environ,
        "JAVA_HOME": str(java_home(17, Silent())),
        "PYSPARK_PYTHON": sys.executable,
        "PYSPARK_SUBMIT_ARGS": f"--master local[1] --conf spark.sql.session.timeZone=UTC --jars {jars} pyspark-shell",
    }
    status, place = pipeline.status, str(directory / "spark")
    stored = [str(RECIPES / "to_spark.py"), status.bootstrap_servers, status.registry_url, TOPIC, place, "--once"]
    # twice: the second run finds nothing new
    show = f"""import sys; sys.path.insert(0, {str(RECIPES)!r}); from to_spark import current
from pyspark.sql import SparkSession
for line in current(SparkSession.builder.getOrCreate(), {place!r}, ["k", "c"]).toJSON().collect(): print(line)"""
    for command in (stored, stored, ["-c", show]):
        done = subprocess.run([sys.executable, *command], env=environment, capture_output=True, encoding="utf-8")
        assert done.returncode == 0, done.stderr[-5000:]
    return [json.loads(line) for line in done.stdout.splitlines() if line.startswith("{")]
