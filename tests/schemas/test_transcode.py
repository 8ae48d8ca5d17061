"""CQL bytes to Avro and back, against two independent codecs: the Cassandra driver's and fastavro's.

Nested types at random: test_roundtrip.py.
"""

import datetime
import io
import ipaddress
import json
import struct
import uuid
from decimal import Decimal

import fastavro
import pytest
from cassandra import cqltypes
from cassandra.util import Date, Duration, Time
from hypothesis import given
from hypothesis import strategies as st

from helenus_schemas.avro import build as avro
from helenus_schemas.codec import to_json as jsonform
from helenus_schemas.codec._avro_scalars import without_zeros
from helenus_schemas.codec.avro_long import long_bytes, read_long, whole_long
from helenus_schemas.codec.key import KeyCodec
from helenus_schemas.codec.to_avro import encoder, optionals, plain
from helenus_schemas.codec.unpublishable import is_unpublishable
from helenus_schemas.cql.table import Column, Table
from helenus_schemas.cql.types import CqlType, parse
from helenus_schemas.cql.values import Malformed

ADDRESS = CqlType("udt", (CqlType("text"), CqlType("int")), frozen=True, label="address", fields=("street", "no"))
EPOCH = datetime.datetime(1970, 1, 1)


def table(*types: CqlType, key: CqlType | None = None) -> Table:
    columns = [Column("id", key or CqlType("int"), "partition_key", 0)]
    columns += [Column(f"c{i}", t) for i, t in enumerate(types)]
    return Table("ks", "t", uuid.UUID(int=1), tuple(columns))


def through_avro(t: CqlType, cql: bytes | None) -> object:
    """The value a reader of the data topic sees for these CQL bytes."""
    schema = fastavro.parse_schema(avro.value_schema(table(t)))
    data = optionals([t])([cql])
    source = io.BytesIO(data)
    record = fastavro.schemaless_reader(source, schema)
    assert source.read() == b"", "the reader left bytes"
    return record["c0"]


def driver_bytes(name: str, value: object) -> bytes:
    return cqltypes.lookup_casstype(
        {
            "text": "UTF8Type",
            "ascii": "AsciiType",
            "blob": "BytesType",
            "tinyint": "ByteType",
            "smallint": "ShortType",
            "int": "Int32Type",
            "bigint": "LongType",
            "varint": "IntegerType",
            "decimal": "DecimalType",
            "float": "FloatType",
            "double": "DoubleType",
            "boolean": "BooleanType",
            "inet": "InetAddressType",
            "uuid": "UUIDType",
            "date": "SimpleDateType",
            "time": "TimeType",
            "duration": "DurationType",
        }[name]
    ).serialize(value, 4)


def signed(bits: int) -> st.SearchStrategy[int]:
    return st.integers(-(1 << bits - 1), (1 << bits - 1) - 1)


SAME = {
    "text": st.text(),
    "ascii": st.text(st.characters(max_codepoint=127)),
    "blob": st.binary(),
    "tinyint": signed(8),
    "smallint": signed(16),
    "int": signed(32),
    "bigint": signed(64),
    "float": st.floats(width=32, allow_nan=False),
    "double": st.floats(allow_nan=False),
    "boolean": st.booleans(),
}


@pytest.mark.parametrize("name", SAME)
@given(data=st.data())
def test_values_that_python_has(name: str, data: st.DataObject) -> None:
    value = data.draw(SAME[name])
    assert through_avro(CqlType(name), driver_bytes(name, value)) == value


@given(st.integers())
def test_varint(value: int) -> None:
    raw = through_avro(CqlType("varint"), driver_bytes("varint", value))
    assert int.from_bytes(raw, "big", signed=True) == value


@given(st.decimals(allow_nan=False, allow_infinity=False))
def test_decimal(value: Decimal) -> None:
    seen = through_avro(CqlType("decimal"), driver_bytes("decimal", value))
    unscaled = int.from_bytes(seen["bigint"], "big", signed=True)
    # Made from its parts: arithmetic would round to the context's precision.
    sign, digits, _ = Decimal(unscaled).as_tuple()
    assert Decimal((sign, digits, -seen["scale"])) == value


