"""Recipes whose tables are in an object store: Parquet, Delta and Iceberg on a server of S3's API."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import duckdb
import pyarrow as pa
import pyarrow.dataset as ds
import pytest
from deltalake import DeltaTable
from docs.recipe_stores import TOPIC, Publisher, bound
from docs.s3_server import BUCKET, S3Server, running_s3
from pyarrow import fs
from pyiceberg.catalog import load_catalog
from records import Failure
from schemas.cqldata import cql_bytes
from settings import Settings
from to_delta import Delta
from to_iceberg import Iceberg
from to_parquet import Parquet

from helenus_schemas.cql.table import Column
from helenus_schemas.cql.types import CqlType

pytestmark = [
    pytest.mark.integration,
    pytest.mark.filterwarnings("ignore::DeprecationWarning"),  # of the stores' libraries
    pytest.mark.filterwarnings("ignore::ResourceWarning"),
    pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning"),
]
INT, TEXT = CqlType("int"), CqlType("text")
COLUMNS = [
    Column("k", INT, "partition_key", 0),
    Column("c", INT, "clustering", 0),
    Column("v", TEXT),
]
PARQUET, DELTA = f"s3://{BUCKET}/a b/orders", f"s3://{BUCKET}/delta/orders"


@dataclass(frozen=True)
class ObjectTable:
    """A recipe whose table is in the bucket, the words and properties it gets, and its table read by its library."""

    target: Any
    words: list[str]
    properties: Callable[[S3Server, Path], dict[str, str]]
    read: Callable[[S3Server, Path], pa.Table]


@pytest.fixture(scope="module")
def s3(tmp_path_factory: pytest.TempPathFactory) -> Iterator[S3Server]:
    with running_s3(tmp_path_factory.mktemp("s3")) as server:
        yield server


def _catalog(s3: S3Server, directory: Path) -> dict[str, str]:
    local = {"type": "sql", "uri": f"sqlite:///{directory}/catalog.db", "warehouse": f"s3://{BUCKET}/iceberg"}
    return {**local, **s3.of_iceberg}


def _read_parquet(s3: S3Server, _: Path) -> pa.Table:
    """The docstring's query, over the files as one table."""
    store = fs.S3FileSystem(**s3.of_pyarrow)
    paths = sorted(info.path for info in store.get_file_info(fs.FileSelector(PARQUET.removeprefix("s3://"))))
    newest = ds.dataset(paths[-1:], filesystem=store).schema
    files = ds.dataset(paths, schema=newest, filesystem=store).to_table()
    with duckdb.connect() as db:
        db.register("files", files)
        return db.sql(
            "SELECT * FROM (FROM files QUALIFY row_number() OVER (PARTITION BY k, c ORDER BY _offset DESC) = 1)"
            " WHERE NOT _deleted"
        ).to_arrow_table()


def _read_iceberg(s3: S3Server, directory: Path) -> pa.Table:
    catalog = load_catalog("local", **_catalog(s3, directory))
    try:
        return catalog.load_table("shop.orders").scan().to_arrow()
    finally:
        catalog.close()


TABLES = {
    "parquet": ObjectTable(Parquet, [PARQUET], lambda s3, _: s3.of_pyarrow, _read_parquet),
    "delta": ObjectTable(
        Delta,
        [DELTA],
        lambda s3, _: s3.of_delta,
        lambda s3, _: DeltaTable(DELTA, storage_options=s3.of_delta).to_pyarrow_table(),
    ),
    "iceberg": ObjectTable(Iceberg, ["local", "shop.orders"], _catalog, _read_iceberg),
}


@pytest.mark.parametrize("table", TABLES.values(), ids=TABLES)
def test_a_table_in_a_bucket(table: ObjectTable, s3: S3Server, tmp_path: Path) -> None:
    """Deletes of all scopes, a new column, and a restart before each batch, which goes on at the stored offset."""
    properties = {f"target.{name}": value for name, value in table.properties(s3, tmp_path).items()}
    settings = Settings("b", "r", TOPIC, table.words, True, properties)
    publisher = Publisher(partitions=1)

    def key(k: int, c: int) -> list[bytes]:
        return [cql_bytes(INT, k), cql_bytes(INT, c)]

    def fill() -> None:
        with table.target(settings) as target:
            offset = target.read_offsets([0]).get(0, 0)
            target.store(publisher.batch(publisher.topic[0][offset:]).for_table(target))
            assert target.read_offsets([0]) == {0: len(publisher.topic[0])}

    publisher.become(COLUMNS)
    for k in range(4):
        for c in range(4):
            publisher.row(0, key(k, c), [cql_bytes(TEXT, f"{k} {c}")])
    fill()
    publisher.row(0, key(0, 0), None)
    publisher.row(0, key(0, 1), [None])
    publisher.marker(0, [cql_bytes(INT, 1), None])
    publisher.marker(0, [cql_bytes(INT, 2), None], (bound([cql_bytes(INT, 2)], True), None))
    fill()
    publisher.become([*COLUMNS, Column("w", INT)])
    publisher.row(0, key(1, 0), [cql_bytes(TEXT, "again"), cql_bytes(INT, 7)])
    fill()
    expected = {(k, c): (f"{k} {c}", None) for k in range(4) for c in range(4) if k in (0, 3) or (k == 2 and c < 2)}
    del expected[0, 0]
    expected |= {(0, 1): (None, None), (1, 0): ("again", 7)}
    rows = table.read(s3, tmp_path).to_pylist()
    assert {(row["k"], row["c"]): (row["v"], row["w"]) for row in rows} == expected
    assert len(rows) == len(expected)
    publisher.truncation(0)
    publisher.row(0, key(9, 9), [None, None])
    fill()
    assert [(row["k"], row["c"]) for row in table.read(s3, tmp_path).to_pylist()] == [(9, 9)]


def test_a_bucket_that_refuses(s3: S3Server) -> None:
    for properties, problem in (
        ({"secret_key": "other"}, "SIGNATURE|ACCESS_DENIED"),
        ({"no": "such"}, "does not take"),
    ):
        options = {f"target.{name}": value for name, value in {**s3.of_pyarrow, **properties}.items()}
        with pytest.raises((Failure, *Parquet.errors), match=problem):
            Parquet(Settings("b", "r", TOPIC, [PARQUET], True, options))
