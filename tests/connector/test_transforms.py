"""Transforms of a connector: from properties to records in their topics, and what is refused."""

from __future__ import annotations

import json
import re
from base64 import b64encode
from collections.abc import Mapping, Sequence
from dataclasses import replace
from decimal import Decimal
from pathlib import Path
from typing import Any, ClassVar

import pytest
from connector import test_cep44, test_none
from connector.celled import NONE, events
from connector.staged import ALL, DATA, DEAD_LETTERS, Staged, int32, table

from helenus_connector.config.connector import ConnectorSettings, PulsarConnectorSettings
from helenus_connector.connect_data.from_avro import AvroReader
from helenus_connector.connect_data.record import ConnectRecord
from helenus_connector.connect_data.schema import ConnectSchema, SchemaField
from helenus_connector.interfaces.image import Image
from helenus_connector.interfaces.resolved_key import ResolvedKey
from helenus_connector.pipeline import stage as stage_module
from helenus_connector.shape._transformed import LocalSchemas
from helenus_connector.shape.choice import make_shape
from helenus_connector.testing.registry import MemoryRegistry
from helenus_connector.transforms.catalog import CLASSES
from helenus_connector.transforms.contract import ConfigKey
from helenus_schemas.cql.table import Column
from helenus_schemas.cql.types import parse
from helenus_schemas.errors import HelenusError, Kind
from helenus_schemas.event.change import Change, Effect, Scope
from helenus_schemas.settings.properties import ConfigError, read_properties

KAFKA = "org.apache.kafka.connect.transforms."
T = table(("k", "int", "partition_key"))
WIDE = replace(T, columns=(*T.columns, Column("w", parse("text")), Column("x", parse("timestamp"))))
TOMBSTONES: Mapping[str, str] = {
    "predicates": "gone",
    "predicates.gone.type": f"{KAFKA}predicates.RecordIsTombstone",
}


class DoubleField:
    """A transform of a user's own: doubles a field; drops a record where it is 7, and fails where it is 13."""

    KEYS: ClassVar[Sequence[ConfigKey]] = (ConfigKey("field", "STRING", "The field to double."),)

    def __init__(self, settings: Mapping[str, Any]) -> None:
        self._field: str = settings["field"]
        if self._field == "no":
            raise ValueError("no is no field to double")

    def apply(self, record: ConnectRecord) -> ConnectRecord | None:
        if record.value is None or record.value[self._field] is None:
            return record
        if record.value[self._field] == 13:
            raise RuntimeError("thirteen")
        if record.value[self._field] == 7:
            return None
        return replace(record, value={**record.value, self._field: 2 * record.value[self._field]})


OWN = f"{__name__}:DoubleField"


def chain(*transforms: tuple[str, Mapping[str, str]], **more: str) -> dict[str, str]:
    """Properties of transforms `a`, `b` and so on: each a class, and its keys."""
    names = "abcdefgh"[: len(transforms)]
    properties = {"transforms": ",".join(names), **more}
    for name, (kind, keys) in zip(names, transforms, strict=True):
        properties[f"transforms.{name}.type"] = kind if ":" in kind or kind.startswith("io.") else KAFKA + kind
        properties |= {f"transforms.{name}.{key}": value for key, value in keys.items()}
    return properties


def written(stage: Staged, k: int, v: int | None, *others: bytes | None) -> None:
    """Run a batch of one change of a row, which is as it was written."""
    key = (int32(k),)
    if v is None:
        stage.live.pop(key, None)
    else:
        stage.live[key] = Image((int32(v), *others), 1_700_000_000_123_456)
    change = Change(None, None, Scope.ROW, write_time=1_700_000_000_123_456, effect=int(Effect.LIVE))
    stage.run(change, stage.codec.encode(key))


def staged(directory: Path, monkeypatch: pytest.MonkeyPatch, definition: Any = T, **more: str) -> Staged:
    stage = Staged(definition, directory, monkeypatch, **more)
    stage.log.create(DATA, 1, {})
    return stage


