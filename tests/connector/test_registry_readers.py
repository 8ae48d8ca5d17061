"""What the converters with a registry write, read by Java's consumers: Apicurio's own deserializers, every type."""

from __future__ import annotations

import json
import struct
import uuid
from collections.abc import Iterator, Mapping
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from agent.writer import table_of
from confluent_kafka import Producer
from confluent_kafka.admin import AdminClient, NewTopic
from confluent_kafka.schema_registry import Schema, SchemaReference, SchemaRegistryClient
from connector.test_converters import ADDRESS, JSON_SCHEMA, PROTOBUF, ROW, VALUE
from connector.test_debezium_cassandra import collection, int32, text_key
from records import Schemas
from registry import Registry as RecipeRegistry
from schemas.java import Program, plain
from settings import parse_settings

from helenus_connector.config.connector import ConnectorSettings
from helenus_connector.connect_data.from_avro import AvroReader
from helenus_connector.connect_data.schema import ConnectSchema
from helenus_connector.converters.choice import make_converter
from helenus_connector.interfaces.image import Image
from helenus_connector.interfaces.resolved_key import ResolvedKey
from helenus_connector.interfaces.shape import Record
from helenus_connector.shape.choice import make_shape
from helenus_connector.shape.encoding.registry import Registry
from helenus_connector.shape.row.row import shown_table
from helenus_schemas.codec.key import KeyCodec
from helenus_schemas.cql.table import Column, Table
from helenus_schemas.cql.types import SCALARS, CqlType, parse
from helenus_schemas.event.change import Scope
from helenus_stack.stack import Stack
from helenus_stack.status import Status

pytestmark = pytest.mark.integration

