"""Records of the shape `row`, in every form: what is in them, byte for byte where that is promised."""

from __future__ import annotations

import datetime
import io
import json
import struct
import uuid
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import fastavro
import pytest

from helenus_connector.config.connector import ConnectorSettings
from helenus_connector.interfaces.image import Image
from helenus_connector.interfaces.shape import Record
from helenus_connector.shape.encoding.registry import Registry
from helenus_connector.shape.row.row import RowShape, row_schemas, shown_table
from helenus_connector.shape.schemas import topic_schemas as declared_by
from helenus_connector.testing.registry import MemoryRegistry
from helenus_schemas.codec.key import KeyCodec
from helenus_schemas.cql.table import Column, Table
from helenus_schemas.cql.types import CqlType, parse
from helenus_schemas.errors import HelenusError, Kind
from helenus_schemas.event import change, wire


def table(*columns: tuple[str, str], keys: Sequence[tuple[str, str]] = (("pk", "int"), ("ck", "text"))) -> Table:
    made = [Column(n, parse(t), "clustering" if i else "partition_key", max(i - 1, 0)) for i, (n, t) in enumerate(keys)]
    for name, t in columns:
        static = t.endswith(" static")
        made.append(Column(name, parse(t.removesuffix(" static")), "static" if static else "regular"))
    return Table("ks1", "table1", uuid.UUID(int=1), tuple(made))


def settings(**more: str) -> ConnectorSettings:
    properties = {"name": "n", "keyspace": "ks1", "table": "table1", "value.converter.schema.registry.url": "http://r"}
    return ConnectorSettings.from_properties(
        {**properties, **{k.replace("_", "."): v for k, v in more.items()}}, "test"
    )


def int32(value: int) -> bytes:
    return struct.pack(">i", value)


def made(definition: Table, values: Sequence[bytes | None] | None, key: Sequence[bytes | None], **more: str) -> Record:
    image = None if values is None else Image(tuple(values), 5)
    return RowShape(definition, settings(**more), MemoryRegistry()).row(KeyCodec(definition).encode(key), image, 5)


TWO = table(("a", "int"), ("b", "text"))
KEY = (int32(7), b"x")
ROW = (int32(1), None)


def test_avro_is_framed_and_its_key_is_the_events() -> None:
    registry = MemoryRegistry()
    shape = RowShape(TWO, settings(), registry)
    record = shape.row(KeyCodec(TWO).encode(KEY), Image(ROW, 5), 5)
    assert registry.subjects == {"data-ks1.table1-key": 1, "data-ks1.table1-value": 2}
    assert record.key == b"\0\0\0\0\1" + KeyCodec(TWO).encode(KEY)
    assert (registry.read(record.key), record.value and registry.read(record.value)) == (
        {"pk": 7, "ck": "x"},
        {"a": 1, "b": None},
    )
    assert record.headers == [("schema_id", TWO.schema_id.encode()), ("writetime", b"5")]


@pytest.mark.parametrize(
    ("form", "key", "value", "gone"),
    [
        ("key-value-json", b'{"pk":7,"ck":"x"}', b'{"a":1,"b":null}', None),
        ("json", b'{"pk":7,"ck":"x"}', b'{"pk":7,"ck":"x","a":1,"b":null}', b"{}"),
    ],
)
def test_json(form: str, key: bytes, value: bytes, gone: bytes | None) -> None:
    record = made(TWO, ROW, KEY, output_format=form)
    assert (record.key, record.value) == (key, value)
    deleted = made(TWO, None, KEY, output_format=form)
    assert (deleted.key, deleted.value) == (key, gone)


def test_json_of_a_whole_partition() -> None:
    definition = table(("s", "int static"))
    record = made(definition, (int32(1),), (int32(7), None), output_format="json")
    assert (record.key, record.value) == (b'{"pk":7,"ck":null}', b'{"pk":7,"ck":null,"s":1}')


def test_json_needs_no_registry() -> None:
    in_json = ConnectorSettings.from_properties(
        {"name": "n", "keyspace": "ks1", "table": "table1", "output.format": "json"}, "test"
    )
    shape = RowShape(TWO, in_json, Registry(in_json, __file__))  # type: ignore[arg-type]
    assert shape.row(KeyCodec(TWO).encode(KEY), None, None).value == b"{}"


def fields(schema: str | None) -> list[str]:
    return [field["name"] for field in fastavro.parse_schema(json.loads(schema or "null"))["fields"]]


