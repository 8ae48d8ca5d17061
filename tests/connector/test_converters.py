"""Converters of records: their bytes, their schemas, and where these are registered."""

from __future__ import annotations

import base64
import datetime
import json
import struct
from collections.abc import Mapping
from decimal import Decimal
from typing import Any

import jsonschema
import pytest
from google.protobuf.descriptor_pb2 import FileDescriptorProto
from google.protobuf.message_factory import GetMessageClass

from helenus_connector.connect_data.java_numbers import float_text
from helenus_connector.connect_data.schema import DATE, DECIMAL, TIME, TIMESTAMP, ConnectSchema, SchemaField
from helenus_connector.converters import choice
from helenus_connector.converters._json_schema import json_schema
from helenus_connector.converters._proto_schema import proto_schema, scrubbed_name
from helenus_connector.converters._proto_types import new_pool
from helenus_connector.converters._values import calendar_date, signed_bytes
from helenus_connector.converters.choice import CLASSES, make_converter
from helenus_connector.converters.headers import header_converter
from helenus_connector.shape.encoding.registry import Registry
from helenus_connector.testing.registry import RegistryClient
from helenus_schemas.errors import HelenusError, Kind

Schema = ConnectSchema
PROTOBUF = "io.confluent.connect.protobuf.ProtobufConverter"
JSON_SCHEMA = "io.confluent.connect.json.JsonSchemaConverter"
CONNECT = "org.apache.kafka.connect."
UTC = datetime.timezone.utc


def optional(kind: Any, **more: Any) -> Schema:
    return Schema(kind, is_optional=True, **more)


def struct_of(name: str | None, is_optional: bool = False, **fields: Schema) -> Schema:
    return Schema("struct", is_optional, name, fields=tuple(SchemaField(n, s) for n, s in fields.items()))


def decimal(scale: int) -> Schema:
    return optional("bytes", name=DECIMAL, parameters=(("scale", str(scale)),))


ADDRESS = struct_of("ks.t.address", True, street=optional("string"), no=optional("int32"))
ROW = struct_of(
    "ks.t",
    i8=optional("int8"),
    i16=Schema("int16"),
    i64=optional("int64"),
    f=optional("float32"),
    d=optional("float64"),
    b=optional("boolean"),
    s=Schema("string"),
    data=optional("bytes"),
    price=decimal(2),
    on=optional("int32", name=DATE),
    at=optional("int64", name=TIMESTAMP),
    tm=optional("int32", name=TIME),
    l=optional("array", value_schema=optional("int32")),
    m=optional("map", key_schema=Schema("string"), value_schema=optional("float64")),
    home=ADDRESS,
    homes=optional("array", value_schema=ADDRESS),
    nested=optional(
        "map",
        key_schema=Schema("int32"),
        value_schema=Schema("map", key_schema=Schema("string"), value_schema=Schema("array", value_schema=decimal(0))),
    ),
)
VALUE = {
    "i8": -5,
    "i16": 300,
    "i64": 1 << 60,
    "f": 0.5,
    "d": -1e300,
    "b": True,
    "s": "é\U0001f600",
    "data": b"\0\xff",
    "price": Decimal("-1.50"),
    "on": datetime.date(2020, 2, 29),
    "at": datetime.datetime(2020, 1, 2, 3, 4, 5, 678000, tzinfo=UTC),
    "tm": datetime.time(1, 2, 3, 4000),
    "l": [1, -2],
    "m": {"k": 1.5, "z": None},
    "home": {"street": "x", "no": None},
    "homes": [{"street": None, "no": None}, {"street": "y", "no": 3}],
    "nested": {7: {"a": [Decimal(130)], "e": []}},
}
EMPTY = {field.name: {"i16": 0, "s": ""}.get(field.name) for field in ROW.fields}