@given(signed(32))
def test_every_date_in_range(days: int) -> None:
    raw = (days + (1 << 31)).to_bytes(4, "big")
    schema = fastavro.parse_schema({"type": "int"})
    assert fastavro.schemaless_reader(io.BytesIO(encoder(CqlType("date"))(raw)), schema) == days


def test_date_and_timestamp_are_logical_types() -> None:
    assert through_avro(CqlType("date"), driver_bytes("date", Date("2024-02-29"))) == datetime.date(2024, 2, 29)
    moment = datetime.datetime(2024, 2, 29, 12, 30, 15, 123000, tzinfo=datetime.timezone.utc)
    millis = int(moment.timestamp() * 1000)
    assert through_avro(CqlType("timestamp"), millis.to_bytes(8, "big", signed=True)) == moment


@given(st.integers(0, 86_400_000_000_000 - 1))
def test_time_keeps_its_nanoseconds(nanos: int) -> None:
    assert through_avro(CqlType("time"), driver_bytes("time", Time(nanos))) == nanos


@given(st.ip_addresses())
def test_inet(address: ipaddress.IPv4Address | ipaddress.IPv6Address) -> None:
    assert ipaddress.ip_address(through_avro(CqlType("inet"), address.packed)) == address


@given(st.uuids())
def test_uuid(value: uuid.UUID) -> None:
    assert through_avro(CqlType("uuid"), value.bytes) == value


@given(st.tuples(st.integers(0, 2**31 - 1), st.integers(0, 2**31 - 1), st.integers(0, 2**63 - 1)), st.booleans())
def test_duration(parts: tuple[int, int, int], negative: bool) -> None:
    months, days, nanos = (-p for p in parts) if negative else parts
    seen = through_avro(CqlType("duration"), driver_bytes("duration", Duration(months, days, nanos)))
    assert seen == {"months": months, "days": days, "nanoseconds": nanos}


def sized(*values: bytes) -> bytes:
    return b"".join(len(v).to_bytes(4, "big") + v for v in values)


@given(st.lists(signed(32)))
def test_list(values: list[int]) -> None:
    raw = len(values).to_bytes(4, "big") + sized(*(v.to_bytes(4, "big", signed=True) for v in values))
    assert through_avro(parse("list<int>"), raw) == values


@given(st.dictionaries(st.text(), st.binary()))
def test_map(values: dict[str, bytes]) -> None:
    raw = len(values).to_bytes(4, "big") + sized(*(b for k, v in values.items() for b in (k.encode(), v)))
    assert through_avro(parse("map<text, blob>"), raw) == values


def test_udt_with_a_null_field_and_with_a_field_added_later() -> None:
    street = sized(b"Main")
    assert through_avro(ADDRESS, street + sized((7).to_bytes(4, "big"))) == {"street": "Main", "no": 7}
    assert through_avro(ADDRESS, street + b"\xff\xff\xff\xff") == {"street": "Main", "no": None}
    assert through_avro(ADDRESS, street) == {"street": "Main", "no": None}


def test_vector_of_fixed_and_of_variable_width() -> None:
    floats = b"".join(driver_bytes("float", f) for f in (1.5, -2.0, 0.25))
    assert through_avro(parse("vector<float, 3>"), floats) == [1.5, -2.0, 0.25]
    assert through_avro(parse("vector<text, 2>"), b"\2ab\1c") == ["ab", "c"]


def test_null() -> None:
    assert through_avro(CqlType("int"), None) is None


EMPTY = "int bigint tinyint boolean float uuid inet timestamp date time varint decimal duration".split()


@pytest.mark.parametrize("t", EMPTY)
def test_no_bytes_are_null_in_records_and_no_element(t: str) -> None:
    assert through_avro(CqlType(t), b"") is None
    assert through_avro(parse(f"tuple<{t}, int>"), sized(b"", b"\0\0\0\1")) == {"index_0": None, "index_1": 1}
    with pytest.raises(Malformed):
        plain(parse(f"list<{t}>"))(b"\0\0\0\1" + sized(b""))