SOURCE = Path(__file__).with_name("RegistryReaders.java")
SERDES = SOURCE.with_name("serdes.lock")
RECIPES = Path(__file__).parents[2] / "sinks" / "recipes"
AVRO = "io.confluent.connect.avro.AvroConverter"
CONVERTERS = {"protobuf": PROTOBUF, "json": JSON_SCHEMA}
TRANSFORM = {
    "transforms": "h",
    "transforms.h.type": "org.apache.kafka.connect.transforms.InsertHeader",
    "transforms.h.header": "h",
    "transforms.h.value.literal": "x",
}
USES_LATEST = {
    "key.converter.use.latest.version": "true",
    "value.converter.use.latest.version": "true",
    "value.converter.auto.register.schemas": "false",
}
UUID = uuid.UUID("50554d6e-29bb-11e5-b345-feff819cdc9f")
POINT = CqlType("udt", (parse("int"), parse("text")), True, "point", ("x", "y"))
SAME: dict[str, tuple[str, bytes, Any]] = {
    "ascii": ("ascii", b"x", "x"),
    "text": ("text", "ü\U0001f600".encode(), "ü\U0001f600"),
    "boolean": ("boolean", b"\1", True),
    "tinyint": ("tinyint", b"\x80", -128),
    "smallint": ("smallint", b"\x7f\xff", 32767),
    "int": ("int", int32(-(1 << 31)), -(1 << 31)),
    "bigint": ("bigint", struct.pack(">q", -(1 << 62) - 1), -(1 << 62) - 1),
    "time": ("time", (86_399_999_999_999).to_bytes(8, "big"), 86_399_999_999_999),
    "uuid": ("uuid", bytes(16), str(uuid.UUID(int=0))),
    "timeuuid": ("timeuuid", UUID.bytes, str(UUID)),
    "inet": ("inet", bytes(15) + b"\1", "::1"),
    "duration": ("duration", b"\2\4\6", {"months": 1, "days": 2, "nanoseconds": 3}),
    "numbers": ("frozen<list<int>>", collection(int32(3), int32(-4)), [3, -4]),
    "nothing": ("frozen<list<int>>", int32(0), []),
    "names": ("frozen<set<text>>", collection(b"a", b"b"), ["a", "b"]),
    "pair": ("tuple<int, text>", int32(4) + int32(3) + int32(1) + b"z", {"index_0": 3, "index_1": "z"}),
    "point": ("", int32(4) + int32(-3) + int32(1) + b"q", {"x": -3, "y": "q"}),
}
"""By column its type, the bytes in Cassandra, and the value, which is the same in all three formats."""
FLOAT: float = struct.unpack(">f", struct.pack(">f", 0.1))[0]
VECTOR = [1.5, -2.0]
OTHERS: dict[str, tuple[str, bytes, Any, Any, Any]] = {
    "float": ("float", struct.pack(">f", 0.1), FLOAT, FLOAT, 0.1),
    "double": ("double", struct.pack(">d", -1.5e300), -1.5e300, -1.5e300, -1.5e300),
    "vector": ("vector<float, 2>", struct.pack(">ff", *VECTOR), VECTOR, VECTOR, VECTOR),
    "blob": ("blob", b"\0\xff", b"\0\xff", b"\0\xff", "AP8="),
    "varint": ("varint", b"\xfe\x01", b"\xfe\x01", b"\xfe\x01", "/gE="),
    "decimal": (
        "decimal",
        int32(2) + b"\x04\xe2",
        {"bigint": b"\x04\xe2", "scale": 2},
        {"bigint": b"\x04\xe2", "scale": 2},
        {"bigint": "BOI=", "scale": 2},
    ),
    "date": ("date", ((1 << 31) + 19_782).to_bytes(4, "big"), 19_782, {"year": 2024, "month": 2, "day": 29}, 19_782),
    "timestamp": ("timestamp", struct.pack(">q", -1), -1, {"seconds": -1, "nanos": 999_000_000}, -1),
    "by_name": ("frozen<map<text, int>>", text_key(b"a", int32(3)), {"a": 3}, [{"key": "a", "value": 3}], {"a": 3}),
    "by_number": (
        "frozen<map<int, text>>",
        text_key(int32(3), b"a"),
        {"3": "a"},
        [{"key": "3", "value": "a"}],
        {"3": "a"},
    ),
}
"""The same, with the values in Avro, in Protobuf and in JSON."""
COLUMNS = {
    **{name: (kind, data, value, value, value) for name, (kind, data, value) in SAME.items()},
    **OTHERS,
}
MESSAGES = ("date", "timestamp", "decimal", "duration", "pair", "point")
"""Columns that are messages in Protobuf: these can be null there in any case."""
EMPTY = {
    **dict.fromkeys(("ascii", "text", "uuid", "timeuuid", "inet"), ""),
    **dict.fromkeys(("tinyint", "smallint", "int", "bigint", "time"), 0),
    **dict.fromkeys(("float", "double"), 0.0),
    **dict.fromkeys(("blob", "varint"), b""),
    **dict.fromkeys(MESSAGES),
    "boolean": False,
}
REPEATED = ("numbers", "nothing", "names", "vector", "by_name", "by_number")
CONNECT_VALUES: dict[str, dict[str, Any]] = {
    "protobuf": {
        "i64": 1 << 60,
        "f": plain(0.5),
        "d": plain(-1e300),
        "b": True,
        "s": "é\U0001f600",
        "data": "0x00ff",
        "on": {"year": 2020, "month": 2, "day": 29},
        "at": {"seconds": 1_577_934_245, "nanos": 678_000_000},
        "tm": {"hours": 1, "minutes": 2, "seconds": 3, "nanos": 4_000_000},
        "l": [1, -2],
        "m": [{"key": "k", "value": plain(1.5)}, {"key": "z", "value": plain(0.0)}],
        "home": {"street": "x", "no": 0},
        "homes": [{"street": "", "no": 0}, {"street": "y", "no": 3}],
    },
    "json": {
        "i8": -5,
        "i16": 300,
        "i64": 1 << 60,
        "f": 0.5,
        "d": -1e300,
        "b": True,
        "s": "é\U0001f600",
        "data": "AP8=",
        "price": "/2o=",
        "on": 18_321,
        "at": 1_577_934_245_678,
        "tm": 3_723_004,
        "l": [1, -2],
        "m": {"k": 1.5, "z": None},
        "home": {"street": "x", "no": None},
        "homes": [{"street": None, "no": None}, {"street": "y", "no": 3}],
        "nested": [{"key": 7, "value": {"a": ["AII="], "e": []}}],
    },
}
"""How Java reads `VALUE`, of the schema `ROW`."""
KEY = (int32(7), b"x")


def every_type() -> Table:
    kinds = ", ".join(f"{name} {kind}" for name, (kind, *_) in COLUMNS.items() if name != "point")
    table = table_of("t", f"k int pk, c text ck, {kinds}")
    return replace(table, columns=(*table.columns, Column("point", POINT)))