class Store:
    """A registry in memory; `latest` is what a subject has."""

    def __init__(self, latest: tuple[int, str] | None = None) -> None:
        self.registered: list[tuple[str, str, bool, bool]] = []
        self.texts: list[str] = []
        self.latest = latest
        self.checked: list[str | None] = []

    def register_as(self, schema_type: str, subject: str, schema: str, may_register: bool, normalizes: bool) -> int:
        self.registered.append((schema_type, subject, may_register, normalizes))
        self.texts.append(schema)
        return 7

    def latest_as(self, schema_type: str, subject: str, schema: str | None) -> tuple[int, str]:
        self.registered.append((schema_type, subject, False, False))
        self.checked.append(schema)
        assert self.latest is not None
        return self.latest


def converted(
    class_name: str,
    schema: Schema | None,
    value: Any,
    properties: Mapping[str, str] | None = None,
    is_key: bool = False,
) -> bytes | None:
    return make_converter(class_name, is_key, properties or {}, Store()).to_bytes("t", schema, value)


def refusal(class_name: str, schema: Schema | None, value: Any, properties: Mapping[str, str] | None = None) -> str:
    with pytest.raises(HelenusError) as raised:
        converted(class_name, schema, value, properties)
    assert raised.value.kind is Kind.POISON_EVENT
    return str(raised.value)


# 1. converters without schemas


@pytest.mark.parametrize(
    ("name", "kind", "value", "data"),
    [
        ("Boolean", "boolean", True, b"\1"),
        ("Boolean", "boolean", False, b"\0"),
        ("Short", "int16", -2, b"\xff\xfe"),
        ("Integer", "int32", 258, b"\0\0\1\2"),
        ("Long", "int64", -1, b"\xff" * 8),
        ("Float", "float32", 1.5, b"\x3f\xc0\0\0"),
        ("Double", "float64", 1.5, b"\x3f\xf8" + bytes(6)),
    ],
)
def test_numbers(name: str, kind: Any, value: Any, data: bytes) -> None:
    class_name = f"{CONNECT}converters.{name}Converter"
    assert converted(class_name, Schema(kind), value) == data
    assert converted(class_name, None, value) == data
    assert converted(class_name, optional(kind), None) is None
    assert "takes" in refusal(class_name, Schema("string"), "x")
    assert "takes" in refusal(class_name, Schema(kind), "x")
    if name in ("Short", "Integer", "Long"):
        assert "takes" in refusal(class_name, Schema(kind), 1 << 63)
        assert "takes" in refusal(class_name, Schema(kind), True)


def test_bytes_as_they_are() -> None:
    class_name = f"{CONNECT}converters.ByteArrayConverter"
    assert converted(class_name, Schema("bytes"), b"\0x") == b"\0x"
    assert converted(class_name, None, None) is None
    assert "takes bytes" in refusal(class_name, Schema("string"), "x")
    assert "takes bytes" in refusal(class_name, None, "x")


# 2. Protobuf


def read_message(data: bytes | None, schema: Schema, nulls: Any = "none") -> Any:
    assert data is not None
    assert data[:6] == b"\0\0\0\0\7\0"
    made = proto_schema(schema, nulls)
    pool = new_pool()
    pool.AddSerializedFile(made.descriptor.SerializeToString())
    return GetMessageClass(pool.FindMessageTypeByName(made.message)).FromString(data[6:])


@pytest.mark.parametrize(
    ("nulls", "properties"),
    [("none", {}), ("optional", {"optional.for.nullables": "true"}), ("wrapper", {"wrapper.for.nullables": "true"})],
)
def test_a_message(nulls: str, properties: dict[str, str]) -> None:
    message = read_message(converted(PROTOBUF, ROW, VALUE, properties), ROW, nulls)

    def plain(value: Any) -> Any:
        return value.value if nulls == "wrapper" else value

    assert [plain(message.i8), message.i16, plain(message.i64)] == [-5, 300, 1 << 60]
    assert [plain(message.f), plain(message.d), plain(message.b)] == [0.5, -1e300, True]
    assert [message.s, plain(message.data)] == ["é\U0001f600", b"\0\xff"]
    assert (message.price.value, message.price.precision, message.price.scale) == (b"\xff\x6a", 3, 2)
    assert (message.on.year, message.on.month, message.on.day) == (2020, 2, 29)
    assert (message.at.seconds, message.at.nanos) == (1_577_934_245, 678_000_000)
    assert (message.tm.hours, message.tm.minutes, message.tm.seconds, message.tm.nanos) == (1, 2, 3, 4_000_000)
    assert [plain(item) for item in message.l] == [1, -2]
    assert [(entry.key, plain(entry.value)) for entry in message.m] == [("k", 1.5), ("z", plain(message.m[1].value))]
    assert [plain(home.street) for home in message.homes] == ["", "y"]
    assert message.nested[0].value[0].value[0].value == b"\0\x82"
    if nulls != "none":
        assert message.homes[0].HasField("street") is False
        assert message.HasField("i8") is True
        empty = read_message(converted(PROTOBUF, ROW, EMPTY, properties), ROW, nulls)
        assert not empty.HasField("i8")
        assert not empty.HasField("home")