def test_no_bytes_of_text_and_blob_are_a_value() -> None:
    assert through_avro(CqlType("text"), b"") == ""
    assert through_avro(CqlType("blob"), b"") == b""
    assert through_avro(parse("list<text>"), b"\0\0\0\1" + sized(b"")) == [""]
    assert through_avro(parse("tuple<int>"), b"") == {"index_0": None}


BAD = [
    ("int", b"\1\2"),
    ("uuid", b"short"),
    ("decimal", b"\0\0"),
    ("duration", b"\xff"),
    ("inet", b"\1\2"),
    ("list<int>", b"\0\0\0\1\0\0\0\xff"),
    ("list<text>", b"\x7f\xff\xff\xff"),
    ("list<text>", b"\0\0\0\0more"),
    ("list<text>", b"\0"),
    ("map<int, int>", b"\0\0\0\1" + sized(b"\0\0\0\1")),
    ("map<int, int>", b"\0\0\0\1" + sized(b"", b"\0\0\0\1")),
    ("tuple<int>", b"\0\0"),
    ("vector<int, 2>", b"\0\0\0\1"),
    ("vector<text, 2>", b"\1a\xff"),
    ("vector<text, 1>", b"\1ab"),
]


@pytest.mark.parametrize(("t", "raw"), BAD)
def test_bytes_that_are_no_value_are_refused(t: str, raw: bytes) -> None:
    for encode in (encoder, plain, jsonform.encoder):
        with pytest.raises((ValueError, struct.error)):
            encode(parse(t))(raw)


@given(st.binary(max_size=12))
def test_text_that_is_no_utf8_is_a_keys_alone(data: bytes) -> None:
    """A reader of a record finds text in it, whatever a table holds."""
    text = CqlType("text")
    assert encoder(text)(data) == plain(text, key=True)(data) == encoder(CqlType("blob"))(data)
    assert json.loads(jsonform.encoder(text, key=True)(data)).encode("utf-8", "surrogateescape") == data
    try:
        decoded = data.decode()
    except UnicodeDecodeError:
        for encode in (plain, jsonform.encoder):
            with pytest.raises(ValueError, match="utf-8"):
                encode(text)(data)
    else:
        assert through_avro(text, data) == json.loads(jsonform.encoder(text)(data)) == decoded


NULL = b"\xff\xff\xff\xff"
PAIR = "frozen<tuple<{}, int>>"


@pytest.mark.parametrize(
    ("t", "keys"),
    [
        (PAIR.format("int"), (NULL + NULL, sized(b"") + NULL)),
        (PAIR.format("varint"), (NULL + NULL, sized(b"") + NULL)),
        (PAIR.format("int"), (NULL + NULL, NULL)),
        ("frozen<set<float>>", (b"\0\0\0\1" + sized(b"\x7f\xc0\0\0"), b"\0\0\0\1" + sized(b"\xff\xc0\0\0"))),
    ],
)
@pytest.mark.parametrize("kind", ["map<{}, int>", "list<frozen<map<{}, int>>>", "map<frozen<map<{}, int>>, int>"])
def test_keys_of_a_map_that_are_one_as_text_are_refused(t: str, keys: tuple[bytes, bytes], kind: str) -> None:
    """A reader would find one entry."""
    first, second = keys
    value = b"\0\0\0\7"
    map_type, number = parse(kind.format(t)), sized(value)
    raws = [len(ks).to_bytes(4, "big") + b"".join(sized(k) + number for k in ks) for ks in ((first,), (first, second))]
    if kind.startswith("list"):
        raws = [b"\0\0\0\1" + sized(raw) for raw in raws]
    elif kind.startswith("map<frozen<map"):
        raws = [b"\0\0\0\1" + sized(raw) + number for raw in raws]
    single, both = raws
    assert [is_unpublishable(map_type, raw) for raw in raws] == [False, True]
    for encode in (plain, jsonform.encoder):
        assert encode(map_type)(single)
        with pytest.raises(Malformed, match="one as text"):
            encode(map_type)(both)
    # A row has its own key.
    assert jsonform.encoder(map_type, key=True)(both) != jsonform.encoder(map_type, key=True)(single)