def write_records(status: Status, directory: Path, topic: str, converter: str, **more: str) -> list[Record]:
    """Return the records of a table whose row exists, is empty, and is gone."""
    converters = dict.fromkeys(("key.converter", "value.converter"), converter)
    url = {"value.converter.schema.registry.url": str(status.registry_url)}
    properties = {"name": "n", "keyspace": "ks", "table": "t", "data.topic": topic, **converters, **url, **more}
    settings = ConnectorSettings.from_properties(properties, "test")
    table = shown_table(every_type(), settings)
    records = []
    with closing(Registry(settings, directory / f"{topic}.ids")) as registry:
        shape = make_shape(table, settings, registry)
        for row in ROWS:
            resolved = ResolvedKey("events", 0, KeyCodec(table).encode(KEY), KEY, Scope.ROW)
            if row is not None:
                resolved.after = Image(tuple(row[column.name] for column in table.values), 1)
            (shaped,) = shape.records(resolved)
            assert shaped is not None
            assert shaped.cause is None
            records.append(shaped.record)
    return records


ROWS: tuple[dict[str, bytes | None] | None, ...] = (
    {name: data for name, (_, data, *_) in COLUMNS.items()},
    dict.fromkeys(COLUMNS),
    None,
)


@pytest.fixture(scope="module")
def registry(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Status]:
    with Stack(tmp_path_factory.mktemp("stack"), only=["kafka", "registry"]) as stack:
        yield stack.status()


@pytest.fixture(scope="module")
def program(tmp_path_factory: pytest.TempPathFactory) -> Program:
    return Program(tmp_path_factory.mktemp("classes"), SOURCE, SERDES)


def read(
    program: Program,
    status: Status,
    form: str,
    topic: str,
    records: list[Record],
    messages: tuple[str, str] = ("t", "t"),
) -> list[tuple[Any, Any]]:
    """Return what Java reads of records' keys and values; `messages` are the names of Protobuf's."""
    lines = ""
    for record in records:
        for is_key, data, message in zip((True, False), (record.key, record.value), messages, strict=True):
            request = {"format": form, "key": is_key, "topic": topic, "data": None if data is None else data.hex()}
            lines += json.dumps({**request, **({"message": message} if form == "protobuf" else {})}) + "\n"
    address = str(status.registry_url).replace("/apis/ccompat/v7", "/apis/registry/v3")
    answers = [json.loads(line[1:]) for line in program.run(address, lines=lines).split("\n") if line.startswith("=")]
    assert not [answer["error"] for answer in answers if "error" in answer]
    values = [answer["value"] for answer in answers]
    assert len(values) == 2 * len(records)
    return list(zip(values[::2], values[1::2], strict=True))


def test_every_type_is_among_the_tests() -> None:
    assert SCALARS - {"counter"} <= {kind for kind, *_ in COLUMNS.values()}
    assert EMPTY.keys() | set(REPEATED) == COLUMNS.keys()


@pytest.mark.parametrize("is_transformed", [False, True], ids=["written directly", "behind a transform"])
def test_avro(registry: Status, program: Program, tmp_path: Path, is_transformed: bool) -> None:
    topic = f"avro-{is_transformed}"
    records = write_records(registry, tmp_path, topic, AVRO, **(TRANSFORM if is_transformed else {}))
    assert [dict(record.headers).get("h") for record in records] == [b"x" if is_transformed else None] * 3
    row, empty, gone = read(program, registry, "avro", topic, records)
    assert row[0] == empty[0] == gone[0] == {"k": 7, "c": "x"}
    assert row[1] == {name: plain(avro) for name, (_, _, avro, _, _) in COLUMNS.items()}
    assert (empty[1], gone[1]) == (dict.fromkeys(COLUMNS), None)