def test_the_text_of_a_schema() -> None:
    schema = struct_of(
        "ks.t",
        a=optional("int8"),
        price=decimal(2),
        m=Schema("map", key_schema=Schema("string"), value_schema=Schema("int32")),
        home=struct_of("x.home", no=Schema("int32")),
        anonymous=struct_of(None, no=Schema("int32")),
        named=Schema("map", name="a.map_of_x", key_schema=Schema("string"), value_schema=Schema("int32")),
    )
    made = proto_schema(schema)
    assert made.message == "ks.t"
    assert made.text.splitlines() == [
        'syntax = "proto3";',
        "package ks;",
        "",
        'import "confluent/type/decimal.proto";',
        "",
        "message t {",
        '  int32 a = 1 [(confluent.field_meta) = { params: [{ key: "connect.type", value: "int8" }] }];',
        '  confluent.type.Decimal price = 2 [(confluent.field_meta) = { params: [{ value: "2", key: "scale" }] }];',
        "  repeated ConnectDefault1Entry m = 3;",
        "  homeMessage home = 4;",
        "  ConnectDefault2 anonymous = 5;",
        "  repeated MapOfXEntry named = 6;",
        "  message ConnectDefault1Entry {",
        "    string key = 1;",
        "    int32 value = 2;",
        "  }",
        "  message homeMessage {",
        "    int32 no = 1;",
        "  }",
        "  message ConnectDefault2 {",
        "    int32 no = 1;",
        "  }",
        "  message MapOfXEntry {",
        "    string key = 1;",
        "    int32 value = 2;",
        "  }",
        "}",
    ]


def test_single_values_are_wrapped() -> None:
    """The message is the fifth of wrappers.proto: one index, of the number 4, in zigzag form."""
    store = Store()
    converter = make_converter(PROTOBUF, True, {}, store)
    assert converter.to_bytes("t", optional("int32"), 5) == b"\0\0\0\0\7\2\x08\x08\x05"
    assert converter.to_bytes("t", Schema("string"), "x") == b"\0\0\0\0\7\2\x0e\x0a\1x"
    assert converter.to_bytes("t", Schema("string"), None) is None
    assert 'message StringValue {\n  string value = 1 [json_name = "value"];\n}' in store.texts[0]
    assert store.texts[0] == store.texts[-1]


@pytest.mark.parametrize(
    ("schema", "value", "message"),
    [
        (None, 5, "needs a schema"),
        (Schema("array", value_schema=Schema("int32")), [1], "array alone"),
        (struct_of("r", a=Schema("array", value_schema=Schema("array"))), {"a": []}, "no array in an array"),
        (struct_of("a-b", a=Schema("int32")), {"a": 1}, "scrub.invalid.names"),
        (struct_of("r", **{"a b": Schema("int32")}), {"a b": 1}, "scrub.invalid.names"),
        (struct_of("r", a=Schema("int32")), {"a": 1 << 40}, "no form in Protobuf"),
        (struct_of("r", a=Schema("int32")), {"a": "x"}, "no form in Protobuf"),
        (struct_of("r", a=Schema("int32")), {}, "no form in Protobuf"),
        (struct_of("r", a=decimal(2)), {"a": Decimal("NaN")}, "no form in Protobuf"),
        (struct_of("r", a=Schema("int64", name=TIMESTAMP)), {"a": 1 << 60}, "beyond the years"),
        (struct_of("r", a=Schema("int32", name=DATE)), {"a": -1_000_000}, "beyond the years"),
        (struct_of("r", l=Schema("array", value_schema=ADDRESS)), {"l": [None]}, "no null in an array"),
    ],
)
def test_what_protobuf_has_no_form_for(schema: Schema | None, value: Any, message: str) -> None:
    assert message in refusal(PROTOBUF, schema, value)


