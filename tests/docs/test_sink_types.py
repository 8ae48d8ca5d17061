"""The types that docs/sinks.md says a recipe makes of CQL's are those that the stores themselves show."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import duckdb
import pytest
from deltalake import DeltaTable
from docs import chdb_process
from docs.recipe_stores import STORES, Publisher, _iceberg_properties
from opensearch_json import mapping_of
from pyiceberg.catalog import load_catalog
from schemas.cqldata import cql_bytes

from helenus_schemas.cql.table import Column
from helenus_schemas.cql.types import CqlType, parse

pytestmark = pytest.mark.filterwarnings(
    "ignore::DeprecationWarning", "ignore::ResourceWarning", "ignore::pytest.PytestUnraisableExceptionWarning"
)
DOCS = Path(__file__).parents[2] / "docs" / "sinks.md"
INT = parse("int")
PLAIN = """ascii bigint blob boolean counter date decimal double duration float inet int smallint text time timestamp
    timeuuid tinyint uuid varint list<int> set<int> map<int,text> tuple<int,text> vector<float,3>"""
KINDS = {
    **{name: parse(name) for name in PLAIN.split()},
    "place": CqlType("udt", (INT, CqlType("text")), frozen=True, label="place", fields=("x", "y")),
}
"""CQL's types, by the names that the page has for them; `place` is a user-defined type of x int and y text."""


def _of_duckdb(directory: Path) -> dict[str, str]:
    with duckdb.connect(str(directory / "db")) as db:
        return {row[0]: row[1] for row in db.execute('DESCRIBE "a ""t`able"').fetchall()}


def _of_parquet(directory: Path) -> dict[str, str]:
    """As DuckDB reads the files."""
    with duckdb.connect() as db:
        described = db.execute(f"DESCRIBE FROM read_parquet('{directory}/parquet/*.parquet')").fetchall()
    return {row[0]: row[1] for row in described}


def _of_delta(directory: Path) -> dict[str, str]:
    def name(kind: Any) -> str:
        if isinstance(kind, str):
            return kind
        match kind["type"]:
            case "array":
                return f"array<{name(kind['elementType'])}>"
            case "map":
                return f"map<{name(kind['keyType'])}, {name(kind['valueType'])}>"
        parts = [f"{field['name']}: {name(field['type'])}" for field in kind["fields"]]
        return f"struct<{', '.join(parts)}>"

    schema = DeltaTable(str(directory / "delta")).schema()
    return {field.name: name(json.loads(field.type.to_json())) for field in schema.fields}


def _of_iceberg(directory: Path) -> dict[str, str]:
    options = {name.removeprefix("target."): value for name, value in _iceberg_properties(directory).items()}
    catalog = load_catalog("local", **options)
    try:
        return {field.name: str(field.field_type) for field in catalog.load_table("ks.t").schema().fields}
    finally:
        catalog.close()


def _of_clickhouse(directory: Path) -> dict[str, str]:
    table = chdb_process.query(str(directory / "clickhouse"), 'DESCRIBE "a ""t`able"')
    return {row["name"]: row["type"] for row in table.to_pylist()}


SHOWN: dict[str, Callable[[Path], dict[str, str]]] = {
    "duckdb": _of_duckdb,
    "parquet": _of_parquet,
    "delta": _of_delta,
    "iceberg": _of_iceberg,
    "clickhouse": _of_clickhouse,
}


@pytest.mark.parametrize("store", SHOWN)
def test_types_are_those_of_the_page(store: str, tmp_path: Path) -> None:
    publisher = publish_nulls()
    with STORES[store].open(tmp_path) as target:
        target.store(publisher.batch(publisher.topic[0]).for_table(target))
    shown = SHOWN[store](tmp_path)
    assert documented(store) == {kind: plain(shown[f"v{i}"]) for i, kind in enumerate(KINDS)}


def test_mappings_are_those_of_the_page() -> None:
    publisher = publish_nulls()
    batch = publisher.batch(publisher.topic[0])

    def name(mapping: dict[str, Any]) -> str:
        parts = mapping.get("properties", {})
        return f"object({', '.join(f'{n} {name(m)}' for n, m in parts.items())})" if parts else str(mapping["type"])

    shown = {kind: name(mapping_of(batch.value.types[f"v{i}"])) for i, kind in enumerate(KINDS)}
    assert documented("opensearch") == shown


def publish_nulls() -> Publisher:
    """A row without a value in any column, of which there is one for each type."""
    publisher = Publisher()
    key = [Column("k", INT, "partition_key", 0), Column("c", INT, "clustering", 0)]
    publisher.become([*key, *(Column(f"v{i}", kind) for i, kind in enumerate(KINDS.values()))])
    publisher.row(0, [cql_bytes(INT, 1)] * 2, [None] * len(KINDS))
    return publisher


def plain(kind: str) -> str:
    """A type without what the page leaves out: ids, and which parts may be null."""
    kind = re.sub(r"\d+: (\w+): (?:optional|required) ", r"\1: ", kind)
    while (shorter := re.sub(r"Nullable\(((?:[^()]|\([^()]*\))*)\)", r"\1", kind)) != kind:
        kind = shorter
    return kind.replace('"', "").replace("`", "")


def documented(store: str) -> dict[str, str]:
    """The column of a store, by CQL's types, of the table of types."""
    section = DOCS.read_text().partition("### CQL's types")[2].partition("\n#")[0]
    lines = [line.strip("|").split(" | ") for line in section.splitlines() if line.startswith("| ")]
    heads, *rows = [[cell.strip(" |`") for cell in line] for line in lines]
    column = [head.lower() for head in heads].index(store)
    return {kind: row[column] for row in rows for kind in row[0].replace("`", "").split("; ")}