@pytest.mark.parametrize("form", ["key-value-avro", "key-value-json", "json"])
def test_where_topics_keep_schemas_records_have_no_frames(form: str) -> None:
    """As on Pulsar: bytes are of the schemas that the topic declares, and a truncation, which has none, has no key."""
    definition = table(("a", "int"), ("b", "blob"), ("d", "decimal"))
    shape = RowShape(definition, settings(output_format=form), None)
    image = Image((int32(1), b"\xff", b"\0\0\0\1\x7b"), 5)
    record = shape.row(KeyCodec(definition).encode(KEY), image, 5)
    declared = declared_by(definition, settings(output_format=form))
    assert record.key is not None
    assert record.value is not None
    if form == "key-value-avro":
        key, value = (
            fastavro.schemaless_reader(io.BytesIO(data), fastavro.parse_schema(json.loads(schema)))
            for data, schema in ((record.key, declared.key), (record.value, declared.value))
        )
        assert declared.kind == "AVRO"
        assert value == {"a": 1, "b": b"\xff", "d": {"bigint": b"\x7b", "scale": 1}}
    else:
        key, value = json.loads(record.key), json.loads(record.value)
        assert declared.kind == "JSON"
        assert fields(declared.value) == list(value)
        assert '"bytes"' not in declared.value
        assert (declared.key is None) == (form == "json")
    assert key == {"pk": 7, "ck": "x"}
    assert declared.key is None or fields(declared.key) == list(key)
    assert shape.truncation(5).key is None
    assert shape.truncation(5).value is None


def test_a_schema_of_json_has_times_of_keys_as_they_are() -> None:
    definition = table(("v", "time"), keys=[("pk", "int"), ("t", "time")])
    for form, unit in (("exact", "cql_time"), ("datastax", "time-micros")):
        schemas = declared_by(definition, settings(output_format="key-value-json", key_compat=form))
        key, value = (json.loads(text or "")["fields"][-1]["type"] for text in (schemas.key, schemas.value))
        assert [t[1]["logicalType"] for t in (key, value)] == [unit, "cql_time"]


def test_a_schema_of_json_has_the_names_of_json() -> None:
    """Which are CQL's; Avro forbids some."""
    odd = table(("my col", "int"))
    assert declared_by(odd, settings())
    for form in ("key-value-json", "json"):
        with pytest.raises(HelenusError, match="my col") as error:
            declared_by(odd, settings(output_format=form))
        assert error.value.kind is Kind.TABLE_UNSUPPORTED
    leaving_out = settings(output_format="json", columns="other")
    assert declared_by(shown_table(odd, leaving_out), leaving_out)


def test_a_table_of_key_columns_only_shows_them() -> None:
    definition = table()
    registry = MemoryRegistry()
    record = RowShape(definition, settings(), registry).row(KeyCodec(definition).encode(KEY), Image(KEY, None), None)
    assert record.value is not None
    assert registry.read(record.value) == {"pk": 7, "ck": "x"}
    key, value = (json.loads(text) for text in row_schemas(definition, settings()))
    assert key == {**value, "cql_id": str(definition.id)}
    assert key["fields"] == [
        {"name": "pk", "type": "int"},
        {"name": "ck", "type": ["null", "string"], "default": None},
    ]
    for form in ("json", "key-value-json"):
        assert made(definition, KEY, KEY, output_format=form).value == b'{"pk":7,"ck":"x"}'


def test_a_table_whose_last_column_was_dropped_shows_its_key() -> None:
    """Nullable, with a default: a reader of the schema before has no such field."""
    definition = table()
    definition = Table(
        definition.keyspace,
        definition.name,
        definition.id,
        definition.columns,
        dropped={"v": Column("v", parse("int"))},
    )
    registry = MemoryRegistry()
    record = RowShape(definition, settings(), registry).row(KeyCodec(definition).encode(KEY), Image(KEY, None), None)
    assert record.value is not None
    assert registry.read(record.value) == {"pk": 7, "ck": "x"}
    _, value = row_schemas(definition, settings())
    assert [field["default"] for field in json.loads(value)["fields"]] == [None, None]


def test_columns_leave_out_what_they_do_not_name() -> None:
    definition = table(("a", "int"), ("ab", "text"), ("odd", "'x.Y'"))
    with pytest.raises(HelenusError, match=r"column odd: the type 'x\.Y' has no Avro form") as caught:
        row_schemas(definition.select_columns("a|odd"), settings())
    assert caught.value.kind is Kind.TABLE_UNSUPPORTED
    assert made(definition.select_columns("a"), (int32(1),), KEY, output_format="key-value-json").value == b'{"a":1}'


def test_a_key_that_cannot_be_encoded_is_refused_by_name() -> None:
    with pytest.raises(HelenusError, match=r"column ck: the type 'x\.Y'"):
        row_schemas(table(keys=[("pk", "int"), ("ck", "'x.Y'")]), settings())


