"""`use.latest.version` with AvroConverter: keys and values in the schema that somebody else registered."""

from __future__ import annotations

import io
import json
from pathlib import Path
from typing import Any

import fastavro
import pytest
from agent.writer import table_of
from connector.test_debezium_cassandra import int32

from helenus_connector.config.connector import ConnectorSettings
from helenus_connector.interfaces.image import Image
from helenus_connector.interfaces.resolved_key import ResolvedKey
from helenus_connector.interfaces.shape import ShapedRecord
from helenus_connector.shape.choice import make_shape
from helenus_connector.shape.encoding.registry import Registry
from helenus_connector.testing.registry import RegistryClient
from helenus_schemas.codec.key import KeyCodec
from helenus_schemas.errors import HelenusError, Kind
from helenus_schemas.event.change import Scope

TABLE = table_of("t", "k int pk, v int, w text, at timestamp")
LATEST = {
    "value.converter.auto.register.schemas": "false",
    "key.converter.use.latest.version": "true",
    "value.converter.use.latest.version": "true",
}
LENIENT = {"value.converter.latest.compatibility.strict": "false"}
PROPERTIES = {"name": "n", "keyspace": "ks", "table": "t", "value.converter.schema.registry.url": "http://r"}
KEY = {"type": "record", "name": "OrderKey", "doc": "ours", "fields": [{"name": "k", "type": "int"}]}
VALUE = {
    "type": "record",
    "name": "Order",
    "namespace": "org.other",
    "fields": [
        {"name": "w", "type": ["null", {"type": "string", "avro.java.string": "String"}], "default": None},
        {"name": "v", "type": ["null", "long"], "doc": "how many", "default": None},
        {"name": "later", "type": "string", "default": "none yet"},
    ],
}


def settings_of(**more: str) -> ConnectorSettings:
    return ConnectorSettings.from_properties({**PROPERTIES, **LATEST, **more}, "test")


class Written:
    """The records of a table, in schemas that are in a registry: `of_values` is the latest of values."""

    def __init__(
        self, directory: Path, monkeypatch: pytest.MonkeyPatch, of_values: object = VALUE, /, **more: str
    ) -> None:
        self.settings, self.client = settings_of(**more), RegistryClient()
        self.client.versions["data-ks.t-key"] = ["{}", json.dumps(KEY)]
        self.client.versions["data-ks.t-value"] = ["{}", "{}", json.dumps(of_values)]
        self.registry = Registry(self.settings, directory / "ids")
        monkeypatch.setitem(self.registry.__dict__, "_client", self.client)
        self.shape = make_shape(TABLE, self.settings, self.registry)

    def record(self, *values: bytes | None) -> ShapedRecord:
        resolved = ResolvedKey("events", 0, KeyCodec(TABLE).encode((int32(7),)), (int32(7),), Scope.ROW)
        if values:
            by_name = dict(zip(("v", "w", "at"), values, strict=True))
            resolved.after = Image(tuple(by_name[column.name] for column in TABLE.values), 1)
        (shaped,) = self.shape.records(resolved)
        assert shaped is not None
        return shaped


def read(data: bytes | None, schema: Any, schema_id: int) -> Any:
    assert data is not None
    assert data[:5] == b"\0" + schema_id.to_bytes(4, "big")
    source = io.BytesIO(data[5:])
    value = fastavro.schemaless_reader(source, fastavro.parse_schema(schema), None)
    assert not source.read()
    return value