def test_avro_in_the_latest_schema(registry: Status, program: Program, tmp_path: Path) -> None:
    """One that somebody registered: with other names of the records, fewer columns in another order, and one more."""
    topic = "latest"
    fields = [
        {"name": "text", "type": ["null", "string"], "default": None},
        {"name": "int", "type": ["null", "long"], "default": None},
        {"name": "more", "type": "string", "default": "none"},
        {
            "name": "decimal",
            "type": [
                "null",
                {
                    "type": "record",
                    "name": "Number",
                    "fields": [{"name": "scale", "type": "int"}, {"name": "bigint", "type": "bytes"}],
                },
            ],
            "default": None,
        },
    ]
    latest = {"type": "record", "name": "Order", "namespace": "org.other", "fields": fields}
    with closing(SchemaRegistryClient({"url": str(registry.registry_url)})) as client:
        own = write_records(registry, tmp_path, "own", AVRO)
        client.register_schema(f"{topic}-key", client.get_latest_version("own-key").schema)
        client.register_schema(f"{topic}-value", Schema(json.dumps(latest), "AVRO"))
        records = write_records(registry, tmp_path, topic, AVRO, **USES_LATEST)
        assert [client.get_versions(f"{topic}-{part}") for part in ("key", "value")] == [[1], [1]]
    assert [record.key for record in records] == [record.key for record in own]
    row, empty, gone = read(program, registry, "avro", topic, records)
    number = {"scale": 2, "bigint": "0x04e2"}
    assert row[1] == {"text": COLUMNS["text"][2], "int": -(1 << 31), "more": "none", "decimal": number}
    assert (empty[1], gone[1]) == ({"text": None, "int": None, "more": "none", "decimal": None}, None)


def test_avro_in_a_latest_schema_with_references(registry: Status, program: Program, tmp_path: Path) -> None:
    """Types of other subjects, one of which refers to a third: read by Java, our own reader, and the recipes."""
    topic = "references"
    part = {"type": "record", "name": "Part", "fields": [{"name": "y", "type": ["null", "string"], "default": None}]}
    spot = {
        "type": "record",
        "name": "Spot",
        "namespace": "org.other",
        "fields": [
            {"name": "x", "type": ["null", "long"], "default": None},
            {"name": "y", "type": ["null", "string"], "default": None},
            {"name": "part", "type": ["null", "org.parts.Part"], "default": None},
        ],
    }
    fields = [
        {"name": "point", "type": ["null", "Spot"], "default": None},
        {"name": "text", "type": ["null", "string"], "default": None},
        {"name": "parts", "type": {"type": "array", "items": "org.parts.Part"}, "default": []},
    ]
    latest = {"type": "record", "name": "Order", "namespace": "org.other", "fields": fields}
    references = [SchemaReference("org.other.Spot", "spots", 1), SchemaReference("org.parts.Part", "parts", 1)]
    with closing(SchemaRegistryClient({"url": str(registry.registry_url)})) as client:
        write_records(registry, tmp_path, "own", AVRO)
        client.register_schema(f"{topic}-key", client.get_latest_version("own-key").schema)
        client.register_schema("parts", Schema(json.dumps({**part, "namespace": "org.parts"}), "AVRO"))
        client.register_schema("spots", Schema(json.dumps(spot), "AVRO", references[1:]))
        value_id = client.register_schema(f"{topic}-value", Schema(json.dumps(latest), "AVRO", references))
    row, empty, gone = records = write_records(registry, tmp_path, topic, AVRO, **USES_LATEST)
    assert row.value is not None
    assert empty.value is not None
    assert gone.value is None
    expected = [
        {"point": {"x": -3, "y": "q", "part": None}, "text": COLUMNS["text"][2], "parts": []},
        {"point": None, "text": None, "parts": []},
        None,
    ]
    assert [value for _, value in read(program, registry, "avro", topic, records)] == expected
    assert [value for _, value in follow(registry, tmp_path, topic, records)] == expected
    url = {"value.converter.schema.registry.url": str(registry.registry_url)}
    settings = ConnectorSettings.from_properties({"name": "n", "keyspace": "ks", "table": "t", **url}, "test")
    with closing(Registry(settings, tmp_path / "ids")) as store:
        reader = AvroReader(store.schema(value_id) or "", False)
    assert [reader.decode(value[5:]) for value in (row.value, empty.value)] == expected[:2]
    recipe = RecipeRegistry(parse_settings("", [], ["b", str(registry.registry_url), topic, "--once"]))
    with closing(recipe._client):
        schemas = Schemas(recipe.get_schema)
        assert [schemas.read(value) for value in (row.value, empty.value)] == expected[:2]
        assert str(recipe.columns(f"{topic}-value").types["point"]).startswith(
            "struct<x: int64, y: string, part: struct<"
        )