@pytest.mark.parametrize("form", ["key-value-avro", "key-value-json", "json"])
@pytest.mark.parametrize("registry", [MemoryRegistry(), None])
def test_a_table_that_hides_columns_is_refused(form: str, registry: Registry | None) -> None:
    with pytest.raises(HelenusError, match="DROP COMPACT STORAGE") as error:
        RowShape(replace(TWO, hides_columns=True), settings(output_format=form), registry)
    assert (error.value.kind, error.value.where) == (Kind.TABLE_UNSUPPORTED, "ks1.table1")


def test_no_bytes_are_null_and_a_header_says_where() -> None:
    definition = table(("a", "int"), ("b", "text"), ("c", "uuid"), ("d", "int"))
    values = (b"", b"", b"", None)
    record = made(definition, values, KEY, output_format="key-value-json")
    assert record.value == b'{"a":null,"b":"","c":null,"d":null}'
    assert dict(record.headers)["empty"] == b'["a", "c"]'
    assert "empty" not in dict(made(definition, (None, b"", None, None), KEY).headers)


@pytest.mark.parametrize("compat", ["exact", "datastax"])
def test_no_bytes_in_a_partition_key_are_null_under_a_schema_of_their_own(compat: str) -> None:
    """No record of the key's schema has them, and a stand-in would be another row's key."""
    columns = [Column(n, parse(t), "partition_key", i) for i, (n, t) in enumerate((("a", "int"), ("b", "text")))]
    clustering = Column("c", parse("smallint"), "clustering", 0)
    definition = Table("ks1", "table1", uuid.UUID(int=1), (*columns, clustering, Column("v", parse("int"))))
    registry = MemoryRegistry()
    shape = RowShape(definition, settings(key_compat=compat), registry)
    key = (b"", b"", b"\0\1")
    record = shape.row(KeyCodec(definition).encode(key), Image((int32(5),), 5), 5, values=key)
    assert registry.read(record.key or b"") == {"a": None, "b": "", "c": 1}
    assert registry.subjects["data-ks1.table1-key-nullable"] == int.from_bytes((record.key or b"")[1:5], "big")
    assert dict(record.headers)["empty"] == b'["a"]'
    gone = shape.marker(KeyCodec(definition).encode((b"", b"", None)), None, 5, values=(b"", b"", None))
    assert (registry.read(gone.key or b""), gone.value) == ({"a": None, "b": "", "c": None}, None)
    only_keys = replace(definition, columns=(*columns, clustering))
    shape = RowShape(only_keys, settings(key_compat=compat), registry)
    record = shape.row(KeyCodec(definition).encode(key), Image(key, 5), 5, values=key)
    assert registry.read(record.value or b"") == {"a": None, "b": "", "c": 1}
    with pytest.raises(HelenusError, match="no form"):
        RowShape(definition, settings(), None).row(KeyCodec(definition).encode(key), None, 5, values=key)


def test_the_keys_of_datastax() -> None:
    definition = table(("a", "int"), keys=[("pk", "tinyint"), ("ck", "time")])
    nanos = 3_723_000_000_004
    key = (b"\xff", nanos.to_bytes(8, "big"))
    registry = MemoryRegistry()
    exact = KeyCodec(definition).encode(key)
    record = RowShape(definition, settings(key_compat="datastax"), registry).row(exact, Image((None,), None), None)
    assert registry.read(record.key)["pk"] == 255
    assert dict(record.headers)["exact_key"] == exact
    assert KeyCodec(definition).decode(dict(record.headers)["exact_key"]) == key
    text = made(definition, None, key, key_compat="datastax", output_format="key-value-json")
    assert text.key == b'{"pk":255,"ck":3723000000}'
    assert made(definition, None, key, output_format="key-value-json").key == b'{"pk":-1,"ck":3723000000004}'


def test_headers() -> None:
    event = wire.encode(change.Change("0" * 32, "node-1", segment=3, position=99))
    with_headers = settings(headers="digest,segpos,node")
    shape = RowShape(TWO, with_headers, MemoryRegistry())
    key = KeyCodec(TWO).encode(KEY)
    headers = [("node", b"node-1"), ("segpos", b"3:99"), ("digest", b"0" * 32)]
    assert shape.row(key, None, 5, event).headers == headers
    assert shape.marker(key, None, 5, event).headers == [*headers, ("scope", b"partition")]
    # An unconfirmed key that is read again has no event of its own.
    assert shape.row(key, None, 5).headers == []
    assert RowShape(TWO, settings(headers=""), MemoryRegistry()).row(key, None, 5, event).headers == []


