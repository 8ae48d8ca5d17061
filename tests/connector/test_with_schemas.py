"""JSON records that carry their schema: it says what the payload is, and Kafka Connect reads it."""

from __future__ import annotations

import json
from base64 import b64encode
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from agent.writer import Cell, Row, Update, table_of
from connector.celled import JSON, events
from connector.test_debezium_cassandra import LOWEST, VALUES, K, Made, T
from schemas.java import Program

from helenus_connector.config.connector import ConnectorSettings
from helenus_connector.interfaces.image import Image
from helenus_connector.interfaces.shape import ShapedRecord
from helenus_connector.shape.choice import make_shape
from helenus_connector.shape.row.row import shown_table
from helenus_schemas.codec.key import KeyCodec
from helenus_schemas.cql.table import Column, Table
from helenus_schemas.cql.types import CqlType, parse

FORMATS = ["key-value-json", "json", "debezium", "debezium-cassandra", "cep44"]
ODD = table_of("t", "k int pk, c text ck, v int, d decimal, m map<int, blob>")
CONNECT = Path(__file__).with_name("ConnectJson.java")


class WithSchema(Made):
    """What any format in JSON with schemas makes of changes, and what it makes without."""

    def __init__(self, table: Table, form: str, key: bool = True, value: bool = True) -> None:
        properties = {"name": "n", "keyspace": "ks", "table": "t", "output.format": form}
        for part, has in (("key", key), ("value", value)):
            if part == "value" or has or form != "json":
                properties |= {f"{part}.converter": JSON, f"{part}.converter.schemas.enable": str(has).lower()}
        if form == "json" and not key:
            properties["key.converter"] = "org.apache.kafka.connect.storage.StringConverter"
        self.settings = ConnectorSettings.from_properties(properties, "test")
        self.table = shown_table(table, self.settings)
        self.codec = KeyCodec(self.table)
        self.shape = make_shape(self.table, self.settings, None)  # type: ignore[assignment]

    def shaped(self, *updates: Update) -> list[ShapedRecord]:
        """Of changes as they were written, or of rows that were read where the format has no others."""
        shaped_records: list[ShapedRecord | None] = []
        for event in events(*updates):
            resolved = self.resolved(event)
            if self.settings.is_envelope:
                shaped_records += self.shape.records(resolved)
            else:
                cells = resolved.written.cells if resolved.written else ()
                by_name = {cell.column: cell.value for cell in cells}
                resolved.after = Image(tuple(by_name.get(c.name) for c in self.table.values), T)
                resolved.written = None
                shaped_records += self.shape.records(resolved)
        return [shaped for shaped in shaped_records if shaped is not None]


def fits(schema: dict[str, Any], payload: Any, path: str = "") -> None:
    """Assert that a payload is one of a schema of Kafka Connect."""
    if payload is None:
        assert schema["optional"], path
        return
    kind = schema["type"]
    if kind == "struct":
        fields = {field["field"]: field for field in schema["fields"]}
        assert payload.keys() <= fields.keys(), path
        for name, field in fields.items():
            fits(field, payload.get(name), f"{path}.{name}")
    elif kind == "array":
        for item in payload:
            fits(schema["items"], item, f"{path}[]")
    elif kind == "map":
        for key, value in payload.items() if isinstance(payload, dict) else payload:
            fits(schema["keys"], key, f"{path}{{}}")
            fits(schema["values"], value, f"{path}{{}}")
    else:
        python_types = {"string": str, "bytes": str, "boolean": bool, "float": (float, int), "double": (float, int)}
        python_type: Any = python_types.get(kind, int)
        assert isinstance(payload, python_type), f"{path}: {payload!r} is no {kind}"


def changes(definition: Table, kind: str, data: bytes) -> Update:
    return Update(definition, K, [Row((), {"v": Cell(data)}, time=T)], lowest=LOWEST)


@pytest.mark.parametrize("form", FORMATS)
def test_a_schema_says_what_the_payload_of_every_type_is(form: str) -> None:
    for kind, (data, _, _) in VALUES.items():
        definition = table_of("t", f"k int pk, v {kind}")
        update = changes(definition, kind, data)
        plain = WithSchema(definition, form, key=False, value=False)
        records_with_schema = WithSchema(definition, form).shaped(update)
        for shaped, without in zip(records_with_schema, plain.shaped(update), strict=True):
            for data_, other in ((shaped.record.key, without.record.key), (shaped.record.value, without.record.value)):
                assert data_ is not None
                assert other is not None
                whole = json.loads(data_)
                assert list(whole) == ["schema", "payload"]
                fits(whole["schema"], whole["payload"], f"{form} {kind}")
                bare = json.loads(other)
                for envelope in (whole["payload"], bare):
                    envelope.pop("ts_ms", None)
                assert whole["payload"] == bare


def test_only_a_key_or_a_value_has_one_and_a_tombstone_stays_null() -> None:
    update = Update(ODD, K, [Row((b"x",), deletion=(T, 1_700_000_000))], lowest=LOWEST)
    for key, value in ((True, False), (False, True)):
        record, tombstone = (s.record for s in WithSchema(ODD, "debezium", key, value).shaped(update))
        for data, has in ((record.key, key), (record.value, value), (tombstone.key, key)):
            assert (json.loads(data or b"").keys() == {"schema", "payload"}) == has
        assert tombstone.value is None


