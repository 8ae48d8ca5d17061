"""From JSON keys back to CQL bytes, and Cassandra's order of values."""

from __future__ import annotations

import struct
import uuid
from decimal import Decimal
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from schemas.cqldata import NEVER_IN_KEYS, SCALARS, cql_bytes, types, values

from helenus_schemas.codec import from_json, to_json
from helenus_schemas.codec.key import KeyCodec
from helenus_schemas.cql.order import order
from helenus_schemas.cql.table import Column, Table
from helenus_schemas.cql.types import CqlType, parse
from helenus_schemas.cql.values import Malformed

slow = settings(suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large], deadline=None)
keys = types(key=True).flatmap(lambda t: st.tuples(st.just(t), values(t)))


@slow
@given(st.lists(keys, min_size=1, max_size=3))
def test_a_key_in_json_comes_back(key: list[tuple[CqlType, Any]]) -> None:
    """As the event's key has it: with one form for values that Cassandra's comparison holds for equal."""
    columns = [Column("p", parse("int"), "partition_key", 0)]
    columns += [Column(f"c{i}", t, "clustering", i) for i, (t, _) in enumerate(key)]
    codec = KeyCodec(Table("ks", "t", uuid.UUID(int=1), tuple(columns)))
    name = codec.encode((b"\0\0\0\1", *(cql_bytes(t, v) for t, v in key)))
    cql = codec.decode(name)
    names, kinds = [c.name for c in columns], [c.type for c in columns]
    text = to_json.objects(names, kinds, keys=len(names))(cql).encode()
    assert codec.encode(from_json.objects(names, kinds)(text)) == name


@pytest.mark.parametrize("name", sorted(SCALARS.keys() - NEVER_IN_KEYS))
@given(data=st.data())
def test_scalars(name: str, data: st.DataObject) -> None:
    t = CqlType(name)
    raw = cql_bytes(t, data.draw(values(t).filter(lambda value: value == value)))  # every NaN is "NaN"
    assert from_json.objects(["k"], [t])(to_json.objects(["k"], [t], keys=1)([raw]).encode()) == [raw]
    in_map = CqlType("map", (t, parse("int")), frozen=True)
    raw = struct.pack(">ii", 1, len(raw)) + raw + struct.pack(">ii", 4, 7)
    encode = KeyCodec(Table("ks", "t", uuid.UUID(int=1), (Column("k", in_map, "partition_key", 0),))).encode
    read_back = from_json.objects(["k"], [in_map])(to_json.objects(["k"], [in_map], keys=1)([raw]).encode())
    if name not in ("decimal", "varint"):  # whose text says nothing of redundant bytes
        assert encode(read_back) == encode([raw])


@pytest.mark.parametrize("name", ["varint", "decimal"])
def test_a_number_of_many_digits_in_a_map_comes_back(name: str) -> None:
    """Python's int() takes 4,300 digits of a text."""
    number = -(10**5000) + 7
    digits = number.to_bytes(number.bit_length() // 8 + 1, "big", signed=True)
    part = digits if name == "varint" else struct.pack(">i", 3) + digits
    in_map = parse(f"frozen<map<{name}, int>>")
    raw = struct.pack(">ii", 1, len(part)) + part + struct.pack(">ii", 4, 7)
    text = to_json.objects(["k"], [in_map], keys=1)([raw]).encode()
    assert from_json.objects(["k"], [in_map])(text) == [raw]


@pytest.mark.parametrize("number", ["1e999999999", "1.5", "NaN", "Infinity"])
def test_a_varint_in_a_map_is_an_integer_in_digits(number: str) -> None:
    with pytest.raises(Malformed):
        from_json.objects(["k"], [parse("frozen<map<varint, int>>")])(b'{"k":{"%s":7}}' % number.encode())


def test_text_that_is_not_utf8_comes_back() -> None:
    raw = b"a\xc0\x80\xed\xa0\x80"
    text = to_json.objects(["k"], [parse("text")], keys=1)([raw]).encode()
    assert from_json.objects(["k"], [parse("text")])(text) == [raw]


@pytest.mark.parametrize(
    "text",
    [b"", b"{", b"[]", b"{}", b'{"a":1,"k":2}', b'{"k":"x"}', b'{"k":true}', b'{"k":1.5}', b'{"k":[1]}', b"\xff"],
)
def test_other_json_is_refused(text: bytes) -> None:
    with pytest.raises(Malformed):
        from_json.objects(["k"], [parse("int")])(text)


def ordered(t: CqlType, *parts: Any) -> list[Any]:
    sort_key = order(t)
    return sorted((cql_bytes(t, part) for part in parts), key=sort_key)


@pytest.mark.parametrize(
    ("name", "parts"),
    [
        ("int", [-(2**31), -1, 0, 1, 2**31 - 1]),
        ("tinyint", [-128, -1, 0, 127]),
        ("timestamp", [-5, 0, 5]),
        ("varint", [-(10**30), -1, 0, 10**30]),
        (
            "decimal",
            [Decimal("-1E+9"), Decimal("-1.5"), Decimal("0"), Decimal("1E-20"), Decimal("1.49"), Decimal("1.5")],
        ),
        ("double", [float("-inf"), -1.5, -0.0, 0.0, 1e-300, float("inf"), float("nan")]),
        ("float", [-1.5, -0.0, 0.0, 2.5, float("nan")]),
        ("text", ["", "a", "aa", "b", "ü"]),
        ("blob", [b"", b"\0", b"\0\0", b"\x7f", b"\x80"]),
        ("boolean", [False, True]),
        ("inet", ["1.2.3.4", "1.2.3.5", "200.0.0.1"]),
        ("timeuuid", [uuid.UUID(int=t << 96 | 0x1000 << 64 | 1 << 63) for t in (1, 2, 2**31)]),
    ],
)
def test_values_are_in_cassandras_order(name: str, parts: list[Any]) -> None:
    t = parse(name)
    assert ordered(t, *reversed(parts)) == [cql_bytes(t, part) for part in parts]


def test_a_time_is_in_the_order_of_its_bytes() -> None:
    """Cassandra takes any eight bytes for one, and compares them without sign (`TimeType`: BYTE_ORDER)."""
    times = [struct.pack(">q", number) for number in (0, 5, 2**63 - 1, -(2**63), -1)]
    assert sorted(times, key=order(parse("time"))) == times


@slow
@given(types(key=True).flatmap(lambda t: st.tuples(st.just(t), values(t), values(t))))
def test_any_two_values_of_a_key_compare(typed_pair: tuple[CqlType, Any, Any]) -> None:
    t, first_value, other = typed_pair
    first, second = (order(t)(cql_bytes(t, value)) for value in (first_value, other))
    assert (first < second) + (second < first) + (first == second) == 1
    assert order(t)(None) < order(t)(b"") <= first