def test_names_are_spelled_otherwise_on_request() -> None:
    names = {"a b": "a_b", "1x": "x1x", "_y": "x_y", "é": "_C3_A9", "a-b*": "a_b_", "ok_1": "ok_1", "a~": "a_7E"}
    assert {name: scrubbed_name(name) for name in names} == names
    schema = struct_of("ks.r-1", **{"a b": Schema("int32")})
    store = Store()
    data = make_converter(PROTOBUF, False, {"scrub.invalid.names": "true"}, store).to_bytes(
        "t", struct_of("r", **{"a b": Schema("int32")}), {"a b": 5}
    )
    assert data == b"\0\0\0\0\7\0\x08\5"
    assert "int32 a_b = 1;" in store.texts[0]
    with pytest.raises(ValueError, match="r-1 is no name"):
        proto_schema(schema, scrubs=True)  # as Confluent's: the record's own name stays


def test_defaults_stand_for_nulls() -> None:
    schema = struct_of("r", a=optional("int32", default=5), b=optional("int32"))
    assert converted(PROTOBUF, schema, {"a": None, "b": None}) == b"\0\0\0\0\7\0\x08\5"
    data = converted(JSON_SCHEMA, schema, {"a": None, "b": None})
    assert json.loads((data or b"")[5:]) == {"a": 5, "b": None}


@pytest.mark.parametrize(
    ("days", "date"),
    [
        (0, (1970, 1, 1)),
        (18_321, (2020, 2, 29)),
        (-141_427, (1582, 10, 15)),
        (-141_428, (1582, 10, 4)),  # the day before, in Java's calendar
        (-719_164, (1, 1, 1)),
        (2_932_896, (9999, 12, 31)),
    ],
)
def test_dates_are_of_javas_calendar(days: int, date: tuple[int, int, int]) -> None:
    assert calendar_date(days) == date


def test_dates_are_pythons_since_1582() -> None:
    for ordinal in range(577_736, 3_652_059, 997):
        date = datetime.date.fromordinal(ordinal)
        assert calendar_date(ordinal - 719_163) == (date.year, date.month, date.day)


@pytest.mark.parametrize(
    ("value", "data"), [(0, b"\0"), (127, b"\x7f"), (128, b"\0\x80"), (-128, b"\x80"), (-129, b"\xff\x7f")]
)
def test_numbers_of_any_size(value: int, data: bytes) -> None:
    assert signed_bytes(value) == data


# 3. JSON Schema


@pytest.mark.parametrize("decimals", ["BASE64", "NUMERIC"])
@pytest.mark.parametrize("value", [VALUE, EMPTY])
def test_json_is_valid_by_its_schema(decimals: str, value: dict[str, Any]) -> None:
    store = Store()
    data = make_converter(JSON_SCHEMA, False, {"decimal.format": decimals}, store).to_bytes("t", ROW, value)
    assert data is not None
    assert data[:5] == b"\0\0\0\0\7"
    content, schema = json.loads(data[5:]), json.loads(store.texts[0])
    jsonschema.Draft7Validator.check_schema(schema)
    jsonschema.validate(content, schema, jsonschema.Draft7Validator)
    if value is VALUE:
        numbers = {"price": -1.5 if decimals == "NUMERIC" else "/2o=", "on": 18_321, "tm": 3_723_004}
        assert content.items() >= {**numbers, "at": 1_577_934_245_678, "data": "AP8=", "i64": 1 << 60}.items()
        number = 130 if decimals == "NUMERIC" else "AII="
        assert content["nested"] == [{"key": 7, "value": {"a": [number], "e": []}}]
        assert content["m"] == {"k": 1.5, "z": None}


