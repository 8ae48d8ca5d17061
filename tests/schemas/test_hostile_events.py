"""Events, keys, types and values that anybody made up: refused as what they are, by time and memory in proportion."""

from __future__ import annotations

import io
import json
import struct
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import fastavro
import hostile
import pytest
import twice
from agent.writer import Cell, Complex, Marker, Row, Update, table_of
from connector.celled import events
from hostile import TooMuch, avro_long, damaged, damaged_json, unsigned_vint
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from schemas.cqldata import cql_bytes, types, values
from schemas.test_change import changes

from helenus_schemas.avro.build import text as avro_text
from helenus_schemas.avro.build import value_schema
from helenus_schemas.avro.compare import (
    check_size,
    incompatibility,
    other_form,
    other_times,
    parsed,
    recreated,
    without_names,
)
from helenus_schemas.codec import _key_bytes, from_json, to_json
from helenus_schemas.codec.key import KeyCodec
from helenus_schemas.codec.to_avro import encoder
from helenus_schemas.cql import types as cql_types
from helenus_schemas.cql.order import order
from helenus_schemas.cql.types import CqlType, parse
from helenus_schemas.cql.values import Malformed, duration, elements, entries, fields, vector
from helenus_schemas.event import cells as event_cells
from helenus_schemas.event import own_format, row_cursor
from helenus_schemas.event.cells import columns_of, decode_cells, head_of
from helenus_schemas.event.change import Scope
from helenus_schemas.event.wire import decode, encode, without_cells, without_frames

slow = settings(deadline=None, suppress_health_check=list(HealthCheck))
PLAIN = twice.plain(Path(own_format.__file__).parent / "own_format.py")
PLAIN_ROWS = twice.plain(Path(row_cursor.__file__).parent / "row_cursor.py")
PLAIN_KEYS = twice.plain(Path(_key_bytes.__file__).parent / "_key_bytes.py")
BAD_VALUES = (ValueError, IndexError, struct.error, ArithmeticError)
"""What a value's bytes may raise: each caller expects them."""


@slow
@given(change=changes, data=st.data())
def test_events(change: Any, data: st.DataObject) -> None:
    value = data.draw(damaged(encode(change)))
    decoded = hostile.read(decode, value, Malformed)
    if decoded is not None and not decoded.foreign:
        assert decode(encode(decoded)) == decoded, "what is taken can be written"
    hostile.read(without_cells, value, Malformed)
    hostile.run(lambda: without_frames(value, value), len(value))
    match = hostile.run(lambda: PLAIN.match_own_format(value), len(value))
    if match is not None:
        hostile.run(lambda: PLAIN.parse_match(match), len(value), Malformed)
        hostile.run(lambda: PLAIN.log_position(match), len(value), Malformed)


TABLE = table_of("t", "k int pk, c int ck, s text, v vector<float,3>, m map<int,text>, l list<int>, f frozen<set<int>>")
KEY, ONE = struct.pack(">i", 7), struct.pack(">i", 1)
ELEMENT = Complex([Cell(ONE, path=bytes(16))])
ROWS = [
    Row((ONE,), {"s": Cell(b"abc"), "m": Complex([Cell(b"x", path=ONE)], (3, 4)), "l": ELEMENT}, time=9),
    Row((ONE,), {"s": Cell(b"x" * 300, time=3, expires=(60, 99)), "v": Cell(bytes(12))}, time=9, expires=(5, 6)),
    Row((ONE,), deletion=(4, 5)),
]  # fmt: skip
VALID = [
    (change.cells or b"", change.scope)
    for event in events(
        Update(TABLE, KEY, ROWS, deletion=(1, 2)),
        Update(TABLE, KEY, [Marker(1, (ONE,), ((9, 10),)), Marker(6, (ONE,), ((9, 10),))]),
    )
    for change in [decode(event.value or b"")]
]


def with_columns(text: bytes, data: bytes = b"\x20") -> bytes:
    """The field `cells` with this text of columns."""
    head = avro_long(1) + bytes(32) + avro_long(len(text)) + text + avro_long(0) * 3
    return head + avro_long(len(data)) + data


def run_cells(data: bytes, scope: Scope) -> None:
    event_cells._columns_by_text.clear()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(event_cells, "RowCursor", PLAIN_ROWS.RowCursor)
        hostile.run(lambda: decode_cells(data, scope), len(data), Malformed)
    hostile.read(head_of, data, Malformed)
    hostile.read(columns_of, data, Malformed)


@slow
@given(data=st.data())
def test_cells(data: st.DataObject) -> None:
    whole, scope = data.draw(st.sampled_from(VALID))
    run_cells(data.draw(damaged(whole)), data.draw(st.sampled_from([scope, *Scope])))