def test_values_that_do_not_round_trip_are_no_keys() -> None:
    pair = parse("tuple<int, int>")
    element = sized(b"\0\0\0\1")
    assert encoder(pair)(element + element) == b"\2\2\2\2"
    for raw in (element, element + element + element, sized(b"", b"\0\0\0\1")):
        with pytest.raises(Malformed):
            encoder(pair)(raw)
    # Cassandra distinguishes these in a partition key, by their token, and not in a clustering key.
    assert (
        encoder(pair, clustering=True)(element)
        == encoder(pair, clustering=True)(element + b"\xff\xff\xff\xff")
        == b"\2\2\0"
    )


@given(signed(64))
def test_longs(value: int) -> None:
    assert read_long(long_bytes(value), 0) == (value, len(long_bytes(value)))


@given(st.decimals(allow_nan=False, allow_infinity=False, places=3), st.integers(0, 5), st.booleans())
def test_equal_clustering_keys_are_one(value: Decimal, zeros: int, nested: bool) -> None:
    key_value, other = (driver_bytes("decimal", v) for v in (value, Decimal(f"{value:f}" + "0" * zeros)))
    t = parse("frozen<list<decimal>>") if nested else CqlType("decimal")
    if nested:
        key_value, other = (b"\0\0\0\1" + sized(v) for v in (key_value, other))
    codec = KeyCodec(
        Table("ks", "t", uuid.UUID(int=1), (Column("p", t, "partition_key", 0), Column("c", t, "clustering", 0)))
    )
    first, second = codec.encode((key_value, key_value)), codec.encode((key_value, other))
    assert first == second
    assert codec.decode(first) == codec.normalize((key_value, key_value)) == codec.normalize((key_value, other))
    assert codec.decode(first)[0] == key_value
    # The number is the same.
    if not nested:
        raw = codec.decode(first)[1]
        assert raw is not None
        sign, digits, _ = Decimal(int.from_bytes(raw[4:], "big", signed=True)).as_tuple()
        assert Decimal((sign, digits, -int.from_bytes(raw[:4], "big", signed=True))) == value


