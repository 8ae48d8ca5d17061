"""Java's Avro and fastavro read the same out of the same bytes, nasty names and all."""

from __future__ import annotations

import json
from typing import Any

import fastavro
import pytest
from agent.strategies import mutations
from agent.writer import Update, entry, mutation
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st
from schemas.cqldata import cql_bytes, types, values
from schemas.java import Reader, plain
from schemas.test_names import NASTY
from schemas.test_roundtrip import read, table

from helenus_agent.commitlog import decoder
from helenus_schemas.avro import build, compare
from helenus_schemas.codec.key import KeyCodec
from helenus_schemas.codec.to_avro import optionals
from helenus_schemas.cql.table import Table
from helenus_schemas.cql.types import parse
from helenus_schemas.event import wire
from helenus_schemas.event.change import Origin, Scope

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


def row(definition: Table, data: st.DataObject) -> list[tuple[Any, bytes]]:
    """A key and a value of a table, drawn at random."""
    key = [cql_bytes(c.type, data.draw(values(c.type))) for c in definition.primary_key]
    drawn = [data.draw(st.one_of(st.none(), values(c.type))) for c in definition.values]
    cells = [None if v is None else cql_bytes(c.type, v) for c, v in zip(definition.values, drawn, strict=True)]
    return [
        (build.key_schema(definition), KeyCodec(definition).encode(key)),
        (build.value_schema(definition), optionals([c.type for c in definition.values])(cells)),
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
        for definition in (*NASTY.values(), wide):
            records.extend(row(definition, data))

    collect()
    agree(java, records)


NODE = "ad310466-96a7-4cb2-acf4-59535a960812"


def events(updates: list[list[Update]]) -> list[bytes]:
    """The values that the agent's decoder writes for these mutations, with their cells."""
    tables = {update.table.id: update.table for parts in updates for update in parts}
    plans = {
        table.id.bytes: decoder.plan_table(table, index if table.cdc else -1, cells=table.cdc)
        for index, table in enumerate(tables.values())
    }
    data = b"".join(entry(mutation(*parts)) for parts in updates)
    batch = decoder.decode(data, 100, True, plans, NODE, 1795262845123, 8, 10**6)
    return [value for _, _, _, value in batch.changes]


def test_events_with_cells(java: Reader) -> None:
    """Every field of them, of random mutations; and those of snapshots, which end earlier."""
    encoded_events: list[bytes] = []

    @settings(max_examples=150, deadline=None, suppress_health_check=list(HealthCheck), phases=[Phase.generate])
    @given(mutations())
    def collect(updates: list[list[Update]]) -> None:
        encoded_events.extend(events(updates))

    collect()
    records = [(wire.SCHEMA_WITH_CELLS, value) for value in encoded_events]
    records += [(wire.SCHEMA_WITH_ORIGIN, wire.request(Scope.ROW, Origin.SNAPSHOT_LAST))]
    agree(java, records)
    answers = java.read((build.text(schema), value) for schema, value in records[:-1])
    scopes = set()
    for value, answer in zip(encoded_events, answers, strict=True):
        event, change = answer["value"], wire.decode(value)
        assert change.cells is not None
        cells = event["cells"]
        scopes.add(event["scope"])
        assert set(event) == {field["name"] for field in wire.SCHEMA_WITH_CELLS["fields"]}
        assert (event["md5Digest"], event["nodeId"], event["origin"], cells["version"]) == (
            change.digest,
            NODE,
            "LOG",
            1,
        )
        assert (event["segment"], event["position"], event["part"]) == (change.segment, change.position, change.part)
        assert (event["writeTime"], event["expiresAt"]) == (change.write_time, change.expires_at)
        assert isinstance(json.loads(cells["columns"])["columns"], list)
        assert bytes.fromhex(cells["data"][2:]) == change.cells[-(len(cells["data"]) - 2) // 2 :]
    assert scopes == {"ROW", "STATIC", "PARTITION", "RANGE"}