def test_json_schemas_are_confluents() -> None:
    """As JsonSchemaDataTest of Confluent's has them."""
    int32_json = {"type": "integer", "connect.type": "int32"}
    text_map = Schema("map", key_schema=Schema("string"), value_schema=Schema("int32"))
    assert json_schema(text_map) == {"type": "object", "connect.type": "map", "additionalProperties": int32_json}
    number_map = Schema("map", key_schema=Schema("int32"), value_schema=Schema("int32"))
    assert json_schema(number_map) == {
        "type": "array",
        "connect.type": "map",
        "items": {
            "type": "object",
            "properties": {
                "key": {**int32_json, "connect.index": 0},
                "value": {**int32_json, "connect.index": 1},
            },
        },
    }
    field = optional(
        "string", doc="d", default="x", version=3, parameters=(("p", "q"), ("io.confluent.connect.json.Id", "i"))
    )
    assert json_schema(struct_of("r", True, a=field), allows_more=False) == {
        "oneOf": [
            {"type": "null"},
            {
                "title": "r",
                "type": "object",
                "additionalProperties": False,
                "properties": {
                    "a": {
                        "connect.index": 0,
                        "oneOf": [
                            {"type": "null"},
                            {
                                "type": "string",
                                "description": "d",
                                "default": "x",
                                "connect.version": 3,
                                "connect.parameters": {"p": "q"},
                            },
                        ],
                    }
                },
            },
        ]
    }
    assert json_schema(decimal(2))["oneOf"][1] == {
        "title": DECIMAL,
        "type": "string",
        "connect.type": "bytes",
        "connect.parameters": {"scale": "2"},
    }


@pytest.mark.parametrize(
    ("schema", "value", "message"),
    [
        (None, 5, "needs a schema"),
        (Schema("int32"), "x", "no form in JSON"),
        (Schema("int32"), True, "no form in JSON"),
        (Schema("bytes"), "x", "no form in JSON"),
        (decimal(2), Decimal("1.5"), "another"),
        (struct_of("r", a=Schema("int32")), [], "no form in JSON"),
    ],
)
def test_what_json_has_no_form_for(schema: Schema | None, value: Any, message: str) -> None:
    assert message in refusal(JSON_SCHEMA, schema, value)


def test_numbers_of_json_are_javas() -> None:
    texts = {1.0: "1.0", 1e7: "1.0E7", 9999999.0: "9999999.0", 0.001: "0.001", 1e-4: "1.0E-4", 0.0: "0.0"}
    assert [float_text(number) for number in texts] == list(texts.values())
    assert float_text(-0.0) == "-0.0"
    assert float_text(0.1, 32) == "0.1"
    assert float_text(struct.unpack(">f", struct.pack(">f", 0.1))[0], 32) == "0.1"
    assert [float_text(float(text)) for text in ("nan", "inf", "-inf")] == ["NaN", "Infinity", "-Infinity"]
    data = converted(JSON_SCHEMA, Schema("float64"), float("nan"))
    assert (data or b"")[5:] == b'"NaN"'


# 4. subjects


STRATEGY = "io.confluent.kafka.serializers.subject."


@pytest.mark.parametrize("class_name", [PROTOBUF, JSON_SCHEMA])
@pytest.mark.parametrize(
    ("strategy", "is_key", "subject"),
    [
        (None, False, "t-value"),
        (None, True, "t-key"),
        (f"{STRATEGY}TopicNameStrategy", False, "t-value"),
        (f"{STRATEGY}RecordNameStrategy", False, "ks.r"),
        ("RecordNameStrategy", True, "ks.r"),
        (f"{STRATEGY}TopicRecordNameStrategy", False, "t-ks.r"),
    ],
)
def test_subjects(class_name: str, strategy: str | None, is_key: bool, subject: str) -> None:
    store = Store()
    side = "key" if is_key else "value"
    properties = {} if strategy is None else {f"{side}.subject.name.strategy": strategy}
    properties |= {"normalize.schemas": "true", "auto.register.schemas": "false", "schema.registry.url": "http://r"}
    converter = make_converter(class_name, is_key, properties, store)
    schema = struct_of("ks.r", a=Schema("int32"))
    for number in range(3):
        assert converter.to_bytes("t", schema, {"a": number}) is not None
    assert store.registered == [("PROTOBUF" if class_name == PROTOBUF else "JSON", subject, False, True)]