def clustered(unscaled: int, scale: int) -> bytes:
    data = unscaled.to_bytes(unscaled.bit_length() // 8 + 1, "big", signed=True)
    return encoder(CqlType("decimal"), clustering=True)(struct.pack(">i", scale) + data)


@given(st.integers().filter(bool), st.integers(0, 200), st.integers(0, 200))
def test_zeros_that_are_taken_away_many_at_once(value: int, zeros: int, max_zeros: int) -> None:
    value *= 10**zeros
    slowly, count = value, 0
    while count < max_zeros and not slowly % 10:
        slowly, count = slowly // 10, count + 1
    assert without_zeros(value, max_zeros) == (slowly, count)


@pytest.mark.parametrize("last", [1, -7, 25 << 5000])
def test_a_decimal_of_many_zeros_in_a_clustering_key(last: int) -> None:
    """One at a time they took seconds."""
    assert clustered(last * 10**150_000, 0) == clustered(last, -150_000)
    assert clustered(last * 10**700, 3 - (1 << 31)) == clustered(last * 10**697, -(1 << 31)), "no scale is lower"


def test_keys_as_datastax_has_them() -> None:
    kinds = ("tinyint", "smallint", "time")
    columns = [Column(f"k{i}", CqlType(n), "clustering" if i else "partition_key", i) for i, n in enumerate(kinds)]
    key_table = Table("ks", "t", uuid.UUID(int=1), tuple(columns))
    key = (b"\xff", b"\xff\xfe", (3_723_000_000_999).to_bytes(8, "big"))
    codec = KeyCodec(key_table, "datastax")
    schema = avro.key_schema(key_table, "datastax")
    source = io.BytesIO(codec.encode(key))
    assert fastavro.schemaless_reader(source, fastavro.parse_schema(schema)) == {
        "k0": 255,
        "k1": 65534,
        "k2": datetime.time(1, 2, 3),
    }
    assert codec.decode(codec.encode(key)) == (b"\xff", b"\xff\xfe", (3_723_000_000_000).to_bytes(8, "big"))
    assert KeyCodec(key_table).decode(KeyCodec(key_table).encode(key)) == key
    text = jsonform.objects([c.name for c in columns], [c.type for c in columns], datastax=True)(key)
    assert text == '{"k0":255,"k1":65534,"k2":3723000000}'


KEYS = {
    **{n: SAME[n] for n in SAME if n != "ascii"},
    "varint": st.integers(),
    "uuid": st.uuids().map(lambda u: u.bytes),
}


@given(data=st.data(), name=st.sampled_from(sorted(KEYS)), clustered=st.booleans())
def test_a_key_comes_back_as_it_was(data: st.DataObject, name: str, clustered: bool) -> None:
    value = data.draw(KEYS[name])
    raw = value if isinstance(value, bytes) and name == "uuid" else driver_bytes(name, value)
    columns = [Column("id", CqlType(name), "partition_key", 0), Column("ck", CqlType(name), "clustering", 0)]
    codec = KeyCodec(Table("ks", "t", uuid.UUID(int=1), tuple(columns)))
    key = (raw, raw if clustered else None)
    assert codec.decode(codec.encode(key)) == key


@given(st.binary(max_size=40))
def test_any_bytes_are_a_key_or_refused(data: bytes) -> None:
    codec = KeyCodec(table(key=CqlType("decimal")))
    try:
        key = codec.decode(data)
    except Malformed:
        return
    assert codec.decode(codec.encode(key)) == key


def test_decimals_twice_in_one_schema_parse() -> None:
    schema = avro.value_schema(table(CqlType("decimal"), CqlType("decimal"), parse("list<decimal>")))
    fastavro.parse_schema(schema)


def test_a_type_without_avro_form_is_named() -> None:
    with pytest.raises(avro.Unmappable, match=r"ks\.t: column c0: .*custom.Type"):
        avro.value_schema(table(parse("'custom.Type'")))


@pytest.mark.parametrize(
    ("t", "hashed", "name"),
    [
        ("tuple<int, text>", "tuple<int, text>", "Tuple_f4ae4162"),
        ("tuple<text, text, bigint, double, text>", "tuple<text, text, bigint, double, text>", "Tuple_45767353"),
        ("frozen<tuple<int, frozen<list<text>>>>", "tuple<int, list<text>>", "Tuple_95f3727c"),
        ("frozen<tuple<int, frozen<p>>>", "tuple<int, ks.p>", "Tuple_f434b4c5"),
        ("frozen<tuple<frozen<map<text, int>>, blob>>", "tuple<map<text, int>, blob>", "Tuple_9e3478e9"),
        ("tuple<int, frozen<tuple<frozen<set<int>>>>>", "tuple<int, tuple<set<int>>>", None),
        ('tuple<frozen<list<frozen<"P q">>>, int>', 'tuple<list<ks."P q">, int>', None),
        ("tuple<vector<frozen<p>, 3>>", "tuple<vector<ks.p, 3>>", None),
    ],
)
def test_a_tuple_has_the_name_that_datastax_gives_it(t: str, hashed: str, name: str | None) -> None:
    """The hash of what the Java driver's `asCql(false, true)` says."""
    udts = {n: CqlType("udt", (CqlType("int"),), label=n, fields=("a",)) for n in ("p", "P q")}
    record_name = avro.value_schema(table(parse(t, udts)))["fields"][0]["type"][1]["name"]
    assert record_name == (name or record_name) == f"Tuple_{avro._java_hash(hashed):x}"


def test_tuples_that_differ_in_frozen_alone_are_one_record() -> None:
    types = map(parse, ("tuple<int, list<text>>", "tuple<int, frozen<list<text>>>"))
    first, second = (field["type"][1] for field in avro.value_schema(table(*types))["fields"])
    assert (first["name"], second) == ("Tuple_95f3727c", "ks.Tuple_95f3727c")


@given(st.integers(-(1 << 63), (1 << 63) - 1) | st.integers(0, 1 << 54))
def test_a_whole_long_is_what_is_read(value: int) -> None:
    data = long_bytes(value)
    assert whole_long(data) == read_long(data, 0)[0] == value


def test_a_whole_long_of_too_many_bits() -> None:
    with pytest.raises(Malformed, match="64 bits"):
        whole_long(b"\xff" * 9 + b"\x7f")
