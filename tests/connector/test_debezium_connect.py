"""Avro of the shape `debezium-cassandra` in Kafka Connect: Debezium's names, and the values that our JSON has."""

from __future__ import annotations

import json
import struct
from base64 import b64encode
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from agent.writer import Cell, Row, Update, table_of
from connector.celled import events
from connector.test_debezium_cassandra import AVRO, IN_JSON, LOWEST, NUMBERS, VALUES, K, Made, T
from schemas.java import Program

pytestmark = pytest.mark.integration

SOURCE = Path(__file__).with_name("ConnectJson.java")


def in_connect(directory: Path, records: Sequence[tuple[str, bytes]]) -> list[Any]:
    """Schemas and values as Kafka Connect has them, as its JSON says it."""
    lines_of_records = "".join(
        f"{b64encode(schema.encode()).decode()} {b64encode(data).decode()}\n" for schema, data in records
    )
    output = Program(directory, SOURCE, "connect").ask(lines_of_records)
    return [json.loads(line) for line in output.split("\n") if line.startswith("{")]


def test_every_type_in_kafka_connect(tmp_path: Path) -> None:
    kinds = [(kind, {}, data) for kind, (data, _, _) in VALUES.items()]
    kinds += [(kind, {f"{kind}.handling.mode": mode}, data) for kind, mode, data, _, _ in NUMBERS]
    records, wanted = [], []
    for kind, more, data in kinds:
        definition = table_of("t", f"k int pk, v {kind}, d blob, n int")
        columns = {"v": Cell(data), "d": Cell(b"\0\xff"), "n": Cell(struct.pack(">i", 5))}
        update = Update(definition, K, [Row((), dict(columns), time=T)], lowest=LOWEST)
        made = Made(definition, **AVRO, **more)
        (event,) = events(update)
        (shaped,) = made.shape.records(made.resolved(event))
        assert shaped is not None
        assert shaped.record.value is not None
        schema = made.registry.schema(made.registry.subjects["dbz.ks.t-value"])
        assert schema is not None
        records.append((schema, shaped.record.value[5:]))
        wanted.append(Made(definition, **IN_JSON, **more).single_record(update)[1])
    structs = in_connect(tmp_path, records)
    assert len(structs) == len(wanted)
    for (kind, *_), converted, other in zip(kinds, structs, wanted, strict=True):
        converted["payload"].pop("ts_ms"), other.pop("ts_ms")
        assert converted["payload"] == other, kind
    names = "io.debezium.connector.cassandra.dbz.ks.t"
    schema = structs[0]["schema"]
    assert schema["name"] == f"{names}.Envelope"
    of_field = {field["field"]: field for field in schema["fields"]}
    assert (of_field["source"]["name"], of_field["after"]["name"], of_field["after"]["version"]) == (
        "source",
        "after",
        1,
    )
    of_cells = {field["field"]: field for field in of_field["after"]["fields"]}
    assert {cell["name"] for cell in of_cells.values()} == {"cell_value", "_range_start", "_range_end"}
    assert all(cell["optional"] and cell["version"] == 1 for cell in of_cells.values())
    value_types = {
        kind: _after_schema(converted)["fields"][0]
        for (kind, more, _), converted in zip(kinds, structs, strict=True)
        if not more
    }
    seen = {kind: (field["type"], field.get("name")) for kind, field in value_types.items()}
    assert seen["tinyint"] == ("int8", None)
    assert seen["date"] == ("int32", "io.debezium.time.Date")
    assert seen["timestamp"] == ("int64", "io.debezium.time.Timestamp")
    assert seen["uuid"] == ("string", "io.debezium.data.Uuid")
    assert seen["duration"] == ("int64", "io.debezium.time.NanoDuration")
    assert seen["tuple<int, text>"] == ("struct", "Int32UTF8Tuple")
    assert seen["frozen<map<int, text>>"] == ("map", None)


def _after_schema(converted: Any) -> Any:
    """The schema of the cell `v`."""
    after = next(field for field in converted["schema"]["fields"] if field["field"] == "after")
    return next(field for field in after["fields"] if field["field"] == "v")