def test_keys_and_values_in_the_latest_schema(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Fields go by name, an int is a long there, what it does not have is left out, and what is new has its default."""
    written = Written(tmp_path, monkeypatch)
    record = written.record(int32(5), "ü".encode(), bytes(8)).record
    assert read(record.key, KEY, 2) == {"k": 7}
    assert read(record.value, VALUE, 3) == {"w": "ü", "v": 5, "later": "none yet"}
    assert read(written.record(None, None, None).record.value, VALUE, 3) == {"w": None, "v": None, "later": "none yet"}
    gone = written.record().record
    assert (read(gone.key, KEY, 2), gone.value) == ({"k": 7}, None)
    assert {subject: len(versions) for subject, versions in written.client.versions.items() if versions} == {
        "data-ks.t-key": 2,
        "data-ks.t-value": 3,
    }
    assert not written.client.levels


def test_the_own_schema_with_automatic_registration(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As with Confluent's, whose converter then does not look at `use.latest.version`; here it says so."""
    own = settings_of(**{"value.converter.auto.register.schemas": "true"})
    assert not own.has_transforms
    assert [warning for warning in own.warnings if "use.latest.version does not count" in warning]
    assert not [warning for warning in settings_of().warnings if "use.latest.version" in warning]
    assert settings_of().has_transforms
    values_alone = {"key.converter.use.latest.version": "false"}
    written = Written(tmp_path, monkeypatch, **values_alone)
    with pytest.raises(HelenusError, match="the registry has not this schema"):
        written.record(int32(5), None, None)


def with_fields(*fields: dict[str, Any]) -> dict[str, Any]:
    return {**VALUE, "fields": list(fields)}


@pytest.mark.parametrize(
    ("latest", "message"),
    [
        (with_fields({"name": "v", "type": "int"}), "v is int, and would get null"),
        (with_fields({"name": "v", "type": ["null", "string"]}), "v has no int in its union"),
        (with_fields({"name": "x", "type": "int"}), "x has no default"),
        (
            with_fields({"name": "at", "type": ["null", {"type": "long", "logicalType": "timestamp-micros"}]}),
            "at has no long in its union",
        ),
        ({"type": "nothing"}, "does not take"),
        ({"fields": 5}, "it is no Avro schema"),
        ("x", "does not take"),
    ],
)
def test_a_latest_schema_that_does_not_take_all(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, latest: object, message: str
) -> None:
    with pytest.raises(HelenusError, match=message) as raised:
        Written(tmp_path, monkeypatch, latest).record(int32(5), None, None)
    assert raised.value.kind is Kind.REGISTRY_REFUSED


def test_a_value_that_the_latest_schema_does_not_take(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Without the check before, it is unpublishable; others are written."""
    latest = with_fields({"name": "v", "type": "int"})
    written = Written(tmp_path, monkeypatch, latest, **LENIENT)
    assert read(written.record(int32(5), None, None).record.value, latest, 3) == {"v": 5}
    cause = written.record(None, None, None).cause
    assert cause is not None
    assert (cause.kind, cause.what) == (
        Kind.POISON_EVENT,
        "a key or value has no Avro form: the subject's latest schema does not take it",
    )
    with pytest.raises(HelenusError, match="of no use"):
        Written(tmp_path, monkeypatch, {"type": "nothing"}, **LENIENT).record(int32(5), None, None)


def test_a_subject_without_a_schema(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    written = Written(tmp_path, monkeypatch)
    written.client.versions.clear()
    with pytest.raises(HelenusError) as raised:
        written.record(int32(5), None, None)
    assert raised.value.kind is Kind.SCHEMA_MISSING


def test_the_advice_for_a_missing_schema(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The command `schemas` refuses connectors with transforms, and others that are made as with these."""
    none = {f"{part}.converter.use.latest.version": "false" for part in ("key", "value")}
    for more, advice in ((none, "`helenus-connector schemas"), ({}, "let the connector register it once")):
        registry = Registry(settings_of(**more), tmp_path / "ids")
        monkeypatch.setitem(registry.__dict__, "_client", RegistryClient())
        with pytest.raises(HelenusError, match=f"has not this schema.*{advice}"):
            registry.register("s", json.dumps(KEY))


@pytest.mark.parametrize(
    "more",
    [
        {"state": "keys"},
        {"schema.on.incompatible": "new-topic"},
    ],
)
def test_what_it_does_not_go_with(more: dict[str, str]) -> None:
    with pytest.raises(HelenusError, match=r"use\.latest\.version=true: not with"):
        settings_of(**more)
    settings_of(**more, **{"value.converter.auto.register.schemas": "true"})


CONTEXTS = "value.converter.context.name.strategy"


@pytest.mark.parametrize(
    "converter",
    ["io.confluent.connect.avro.AvroConverter", "io.confluent.connect.protobuf.ProtobufConverter"],
)
def test_a_context_is_said_in_the_address(converter: str) -> None:
    converters = {"key.converter": converter, "value.converter": converter}
    with pytest.raises(HelenusError, match=r"http://registry:8081/contexts/\.NAME\."):
        ConnectorSettings.from_properties({**PROPERTIES, **converters, CONTEXTS: "org.own.Strategy"}, "test")
    none = "io.confluent.kafka.serializers.context.NullContextNameStrategy"
    ConnectorSettings.from_properties({**PROPERTIES, **converters, CONTEXTS: none}, "test")