def test_a_chain_in_its_order_with_a_predicate(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    properties = chain(
        ("ReplaceField$Value", {"renames": "v:number"}),
        ("Cast$Value", {"spec": "number:string", "predicate": "gone", "negate": "true"}),
        ("InsertField$Value", {"topic.field": "topic", "timestamp.field": "at!", "partition.field": "p"}),
        ("RegexRouter", {"regex": "data-(.*)", "replacement": "routed.$1"}),
        ("ExtractField$Key", {"field": "k"}),
    )
    stage = staged(tmp_path, monkeypatch, **properties, **TOMBSTONES)
    written(stage, 1, 5)
    written(stage, 1, None)
    row = {"number": "5", "topic": DATA, "at": 1_700_000_000_123, "p": 0}
    assert stage.records_of("routed.ks.t") == [(1, row), (1, None)]
    assert stage.records_of(DATA) == []
    assert stage.log.topics()["routed.ks.t"] == 1
    (record, _) = stage.appended
    assert dict(record.headers)["writetime"] == b"1700000000123456"


PAIR = table(("k", "int", "partition_key"), ("c", "int", "clustering"))


def test_key_columns_are_those_of_the_first_entry_that_matches(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    columns = {"message.key.columns": "ks.other:x; (.*)[.]t:c; ks.t:k"}
    stage = staged(tmp_path, monkeypatch, PAIR, **columns, **chain(("ReplaceField$Value", {"renames": "v:number"})))
    for row in (Image((int32(5),), 1), None):
        stage.live[int32(1), int32(2)] = row
        stage.run(Change(None, None, Scope.ROW, write_time=1), stage.codec.encode((int32(1), int32(2))))
    assert stage.records_of(DATA) == [({"c": 2}, {"number": 5}), ({"c": 2}, None)]


@pytest.mark.parametrize("text", ["ks.t", "ks.t:", ":k", "ks.(t:k"])
def test_wrong_key_columns_are_named(text: str) -> None:
    properties = {"name": "n", "keyspace": "ks", "table": "t", "message.key.columns": text}
    registry = {"value.converter.schema.registry.url": "http://r"}
    with pytest.raises(ConfigError) as error:
        ConnectorSettings.from_properties({**properties, **registry}, "f")
    assert [problem.key for problem in error.value.problems] == ["message.key.columns"]


def test_key_columns_are_of_the_primary_key(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    stage = staged(tmp_path, monkeypatch, PAIR, **{"message.key.columns": "ks.t:v"})
    with pytest.raises(HelenusError, match=r"message\.key\.columns: v is no column of the primary key"):
        stage.run(Change(None, None, Scope.ROW, write_time=1), stage.codec.encode((int32(1), int32(2))))


CONNECT = "org.apache.kafka.connect."
CONVERTERS = {
    "avro": "io.confluent.connect.avro.AvroConverter",
    "json": f"{CONNECT}json.JsonConverter",
    "text": f"{CONNECT}storage.StringConverter",
    "long": f"{CONNECT}converters.IntegerConverter",
    "schema": "io.confluent.connect.json.JsonSchemaConverter",
    "protobuf": "io.confluent.connect.protobuf.ProtobufConverter",
}


@pytest.mark.parametrize(
    ("key_converter", "value_converter", "key", "value"),
    [
        ("text", "avro", b"Struct{k=1}", b"\0....\x02\x0a"),
        ("avro", "json", b"\0....\x02", b'{"v":5}'),
        ("json", "text", b'{"k":1}', b"Struct{v=5}"),
        ("text", "schema", b"Struct{k=1}", b'\0....{"v":5}'),
        ("schema", "protobuf", b'\0....{"k":1}', b"\0....\0\x08\x05"),
        ("", "protobuf", b"\0....\0\x08\x01", b"\0....\0\x08\x05"),
    ],
)
def test_keys_and_values_of_any_converters(
    key_converter: str, value_converter: str, key: bytes, value: bytes, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    named = {"key.converter": key_converter, "value.converter": value_converter}
    properties = {side: CONVERTERS[name] for side, name in named.items() if name}
    properties |= {f"{side}.schemas.enable": "false" for side, name in named.items() if name == "json"}
    monkeypatch.setattr(stage_module, "Registry", lambda *_: MemoryRegistry())
    if {"avro", "schema", "protobuf"} & {*named.values()}:
        properties |= {"output.format": "key-value-avro", "value.converter.schema.registry.url": "http://r"}
    stage = staged(tmp_path, monkeypatch, **properties)
    written(stage, 1, 5)
    written(stage, 1, None)
    (row, gone) = stage.appended
    for pattern, data in ((key, row.key), (value, row.value), (key, gone.key)):
        assert re.fullmatch(re.escape(pattern).replace(rb"\.\.\.\.", b".{4}"), data or b"", re.DOTALL), data
    assert gone.value is None


@pytest.mark.parametrize(
    ("strategy", "subjects"),
    [
        ("RecordNameStrategy", {"ks.Key", "ks.t"}),
        ("io.confluent.kafka.serializers.subject.TopicRecordNameStrategy", {f"{DATA}-ks.Key", f"{DATA}-ks.t"}),
        ("TopicNameStrategy", {f"{DATA}-key", f"{DATA}-value"}),
    ],
)
def test_subjects_of_avro(strategy: str, subjects: set[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    registry = MemoryRegistry()
    monkeypatch.setattr(stage_module, "Registry", lambda *_: registry)
    properties = {f"{side}.converter.{side}.subject.name.strategy": strategy for side in ("key", "value")}
    properties |= {"output.format": "key-value-avro", "value.converter.schema.registry.url": "http://r"}
    properties |= chain(("SetSchemaMetadata$Key", {"schema.name": "ks.Key"}))
    written(staged(tmp_path, monkeypatch, **properties), 1, 5)
    assert registry.subjects.keys() == subjects


def test_a_strategy_alone_has_records_converted() -> None:
    properties = {"name": "n", "keyspace": "ks", "table": "t", "value.converter.schema.registry.url": "http://r"}
    strategy = {"value.converter.value.subject.name.strategy": "RecordNameStrategy"}
    assert not ConnectorSettings.from_properties(properties, "f").has_transforms
    assert ConnectorSettings.from_properties({**properties, **strategy}, "f").has_transforms
    with pytest.raises(ConfigError, match=r"value\.subject\.name\.strategy=RecordNameStrategy: not with state=keys"):
        ConnectorSettings.from_properties({**properties, **strategy, "state": "keys"}, "f")


def test_a_key_of_a_number_and_headers_with_their_schema(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    properties = {"key.converter": CONVERTERS["long"], "value.converter": CONVERTERS["json"]}
    properties |= chain(("ExtractField$Key", {"field": "k"}))
    stage = staged(tmp_path, monkeypatch, **properties, **{"header.converter": CONVERTERS["json"]})
    written(stage, 7, 5)
    (row,) = stage.appended
    assert row.key == int32(7)
    assert json.loads(row.value or b"")["payload"] == {"v": 5}
    header = json.loads(dict(row.headers)["writetime"])
    assert (header["schema"]["type"], header["payload"]) == ("string", "1700000000123456")


def test_headers_and_schemas_in_json(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    converter = "org.apache.kafka.connect.json.JsonConverter"
    more = {"key.converter": converter, "value.converter": converter, "output.format": "key-value-json"}
    properties = chain(
        ("HeaderFrom$Value", {"fields": "v", "headers": "number", "operation": "move"}),
        ("DropHeaders", {"headers": "schema_id,writetime"}),
        ("SetSchemaMetadata$Value", {"schema.name": "shop.Row", "schema.version": "2"}),
    )
    stage = staged(tmp_path, monkeypatch, WIDE, **properties, **more)
    written(stage, 1, 5, b"text", (1500).to_bytes(8, "big"))
    ((key, value),) = stage.records_of(DATA)
    fields = [{"type": "int32", "optional": False, "field": "k"}]
    assert key == {
        "schema": {"type": "struct", "fields": fields, "optional": False, "name": "ks.t"},
        "payload": {"k": 1},
    }
    timestamp = {"type": "int64", "optional": True, "name": "org.apache.kafka.connect.data.Timestamp", "version": 1}
    assert value == {
        "schema": {
            "type": "struct",
            "fields": [{"type": "string", "optional": True, "field": "w"}, {**timestamp, "field": "x"}],
            "optional": False,
            "name": "shop.Row",
            "version": 2,
        },
        "payload": {"w": "text", "x": 1500},
    }
    assert stage.appended[0].headers == [("number", b"5")]


def test_a_class_of_ones_own_drops_and_fails(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    stage = staged(tmp_path, monkeypatch, **chain((OWN, {"field": "v"})), **ALL)
    for k, v in ((1, 5), (2, 7), (3, 13), (4, -1)):
        written(stage, k, v)
    assert stage.records_of(DATA) == [({"k": 1}, {"v": 10}), ({"k": 4}, {"v": -2})]
    (letter,) = (record for record in stage.appended if record.topic == DEAD_LETTERS)
    assert b"transforms.a: RuntimeError: thirteen" in b" ".join(value for _, value in letter.headers)


def test_a_failing_transform_stops_the_connector(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    stage = staged(tmp_path, monkeypatch, **chain((OWN, {"field": "v"})))
    with pytest.raises(HelenusError, match=r"transforms\.a: RuntimeError: thirteen") as failure:
        written(stage, 3, 13)
    assert failure.value.kind is Kind.POISON_EVENT


@pytest.mark.parametrize("name", ["events-ks.t", "no such topic", ""])
def test_a_topic_that_is_none(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    stage = staged(tmp_path, monkeypatch, **chain(("RegexRouter", {"regex": ".*", "replacement": name})), **ALL)
    written(stage, 1, 5)
    assert [record.topic for record in stage.appended] == [DEAD_LETTERS]


def test_a_routed_topic_has_the_data_topics_partitions(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    stage = staged(tmp_path, monkeypatch, **chain(("RegexRouter", {"regex": ".*", "replacement": "other"})))
    stage.log.create("other", 3, {})
    with pytest.raises(HelenusError, match=r"a topic of 3 partitions, data-ks\.t has 1") as failure:
        written(stage, 1, 5)
    assert failure.value.kind is Kind.PARTITIONS_CHANGED


def test_a_routed_topic_that_was_deleted_is_made_anew(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Brokers create none by themselves here: the table would stop until the worker is started again."""
    stage = staged(tmp_path, monkeypatch, **chain(("RegexRouter", {"regex": ".*", "replacement": "other"})))
    written(stage, 1, 5)
    del stage.log.log.counts["other"]
    stage.log.fail("flush", HelenusError(Kind.TOPIC_MISSING, "deleted"))
    with pytest.raises(HelenusError):
        written(stage, 1, 6)
    assert "other" not in stage.log.topics()
    written(stage, 1, 6)
    assert stage.log.topics()["other"] == 1


def test_avro_is_registered_as_the_chain_made_it() -> None:
    properties = {"name": "n", "keyspace": "ks", "table": "t", "value.converter.schema.registry.url": "http://r:1"}
    routed = chain(("RegexRouter", {"regex": ".*", "replacement": "x"}), ("ReplaceField$Value", {"renames": "w:text"}))
    settings = ConnectorSettings.from_properties({**properties, **routed}, "test")
    registry = MemoryRegistry()
    shape = make_shape(WIDE, settings, registry)
    resolved = ResolvedKey("events-ks.t", 2, b"\x02", (int32(1),), Scope.ROW)
    resolved.after, resolved.write_time = Image((int32(5), b"", None), 9_000), 9_000
    (shaped,) = shape.records(resolved)
    assert shaped is not None
    assert shaped.topic == "x"
    assert sorted(registry.subjects) == ["x-key", "x-value"]
    value = json.loads(registry.schema(registry.subjects["x-value"]) or "")
    assert [field["name"] for field in value["fields"]] == ["v", "text", "x"]
    assert shaped.record.key == bytes(1) + registry.subjects["x-key"].to_bytes(4, "big") + b"\x02"
    assert (shaped.record.value or b"")[5:] == b"\x02\x0a\x02\x00\x00"


@pytest.mark.parametrize(
    ("more", "key", "reason"),
    [
        ({"transforms": "a"}, "transforms.a.type", "required property is missing"),
        (chain(("Nope", {})), "transforms.a.type", "there is no such transformation"),
        (chain(("Cast", {"spec": "a:int8"})), "transforms.a.type", r"Cast\$Key or"),
        (chain(("Cast$Value", {})), "transforms.a.spec", "required property is missing"),
        (chain(("Cast$Value", {"spec": "a:int7"})), "transforms.a.spec", "int7 is no type"),
        (
            chain(("Cast$Value", {"spec": "a:int8", "spce": "x"})),
            "transforms.a.spce",
            r"did you mean transforms\.a\.spec",
        ),
        (chain(("MaskField$Value", {"fields": "a", "predicate": "p"})), "transforms.a.predicate", "does not list p"),
        (chain(("HoistField$Key", {"field": "a", "negate": "x"})), "transforms.a.negate", "give true or false"),
        (chain(("HoistField$Key", {"field": "a", "negate": "true"})), "transforms.a.negate", "no predicate to negate"),
        (chain(("Filter", {})), "transforms.a.predicate", "every record would be dropped"),
        (chain(("RegexRouter", {"regex": "(", "replacement": "x"})), "transforms.a.regex", "not a regular expression"),
        (
            chain(("RegexRouter", {"regex": "data-[a-z&&[^q]]+", "replacement": "x"})),
            "transforms.a.regex",
            "a set in a set of characters, or &&",
        ),
        (chain(("InsertField$Value", {})), "transforms.a.type", r"set topic\.field"),
        (chain((OWN, {"field": "no"})), "transforms.a.type", "no is no field"),
        (chain(("os:system", {})), "transforms.a.type", "no class system with KEYS and apply"),
        (chain(("nope.none:X", {})), "transforms.a.type", "can't be imported"),
        (chain(("predicates.RecordIsTombstone", {})), "transforms.a.type", "it is a predicate"),
        (chain(("io.debezium.transforms.partitions.PartitionRouting", {})), "transforms.a.type", "order per key"),
        ({"transforms.b.type": f"{KAFKA}Filter"}, "transforms.b.type", "transforms does not list b"),
        ({"transforms": "a,a"}, "transforms", "a is listed twice"),
        ({"predicates": "p"}, "predicates.p.type", "required property is missing"),
        (chain(("Filter", {}), state="keys"), "transforms", "not with state=keys"),
        (chain(("Filter", {}), **{"output.format": "json"}), "transforms", "set output.format=key-value-json"),
        (
            chain(("Filter", {}), **{"schema.on.incompatible": "new-topic"}),
            "transforms",
            "not with schema.on.incompatible=new-topic",
        ),
    ],
)
def test_what_is_wrong_is_named(more: Mapping[str, str], key: str, reason: str) -> None:
    properties = {"name": "n", "keyspace": "ks", "table": "t", "output.format": "key-value-json", **more}
    with pytest.raises(ConfigError) as failure:
        ConnectorSettings.from_properties(properties, "test")
    reasons = [problem.reason for problem in failure.value.problems if problem.key == key]
    assert any(re.search(reason, text) for text in reasons), failure.value


def test_none_on_pulsar() -> None:
    properties = {"name": "n", "keyspace": "ks", "table": "t", **chain(("HoistField$Key", {"field": "a"}))}
    with pytest.raises(ConfigError, match="not on Pulsar"):
        PulsarConnectorSettings.from_properties(properties, "test")


def test_local_schemas_have_one_id_for_one_schema() -> None:
    schemas = LocalSchemas()
    assert [schemas.register("a", '"int"'), schemas.keep("b", '"int"', ""), schemas.register("a", '"long"')] == [
        0,
        0,
        1,
    ]
    assert schemas.reader(1, has_cql_names=False).decode(b"\x04") == 2


PAGE = Path(__file__).parents[2] / "docs/transforms.md"


def test_the_class_in_the_docs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    section = PAGE.read_text().partition("## A class of your own")[2]
    source, properties = (
        re.findall(rf"```{kind}\n(.*?)```", section, re.DOTALL)[0] for kind in ("python", "properties")
    )
    (tmp_path / "my_package").mkdir()
    (tmp_path / "my_package/transforms.py").write_text(source)
    monkeypatch.syspath_prepend(tmp_path)
    more = dict(line.split("=", 1) for line in properties.splitlines())
    stage = staged(tmp_path, monkeypatch, WIDE, **{**more, "transforms.upper.field": "w"})
    written(stage, 1, 5, b"text", None)
    assert stage.records_of(DATA) == [({"k": 1}, {"v": 5, "w": "TEXT", "x": None})]


def test_the_examples_in_the_docs_are_valid(tmp_path: Path) -> None:
    blocks = re.findall(r"```properties\n(.*?)```", PAGE.read_text(), re.DOTALL)
    assert len(blocks) == 3
    for block in blocks[:2]:
        (tmp_path / "file.properties").write_text(block)
        more = read_properties(tmp_path / "file.properties")
        names = {key.split(".")[1] for key in more if key.startswith("transforms.")}
        base = {"name": "n", "keyspace": "ks", "table": "t", "output.format": "key-value-json"}
        ConnectorSettings.from_properties({**base, "transforms": ",".join(names), **more}, "test")


def test_a_delete_out_of_an_envelope_without_the_row_before() -> None:
    """Debezium's own class takes it for a TRUNCATE, and drops it."""
    row = ConnectSchema("struct", is_optional=True, fields=(SchemaField("k", ConnectSchema("int32")),))
    names = {"before": row, "after": row, "op": ConnectSchema("string")}
    schema = ConnectSchema("struct", name="ks.t.Envelope", fields=tuple(SchemaField(n, s) for n, s in names.items()))
    record = ConnectRecord("data-ks.t", 0, None, None, schema, {"before": None, "after": None, "op": "d"}, None)
    plugin = CLASSES["io.debezium.transforms.ExtractNewRecordState"]
    settings = {key.name: key.default for key in plugin.keys}
    for mode, is_dropped in (("tombstone", False), ("delete-to-tombstone", False), ("drop", True), ("rewrite", False)):
        made = plugin.make({**settings, "delete.tombstone.handling.mode": mode}).apply(record)
        assert (made is None, made is None or made.value is None) == (is_dropped, True)
    truncation = replace(record, value={"before": None, "after": None, "op": "t"})
    assert plugin.make(settings).apply(truncation) is None


def test_a_varint_of_an_envelope_keeps_its_digits(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Debezium's type for it is a decimal, and Python's arithmetic rounds these to 28 digits."""
    numbers = replace(T, columns=(T.columns[0], Column("v", parse("varint"))))
    properties = chain(("RegexRouter", {"regex": ".*", "replacement": "routed"}))
    json_converters = {f"{part}.converter": "org.apache.kafka.connect.json.JsonConverter" for part in ("key", "value")}
    more = {"output.format": "debezium-cassandra", "varint.handling.mode": "precise", **json_converters}
    stage = staged(tmp_path, monkeypatch, numbers, **properties, **more)
    for k, number in enumerate((10**60 + 1, -(10**28) - 1, -(7**6000), 0)):
        data = number.to_bytes(number.bit_length() // 8 + 1, "big", signed=True)
        stage.live[(int32(k),)] = Image((data,), 5)
        stage.run(Change(None, None, Scope.ROW, write_time=5, effect=int(Effect.LIVE)), stage.codec.encode((int32(k),)))
        assert b64encode(data).decode() in (stage.appended[-1].value or b"").decode()


def test_numbers_of_cep44(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """They are Avro's fixed there, which is bytes in Connect."""
    numbers = replace(T, columns=(T.columns[0], Column("d", parse("decimal")), Column("n", parse("varint"))))
    properties = chain(("RegexRouter", {"regex": ".*", "replacement": "routed"}))
    registry = MemoryRegistry()
    monkeypatch.setattr(stage_module, "Registry", lambda *_: registry)
    stage = staged(tmp_path, monkeypatch, numbers, **properties, **test_cep44.REGISTRY)
    stage.live[(int32(1),)] = Image((int32(1) + b"\xf1", b"\x07"), 5)
    stage.run(Change(None, None, Scope.ROW, write_time=5, effect=int(Effect.LIVE)), stage.codec.encode((int32(1),)))
    data = stage.appended[-1].value or b""
    reader = AvroReader(registry.schema(int.from_bytes(data[1:5], "big")) or "")
    payload = reader.decode(data[5:])["payload"]
    assert (payload["d"], payload["n"]) == (Decimal("-1.5"), 7)


def test_a_number_that_is_too_large_to_be_written_out_is_text() -> None:
    made = CLASSES["org.apache.kafka.connect.transforms.InsertHeader"]
    record = ConnectRecord("t", 0, None, None, None, None, None)
    for text, value in (("1e999999999", "1e999999999"), ("-1e-999999999",) * 2, ("1e300", 1e300), ("1e5", 100_000)):
        (header,) = made.make({"header": "h", "value.literal": text}).apply(record).headers
        assert header.value == value


def test_changes_that_no_row_was_read_for(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    unwrap = ("io.debezium.transforms.ExtractNewRecordState", {"add.fields": "op"})
    properties = chain(unwrap, ("RegexRouter", {"regex": "data-ks\\.t", "replacement": "unwrapped"}))
    stage = staged(tmp_path, monkeypatch, test_none.TABLE, **properties, **NONE, **test_none.QUIET)
    stage.stage.run(events(test_none.wrote(5), test_none.deleted()), [], trust_images=True)
    (key, value), (deleted_key, deleted) = stage.records_of("unwrapped")
    assert key == deleted_key
    assert (value["v"], value["__op"], deleted) == (5, "c", None)
    assert {record.topic for record in stage.appended} == {"unwrapped"}
