"""The recipes in sinks/recipes, as far as they go without servers: tests/integration/test_recipes.py runs them."""

from __future__ import annotations

import json
import re
import socket
import subprocess
import sys
import time
from pathlib import Path

import pyarrow as pa
import pytest
from docs.recipe_stores import STORES, Publisher
from pyspark.sql.types import ArrayType, IntegerType, MapType, StringType, StructType
from records import Failure, Schemas, merge_schemas, read_columns
from registry import Registry
from settings import parse_settings, read_properties
from to_parquet import Parquet
from to_spark_table import new_fields

from helenus_schemas.cql.table import Column
from helenus_schemas.cql.types import parse
from helenus_stack.jars import parse_lock, read_lock

ROOT = Path(__file__).parents[2]
RECIPES = ROOT / "sinks" / "recipes"
WORDS = {
    "to_duckdb": ["{}/db", "t"],
    "to_delta": ["{}/delta"],
    "to_parquet": ["{}/parquet"],
    "to_iceberg": ["local", "ks.t", "--config", "{}/iceberg.properties"],
    "to_clickhouse": ["{}/clickhouse", "t"],
    "to_opensearch": ["http://127.0.0.1:9", "t"],
}
"""What is a recipe's own in its command line."""


@pytest.mark.parametrize("recipe", [*WORDS, "to_spark", "to_spark_table"])
def test_without_its_arguments_a_recipe_says_what_they_are(recipe: str) -> None:
    process = subprocess.run(
        [sys.executable, RECIPES / f"{recipe}.py", "localhost:9092"], capture_output=True, text=True
    )
    assert process.returncode == 2
    assert f"{recipe}.py BROKERS REGISTRY TOPIC" in process.stderr
    assert "Traceback" not in process.stderr


def test_java_s_libraries_are_those_that_were_run() -> None:
    of_pom = re.findall(r"<artifactId>([\w-]+)</artifactId>\s*<version>(\d[\d.]+)<", (RECIPES / "pom.xml").read_text())
    run = {(jar.name, jar.version) for lock in ("kafka", "avro") for jar in read_lock(lock)}
    assert len(of_pom) == 2
    assert set(of_pom) <= run


@pytest.mark.parametrize(
    ("page", "count"), [("docs/sinks.md", 8), ("sinks/recipes/to_spark.py", 2)], ids=["page", "recipe"]
)
def test_spark_s_packages_are_those_that_were_run(page: str, count: int) -> None:
    locks = [ROOT / "tests" / "integration" / f"{name}.lock" for name in ("spark_avro", "spark_tables")]
    run = {jar.coordinates for lock in locks for jar in parse_lock(lock.read_text(), lock.name)}
    named = re.findall(r"(?:org\.apache\.(?:spark|iceberg)|io\.delta):[\w.:-]+", (ROOT / page).read_text())
    assert len(named) == count
    assert set(named) <= run


def test_fields_that_a_table_of_spark_lacks() -> None:
    """Columns, and fields of types at any depth, by the paths that ALTER TABLE has for them."""

    def table(*fields: str, more: str = "") -> StructType:
        inner = StructType()
        for field in fields:
            inner = inner.add(field, IntegerType())
        columns = StructType().add("k", IntegerType()).add("u", inner).add("l", ArrayType(inner))
        columns = columns.add("m", MapType(StringType(), ArrayType(inner)))
        return columns.add(more, inner) if more else columns

    assert list(new_fields(table("a"), table("a"), "")) == []
    assert list(new_fields(table("a", "b"), table("b"), "")) == []
    assert list(new_fields(table("a"), table("a", "b", more="w"), "")) == [
        "`u`.`b` int",
        "`l`.element.`b` int",
        "`m`.value.element.`b` int",
        "`w` struct<a:int,b:int>",
    ]


def test_a_table_of_another_format_is_refused() -> None:
    words = ["localhost:9", "http://127.0.0.1:9", "data-ks.t", "hudi", "t", "checkpoint"]
    process = subprocess.run([sys.executable, RECIPES / "to_spark_table.py", *words], capture_output=True, text=True)
    assert (process.returncode, process.stderr) == (1, "to_spark_table.py: FORMAT is iceberg or delta, not hudi\n")


def test_a_broker_that_is_away_is_said_in_one_line(tmp_path: Path) -> None:
    """With --once a recipe ends with status 1; else it goes on, and does not say it again at once."""
    catalog = f"target.type=sql\ntarget.uri=sqlite:///{tmp_path}/catalog.db\ntarget.warehouse=file://{tmp_path}\n"
    (tmp_path / "iceberg.properties").write_text(catalog)
    with socket.socket() as closed:  # bound, and not listening: nobody else takes its port
        closed.bind(("127.0.0.1", 0))
        broker = f"127.0.0.1:{closed.getsockname()[1]}"

        def start(recipe: str, *more: str) -> subprocess.Popen[str]:
            words = [word.replace("{}", str(tmp_path)) for word in WORDS[recipe]]
            command = [
                sys.executable,
                RECIPES / f"{recipe}.py",
                broker,
                "http://127.0.0.1:9",
                "data-ks.t",
                *words,
                *more,
            ]
            return subprocess.Popen(command, stderr=subprocess.PIPE, text=True)

        ending = {recipe: start(recipe, "--once") for recipe in WORDS}
        for recipe, process in ending.items():
            (line,) = process.communicate(timeout=300)[1].splitlines()
            assert process.returncode == 1
            assert line.startswith(f"{recipe}.py: data-ks.t at {broker}: ")
            assert "is the broker there" in line
        following = start("to_parquet")
        assert following.stderr is not None
        first = following.stderr.readline()
        time.sleep(5)  # two more attempts
        assert following.poll() is None
        following.terminate()
        assert (first.count("trying again"), following.communicate()[1]) == (1, "")