def follow(status: Status, directory: Path, topic: str, records: list[Record]) -> list[tuple[Any, Any]]:
    """Return what Follow.java prints of records' keys and values."""
    brokers = {"bootstrap.servers": status.bootstrap_servers}
    admin = AdminClient(brokers)
    admin.create_topics([NewTopic(topic, 1, 1)])[topic].result()
    producer = Producer(brokers)
    for record in records:
        producer.produce(topic, record.value, record.key)
    assert producer.flush(60) == 0
    program = Program(directory, RECIPES / "Follow.java", "avro", "kafka")
    printed = program.run(status.bootstrap_servers, str(status.registry_url), topic, "--once")
    return [tuple(map(json.loads, line.split("\t"))) for line in printed.split("\n") if line]


@pytest.mark.parametrize("nulls", ["none", "optional", "wrapper"])
def test_protobuf(registry: Status, program: Program, tmp_path: Path, nulls: str) -> None:
    more = {} if nulls == "none" else {f"{side}.converter.{nulls}.for.nullables": "true" for side in ("key", "value")}
    topic = f"protobuf-{nulls}"
    row, empty, gone = read(
        program, registry, "protobuf", topic, write_records(registry, tmp_path, topic, PROTOBUF, **more)
    )

    def wrapped(fields: Mapping[str, Any]) -> dict[str, Any]:
        """Fields in the messages that stand for a number, text or bytes that can be null."""
        return {name: {"value": value} for name, value in fields.items()} if nulls == "wrapper" else dict(fields)

    value = {name: plain(protobuf) for name, (_, _, _, protobuf, _) in COLUMNS.items()}
    value |= wrapped({name: value[name] for name in EMPTY if name not in MESSAGES})
    value |= {name: wrapped(value[name]) for name in ("pair", "point")}
    assert row == ({"k": 7, **wrapped({"c": "x"})}, value)  # a partition key of one column is never null
    nothing = plain(EMPTY) if nulls == "none" else dict.fromkeys(EMPTY)
    assert empty == (row[0], {**nothing, **{name: [] for name in REPEATED}})
    assert gone == (row[0], None)


def test_json_schema(registry: Status, program: Program, tmp_path: Path) -> None:
    """It checks each key and value by the schema."""
    records = write_records(registry, tmp_path, "json", JSON_SCHEMA)
    row, empty, gone = read(program, registry, "json", "json", records)
    assert row == ({"k": 7, "c": "x"}, {name: value for name, (*_, value) in COLUMNS.items()})
    assert empty == (row[0], dict.fromkeys(COLUMNS))
    assert gone == (row[0], None)
    assert records[0].value is not None
    wrong = records[0]._replace(value=records[0].value.replace(b'"boolean":true', b'"boolean":"yes"'))
    with pytest.raises(AssertionError, match="boolean"):
        read(program, registry, "json", "json", [wrong])


@pytest.mark.parametrize("form", CONVERTERS)
def test_types_that_only_transforms_make(registry: Status, program: Program, tmp_path: Path, form: str) -> None:
    """Kafka Connect's own, in structs, arrays and maps, and of Protobuf a key that is a number alone.

    Not int8, int16 and Decimal in Protobuf: like Confluent's converter, ours writes options of theirs, which Apicurio
    does not know. Nor a number alone in JSON Schema, which Apicurio's registry refuses.
    """
    unread = ("i8", "i16", "price", "nested") if form == "protobuf" else ()
    schema = replace(ROW, fields=tuple(field for field in ROW.fields if field.name not in unread))
    address = replace(ADDRESS, is_optional=False)
    keys: dict[str, tuple[ConnectSchema, Any, str]] = {
        "protobuf": (ConnectSchema("int32"), 5, "Int32Value"),
        "json": (address, {"street": "x", "no": 5}, ""),
    }
    key_schema, key, message = keys[form]
    url = {"value.converter.schema.registry.url": str(registry.registry_url)}
    settings = ConnectorSettings.from_properties({"name": "n", "keyspace": "ks", "table": "t", **url}, "test")
    topic = f"connect-{form}"
    with closing(Registry(settings, tmp_path / "ids")) as store:
        key_bytes = make_converter(CONVERTERS[form], True, {}, store).to_bytes(topic, key_schema, key)
        value_bytes = make_converter(CONVERTERS[form], False, {}, store).to_bytes(topic, schema, VALUE)
    record = Record(key_bytes, value_bytes, ())
    ((key_read, value_read),) = read(program, registry, form, topic, [record], (message, "t"))
    assert key_read == ({"value": 5} if form == "protobuf" else key)
    assert value_read == {name: value for name, value in CONNECT_VALUES[form].items() if name not in unread}