def test_the_kind_of_operation_where_it_is_known() -> None:
    log, snapshot, repair = (
        wire.encode(made)
        for made in (
            change.Change("0" * 32, "node-1", segment=3, position=99),
            change.Change(None, None, origin=change.Origin.SNAPSHOT),
            change.Change(None, None, origin=change.Origin.REPAIR),
        )
    )
    key, image = KeyCodec(TWO).encode(KEY), Image((None,) * len(TWO.values), 5)
    shape = RowShape(TWO, settings(headers="op"), MemoryRegistry())
    for event in (None, log, repair):
        assert shape.row(key, image, 5, event).headers == []  # it may have been there before, or not
        assert shape.row(key, None, 5, event).headers == [("op", b"d")]
    assert shape.row(key, image, 5, snapshot).headers == [("op", b"r")]
    assert shape.row(key, None, 5, snapshot).headers == [("op", b"d")]
    assert shape.row(key, image, 5, log, op=b"c").headers == [("op", b"c")]
    assert shape.marker(key, image, 5, log).headers == [("op", b"d"), ("scope", b"partition")]
    assert shape.truncation(5, log).headers == [("op", b"t"), ("scope", b"table")]
    without = RowShape(TWO, settings(headers="origin"), MemoryRegistry())
    assert without.row(key, None, 5, log).headers == []
    assert dict(without.row(key, image, 5, snapshot).headers) == {"origin": b"snapshot", "snapshot": b"true"}


DECIMAL = int32(2) + (-150).to_bytes(2, "big", signed=True)  # -1.50
BIG = (1 << 9 * 8 - 1) - 1  # a varint of 9 bytes


@pytest.mark.parametrize(
    ("modes", "decimal", "varint"),
    [
        ({}, {"bigint": b"\xff\x6a", "scale": 2}, b"\x7f\xff"),
        ({"decimal_handling_mode": "string"}, "-1.50", b"\x7f\xff"),
        ({"decimal_handling_mode": "double", "varint_handling_mode": "long"}, -1.5, 32767),
        ({"varint_handling_mode": "string"}, {"bigint": b"\xff\x6a", "scale": 2}, "32767"),
    ],
)
def test_decimals_and_varints_as_asked_for(modes: dict[str, str], decimal: Any, varint: Any) -> None:
    definition = table(
        ("d", "decimal"),
        ("l", "list<decimal>"),
        ("m", "map<decimal, varint>"),
        ("n", "decimal"),
        ("t", "tuple<decimal, varint>"),
        ("v", "varint"),
        keys=[("pk", "decimal"), ("ck", "varint")],
    )
    pair = b"".join(int32(len(v)) + v for v in (DECIMAL, b"\x7f\xff"))
    row = (DECIMAL, int32(1) + int32(6) + DECIMAL, int32(1) + pair, None, pair, b"\x7f\xff")
    registry = MemoryRegistry()
    with_modes = settings(**modes)
    shape = RowShape(shown_table(definition, with_modes), with_modes, registry)
    record = shape.row(KeyCodec(definition).encode((DECIMAL, b"\x05")), Image(row, 5), 5)
    assert registry.read(record.key) == {"pk": {"bigint": b"\xff\x6a", "scale": 2}, "ck": b"\x05"}, "keys are exact"
    assert record.value is not None
    assert registry.read(record.value) == {
        "d": decimal,
        "l": [decimal],
        "m": {"-1.50": varint},
        "n": None,
        "t": {"index_0": decimal, "index_1": varint},
        "v": varint,
    }
    assert dict(record.headers)["schema_id"] == definition.schema_id.encode(), "it is the table's"
    text = made(shown_table(definition, with_modes), row, (DECIMAL, b"\x05"), output_format="key-value-json")
    assert text.value is not None
    in_json = {"bigint": "/2o=", "scale": 2} if isinstance(decimal, dict) else decimal
    assert json.loads(text.value)["l"] == [in_json]
    assert json.loads(text.value)["v"] == ("f/8=" if isinstance(varint, bytes) else varint)


@pytest.mark.parametrize("form", ["key-value-avro", "key-value-json", "json"])
def test_times_in_microseconds(form: str) -> None:
    """As DataStax's connector has them in values, at any depth; keys go by `key.compat`."""
    definition = table(("a", "time"), ("l", "list<frozen<tuple<time, int>>>"), keys=(("pk", "int"), ("ck", "time")))
    moment = (3_723_000_000_004).to_bytes(8, "big")
    listed = struct.pack(">iii", 1, 12, 8) + moment
    key = (int32(1), moment)
    more = {"time_precision_mode": "microseconds", "output_format": form}
    with_modes = settings(**more)
    registry = MemoryRegistry()
    shape = RowShape(shown_table(definition, with_modes), with_modes, registry)
    record = shape.row(KeyCodec(definition).encode(key), Image((moment, listed), 5), 5)
    if form == "key-value-avro":
        value, key_values = registry.read(record.value or b""), registry.read(record.key or b"")
        text = json.loads(row_schemas(shown_table(definition, with_modes), with_modes)[1])
        assert text["fields"][0]["type"] == ["null", {"type": "long", "logicalType": "time-micros"}]
        assert value["a"] == datetime.time(1, 2, 3)
        assert value["l"] == [{"index_0": datetime.time(1, 2, 3), "index_1": None}]
        assert key_values["ck"] == 3_723_000_000_004
    else:
        value, key_values = json.loads(record.value or b""), json.loads(record.key or b"")
        assert (value["a"], value["l"]) == (3_723_000_000, [{"index_0": 3_723_000_000}])
        assert key_values["ck"] == 3_723_000_000_004