UDTS = {"addr": [["street", "text"], ["x", "frozen<in>"]], "in": [["n", "int"]]}
COLUMNS = json.dumps({"columns": [["v", "int"], ["a", "frozen<addr>"]], "types": UDTS}).encode()


@slow
@given(data=st.data())
def test_columns_of_cells(data: st.DataObject) -> None:
    run_cells(with_columns(data.draw(damaged_json(COLUMNS))), Scope.ROW)


@pytest.mark.parametrize("levels", [1, 8, 12, 24, 63, 64, 100, 400])
@pytest.mark.parametrize("width", [1, 2, 5])
def test_nested_types_take_time_by_their_bytes(levels: int, width: int) -> None:
    """Of two fields with a type that has two fields with a type ..., there are as many parts as 2 to the levels."""
    nested = {f"t{n}": [[f"f{i}", f"frozen<t{n + 1}>"] for i in range(width)] for n in range(levels)}
    text = json.dumps({"columns": [["v", "frozen<t0>"]], "types": {**nested, f"t{levels}": [["x", "int"]]}}).encode()
    data = with_columns(text, b"\x24\0\x08\0")

    def use() -> None:
        cells = decode_cells(data, Scope.ROW)
        hash(cells.columns["v"])
        encoder(cells.columns["v"])
        sum(1 for _ in cql_types.walk(cells.columns.values()))

    hostile.run(use, len(data) + 1000, Malformed)
    if width**levels <= 256 and levels < 60:
        assert decode_cells(data, Scope.ROW).columns["v"].label == "t0"
    elif width**levels > 10_000 or levels > 64:
        with pytest.raises(Malformed, match=r"within each other|not a CQL type"):
            decode_cells(data, Scope.ROW)


@pytest.mark.parametrize(
    "text",
    ["int" + " " * 50_000 + "!", " " * 50_000, '"' * 50_001, "'" * 50_001, "list<" * 50_000, "<" * 50_000,
     "a," * 50_000,
     "frozen<>", "list<>", "map<int>", "map<int, int, int>", "vector<int>", "vector<int, 0>", "vector<int, -1>",
     "vector<int, 2147483648>", "vector<vector<int, 65536>, 65536>", "vector<int, " + "9" * 5000 + ">", "list<int",
     "vector<int,", "", "frozen", "int>", "foo<int>", "\ud800", "int!"],
)  # fmt: skip
def test_texts_that_are_no_types(text: str) -> None:
    hostile.read(parse, text, ValueError)
    with pytest.raises(ValueError, match=r"not a CQL type|unknown CQL type") as raised:
        parse(text)
    assert len(str(raised.value)) < 1000


@slow
@given(t=types(), data=st.data())
def test_types(t: CqlType, data: st.DataObject) -> None:
    udts = {each.label: each for each in cql_types.walk([t]) if each.name == "udt"}
    text = data.draw(damaged(str(t).encode())).decode(errors="replace")
    parsed_type = hostile.run(lambda: parse(text, udts), len(text), ValueError)
    if parsed_type is not None:
        assert parse(str(parsed_type), udts) == parsed_type


KEYS = [
    "k int pk", "k text pk, c timestamp ck", "a uuid pk, b inet pk, c decimal ck, d varint ck, e boolean ck",
    "a int pk, b frozen<map<int,text>> pk, c frozen<list<vector<text,2>>> ck, d tuple<int,frozen<set<int>>> ck",
    "a vector<float,3> pk, b double ck, c date ck, d time ck, e tinyint ck, f blob ck",
]  # fmt: skip


@slow
@given(columns=st.sampled_from(KEYS), data=st.data())
def test_keys(columns: str, data: st.DataObject) -> None:
    table = table_of("t", columns)
    codecs = [KeyCodec(table), KeyCodec(table, "datastax")]
    key = tuple(cql_bytes(c.type, data.draw(values(c.type))) for c in table.primary_key)
    for codec in codecs:
        try:
            valid = codec.encode(key)
        except ValueError:  # no bytes of a type that has them not
            continue
        bad = data.draw(damaged(valid))
        for read in (codec.decode, codec.decode_nullable, codec.current_key):
            hostile.read(read, bad, Malformed)
        decoded: Any = hostile.read(codec._decode, bad, Malformed)
        reader = PLAIN_KEYS.KeyBytesReader([c.type for c in table.partition_key], [c.type for c in table.clustering])
        fast = hostile.read(reader.read_key, bad, ())
        if codec is codecs[0]:
            assert fast is None or fast == decoded
        if decoded is not None:
            hostile.run(partial(codec.encode, decoded), 8 * len(bad), ValueError)