def test_a_subject_named_by_a_record_without_a_name() -> None:
    schema = struct_of(None, a=Schema("int32"))
    problem = refusal(JSON_SCHEMA, schema, {"a": 1}, {"value.subject.name.strategy": "RecordNameStrategy"})
    assert "RecordNameStrategy needs a schema with a name" in problem


def latest_file() -> str:
    file = FileDescriptorProto(name="x", package="ks", syntax="proto3")
    file.message_type.add(name="other")
    file.message_type.add(name="r")
    return base64.b64encode(file.SerializeToString()).decode()


def test_the_latest_version() -> None:
    schema = struct_of("ks.r", a=Schema("int32"))
    properties = {"use.latest.version": "true", "auto.register.schemas": "false"}
    store = Store((9, latest_file()))
    # The message is the second there.
    assert (
        make_converter(PROTOBUF, False, properties, store).to_bytes("t", schema, {"a": 1}) == b"\0\0\0\0\x09\2\2\x08\1"
    )
    assert store.checked == [proto_schema(schema).text]
    store = Store((9, "{}"))
    lenient = {**properties, "latest.compatibility.strict": "false"}
    assert make_converter(JSON_SCHEMA, False, lenient, store).to_bytes("t", schema, {"a": 1}) == b'\0\0\0\0\x09{"a":1}'
    assert store.checked == [None]
    converter = make_converter(PROTOBUF, False, properties, Store((9, latest_file())))
    with pytest.raises(HelenusError, match=r"no message ks\.q"):
        converter.to_bytes("t", struct_of("ks.q", a=Schema("int32")), {"a": 1})


class TypedClient(RegistryClient):
    """One whose schemas have kinds."""

    compatible = True

    def get_latest_version(self, subject: str, fmt: str | None = None) -> Any:
        latest = super().get_latest_version(subject)
        latest.schema.schema_type = "JSON" if subject == "j" else None
        assert (fmt == "serialized") == (subject == "p")
        return latest

    def test_compatibility(self, subject: str, schema: Any) -> bool:
        return self.compatible


@pytest.fixture
def registry(tmp_path: Any, monkeypatch: pytest.MonkeyPatch) -> tuple[Registry, TypedClient]:
    from helenus_connector.config.connector import ConnectorSettings

    properties = {"name": "n", "keyspace": "k", "table": "t", "value.converter.schema.registry.url": "http://r"}
    made = Registry(ConnectorSettings.from_properties(properties, "test"), tmp_path / "ids.json")
    client = TypedClient()
    monkeypatch.setitem(made.__dict__, "_client", client)
    return made, client


def test_the_registry_takes_schemas_of_other_kinds(registry: tuple[Registry, TypedClient]) -> None:
    store, client = registry
    assert store.register_as("JSON", "j", "{}", True, False) == 1
    assert client.levels == {"j": "BACKWARD"}
    requests = client.asked
    assert store.register_as("JSON", "j", "{}", True, False) == 1
    assert client.asked == requests
    with pytest.raises(HelenusError) as raised:
        store.register_as("PROTOBUF", "p", "x", False, False)
    assert raised.value.kind is Kind.REGISTRY_UNREACHABLE  # it may be registered later
    assert store.latest_as("JSON", "j", "{}") == (1, "{}")
    client.compatible = False
    for call, message in (
        (lambda: store.latest_as("JSON", "j", "{}"), "not compatible"),
        (lambda: store.latest_as("PROTOBUF", "p", "x"), "no schema"),
        (lambda: (client.versions["p"].append("x"), store.latest_as("PROTOBUF", "p", "x")), "latest schema is AVRO"),
    ):
        with pytest.raises(HelenusError, match=message):
            call()


# 5. choice