def test_values_that_a_mode_cannot_hold() -> None:
    definition = table(("d", "decimal"), ("v", "varint"))
    row = (b"\x80\0\0\0\1", BIG.to_bytes(9, "big"))
    long = settings(varint_handling_mode="long")
    with pytest.raises(HelenusError, match=r"a varint of 9 bytes.*string takes any.*column v"):
        made(shown_table(definition, long), row, KEY, varint_handling_mode="long")
    with_modes = settings(varint_handling_mode="string", decimal_handling_mode="double")
    registry = MemoryRegistry()
    record = RowShape(shown_table(definition, with_modes), with_modes, registry).row(
        KeyCodec(definition).encode(KEY), Image(row, 5), 5
    )
    assert record.value is not None
    assert registry.read(record.value) == {"v": str(BIG), "d": float("inf")}


@pytest.mark.parametrize("form", ["key-value-avro", "key-value-json", "json"])
def test_a_varint_beyond_64_bits_is_no_long(form: str) -> None:
    definition = table(("v", "varint"))
    modes = {"varint_handling_mode": "long", "output_format": form}
    least, beyond = (n.to_bytes(9, "big", signed=True) for n in (-(1 << 63), 1 << 63))
    assert made(shown_table(definition, settings(**modes)), (least,), KEY, **modes).value
    with pytest.raises(HelenusError, match=r"a varint of 9 bytes.*string takes any.*column v"):
        made(shown_table(definition, settings(**modes)), (beyond,), KEY, **modes)


@pytest.mark.parametrize("modes", [{}, {"decimal_handling_mode": "string"}, {"decimal_handling_mode": "double"}])
@pytest.mark.parametrize("kind", ["{}", "frozen<list<{}>>", "tuple<{}>"])
def test_a_type_that_key_and_values_show_in_two_forms(kind: str, modes: dict[str, str]) -> None:
    """The schema that a topic on Pulsar has says of each what it is."""
    price = CqlType("udt", (parse("decimal"), parse("int")), label="price", fields=("d", "n"))
    t = parse(kind.format("frozen<price>"), {"price": price})
    definition = Table(
        "ks1",
        "table1",
        uuid.UUID(int=1),
        (
            Column("pk", t, "partition_key", 0),
            Column("v", t),
            Column("w", parse("frozen<list<frozen<price>>>", {"price": price})),
        ),
    )
    pair_bytes = b"".join(int32(len(part)) + part for part in (DECIMAL, int32(1)))
    whole = {"{}": pair_bytes, "tuple<{}>": int32(len(pair_bytes)) + pair_bytes}.get(
        kind, int32(1) + int32(len(pair_bytes)) + pair_bytes
    )
    with_modes = settings(output_format="json", **modes)
    shape = RowShape(shown_table(definition, with_modes), with_modes, None)
    record = shape.row(
        KeyCodec(definition).encode((whole,)), Image((whole, int32(1) + int32(len(pair_bytes)) + pair_bytes), 5), 5
    )
    assert record.value is not None
    row = json.loads(record.value)
    schema = fastavro.parse_schema(json.loads(declared_by(shown_table(definition, with_modes), with_modes).value))
    exact = {"bigint": "/2o=", "scale": 2}
    assert row["w"] == [{"d": {"string": "-1.50", "double": -1.5}.get("".join(modes.values()), exact), "n": 1}]
    assert fastavro.validate(row, schema)
    row["w"][0]["d"] = None if modes else "-1.50"
    assert fastavro.validate(row, schema, raise_errors=False) == bool(modes)


def test_a_number_of_many_digits_is_shown() -> None:
    """Python by itself shows no int of more than 4300 digits."""
    definition = table(("m", "map<varint, int>"), ("v", "varint"))
    number = b"\x11" * 5000
    entry = int32(1) + int32(len(number)) + number + int32(4) + int32(7)
    with_modes = settings(varint_handling_mode="string", output_format="key-value-json")
    text = made(shown_table(definition, with_modes), (entry, number), KEY, output_format="key-value-json").value
    assert text is not None
    value = json.loads(text)
    assert list(value["m"]) == [value["v"]]
    assert len(value["v"]) > 4300