def test_a_directory_of_parquet_is_filled_by_one_process(tmp_path: Path) -> None:
    """Two would give their files the same numbers, and the later one would replace the earlier in silence."""
    settings = parse_settings(None, ["directory"], ["h:1", "http://r", "data-ks.t", str(tmp_path / "t")])
    with Parquet(settings):
        with pytest.raises(Failure, match="another process fills"):
            Parquet(settings)
        command = [sys.executable, RECIPES / "to_parquet.py", "127.0.0.1:9", "http://r", "data-ks.t", tmp_path / "t"]
        process = subprocess.run(command, capture_output=True, text=True)
        assert (process.returncode, process.stderr.count("\n")) == (1, 1)
        assert "to_parquet.py: another process fills" in process.stderr
    with Parquet(settings):
        pass


def test_properties_and_their_references(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    secrets, file = tmp_path / "secrets", tmp_path / "config"
    secrets.write_text("pw = p=w\n")
    monkeypatch.setenv("USER_NAME", "me")
    file.write_text(
        f"# a comment\n\nsasl.username=${{env:USER_NAME}}\nsasl.password = ${{file:{secrets}:pw}}\n"
        "schema.registry.basic.auth.user.info=a:${env:USER_NAME}\ntarget.x=y\n"
    )
    settings = parse_settings("", ["file"], ["b", "http://r/", "t", "f", "--config", str(file)])
    assert settings.kafka == {"sasl.username": "me", "sasl.password": "p=w"}
    assert settings.registry_client == {"basic.auth.user.info": "a:me"}
    assert settings.target_client == {"x": "y"}
    assert (settings.registry, settings.target, settings.once) == ("http://r", ["f"], False)
    for text, error_text in (("a=${env:NOWHERE}", "NOWHERE"), (f"a=${{file:{secrets}:no}}", "no no"), ("a", "line 1")):
        file.write_text(text)
        with pytest.raises(Failure, match=error_text):
            read_properties(file)
    with pytest.raises(Failure, match="can't be read"):
        read_properties(tmp_path / "nowhere")


def test_a_login_in_an_address_is_not_printed(tmp_path: Path) -> None:
    words = ["b:9", "http://r", "t", "http://me:s3cret@127.0.0.1:9/db", "t", "--once"]
    process = subprocess.run([sys.executable, RECIPES / "to_clickhouse.py", *words], capture_output=True, text=True)
    assert process.returncode == 1
    assert "//127.0.0.1:9/db" in process.stderr
    assert "s3cret" not in process.stderr
    assert "Traceback" not in process.stderr
    settings = parse_settings("", [], ["b", "http://me:s3cret@127.0.0.1:9", "t", "--once"])
    with pytest.raises(Failure, match=r"the registry http://127.0.0.1:9 can't be reached") as raised:
        Registry(settings).get_newest("t-key")
    assert "s3cret" not in str(raised.value)


def test_other_formats_are_refused_by_name() -> None:
    with pytest.raises(Failure, match="key-value-avro"):
        Schemas(lambda _: "").read(b'{"a":1}')
    with pytest.raises(Failure, match="schema by a GUID"):
        Schemas(lambda _: "").read(b"\1" + bytes(16) + b"\2")
    fields = [{"name": name, "type": "int"} for name in ("op", "source", "after", "before")]
    with pytest.raises(Failure, match="key-value-avro"):
        read_columns(json.dumps({"type": "record", "name": "Envelope", "fields": fields}))


def test_a_column_that_has_another_type_is_refused() -> None:
    stored, new = pa.schema([("v", pa.list_(pa.string()))]), pa.schema([("v", pa.list_(pa.binary()))])
    with pytest.raises(Failure, match=r"column v\[\] is string in the table and binary in the topic"):
        merge_schemas(stored, new)


@pytest.mark.parametrize("names", [("v", "V"), ("_offset", "w")])
def test_names_that_a_store_would_confuse_are_refused(names: tuple[str, str], tmp_path: Path) -> None:
    publisher = Publisher()
    key = [Column("k", parse("int"), "partition_key", 0)]
    publisher.become([*key, *(Column(name, parse("int")) for name in names)])
    publisher.row(0, [bytes(4)], [bytes(4), bytes(4)])
    with STORES["duckdb"].open(tmp_path) as target, pytest.raises(Failure, match=r"names that differ|a column _offset"):
        target.store(publisher.batch(publisher.topic[0]).for_table(target))