@slow
@given(t=types(), data=st.data())
def test_values(t: CqlType, data: st.DataObject) -> None:
    """Through all that cells' values and bounds go through."""
    value = data.draw(damaged(cql_bytes(t, data.draw(values(t)))))
    size = len(value) + sum(1 for _ in cql_types.walk([t]))
    ways: list[Callable[[], Any]] = [
        lambda: encoder(t)(value),
        lambda: to_json.encoder(t)(value),
        lambda: order(t)(value),
    ]
    for way in ways:
        hostile.run(way, size, BAD_VALUES)


@slow
@given(
    data=st.lists(
        st.sampled_from(
            [*map(unsigned_vint, hostile.LONGS), *(struct.pack(">i", n) for n in (-1, 0, 1, 2**31 - 1)), b"ab"]
        ),
        max_size=8,
    ).map(b"".join),
    width=st.sampled_from([0, 1, 4, 1 << 31]),
    max_parts=st.sampled_from([0, 1, 3, 1 << 31]),
)
def test_parts_of_values(data: bytes, width: int, max_parts: int) -> None:
    for read in (elements, entries, duration):
        hostile.read(read, data, Malformed)
    hostile.run(lambda: fields(data, max_parts), len(data), Malformed)
    hostile.run(lambda: vector(data, width, max_parts), len(data), Malformed)


@slow
@given(columns=st.sampled_from(KEYS), data=st.data())
def test_keys_in_json(columns: str, data: st.DataObject) -> None:
    table = table_of("t", columns)
    read = from_json.objects([c.name for c in table.primary_key], [c.type for c in table.primary_key])
    text = data.draw(damaged_json(json.dumps({c.name: 1 for c in table.primary_key}).encode()))
    hostile.read(read, text, Malformed)


OURS = value_schema(
    table_of("t", "k int pk, v int, m map<text,frozen<list<int>>>, t time, d decimal, u tuple<int,text>")
)


def of_field(kind: Any) -> Any:
    return {"type": "record", "name": "a", "fields": [{"name": "f", "type": kind}]}


HOSTILE_SCHEMAS = [
    {"type": "array", "items": "null"},
    {"type": "map", "values": "null"},
    of_field(["null", "a"]),
    of_field({"type": "array", "items": {"type": "fixed", "name": "z", "size": 0}}),
    of_field({"type": "array", "items": {"type": "record", "name": "e", "fields": []}}),
]


def doubled(levels: int) -> Any:
    schema: Any = {"type": "record", "name": f"r{levels}", "fields": [{"name": "n", "type": "null"}]}
    for n in reversed(range(levels)):
        schema = {
            "type": "record",
            "name": f"r{n}",
            "fields": [{"name": "a", "type": schema}, {"name": "b", "type": f"r{n + 1}"}],
        }
    return schema


@pytest.mark.parametrize("schema", [*HOSTILE_SCHEMAS, doubled(24)])
@pytest.mark.parametrize(
    "data", [b"", b"\2" * 100_000, avro_long((1 << 62) - 1) + b"\2" * 100, avro_long(-(1 << 62)) * 2]
)
def test_values_of_a_schema_that_somebody_registered(schema: Any, data: bytes) -> None:
    def read() -> Any:
        parsed_schema = parsed(json.dumps(schema))
        check_size(parsed_schema)
        return fastavro.schemaless_reader(io.BytesIO(data), fastavro.parse_schema(parsed_schema))

    hostile.run(read, len(data) + 5000, (ValueError, EOFError))


def test_tables_schemas_are_bounded() -> None:
    check_size(parsed(avro_text(OURS)))


@slow
@given(data=st.data())
def test_schemas(data: st.DataObject) -> None:
    """What a registry may answer, compared with ours in all ways."""
    ours = parsed(avro_text(OURS))
    text = data.draw(damaged_json([avro_text(OURS).encode(), *(json.dumps(s).encode() for s in HOSTILE_SCHEMAS)]))

    def compare() -> None:
        parsed_schema = parsed(text.decode(errors="replace"))
        without_names(parsed_schema)
        other_times(parsed_schema, ours)
        other_form(parsed_schema, ours)
        if without_names(parsed_schema) == without_names(ours):
            incompatibility(parsed_schema, ours, ours)
        recreated(parsed_schema, ours)
        check_size(parsed_schema)
        check_size(ours)

    hostile.run(compare, 4 * len(text) + 10_000, ValueError)


def test_what_counts_steps_counts() -> None:
    """A decoder that believes a count, or takes memory for it, does not pass."""
    with pytest.raises(TooMuch, match="steps"):
        hostile.run(lambda: [0 for _ in range(10**6)], 4)
    with pytest.raises(TooMuch, match="memory"):
        hostile.run(lambda: len(bytes(1 << 26)), 4)