def test_names_are_those_of_cql_and_of_connect() -> None:
    definition = table_of("t", "my-key int pk, a-b timestamp, v int")
    for form in ("key-value-json", "debezium"):
        update = Update(definition, K, [Row((), {"v": Cell(K)}, time=T)], lowest=LOWEST)
        (shaped,) = WithSchema(definition, form).shaped(update)
        assert json.loads(shaped.record.key or b"")["schema"]["fields"][0] == {
            "type": "int32",
            "optional": True,
            "field": "my-key",
        }
        schema = json.loads(shaped.record.value or b"")["schema"]
        after = next((f for f in schema["fields"] if f["field"] == "after"), schema)
        (time,) = (field for field in after["fields"] if field["field"] == "a-b")
        assert (time["type"], time["name"]) == ("int64", "org.apache.kafka.connect.data.Timestamp")


@pytest.mark.parametrize("form", FORMATS)
def test_names_that_avro_forbids_are_those_of_the_payload(form: str) -> None:
    """Also of a type's fields."""
    address = CqlType("udt", (parse("int"),), True, "the address", ("zip code",))
    definition = table_of("t", "my-key int pk, v int")
    definition = replace(definition, columns=(*definition.columns, Column("größe", parse("int")), Column("a", address)))
    columns = {"größe": Cell(K), "a": Cell(bytes((0, 0, 0, 4)) + K)}
    (shaped,) = WithSchema(definition, form).shaped(
        Update(definition, K, [Row((), dict(columns), time=T)], lowest=LOWEST)
    )
    for data in (shaped.record.key, shaped.record.value):
        whole = json.loads(data or b"")
        fits(whole["schema"], whole["payload"], form)
    for name in ("größe", "zip code"):
        assert f'"{name}":' in json.dumps(whole["payload"], ensure_ascii=False, separators=(",", ":"))


@pytest.mark.integration
def test_kafka_connect_reads_every_type(tmp_path: Path) -> None:
    records = []
    for form in FORMATS:
        for kind, (data, _, _) in VALUES.items():
            definition = table_of("t", f"k int pk, v {kind}")
            for shaped in WithSchema(definition, form).shaped(changes(definition, kind, data)):
                parts = (shaped.record.key, shaped.record.value)
                records += [(form, kind, part) for part in parts if part is not None]
    lines_of_records = "".join(f"{b64encode(data).decode()}\n" for _, _, data in records)
    lines = [
        line for line in Program(tmp_path, CONNECT, "connect").ask(lines_of_records).split("\n") if line.startswith("{")
    ]
    assert len(lines) == len(records)
    for (form, kind, data), line in zip(records, lines, strict=True):
        wrote, read = json.loads(data), json.loads(line)
        assert without_nulls(read["payload"]) == without_nulls(wrote["payload"]), (form, kind)
        assert sizes(read["schema"]) == sizes(wrote["schema"]), (form, kind)


def without_nulls(payload: Any) -> Any:
    """Fields that are null may be left out."""
    if isinstance(payload, dict):
        return {key: without_nulls(value) for key, value in payload.items() if value is not None}
    return [without_nulls(part) for part in payload] if isinstance(payload, list) else payload


def sizes(schema: Any) -> Any:
    """A schema without what Connect adds: the version 1 of names."""
    if isinstance(schema, dict):
        return {key: sizes(value) for key, value in schema.items() if key not in ("version", "default")}
    return [sizes(part) for part in schema] if isinstance(schema, list) else schema


def test_debezium_s_schemas_where_they_say_otherwise_than_avro() -> None:
    """As `SchemaFactory`, `CassandraSchemaFactory` and `AbstractMapTypeDeserializer` of Debezium 3.5 make them."""
    definition = table_of(
        "t", "k frozen<map<text, int>> pk, c int ck, m map<text, frozen<map<text, int>>>, n map<int, text>, v int"
    )
    made = WithSchema(definition, "debezium-cassandra")
    update = Update(definition, bytes(4), [Row((b"\0\0\0\1",), {"v": Cell(bytes(4))}, time=T)], lowest=LOWEST)
    (shaped,) = made.shaped(update)
    key, value = (json.loads(part or b"")["schema"] for part in shaped.record[:2])
    by_name = {field["field"]: field for field in value["fields"]}
    source = by_name["source"]
    assert (source["name"], source["version"]) == ("source", 1)
    (snapshot,) = (field for field in source["fields"] if field["field"] == "snapshot")
    assert (snapshot["optional"], snapshot["default"], snapshot["name"]) == (True, "false", "io.debezium.data.Enum")
    maps = [schema for schema in [*nested(key), *nested(by_name["after"])] if schema["type"] == "map"]
    assert len(maps) == 5, "k twice, m and its values, n"
    assert all(schema["keys"]["optional"] for schema in maps)
    ranges = [field for field in by_name["after"]["fields"] if field["field"].startswith("_range")]
    bounds = [next(f for f in end["fields"] if f["field"] == "values")["items"] for end in ranges]
    assert [(bound["name"], bound["version"]) for bound in bounds] == [("clustering_value", 1)] * 2
    # Kafka Connect's own of a map in Avro, in other formats.
    (shaped,) = WithSchema(definition, "debezium").shaped(update)
    maps = [schema for schema in nested(json.loads(shaped.record.value or b"")["schema"]) if schema["type"] == "map"]
    assert maps
    assert not any(schema["keys"]["optional"] for schema in maps if schema["keys"]["type"] == "string")


def nested(schema: dict[str, Any]) -> list[dict[str, Any]]:
    """A schema of Kafka Connect's and all that it is made of."""
    parts = [schema[part] for part in ("items", "keys", "values") if part in schema] + schema.get("fields", [])
    return [schema, *(inner for part in parts for inner in nested(part))]
