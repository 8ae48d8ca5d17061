"""The recipes in sinks/recipes, as far as they go without servers: tests/integration/test_recipes.py runs them."""

from __future__ import annotations

import io
import re
import runpy
import subprocess
import sys
import uuid
from pathlib import Path
from typing import Any

import fastavro
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from deltalake import DeltaTable, write_deltalake

from helenus_schemas.avro import build
from helenus_schemas.cql.table import Column, Table
from helenus_schemas.cql.types import parse
from helenus_stack.jars import parse_lock, read_lock

ROOT = Path(__file__).parents[2]
RECIPES = ROOT / "sinks" / "recipes"


@pytest.mark.parametrize("recipe", ["to_duckdb", "to_delta", "to_parquet", "to_spark"])
def test_without_its_arguments_a_recipe_says_what_they_are(recipe: str) -> None:
    done = subprocess.run([sys.executable, RECIPES / f"{recipe}.py", "localhost:9092"], capture_output=True, text=True)
    assert done.returncode == 1
    assert f"{recipe}.py BROKERS REGISTRY TOPIC" in done.stderr
    assert "Traceback" not in done.stderr


def test_java_s_libraries_are_those_that_were_run() -> None:
    of_pom = re.findall(r"<artifactId>([\w-]+)</artifactId>\s*<version>(\d[\d.]+)<", (RECIPES / "pom.xml").read_text())
    run = {(jar.name, jar.version) for lock in ("kafka", "avro") for jar in read_lock(lock)}
    assert len(of_pom) == 2
    assert set(of_pom) <= run


@pytest.mark.parametrize("place", ["docs/sinks.md", "sinks/recipes/to_spark.py"])
def test_spark_s_packages_are_those_that_were_run(place: str) -> None:
    lock = ROOT / "tests" / "integration" / "spark_avro.lock"
    run = {jar.coordinates for jar in parse_lock(lock.read_text(), lock.name)}
    named = re.findall(r"org\.apache\.spark:[\w.:-]+", (ROOT / place).read_text())
    assert len(named) == 2
    assert set(named) <= run


# integration/test_recipes.py has the other types.
VALUES = {"counter": 7, "timeuuid": "50554d6e-29bb-11e5-b345-feff819cdc9f", "vector<float, 3>": [1.5, -2.0, 0.25]}


def test_stores_of_arrow_take_counters_vectors_and_nulls(tmp_path: Path) -> None:
    columns = {f"c{number}": kind for number, kind in enumerate(VALUES)}
    table = Table("ks", "t", uuid.uuid4(), tuple(Column(name, parse(kind)) for name, kind in columns.items()))
    recipe = runpy.run_path(str(RECIPES / "batches.py"))
    schema = build.value_schema(table)
    plain: Any = fastavro.parse_schema(recipe["_plain"](schema))
    full, empty = {name: VALUES[kind] for name, kind in columns.items()}, dict.fromkeys(columns)
    rows = []
    for row in (full, empty):
        data = io.BytesIO()
        fastavro.schemaless_writer(data, plain, row)
        data.seek(0)
        rows.append(fastavro.schemaless_reader(data, plain, None))
    named: dict[str, Any] = {}
    types = [(field["name"], recipe["arrow"](field["type"], named)) for field in schema["fields"]]
    arrow = pa.Table.from_pylist(rows, pa.schema(types))
    write_deltalake(str(tmp_path / "delta"), arrow)
    assert DeltaTable(str(tmp_path / "delta")).to_pyarrow_table().to_pylist() == [full, empty]
    pq.write_table(arrow, tmp_path / "t.parquet")
    show = f"import duckdb; print(duckdb.connect().execute(\"FROM '{tmp_path}/t.parquet'\").fetchall())"
    done = subprocess.run([sys.executable, "-c", show], capture_output=True, text=True)
    assert done.stdout == f"{[tuple(full.values()), tuple(empty.values())]}\n", done.stderr
