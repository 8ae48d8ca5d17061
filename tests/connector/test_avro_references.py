"""`use.latest.version` with AvroConverter, where the latest schema refers to schemas of other subjects."""

from __future__ import annotations

import io
import json
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import fastavro
import pytest
from agent.writer import table_of
from connector.test_debezium_cassandra import int32
from structlog.testing import capture_logs

from helenus_connector.config.connector import ConnectorSettings
from helenus_connector.interfaces.image import Image
from helenus_connector.interfaces.resolved_key import ResolvedKey
from helenus_connector.interfaces.shape import Record
from helenus_connector.shape.choice import make_shape
from helenus_connector.shape.encoding import _references
from helenus_connector.shape.encoding.registry import Registry
from helenus_connector.testing.registry import RegistryClient
from helenus_connector.verify._values import AvroValues
from helenus_schemas.avro import build as avro
from helenus_schemas.codec.key import KeyCodec
from helenus_schemas.cql.table import Column
from helenus_schemas.cql.types import CqlType, parse
from helenus_schemas.errors import HelenusError, Kind
from helenus_schemas.event.change import Scope

POINT = CqlType("udt", (parse("int"), parse("text")), True, "point", ("x", "y"))
TABLE = replace(
    table := table_of("t", "k int pk, v int"),
    columns=(*table.columns, Column("at", POINT), Column("path", CqlType("list", (POINT,)))),
)
LATEST = {
    "value.converter.auto.register.schemas": "false",
    "value.converter.use.latest.version": "true",
    "key.converter.use.latest.version": "true",
}
PROPERTIES = {"name": "n", "keyspace": "ks", "table": "t", "value.converter.schema.registry.url": "http://r"}
KEY = {"type": "record", "name": "Key", "fields": [{"name": "k", "type": "int"}]}
NUMBER = {"type": "record", "name": "Number", "namespace": "org", "fields": [{"name": "n", "type": "int"}]}
PLACE = {
    "type": "record",
    "name": "Place",
    "namespace": "org",
    "fields": [
        {"name": "y", "type": ["null", "string"], "default": None},
        {"name": "x", "type": ["null", "long"], "default": None},
        {"name": "number", "type": ["null", "Number"], "default": None},
    ],
}
ORDER = {
    "type": "record",
    "name": "Order",
    "namespace": "shop",
    "fields": [
        {"name": "path", "type": ["null", {"type": "array", "items": ["null", "org.Place"]}], "default": None},
        {"name": "at", "type": ["null", "org.Place"], "default": None},
    ],
}
VALUE = "data-ks.t-value"
References = dict[str, list[tuple[str, int]]]


class Written:
    """A table's registry: `subjects` has schemas, whose `references` are by subject."""

    def __init__(
        self, directory: Path, monkeypatch: pytest.MonkeyPatch, subjects: dict[str, Any], references: References
    ) -> None:
        self.settings = settings = ConnectorSettings.from_properties({**PROPERTIES, **LATEST}, "test")
        self.client = RegistryClient()
        for subject, schema in {"data-ks.t-key": KEY, **subjects}.items():
            self.client.versions[subject] = ["{}", json.dumps(schema)]
            self.client.references[json.dumps(schema)] = references.get(subject, [])
        self.registry = Registry(settings, directory / "ids")
        monkeypatch.setitem(self.registry.__dict__, "_client", self.client)
        self._shape = make_shape(TABLE, settings, self.registry)

    def record(self) -> Record:
        point = int32(4) + int32(3) + int32(1) + b"z"
        values = {"v": int32(5), "at": point, "path": int32(1) + int32(len(point)) + point}
        after = Image(tuple(values[column.name] for column in TABLE.values), 1)
        resolved = ResolvedKey("events", 0, KeyCodec(TABLE).encode((int32(7),)), (int32(7),), Scope.ROW)
        resolved.after = after
        (shaped,) = self._shape.records(resolved)
        assert shaped is not None
        assert shaped.cause is None
        return shaped.record

    def refusal(self) -> str:
        """Return why a record is not made."""
        with pytest.raises(HelenusError) as raised:
            self.record()
        error = raised.value
        assert (error.kind, error.where) == (Kind.REGISTRY_REFUSED, f"http://r, subject {VALUE}")
        assert error.advice == "register another version"
        return error.what.removeprefix("the subject's latest schema can't be used: ")