HOLLOW = int32(1) + int32(0)  # a collection whose only element has no bytes
NULL = b"\xff" * 4  # the length of an element that is null
NUL = b"a\xc0\x80b"  # text that Cassandra takes, with a NUL as Java writes it: no UTF-8


@pytest.mark.parametrize(
    ("t", "value"),
    [
        ("list<int>", HOLLOW),
        ("set<uuid>", HOLLOW),
        ("map<int, text>", int32(1) + int32(0) + int32(1) + b"x"),
        ("map<text, decimal>", int32(1) + int32(1) + b"x" + int32(0)),
        ("frozen<list<frozen<set<boolean>>>>", int32(1) + int32(len(HOLLOW)) + HOLLOW),
        ("tuple<int, frozen<list<inet>>>", b"\xff" * 4 + int32(len(HOLLOW)) + HOLLOW),
        ("frozen<list<int>>", int32(2) + NULL + int32(4) + int32(7)),
        ("frozen<list<text>>", int32(2) + int32(1) + b"x" + NULL),
        ("frozen<map<int, text>>", int32(1) + int32(4) + int32(7) + NULL),
        ("tuple<int, frozen<set<int>>>", b"\xff" * 4 + int32(8) + int32(1) + NULL),
        ("frozen<list<frozen<set<boolean>>>>", int32(1) + int32(8) + int32(1) + NULL),
        ("text", NUL),
        ("text", b"\xed\xa0\x80"),  # half of a character
        ("text", b"\xf7\xbf\xbf\xbf"),  # beyond what Unicode has
        ("list<text>", int32(2) + int32(1) + b"x" + int32(len(NUL)) + NUL),
        ("tuple<int, text>", b"\xff" * 4 + int32(len(NUL)) + NUL),
        ("map<text, int>", int32(1) + int32(len(NUL)) + NUL + int32(4) + int32(7)),
        ("map<frozen<tuple<text>>, int>", int32(1) + int32(len(NUL) + 4) + int32(len(NUL)) + NUL + int32(4) + int32(7)),
        ("vector<text, 2>", b"\1a" + b"\4" + NUL),
        (
            "map<frozen<tuple<int>>, int>",  # keys with null, and with no bytes
            int32(2) + int32(4) + NULL + int32(4) + int32(1) + int32(4) + int32(0) + int32(4) + int32(2),
        ),
    ],
)
@pytest.mark.parametrize("form", ["key-value-avro", "key-value-json", "json"])
def test_a_value_that_no_record_can_hold_leaves_its_column_out(t: str, value: bytes, form: str) -> None:
    definition = table(("a", t), ("b", "list<text>"), ("c", "int"), ("d", "list<int>"))
    record = made(definition, (value, HOLLOW, b"", HOLLOW), KEY, output_format=form)
    plain = made(definition, (None, HOLLOW, b"", None), KEY, output_format=form)
    assert record.value == plain.value
    headers = dict(record.headers)
    assert (headers["left_out"], headers["empty"]) == (b'["a", "d"]', b'["c"]')
    assert "left_out" not in dict(plain.headers)


def test_clustering_values_of_no_bytes_are_null_and_published() -> None:
    definition = table(("a", "int"), keys=[("pk", "int"), ("ck", "int"), ("cl", "text")])
    key = (int32(7), b"", b"")
    registry = MemoryRegistry()
    encoded = KeyCodec(definition).encode(key)
    record = RowShape(definition, settings(), registry).row(encoded, Image((b"",), None), None, values=key)
    assert registry.read(record.key) == {"pk": 7, "ck": None, "cl": ""}
    assert dict(record.headers)["empty"] == b'["ck", "a"]'
    gone = RowShape(definition, settings(output_format="key-value-json"), MemoryRegistry()).row(
        encoded, None, None, values=key
    )
    assert (gone.key, gone.value) == (b'{"pk":7,"ck":null,"cl":""}', None)
    assert dict(gone.headers)["empty"] == b'["ck"]'


VARINTS = [("a", "varint"), ("b", "varint")]


@pytest.mark.parametrize("values", [[], [("v", "int")]])
@pytest.mark.parametrize(("form", "empty"), [("key-value-avro", b""), ("key-value-json", ""), ("json", "")])
def test_a_varint_of_no_bytes_in_a_key(form: str, empty: Any, values: list[tuple[str, str]]) -> None:
    """It is published, unlike other values of no bytes: the row has another key than its partition."""
    definition, key, registry = table(*values, keys=VARINTS), (b"", b""), MemoryRegistry()
    shape = RowShape(definition, settings(output_format=form), registry)
    row = shape.row(KeyCodec(definition).encode(key), Image((int32(1),) if values else key, 5), 5, values=key)
    partition = shape.row(KeyCodec(definition).encode((b"", None)), None, 5, values=(b"", None))
    read = registry.read if form == "key-value-avro" else json.loads
    assert read(row.key) == {"a": empty, "b": empty}
    assert read(partition.key) == {"a": empty, "b": None}
    assert "empty" not in dict(row.headers)
    expected = {**({} if values and form != "json" else read(row.key)), **({"v": 1} if values else {})}
    assert read(row.value) == expected


