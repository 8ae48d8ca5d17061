"""The recipes in sinks/recipes, as they are: what each fills becomes Cassandra's table."""

from __future__ import annotations

import json
import os
import pickle
import random
import re
import shutil
import signal
import subprocess
import sys
from base64 import b64decode
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from decimal import Decimal
from itertools import pairwise
from pathlib import Path
from typing import Any

import duckdb
import pyarrow as pa
import pyarrow.ipc as ipc
import pytest
from chdb.session import Session
from deltalake import DeltaTable
from docs.opensearch_node import OpenSearchNode, rows_of, running_node
from docs.recipe_stores import TOPIC as TOPIC_IN_MEMORY
from docs.recipe_stores import Publisher
from integration.pipeline import Lasting, Pipeline, write_properties
from patience import PATIENCE_S, eventually
from pyiceberg.catalog import load_catalog
from schemas.cqldata import Pairs, cql_bytes
from schemas.java import Program

from helenus_schemas.cql.table import Column
from helenus_schemas.cql.types import CqlType, parse
from helenus_schemas.event.change import Bound
from helenus_stack.files import cache_directory, exclusive
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


class Recipes:
    """Runs each recipe of a topic, into stores in a directory, and into an index that has the directory's name."""

    def __init__(self, pipeline: Pipeline, table: str, directory: Path, node: OpenSearchNode) -> None:
        self.directory, self.name, self.node = directory, table.partition(".")[2], node
        self._words = [pipeline.status.bootstrap_servers, pipeline.status.registry_url, f"data-{table}"]
        self._config = directory / "iceberg.properties"
        catalog = {"type": "sql", "uri": f"sqlite:///{directory}/catalog.db", "warehouse": f"file://{directory}"}
        write_properties(self._config, {f"target.{key}": value for key, value in catalog.items()})

    def start(self, recipe: str, *more: str) -> subprocess.Popen[str]:
        words = {
            "to_duckdb": [str(self.directory / "db"), self.name],
            "to_delta": [str(self.directory / "delta")],
            "to_parquet": [str(self.directory / "parquet")],
            "to_iceberg": ["local", f"ks.{self.name}", "--config", str(self._config)],
            "to_clickhouse": [str(self.directory / "clickhouse"), self.name],
            "to_opensearch": [self.node.url, self.directory.name],
        }[recipe]
        command = [sys.executable, str(RECIPES / f"{recipe}.py"), *self._words, *words, *more]
        return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)

    def run(self) -> dict[str, list[dict[str, Any]]]:
        """Run all to the end of the topic. Returns what each store has, by its key, without the recipes' columns."""
        started = [self.start(recipe, "--once") for recipe in ALL]
        for recipe, process in zip(ALL, started, strict=True):
            errors = process.communicate(timeout=PATIENCE_S)[1]
            assert process.returncode == 0, f"{recipe}: {errors}"
            assert "Traceback" not in errors
        return {recipe: self.rows(recipe) for recipe in ALL}

    def rows(self, recipe: str) -> list[dict[str, Any]]:
        """What a store has, by DuckDB where that can read it."""
        with duckdb.connect(str(self.directory / "db")) as db:
            match recipe:
                case "to_duckdb":
                    of_store = self.name
                case "to_delta":
                    of_store = "of_store"
                    db.register(of_store, DeltaTable(str(self.directory / "delta")).to_pyarrow_table())
                case "to_parquet":
                    of_store = (
                        f"(SELECT * FROM (FROM read_parquet('{self.directory}/parquet/*.parquet', union_by_name = true)"
                        " QUALIFY row_number() OVER (PARTITION BY k, c ORDER BY _offset DESC) = 1) WHERE NOT _deleted)"
                    )
                case "to_iceberg":
                    of_store = "of_store"
                    db.register(of_store, self._iceberg())
                case "to_clickhouse":
                    of_store = "of_store"
                    db.register(of_store, self._clickhouse())
                case "to_opensearch":
                    of_store = "of_store"
                    db.register(of_store, rows_of(self.node, self.directory.name))
            rows = db.sql(f"SELECT * FROM {of_store} ORDER BY k, c").to_arrow_table().to_pylist()
        return [{name: value for name, value in row.items() if not name.startswith("_")} for row in rows]

    def rows_while_it_runs(self) -> list[dict[str, Any]]:
        """What the file of a `to_duckdb` that runs has, by a copy: DuckDB lets no other process open it. Maybe none."""
        copy = self.directory / "copy"
        try:
            for suffix in ("", ".wal"):
                Path(f"{copy}{suffix}").unlink(missing_ok=True)
                if (file := self.directory / f"db{suffix}").exists():
                    shutil.copy(file, f"{copy}{suffix}")
            with duckdb.connect(str(copy)) as db:
                return db.sql(f"FROM {self.name}").to_arrow_table().to_pylist()
        except (duckdb.Error, OSError):  # copied in the middle of a commit
            return []

    def _iceberg(self) -> pa.Table:
        config = {"uri": f"sqlite:///{self.directory}/catalog.db", "warehouse": f"file://{self.directory}"}
        catalog = load_catalog("local", type="sql", **config)
        try:
            return catalog.load_table(f"ks.{self.name}").scan().to_arrow()
        finally:
            catalog.close()

    def _clickhouse(self) -> pa.Table:
        """Read strings as bytes, which may be either, and make text of all but the blob."""
        settings = "SETTINGS output_format_arrow_string_as_string = 0"
        with Session(str(self.directory / "clickhouse")) as session:
            answer = session.query(f"SELECT * FROM {self.name} FINAL {settings}", "ArrowStream").bytes()
        table = ipc.open_stream(answer).read_all()
        return table.cast(pa.schema([(f.name, f.type if f.name == "bl" else _with_text(f.type)) for f in table.schema]))