def test_unknown_classes_and_keys() -> None:
    for class_name, properties, message in (
        ("io.confluent.connect.protobuf.ProtoBufConverter", {}, "give io.confluent.connect.protobuf.ProtobufConverter"),
        ("Nonsense", {}, "there is no such converter"),
        (PROTOBUF, {"optional.for.nullable": "true"}, "did you mean value.converter.optional.for.nullables"),
        (JSON_SCHEMA, {"scrub.invalid.names": "true"}, "has no such property"),
        (f"{CONNECT}converters.LongConverter", {"schema.registry.url": "http://r"}, "has no such property"),
        (JSON_SCHEMA, {"decimal.format": "x"}, "give BASE64 or NUMERIC"),
        (JSON_SCHEMA, {"use.latest.version": "yes"}, "give true or false"),
        (JSON_SCHEMA, {"value.subject.name.strategy": "x.Y"}, "no such strategy"),
        (PROTOBUF, {"optional.for.nullables": "true", "wrapper.for.nullables": "true"}, "leave one out"),
    ):
        with pytest.raises(HelenusError) as raised:
            make_converter(class_name, False, properties, Store())
        assert raised.value.kind is Kind.CONFIG
        assert message in str(raised.value)
    for class_name in CLASSES:
        if class_name in (PROTOBUF, JSON_SCHEMA):
            with pytest.raises(HelenusError, match="needs a schema registry"):
                make_converter(class_name, True, {}, None)
        else:
            assert make_converter(class_name, True, {}, None)


def test_protobuf_is_an_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(choice.importlib.util, "find_spec", lambda name: None)
    with pytest.raises(HelenusError, match="needs the package protobuf"):
        make_converter(PROTOBUF, False, {}, Store())


# 6. headers


@pytest.mark.parametrize(
    ("schema", "value", "text"),
    [
        (Schema("string"), 'a"b', b'a"b'),
        (None, "x", b"x"),
        (Schema("int32"), 5, b"5"),
        (Schema("boolean"), True, b"true"),
        (Schema("float64"), 1e10, b"1.0E10"),
        (Schema("bytes"), b"\0\xff", b"AP8="),
        (Schema("array", value_schema=Schema("string")), ['a"', "b"], b'["a\\"","b"]'),
        (Schema("map", key_schema=Schema("string"), value_schema=Schema("int32")), {"k": 1}, b'{"k":1}'),
        (
            Schema("int64", name=TIMESTAMP),
            datetime.datetime(2020, 1, 2, 3, 4, 5, tzinfo=UTC),
            b"2020-01-02T03:04:05.000Z",
        ),
        (Schema("int32", name=DATE), datetime.date(2020, 1, 2), b"2020-01-02"),
        (Schema("int32", name=TIME), datetime.time(1, 2, 3), b"01:02:03.000Z"),
        (decimal(2), Decimal("1.50"), b"1.50"),
        (optional("string"), None, None),
    ],
)
def test_simple_headers(schema: Schema | None, value: Any, text: bytes | None) -> None:
    assert header_converter(f"{CONNECT}storage.SimpleHeaderConverter")(schema, value) == text


def test_other_headers() -> None:
    text = header_converter(f"{CONNECT}storage.StringConverter")
    assert text(Schema("int32"), 5) == b"5"
    assert text(None, None) is None
    row = {"street": "x", "no": None}
    assert text(ADDRESS, row) == b"Struct{street=x}"
    described = header_converter(f"{CONNECT}json.JsonConverter")
    assert json.loads(described(ADDRESS, row) or b"") == {
        "schema": {
            "type": "struct",
            "name": "ks.t.address",
            "optional": True,
            "fields": [
                {"field": "street", "type": "string", "optional": True},
                {"field": "no", "type": "int32", "optional": True},
            ],
        },
        "payload": row,
    }
    assert json.loads(described(optional("int32"), None) or b"")["payload"] is None
    assert described(None, None) is None
    with pytest.raises(HelenusError, match="no such header converter"):
        header_converter("x")
    with pytest.raises(HelenusError, match="a value is required"):
        described(struct_of("r", a=Schema("int32")), {"a": None})