@pytest.mark.parametrize(
    ("t", "value", "expected"),
    [
        ("frozen<list<varint>>", int32(1) + int32(0), [""]),
        ("frozen<map<varint, varint>>", int32(1) + int32(0) * 2, {"": ""}),
        ("tuple<varint, varint>", int32(0) * 2, {"index_0": "", "index_1": ""}),
    ],
)
def test_a_varint_of_no_bytes_within_a_key(t: str, value: bytes, expected: Any) -> None:
    definition, key = table(keys=[("pk", "int"), ("ck", t)]), (int32(7), value)
    text = made(definition, key, key, output_format="key-value-json")
    assert text.key == text.value
    assert json.loads(text.key or b"")["ck"] == expected
    registry = MemoryRegistry()
    record = RowShape(definition, settings(), registry).row(KeyCodec(definition).encode(key), Image(key, 5), 5)
    assert record.value is not None
    assert json.dumps(registry.read(record.value)["ck"], default=bytes.decode) == json.dumps(expected)
    assert "left_out" not in dict(record.headers)


TEXTS = (NUL, b"\xed\xa0\x80", b"\xed\xb3\x80\xed\xb2\x80", b"\xed\xa0\x80\xed\xb0\x80", "\U00010000".encode(), b"a")
ONE = {
    "text": lambda text: text,
    "frozen<list<text>>": lambda text: int32(1) + int32(len(text)) + text,
    "frozen<map<text, int>>": lambda text: int32(1) + int32(len(text)) + text + int32(4) + int32(7),
    "frozen<map<frozen<tuple<text>>, int>>": lambda text: (
        int32(1) + int32(len(text) + 4) + int32(len(text)) + text + int32(4) + int32(7)
    ),
    "tuple<text>": lambda text: int32(len(text)) + text,
}


@pytest.mark.parametrize("t", ONE)
@pytest.mark.parametrize("values", [[], [("v", "int")]])
@pytest.mark.parametrize("form", ["key-value-avro", "key-value-json", "json"])
def test_keys_of_text_that_is_no_utf8_are_published(form: str, values: list[tuple[str, str]], t: str) -> None:
    """Rows of other bytes have other keys, for who reads them too."""
    definition = table(*values, keys=[("pk", t), ("ck", t)])
    keys = [(ONE[t](text), ONE[t](text)) for text in TEXTS]
    records = [made(definition, (int32(1),) if values else key, key, output_format=form) for key in keys]
    assert all(dict(record.headers).keys() == {"schema_id", "writetime"} for record in records)
    if form == "key-value-avro":
        assert [record.key for record in records] == [b"\0\0\0\0\1" + KeyCodec(definition).encode(key) for key in keys]
    else:
        assert len({repr(json.loads(record.key or b"")) for record in records}) == len(keys)
    if not values:
        assert len({record.value for record in records}) == len(keys)


def test_bounds_of_text_that_is_no_utf8() -> None:
    shape = RowShape(TWO, settings(), MemoryRegistry())
    marker = shape.marker(KeyCodec(TWO).encode((KEY[0], None)), None, 5, None, (change.Bound(True, (NUL,)), None))
    assert dict(marker.headers)["start"] == b'{"inclusive":true,"values":{"ck":"a\\udcc0\\udc80b"},"descending":[]}'


def test_bounds_name_the_columns_that_descend() -> None:
    columns = [
        Column("pk", parse("int"), "partition_key"),
        Column("a", parse("int"), "clustering"),
        Column("b", parse("int"), "clustering", reversed=True),
    ]
    table = Table("ks", "t", uuid.uuid4(), tuple(columns))
    int32 = struct.pack(">i", 5)
    bounds = (change.Bound(True, (int32,)), change.Bound(False, (int32, int32)))
    marker = RowShape(table, settings(), MemoryRegistry()).marker(
        KeyCodec(table).encode((int32, None, None)), None, 5, None, bounds
    )
    headers = dict(marker.headers)
    assert headers["start"] == b'{"inclusive":true,"values":{"a":5},"descending":[]}'
    assert headers["end"] == b'{"inclusive":false,"values":{"a":5,"b":5},"descending":["b"]}'