def _with_text(kind: pa.DataType) -> pa.DataType:
    if pa.types.is_struct(kind):
        return pa.struct([(field.name, _with_text(field.type)) for field in kind])
    if pa.types.is_list(kind):
        return pa.list_(_with_text(kind.value_type))
    if pa.types.is_map(kind):
        return pa.map_(pa.string(), _with_text(kind.item_type))
    return pa.string() if pa.types.is_binary(kind) else kind


ALL = ["to_duckdb", "to_delta", "to_parquet", "to_iceberg", "to_clickhouse", "to_opensearch"]


@pytest.fixture(scope="module")
def node(tmp_path_factory: pytest.TempPathFactory) -> Iterator[OpenSearchNode]:
    with running_node(tmp_path_factory.mktemp("opensearch")) as node:
        yield node


def test_each_store_becomes_the_table(pipeline: Pipeline, session: Any, tmp_path: Path, node: OpenSearchNode) -> None:
    for k in range(3):
        for c in "abc":
            session.execute(f"INSERT INTO {TABLE} ({NAMES}) VALUES ({k}, '{c}', {VALUES})")
    session.execute(f"INSERT INTO {TABLE} (k, c) VALUES (0, 'bare')")
    is_on_the_topic(pipeline, session)
    recipes = Recipes(pipeline, TABLE, tmp_path, node)
    first = recipes.run()
    session.execute(f"ALTER TABLE {TABLE} ADD later text")
    session.execute(f"UPDATE {TABLE} SET t = 'new', later = 'x' WHERE k = 0 AND c = 'a'")
    session.execute(f"DELETE FROM {TABLE} WHERE k = 0 AND c = 'b'")
    session.execute(f"DELETE FROM {TABLE} WHERE k = 1")
    session.execute(f"INSERT INTO {TABLE} (k, c, t) VALUES (1, 'z', 'again')")
    session.execute(f"INSERT INTO {TABLE} (k, c, t) VALUES (2, 'brief', 'x') USING TTL 3")
    eventually(lambda: (2, "brief") not in of_cassandra(session), "the row has expired")
    is_on_the_topic(pipeline, session)
    for which, rows_by_recipe in ((10, first), (len(of_cassandra(session)), recipes.run())):
        assert {name: len(rows) for name, rows in rows_by_recipe.items()} == dict.fromkeys(rows_by_recipe, which)
        for name in ALL:
            collections = ("l", "s", "m", "ve") if name == "to_clickhouse" else ()  # it has empty ones, no null
            for row, ours in zip(rows_by_recipe[name], rows_by_recipe["to_duckdb"], strict=True):
                assert row == {**ours, **{c: ours[c] or [] for c in collections}}, name
    rows = rows_by_recipe["to_duckdb"]
    plain = ("k", "c", "t", "n", "b", "f", "later")
    stored = session.execute(f"SELECT {', '.join(plain)} FROM {TABLE}")
    assert sorted(tuple(row[name] for name in plain[:2]) for row in rows) == sorted(of_cassandra(session))
    assert {tuple(row[name] for name in plain) for row in rows} == {tuple(row) for row in stored}
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


