"""Rows to Avro in one pass: byte for byte what a function for each type makes, plain and compiled."""

from __future__ import annotations

import struct
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import twice
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from schemas.cqldata import cql_bytes, types, values

from helenus_schemas.codec import to_avro
from helenus_schemas.codec.to_avro import functions, plain
from helenus_schemas.cql.types import CqlType, parse

SOURCE = Path(to_avro.__file__).with_name("_columns.py")
HEAD = b"\0\0\0\0\7"
slow = settings(suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large], deadline=None)


@pytest.fixture(scope="module", params=["plain", "compiled"])
def columns(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> ModuleType:
    return twice.plain(SOURCE) if request.param == "plain" else twice.compiled(SOURCE, tmp_path_factory)


def made(columns: ModuleType, cql_types: list[CqlType], row: list[bytes | None], key: bool = False) -> bytes | None:
    """What it makes of a row: the same as the functions, which make something of nothing that they refuse."""
    made_at_once = columns.Columns(cql_types, plain, functions(cql_types, key, HEAD), key, HEAD)
    encoded: bytes | None = made_at_once.try_encode(row)
    try:
        expected: bytes | None = functions(cql_types, key, HEAD)(row)
    except (ValueError, IndexError, struct.error):
        expected = None
    assert encoded is None or encoded == expected
    if expected is not None:
        assert made_at_once.encode(row) == expected
        return encoded
    with pytest.raises((ValueError, IndexError, struct.error)):
        made_at_once.encode(row)
    return encoded


typed = types().flatmap(lambda t: st.tuples(st.just(t), st.one_of(st.none(), values(t))))


@slow
@given(rows=st.lists(st.lists(typed, max_size=4), min_size=1, max_size=3), key=st.booleans())
def test_rows_of_every_type(columns: ModuleType, rows: list[list[tuple[CqlType, Any]]], key: bool) -> None:
    for row in rows:
        cql_types = [t for t, _ in row]
        encoded = made(columns, cql_types, [None if v is None else cql_bytes(t, v) for t, v in row], key)
        # Elements of a vector that have more than 127 bytes are the functions'.
        assert encoded is not None or "name='vector'" in str(cql_types)


@slow
@given(data=st.data(), key=st.booleans())
def test_bytes_that_are_none_of_their_type(columns: ModuleType, data: st.DataObject, key: bool) -> None:
    t, value = data.draw(typed)
    raw = bytearray(b"" if value is None else cql_bytes(t, value))
    for _ in range(data.draw(st.integers(1, 3))):
        position = data.draw(st.integers(0, len(raw)))
        kind = data.draw(st.sampled_from(["cut", "add", "set"]))
        if kind == "cut":
            del raw[position:]
        elif kind == "add":
            raw[position:position] = data.draw(st.binary(min_size=1, max_size=5))
        else:
            raw[position : position + 4] = struct.pack(
                ">i", data.draw(st.sampled_from([-1, -2, 0, 1, 5, 2**31 - 1, -(2**31)]))
            )
    made(columns, [t, CqlType("text")], [bytes(raw), b"x"], key)


@pytest.mark.parametrize("key", [False, True])
@pytest.mark.parametrize(
    "t",
    [
        *("ascii", "text", "blob", "varint", "tuple<int, text>", "int", "boolean", "uuid", "decimal", "list<varint>"),
        *(
            "list<frozen<tuple<int, varint>>>",
            "set<text>",
            "map<text, varint>",
            "map<int, text>",
            "vector<smallint, 2>",
        ),
    ],
)
def test_no_bytes(columns: ModuleType, t: str, key: bool) -> None:
    value_type = parse(t)
    made(columns, [value_type, value_type], [b"", None], key)
    for count in (0, 1, 2):
        made(columns, [value_type], [struct.pack(">i", count) + bytes(4) * count], key)


@pytest.mark.parametrize(
    "size", [0, 63, 64, 4_095, 4_096, 8_191, 8_192, 100_000, pytest.param(1_000_000, marks=pytest.mark.long)]
)
def test_sizes(columns: ModuleType, size: int) -> None:
    text = CqlType("text")
    assert made(columns, [text, CqlType("bigint"), text], [b"x" * size, bytes(8), "ä".encode() * size]) is not None
    assert made(columns, [text], [b"x" * size + b"\xc3"]) is None
    raw = struct.pack(">i", size) + struct.pack(">iI", 4, 0xFFFFFFFF) * size
    assert made(columns, [parse("list<int>"), parse("set<int>")], [raw, raw]) is not None
    empty = struct.pack(">i", size) + bytes(4) * size  # each a null for every field: more bytes than there were
    assert made(columns, [parse("list<frozen<tuple<int, int, int, int, int, int, int>>>")], [empty]) is not None


def test_types_of_another_form(columns: ModuleType) -> None:
    shown = parse("list<decimal>").with_forms({"decimal": "string"})
    raw = struct.pack(">ii", 1, 5) + bytes(4) + b"\5"
    assert made(columns, [shown, CqlType("inet")], [raw, b"\1\2\3\4"]) is not None


def test_another_number_of_values(columns: ModuleType) -> None:
    assert made(columns, [CqlType("int")] * 2, [bytes(4)]) is None
    assert made(columns, [CqlType("int")], [bytes(4), None]) is None
    assert made(columns, [], []) == HEAD


def test_a_function_that_is_asked_meanwhile(columns: ModuleType) -> None:
    """A row that is made while another one is has a buffer of its own."""
    made_inside = []

    def plain(t: CqlType, key: bool) -> Any:
        def encode(data: bytes) -> bytes:
            made_inside.append(rows[0].try_encode((b"x" * 10_000, None)))
            return data

        return encode

    rows: list[Any] = [columns.Columns([CqlType("text"), CqlType("inet")], plain, bytes, head=b"head")]
    assert rows[0].try_encode((b"a", b"abcd")) == b"head\2\2a\2abcd"
    assert [len(row_bytes) for row_bytes in made_inside] == [4 + 1 + 3 + 10_000 + 1]
