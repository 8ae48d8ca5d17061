"""Java's Avro and fastavro read the same out of the same bytes, nasty names and all."""

from __future__ import annotations

import json
from typing import Any

import fastavro
import pytest
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st
from schemas.cqldata import cql_bytes, types, values
from schemas.java import Reader, plain
from schemas.test_names import NASTY
from schemas.test_roundtrip import read, table

from helenus_schemas.avro import build, compare
from helenus_schemas.codec.key import KeyCodec
from helenus_schemas.codec.to_avro import optionals
from helenus_schemas.cql.table import Table
from helenus_schemas.cql.types import parse

pytestmark = pytest.mark.integration


@pytest.fixture(scope="module")
def java(tmp_path_factory: pytest.TempPathFactory) -> Reader:
    return Reader(tmp_path_factory.mktemp("java"))


def agree(java: Reader, records: list[tuple[Any, bytes]]) -> None:
    """Java and Python decode the same values; each parses the schema, and fastavro parses it as Java prints it."""
    answers = java.read((build.text(schema), data) for schema, data in records)
    assert len(answers) == len(records)
    for (schema, data), answer in zip(records, answers, strict=True):
        assert "error" not in answer, (answer, build.text(schema))
        fastavro.parse_schema(json.loads(answer["schema"]))
        assert compare.parsed(answer["schema"]) == compare.parsed(build.text(schema))
        assert answer["value"] == plain(read(schema, data))


def row(of: Table, data: st.DataObject) -> list[tuple[Any, bytes]]:
    """A key and a value of a table, drawn at random."""
    key = [cql_bytes(c.type, data.draw(values(c.type))) for c in of.primary_key]
    drawn = [data.draw(st.one_of(st.none(), values(c.type))) for c in of.values]
    cells = [None if v is None else cql_bytes(c.type, v) for c, v in zip(of.values, drawn, strict=True)]
    return [
        (build.key_schema(of), KeyCodec(of).encode(key)),
        (build.value_schema(of), optionals([c.type for c in of.values])(cells)),
    ]


def test_rows_of_any_types(java: Reader) -> None:
    records: list[tuple[Any, bytes]] = []

    @settings(max_examples=150, deadline=None, suppress_health_check=list(HealthCheck), phases=[Phase.generate])
    @given(st.data())
    def collect(data: st.DataObject) -> None:
        keys = data.draw(st.lists(types(key=True), min_size=1, max_size=2))
        columns = data.draw(st.lists(types(), min_size=1, max_size=5))
        records.extend(row(table(*columns, keys=tuple(keys)), data))

    collect()
    assert len(records) > 200
    agree(java, records)


def test_nasty_names_and_300_columns(java: Reader) -> None:
    records: list[tuple[Any, bytes]] = []
    kinds = ("int", "text", "decimal", "tuple<int, text>", "map<uuid, frozen<list<date>>>", "duration")
    wide = table(*[parse(kinds[i % len(kinds)]) for i in range(300)])

    @settings(max_examples=1, deadline=None, suppress_health_check=list(HealthCheck), phases=[Phase.generate])
    @given(st.data())
    def collect(data: st.DataObject) -> None:
        for of in (*NASTY.values(), wide):
            records.extend(row(of, data))

    collect()
    agree(java, records)