MARKED = "recipes.marked"


@pytest.fixture
def marked(pipeline: Pipeline, session: Any) -> Iterator[Any]:
    """A table whose connector has its defaults: delete markers, and no state."""
    session.execute("CREATE TYPE recipes.place (street text)")
    session.execute(
        f"CREATE TABLE {MARKED} (k int, c int, v varint, p frozen<place>, m map<text, frozen<place>>,"
        " PRIMARY KEY (k, c)) WITH CLUSTERING ORDER BY (c DESC) AND cdc = true"
    )
    with pipeline.connected({MARKED: {}}):
        yield session


@pytest.mark.long  # two minutes of kills
def test_markers_growth_and_kills(pipeline: Pipeline, marked: Any, tmp_path: Path, node: OpenSearchNode) -> None:
    """A recipe that runs all the while, and is killed; and all of them in two steps: no row too many, no field lost."""
    for name in ("one", "all"):
        (tmp_path / name).mkdir()
    single_recipe, all_of_them = (Recipes(pipeline, MARKED, tmp_path / name, node) for name in ("one", "all"))

    def insert(k: int, c: int, place_literal: str = "{street: 'Elm'}") -> None:
        values = f"{k}, {c}, {10**20 + c}, {place_literal}, {{'at': {place_literal}}}"
        marked.execute(f"INSERT INTO {MARKED} (k, c, v, p, m) VALUES ({values})")

    def is_on_the_topic(k: int) -> bool:
        return any(record.key["k"] == k for record in pipeline.records(MARKED) if "scope" not in record.headers)

    def follow() -> subprocess.Popen[str]:
        process = single_recipe.start("to_duckdb")
        assert process.stdout is not None
        while " rows" not in (line := process.stdout.readline()):
            assert line, process.communicate()[1]
        return process

    for k in range(4):
        for c in range(6):
            insert(k, c)
    eventually(lambda: is_on_the_topic(3), "the rows are on the topic")
    all_of_them.run()
    process = follow()
    process.kill()
    process.communicate()
    marked.execute(f"DELETE FROM {MARKED} WHERE k = 0")
    marked.execute(f"DELETE FROM {MARKED} WHERE k = 1 AND c < 3")
    marked.execute(f"DELETE FROM {MARKED} WHERE k = 2 AND c > 1 AND c <= 4")
    insert(0, 2)
    process = follow()
    marked.execute("ALTER TYPE recipes.place ADD zip int")
    marked.execute(f"ALTER TABLE {MARKED} ADD later text")
    insert(5, 1, "{street: 'Oak', zip: 12345}")
    marked.execute(f"UPDATE {MARKED} SET later = 'x' WHERE k = 5 AND c = 1")
    expected = {(row.k, row.c): row for row in marked.execute(f"SELECT * FROM {MARKED}")}
    assert len(expected) == 1 + 3 + 3 + 6 + 1

    def agree() -> bool:
        """The topic's last records, markers honoured, are the table's rows."""
        return not pipeline.differences(MARKED)

    eventually(agree, "the topic has what the table has")

    def check(rows: list[dict[str, Any]]) -> None:
        assert [(row["k"], row["c"]) for row in rows] == sorted(expected)
        for row in rows:
            wanted = expected[row["k"], row["c"]]
            assert row["v"] == str(wanted.v)
            assert row["p"] == {"street": wanted.p.street, "zip": wanted.p.zip}
            assert row["m"] == [("at", row["p"])]
            assert row["later"] == wanted.later

    for rows in all_of_them.run().values():
        check(rows)

    def has_taken_all() -> bool:
        assert process.poll() is None, process.communicate()[1]
        return any(row.get("later") for row in single_recipe.rows_while_it_runs())  # the last record, of the grown type

    eventually(has_taken_all, "the recipe that runs takes the grown type")
    process.terminate()
    process.communicate()
    single_recipe.start("to_duckdb", "--once").communicate()
    check(single_recipe.rows("to_duckdb"))
    marked.execute(f"TRUNCATE {MARKED}")
    insert(7, 7)
    expected = {(7, 7): next(iter(marked.execute(f"SELECT * FROM {MARKED}")))}
    eventually(lambda: agree() and is_on_the_topic(7), "the topic is empty but for one row")
    for rows in all_of_them.run().values():
        check(rows)