def test_a_reference_of_a_reference(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each version is asked for once, and the types are as in one schema."""
    subjects = {VALUE: ORDER, "place": PLACE, "number": NUMBER}
    references = {VALUE: [("place", 2), ("number", 2)], "place": [("number", 2)]}
    written = Written(tmp_path, monkeypatch, subjects, references)
    record = written.record()
    assert record.value is not None
    requests = written.client.asked
    assert requests == 4
    assert record == written.record()
    assert written.client.asked == requests
    point = {"x": 3, "y": "z", "number": None}
    text = written.registry.latest_as("AVRO", VALUE, None)[1]
    read = fastavro.schemaless_reader(io.BytesIO(record.value[5:]), fastavro.parse_schema(json.loads(text)), None)
    assert read == {"path": [point], "at": point}
    # A consumer has parsed the innermost schema first, as Confluent's does.
    named_schemas: dict[str, Any] = {}
    for schema in (NUMBER, PLACE, ORDER):
        parsed = fastavro.parse_schema(schema, named_schemas=named_schemas)
    assert fastavro.schemaless_reader(io.BytesIO(record.value[5:]), parsed, None) == read


def test_readers_ask_by_id(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """`verify` and states do: a schema that can't be used is as one that is not there, and the log says why."""
    written = Written(tmp_path, monkeypatch, {"": PLACE, "number": NUMBER}, {"": [("number", 2)]})
    fields = json.loads(written.registry.schema(2) or "")["fields"]
    assert fields[2]["type"][1] == {"type": "record", "name": "org.Number", "fields": NUMBER["fields"]}
    written.client.versions["number"] = []
    with capture_logs() as logs:
        assert written.registry.schema(2) is None
    assert [(entry["event"], entry["schema_id"]) for entry in logs] == [("registry.schema_unusable", 2)]
    assert logs[0]["error"] == "it refers to version 2 of number, which the registry does not have"


def test_verify(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A value of a schema with references is equal to the row's, in whatever order its fields are."""
    at_field, *other_fields = (own := avro.value_schema(TABLE))["fields"]
    point = at_field["type"][1]
    split = {**own, "fields": [{**at_field, "type": ["null", "ks.point"]}, *other_fields]}
    other = {**own, "namespace": "other", "fields": [*other_fields, {**at_field, "type": ["null", "ks.point"]}]}
    subjects = {"": split, "other": other, "point": point}
    written = Written(tmp_path, monkeypatch, subjects, {"": [("point", 2)], "other": [("point", 2)]})
    written.client.versions[""].append(json.dumps(other))
    values = AvroValues(TABLE, written.settings, False, written.registry.schema)
    row = {"v": 5, "at": {"x": 3, "y": "z"}, "path": [{"x": 4, "y": None}]}
    compared = []
    for schema_id in (2, 3):
        out = io.BytesIO()
        fastavro.schemaless_writer(out, json.loads(written.registry.schema(schema_id) or ""), row)
        compared.append(values.value(out.getvalue(), schema_id, {}, True))
    assert compared[0] == compared[1]
    assert compared[0]
    assert b"unreadable" not in compared[0]


def test_a_key_that_is_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The key's latest schema is kept if it gives the same bytes, also where a type of it is another subject's."""
    key = {**KEY, "fields": [{"name": "n", "type": "org.Number"}]}
    written = Written(tmp_path, monkeypatch, {"s": key, "number": NUMBER}, {"s": [("number", 2)]})
    own = {**KEY, "name": "Own", "fields": [{"name": "n", "type": {**NUMBER, "name": "x"}}]}
    assert written.registry.keep("s", json.dumps(own), json.dumps({**KEY, "fields": []})) == 2


def test_references_that_lead_nowhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    subjects = {VALUE: ORDER, "place": PLACE, "number": NUMBER}

    def refusal(references: References) -> str:
        return Written(tmp_path, monkeypatch, subjects, references).refusal()

    to_place = {VALUE: [("place", 2)]}
    assert refusal({VALUE: [("places", 1)]}) == ("it refers to version 1 of places, which the registry does not have")
    assert refusal({VALUE: [("place", 7)]}) == "it refers to version 7 of place, which the registry does not have"
    assert refusal({VALUE: [("number", 2)]}) == (
        "with the schemas that it refers to: it names org.Place, which is not defined there"
    )
    assert "it names org.Number, which" in refusal(to_place)
    circle = "it refers to version 2 of place, which refers to itself"
    assert refusal({**to_place, "place": [("number", 2)], "number": [("place", 2)]}) == circle
    assert refusal({**to_place, "place": [("place", 2)]}) == circle
    assert refusal({VALUE: [("place", "2")]}) == (  # type: ignore[list-item]
        "it refers to one without a subject or version"
    )
    assert "without a subject" in refusal({VALUE: [("", 2)]})


def test_a_schema_of_another_kind(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    written = Written(tmp_path, monkeypatch, {VALUE: ORDER, "place": PLACE}, {VALUE: [("place", 2)]})
    get_version = written.client.get_version

    def json_place(subject: str, version: int, deleted: bool = False) -> Any:
        answer = get_version(subject, version, deleted)
        answer.schema.schema_type = "JSON" if subject == "place" else "AVRO"
        return answer

    monkeypatch.setattr(written.client, "get_version", json_place)
    assert written.refusal() == "it refers to version 2 of place, which is JSON"


@pytest.mark.parametrize("in_a_row", [False, True])
def test_too_many(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, in_a_row: bool) -> None:
    """A hundred are read at most, side by side or one behind the other."""
    records = {f"s{n}": {"type": "record", "name": f"R{n}", "fields": []} for n in range(1000)}
    references: References = {VALUE: [(subject, 2) for subject in records]}
    if in_a_row:
        references = {VALUE: [("s0", 2)], **{f"s{n}": [(f"s{n + 1}", 2)] for n in range(999)}}
    written = Written(tmp_path, monkeypatch, {VALUE: ORDER, **records}, references)
    assert written.refusal() == "it refers to more than 100 schemas"
    assert written.client.asked <= 102


def test_too_large_or_slow(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    subjects, references = {VALUE: ORDER, "place": PLACE}, {VALUE: [("place", 2)]}
    monkeypatch.setattr(_references, "MAX_ANSWER_BYTES", 100)
    assert Written(tmp_path, monkeypatch, subjects, references).refusal() == (
        "it refers to schemas of more than 100 bytes"
    )
    monkeypatch.setattr(_references, "time", SimpleNamespace(monotonic=iter((0.0, 31.0)).__next__))
    with pytest.raises(HelenusError, match="not read within 30 s") as raised:
        Written(tmp_path, monkeypatch, subjects, references).record()
    assert raised.value.kind is Kind.REGISTRY_UNREACHABLE


def test_contexts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A reference may name another context; those of its schema are in that one, unless they name their own."""
    subjects = {VALUE: ORDER, ":.a:place": PLACE, ":.a:number": NUMBER}
    references = {VALUE: [(":.a:place", 2)], ":.a:place": [("number", 2)]}
    written = Written(tmp_path, monkeypatch, subjects, references)
    assert written.record().value
    written.client.references[json.dumps(PLACE)] = [(":.b:number", 2)]
    assert (
        "version 2 of :.b:number, which"
        in Written(tmp_path, monkeypatch, subjects, {**references, ":.a:place": [(":.b:number", 2)]}).refusal()
    )