def test_when_it_expires() -> None:
    shape = RowShape(TWO, settings(), MemoryRegistry())
    key = KeyCodec(TWO).encode(KEY)
    assert dict(shape.row(key, Image(ROW, 5), 5, expires=1_700_000_000).headers)["expires"] == b"1700000000"
    assert "expires" not in dict(shape.row(key, Image(ROW, 5), 5).headers)
    assert RowShape(TWO, settings(headers="node"), MemoryRegistry()).row(key, None, 5, expires=7).headers == []


def test_bytes_that_are_no_value_are_poison_and_named() -> None:
    for form in ("key-value-avro", "key-value-json", "json"):
        with pytest.raises(HelenusError, match=r"ks1\.table1, column a") as caught:
            made(TWO, (b"\1", None), KEY, output_format=form)
        assert caught.value.kind is Kind.POISON_EVENT


NULLABLE_DATE = ["null", {"type": "int", "logicalType": "date"}]
NULLABLE_UUID = ["null", {"type": "string", "logicalType": "uuid"}]


def test_the_key_schema_that_datastax_prints() -> None:
    """Its example table, as its agent prints it; its connector's has this doc, and defaults."""
    definition = Table(
        "ks1",
        "table5",
        uuid.UUID(int=1),
        (
            Column("pk", parse("text"), "partition_key", 0),
            Column("c1", parse("date"), "clustering", 0),
            Column("c2", parse("uuid"), "clustering", 1),
        ),
    )
    key, _ = row_schemas(definition, settings())
    assert json.loads(key) == {
        "type": "record",
        "name": "table5",
        "namespace": "ks1",
        "doc": "Table ks1.table5",
        "fields": [
            {"name": "pk", "type": "string"},
            {"name": "c1", "type": NULLABLE_DATE, "default": None},
            {"name": "c2", "type": NULLABLE_UUID, "default": None},
        ],
        "cql_id": str(definition.id),  # ours
    }


def test_the_value_schema_of_datastax_for_every_kind_of_type() -> None:
    zip_code = CqlType("udt", (parse("text"), parse("int")), True, "zip", ("state", "code"))
    definition = table(
        ("a", "int"),
        ("de", "decimal"),
        ("de2", "decimal"),
        ("du", "duration"),
        ("li", "list<text>"),
        ("ma", "map<int, timestamp>"),
        ("ti", "tinyint"),
        ("tm", "time"),
        ("ts", "timestamp"),
        ("tu", "tuple<int, text>"),
        ("tw", "tuple<text, text, bigint, double, text>"),
        ("ve", "vector<float, 3>"),
        ("vi", "varint"),
    )
    definition = Table(
        definition.keyspace,
        definition.name,
        definition.id,
        (*definition.columns, Column("zi", zip_code), Column("zs", CqlType("set", (zip_code,)))),
    )
    _, value = row_schemas(definition, settings())

    def record(name: str, fields: list[dict[str, Any]], **more: str) -> dict[str, Any]:
        return {"type": "record", "name": name, "namespace": "ks1", **more, "fields": fields}

    def nullable(name: str, kind: Any) -> dict[str, Any]:
        return {"name": name, "type": ["null", kind], "default": None}

    decimal = [{"name": "bigint", "type": "bytes"}, {"name": "scale", "type": "int"}]
    duration = [{"name": n, "type": t} for n, t in (("months", "int"), ("days", "int"), ("nanoseconds", "long"))]
    pair = [nullable("index_0", "int"), nullable("index_1", "string")]
    five = [nullable(f"index_{i}", t) for i, t in enumerate(("string", "string", "long", "double", "string"))]
    millis = {"type": "long", "logicalType": "timestamp-millis"}
    expected = {
        "a": "int",
        "de": record("cql_decimal", decimal, logicalType="cql_decimal"),
        "de2": "ks1.cql_decimal",
        "du": record("cql_duration", duration, logicalType="cql_duration"),
        "li": {"type": "array", "items": "string"},
        "ma": {"type": "map", "values": millis},
        "ti": "int",
        "tm": {"type": "long", "logicalType": "cql_time"},
        "ts": millis,
        "tu": record("Tuple_f4ae4162", pair, doc="CQL type tuple<int, text>"),
        "tw": record("Tuple_45767353", five, doc="CQL type tuple<text, text, bigint, double, text>"),
        "ve": {"type": "array", "items": "float"},
        "vi": {"type": "bytes", "logicalType": "cql_varint"},
        "zi": record("zip", [nullable("state", "string"), nullable("code", "int")], doc="CQL type ks1.zip"),
        "zs": {"type": "array", "items": "ks1.zip"},
    }
    assert json.loads(value) == {
        "type": "record",
        "name": "table1",
        "namespace": "ks1",
        "doc": "Table ks1.table1",
        "fields": [nullable(name, kind) for name, kind in expected.items()],
    }