KILLED = "recipes.killed"


@pytest.fixture
def killed(pipeline: Pipeline, session: Any) -> Iterator[Any]:
    """A table whose connector has its defaults, under random statements."""
    session.execute(f"CREATE TABLE {KILLED} (k int, c int, v text, n bigint, PRIMARY KEY (k, c)) WITH cdc = true")
    with pipeline.connected({KILLED: {}}):
        yield session


@pytest.mark.long  # test_markers_growth_and_kills kills the sink of another store
def test_opensearch_through_kills(pipeline: Pipeline, killed: Any, tmp_path: Path, node: OpenSearchNode) -> None:
    """The recipe and the server are killed and stopped in the middle of changes: the index becomes the table."""
    seed = random.Random(7)
    recipe = Recipes(pipeline, KILLED, tmp_path, node)

    def write(number: int) -> None:
        for n in range(100):
            k, c = seed.randrange(8), seed.randrange(40)
            match seed.choice(["row"] * 16 + ["gone", "gone", "range", "partition"]):
                case "row":
                    values = f"({k}, {c}, '{number} {n}', {10**15 * number + n})"
                    killed.execute(f"INSERT INTO {KILLED} (k, c, v, n) VALUES {values}")
                case "gone":
                    killed.execute(f"DELETE FROM {KILLED} WHERE k = {k} AND c = {c}")
                case "range":
                    killed.execute(f"DELETE FROM {KILLED} WHERE k = {k} AND c > {c}")
                case "partition":
                    killed.execute(f"DELETE FROM {KILLED} WHERE k = {k}")

    def start() -> subprocess.Popen[str]:
        process = recipe.start("to_opensearch")
        started.append(process)
        return process

    def is_the_table() -> bool:
        assert process.poll() is None, process.communicate()[1]
        documents = node.documents(tmp_path.name)
        return sorted((d["k"], d["c"], d.get("v"), d.get("n")) for d in documents) == of_table()

    def of_table() -> list[Any]:
        return sorted(tuple(row) for row in killed.execute(f"SELECT k, c, v, n FROM {KILLED}"))

    started: list[subprocess.Popen[str]] = []
    try:
        process = start()
        for number, fault in enumerate(("kill", "server killed", "kill", "both", "server stopped", "none")):
            write(number)
            assert process.stdout is not None
            assert " rows" in process.stdout.readline(), process.communicate()[1]
            write(number)
            if fault in ("kill", "both"):
                process.kill()
            if fault in ("server killed", "both"):
                node.kill()
            elif fault == "server stopped":
                node.stop()
            write(number)
            if fault not in ("none", "kill"):
                node.start()
            if process.poll() is not None or fault in ("kill", "both"):
                process = start()
        eventually(lambda: not pipeline.differences(KILLED), "the topic has what the table has")
        eventually(is_the_table, lambda: f"{len(node.documents(tmp_path.name))} documents of {len(of_table())} rows")
        assert len(of_table()) > 20
        killed.execute(f"TRUNCATE {KILLED}")
        killed.execute(f"INSERT INTO {KILLED} (k, c) VALUES (100, 1)")
        eventually(is_the_table, "the index has the row that was written after TRUNCATE")
    finally:
        for process in started:
            process.kill()
            process.communicate()


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
    others = {name: value for name, value in whole.items() if name not in ("later", "latest")}
    assert others == {**AS_SPARK_HAS_IT, "k": 7, "c": "c", "t": "ünïcode"}


AS_SPARK_HAS_IT = {
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
"""The other columns of `VALUES`, as Spark's JSON shows them."""

ICEBERG = """spark.sql.catalog.lake=org.apache.iceberg.spark.SparkCatalog
spark.sql.catalog.lake.type=hadoop
spark.sql.catalog.lake.warehouse={}/lake"""
DELTA = """spark.sql.extensions=io.delta.sql.DeltaSparkSessionExtension
spark.sql.catalog.spark_catalog=org.apache.spark.sql.delta.catalog.DeltaCatalog
spark.databricks.delta.snapshotPartitions=1"""


@pytest.mark.long  # it starts a JVM
def test_spark_honours_markers_and_growth(tmp_path: Path) -> None:
    """Records of the connector's own shape, given to to_spark.py's `store` in batches, one of them twice."""
    check_growth(fill_by_spark(tmp_path, "from to_spark import current, store", repr(str(tmp_path / "out"))))


@pytest.mark.long  # it starts a JVM, and installs a PySpark (450 MB) once
@pytest.mark.timeout(1800)
@pytest.mark.parametrize("table_format", ["iceberg", "delta"])
def test_spark_merges_on_read(table_format: str, tmp_path: Path) -> None:
    """The same records and batches, merged by to_spark_table.py, in files that only mark what is deleted.

    Before the second batch the table is as to_iceberg.py and to_delta.py made them earlier.
    """
    table = "lake.ks.t" if table_format == "iceberg" else f"delta.`{tmp_path}/lake`"
    setting = """import to_spark_table
from to_spark_table import store
def current(spark, table, key): return spark.table(table)"""
    if table_format == "iceberg":
        former = f"spark.sql('ALTER TABLE {table} RENAME COLUMN _topic_partition TO _partition')"
    else:
        setting += "\nto_spark_table.PARTITION = '_partition'"
        former = "to_spark_table.PARTITION = '_topic_partition'"
    conf = (ICEBERG if table_format == "iceberg" else DELTA).replace("{}", str(tmp_path)).splitlines()
    rows = fill_by_spark(tmp_path, setting, f"{table!r}, {table_format!r}", conf, spark_for_tables(), former)
    check_growth(rows)
    own = {name for row in rows for name in row if name.startswith("_")}
    assert own == {"_offset", "_topic_partition" if table_format == "iceberg" else "_partition"}
    written = {path.name for path in (tmp_path / "lake").rglob("*")}
    marks = [name for name in written if name.endswith("-deletes.parquet") or name.startswith("deletion_vector")]
    assert marks, written


@pytest.mark.long  # it starts a JVM five times
@pytest.mark.timeout(1800)
@pytest.mark.parametrize("table_format", ["iceberg", "delta"])
def test_a_table_of_spark_becomes_the_table(
    table_format: str, pipeline: Pipeline, session: Any, tmp_path: Path
) -> None:
    """The program as it is documented, from Kafka: it is killed, and goes on by its checkpoint."""
    table = "lake.ks.goods" if table_format == "iceberg" else f"delta.`{tmp_path}/lake`"
    conf = (ICEBERG if table_format == "iceberg" else DELTA).replace("{}", str(tmp_path)).splitlines()
    words = [str(RECIPES / "to_spark_table.py"), pipeline.status.bootstrap_servers, pipeline.status.registry_url]
    command = [*words, TOPIC, table_format, table, str(tmp_path / "checkpoint")]
    spark, first = spark_for_tables(), 30 if table_format == "iceberg" else 40

    def show() -> list[dict[str, Any]]:
        script = f"""from pyspark.sql import SparkSession
for line in SparkSession.builder.getOrCreate().table({table!r}).toJSON().collect(): print(line)"""
        return [json.loads(line) for line in run_spark(["-c", script], conf, spark).splitlines() if line[:1] == "{"]

    for c in "abc":
        session.execute(f"INSERT INTO {TABLE} ({NAMES}) VALUES ({first}, '{c}', {VALUES})")
        session.execute(f"INSERT INTO {TABLE} ({NAMES}) VALUES ({first + 1}, '{c}', {VALUES})")
    is_on_the_topic(pipeline, session)
    with start_spark(command, conf, spark) as process:
        assert process.stdout is not None
        assert " records" in process.stdout.readline()
        session.execute(f"UPDATE {TABLE} SET t = 'killed' WHERE k = {first} AND c = 'a'")
        is_on_the_topic(pipeline, session)
    session.execute(f"ALTER TABLE {TABLE} ADD {table_format} text")
    session.execute(f"UPDATE {TABLE} SET {table_format} = 'x' WHERE k = {first} AND c = 'b'")
    session.execute(f"DELETE FROM {TABLE} WHERE k = {first} AND c = 'c'")
    session.execute(f"DELETE FROM {TABLE} WHERE k = {first + 1}")
    session.execute(f"INSERT INTO {TABLE} (k, c, t) VALUES ({first + 1}, 'z', 'again')")
    session.execute(f"INSERT INTO {TABLE} (k, c, t) VALUES ({first}, 'brief', 'x') USING TTL 3")
    eventually(lambda: (first, "brief") not in of_cassandra(session), "the row has expired")
    is_on_the_topic(pipeline, session)
    run_spark([*command, "--once"], conf, spark)
    rows = show()
    assert {(row["k"], row["c"]): row.get("t") for row in rows} == of_cassandra(session)
    assert len(rows) == len(of_cassandra(session))
    assert {(row["k"], row["c"]): row[table_format] for row in rows if row.get(table_format)} == {(first, "b"): "x"}
    (whole,) = (row for row in rows if (row["k"], row["c"]) == (first, "a"))
    assert {name: value for name, value in whole.items() if not name.startswith("_")} == {
        **AS_SPARK_HAS_IT,
        "k": first,
        "c": "a",
        "t": "killed",
    }
    session.execute(f"DELETE FROM {TABLE} WHERE k = {first}")
    is_on_the_topic(pipeline, session)
    run_spark([*command, "--once"], conf, spark)
    assert {(row["k"], row["c"]): row.get("t") for row in show()} == of_cassandra(session)


def spark_for_tables() -> Path:
    """A folder with the PySpark that Iceberg's and Delta's releases are for; what is installed is newer."""
    version = re.search(r"pyspark==([\d.]+)", (RECIPES.parents[1] / "docs" / "sinks.md").read_text())
    assert version
    folder = cache_directory() / "tests" / f"pyspark-{version[1]}"
    with exclusive(folder.with_suffix(".lock"), Silent(), "waiting for another test to install PySpark"):
        if not folder.exists():
            partial = folder.with_suffix(".new")
            shutil.rmtree(partial, ignore_errors=True)  # of a test that was killed
            install = ["install", "--quiet", "--disable-pip-version-check", "--no-deps", "--target", str(partial)]
            subprocess.run(
                [sys.executable, "-m", "pip", *install, f"pyspark=={version[1]}", "py4j==0.10.9.9"], check=True
            )
            partial.rename(folder)
    return folder


def fill_by_spark(
    tmp_path: Path,
    setting: str,
    target: str,
    conf: Sequence[str] = (),
    spark: Path | None = None,
    between: str = "pass",
) -> list[dict[str, Any]]:
    """Give records to the `store` of a recipe in three batches, the last one twice; after the first one run `between`.
    Returns the table's rows.

    A type and the table grow between them; the last batch has markers of all scopes, among rows and deletes.
    """
    publisher = Publisher()
    int32, key = CqlType("int"), [Column("start", parse("int"), "partition_key", 0)]
    key += [Column("c", parse("decimal"), "clustering", 0, reversed=True), Column("d", parse("int"), "clustering", 1)]

    def raw(k: int, c: Decimal, d: int) -> list[bytes]:
        return [cql_bytes(int32, k), cql_bytes(CqlType("decimal"), c), cql_bytes(int32, d)]

    ends = [[0, 0]]
    for number, fields in enumerate((("street",), ("street", "zip"))):
        place_type = CqlType("udt", (CqlType("text"), int32)[: len(fields)], frozen=True, label="place", fields=fields)
        places = CqlType("map", (CqlType("text"), place_type), frozen=True)
        publisher.become([*key, Column("m", places), *[Column("w", int32)] * number])
        value = Pairs([("at", ("Elm", 7)[: len(fields)])])
        for k in range(4):
            for c in range(4):
                publisher.row(k % 2, raw(k, Decimal(c) / 2, number), [cql_bytes(places, value), *[None] * number])
        ends.append([len(part) for part in publisher.topic])
    publisher.marker(0, [cql_bytes(int32, 0), None, None])
    publisher.marker(
        1, [cql_bytes(int32, 1), None, None], (None, Bound(True, (cql_bytes(CqlType("decimal"), Decimal(1)),)))
    )
    publisher.truncation(0)
    publisher.row(0, raw(2, Decimal(9), 0), [None, cql_bytes(int32, 5)])
    publisher.row(1, raw(3, Decimal(0), 0), None)
    publisher.marker(0, [cql_bytes(int32, 8), None, None])
    ends.append([len(part) for part in publisher.topic])
    records = [
        [
            (m.key(), m.value(), m.partition(), m.offset(), m.headers())
            for part, start, end in zip(publisher.topic, *bounds, strict=True)
            for m in part[start:end]
        ]
        for bounds in pairwise(ends)
    ]
    schemas = {number: publisher.registry.schema(number) for number in publisher.registry.schemas}
    (tmp_path / "records").write_bytes(pickle.dumps(([*records, records[-1]], schemas, publisher.registry.subjects)))
    script = f"""import pickle, sys; sys.path.insert(0, {str(RECIPES)!r})
from pyspark.sql import SparkSession
{setting}
batches, schemas, subjects = pickle.load(open({str(tmp_path / "records")!r}, "rb"))
class Registry:
    def get_schema(self, number): return schemas[number]
    def get_newest(self, subject): return schemas[subjects[subject]]
spark = SparkSession.builder.getOrCreate()
columns = "key binary, value binary, partition int, offset bigint, headers array<struct<key string, value binary>>"
for number, batch in zip((0, 1, 2, 2), batches):
    store(Registry(), {TOPIC_IN_MEMORY!r}, {target}, spark.createDataFrame(batch, columns), number)
    if number == 0: {between}
for line in current(spark, [{target}][0], ["start", "c", "d"]).toJSON().collect(): print(line)"""
    printed = run_spark(["-c", script], conf, spark)
    return [json.loads(line) for line in printed.splitlines() if line.startswith("{")]


def check_growth(rows: list[dict[str, Any]]) -> None:
    """Check that rows are those of `fill_by_spark`."""
    # c descends: the range holds what is from 1 up. Of partition 1 the odd ones are left, and of 0 what came last.
    expected = {(k, c, d) for k in (1, 3) for c in range(4) for d in (0, 1) if k == 3 or c < 2} | {(2, 18, 0)}
    expected.remove((3, 0, 0))
    assert {(row["start"], 2 * decimal(row["c"]), row["d"]) for row in rows} == expected
    assert len(rows) == len(expected)
    for row in rows:
        if row["start"] == 2:
            assert (row.get("m"), row["w"]) == (None, 5)
        else:
            assert row["m"] == {"at": {"street": "Elm"} if row["d"] == 0 else {"street": "Elm", "zip": 7}}
            assert row.get("w") is None


def decimal(value: dict[str, Any]) -> Decimal:
    """A decimal as Spark's JSON shows it."""
    unscaled = int.from_bytes(b64decode(value["bigint"]), "big", signed=True)
    return Decimal(unscaled).scaleb(-value["scale"])


def by_java(pipeline: Pipeline, directory: Path) -> dict[tuple[int, str], dict[str, Any] | None]:
    """The last row of each key that Follow.java prints, in a locale of no more than ASCII."""
    program = Program(directory, RECIPES / "Follow.java", "avro", "kafka")
    status = pipeline.status
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("LC_ALL", "C")
        printed = program.run(status.bootstrap_servers, status.registry_url, TOPIC, "--once")
    lines = (line.split("\t") for line in printed.split("\n") if line)
    return {(key["k"], key["c"]): json.loads(row) for key, row in ((json.loads(k), row) for k, row in lines)}


def run_spark(command: list[str], conf: Sequence[str] = (), spark: Path | None = None) -> str:
    """Run Python with the packages of a recipe, on the PySpark of a folder. Returns what it prints."""
    with start_spark(command, conf, spark) as process:
        output, errors = process.communicate()
    assert process.returncode == 0, errors[-5000:]
    assert " INFO " not in errors
    return output


@contextmanager
def start_spark(
    command: list[str], conf: Sequence[str] = (), spark: Path | None = None
) -> Iterator[subprocess.Popen[str]]:
    """Start Python with these. What still runs at the end is killed, with Java."""
    lock = Path(__file__).with_name("spark_tables.lock" if spark else "spark_avro.lock")
    jars = ",".join(map(str, fetch(parse_lock(lock.read_text(), lock.name), Silent(), resolve)))
    small = ["spark.ui.enabled=false", "spark.sql.shuffle.partitions=1", "spark.sql.adaptive.enabled=false"]
    more = ["spark.sql.session.timeZone=UTC", "spark.driver.extraJavaOptions=-XX:TieredStopAtLevel=1", *small, *conf]
    options = " ".join(f"--conf {setting}" for setting in more)
    environment = {
        **os.environ,
        "JAVA_HOME": str(java_home(17, Silent())),
        "PYSPARK_PYTHON": sys.executable,
        "PYSPARK_SUBMIT_ARGS": f"--master local[1] {options} --jars {jars} pyspark-shell",
    }
    if spark:
        environment |= {"PYTHONPATH": str(spark), "SPARK_HOME": str(spark / "pyspark")}
    with subprocess.Popen(
        [sys.executable, *command],
        env=environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        encoding="utf-8",
        start_new_session=True,
    ) as process:
        try:
            yield process
        finally:
            with suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)


def by_spark(pipeline: Pipeline, directory: Path) -> list[dict[str, Any]]:
    """The rows that to_spark.py stores, as Spark's JSON has them."""
    status, warehouse = pipeline.status, str(directory / "spark")
    stored = [str(RECIPES / "to_spark.py"), status.bootstrap_servers, status.registry_url, TOPIC, warehouse, "--once"]
    # twice: the second run finds nothing new
    show = f"""import sys; sys.path.insert(0, {str(RECIPES)!r}); from to_spark import current
from pyspark.sql import SparkSession
for line in current(SparkSession.builder.getOrCreate(), {warehouse!r}, ["k", "c"]).toJSON().collect(): print(line)"""
    for command in (stored, stored, ["-c", show]):
        printed = run_spark(command)
    return [json.loads(line) for line in printed.splitlines() if line.startswith("{")]
