"""The decoder against segments written by the format, and its events against the contract's own encoders."""

from __future__ import annotations

import itertools
import struct
from types import ModuleType
from typing import Any

import pytest
from agent.expected import Event, events
from agent.writer import LIVE, Cell, Complex, Marker, Row, Update, entry, mutation, table_of, vbytes, vint

from helenus_schemas.codec.key import KeyCodec
from helenus_schemas.cql.table import Column, Table
from helenus_schemas.cql.types import CqlType
from helenus_schemas.event import wire
from helenus_schemas.event.change import Bound, Scope

NODE = "ad310466-96a7-4cb2-acf4-59535a960812"
SEGMENT = 1795262845123
T = 1_700_000_000_000_000
KEY = b"\0\0\0\7"


def plans(decoder: ModuleType, *tables: Table) -> dict[bytes, Any]:
    followed = [t for t in tables if t.cdc]
    return {t.id.bytes: decoder.plan_table(t, followed.index(t) if t.cdc else -1) for t in tables}


def decode(decoder: ModuleType, payloads: list[bytes], *tables: Table, base: int = 100) -> Any:
    data = b"".join(entry(p) for p in payloads)
    return decoder.decode(data, base, True, plans(decoder, *tables), NODE, SEGMENT, 8, 10**6)


def events_of(batch: Any, *tables: Table) -> list[Event]:
    followed = [t.full_name for t in tables if t.cdc]
    return [(followed[index], partition, key, value) for index, partition, key, value in batch.changes]


def check(decoder: ModuleType, *updates: Update, base: int = 100) -> Any:
    """Decode one mutation of these updates and compare with what is expected of it."""
    tables = list({u.table.id: u.table for u in updates}.values())
    payload = mutation(*updates)
    batch = decode(decoder, [payload], *tables, base=base)
    assert batch.problems == []
    assert events_of(batch, *tables) == events(updates, NODE, SEGMENT, base + len(payload) + 12)
    assert (batch.next, batch.mutations) == (len(payload) + 12, 1)
    return batch


def scopes(batch: Any) -> list[tuple[Scope, int, int]]:
    changes = [wire.decode(value) for _, _, _, value in batch.changes]
    return [(c.scope, c.part, c.parts) for c in changes]


def simple() -> Table:
    return table_of("t", "pk int pk, ck int ck, s int static, v int, w text")


def test_insert(decoder: ModuleType) -> None:
    row = Row((b"\0\0\0\1",), {"v": Cell(b"\0\0\0\2"), "w": Cell(b"hello")}, time=T)
    batch = check(decoder, Update(simple(), KEY, [row]))
    (_, partition, key, value) = batch.changes[0]
    assert partition == KEY
    assert key == b"\x0e\x02\x02"
    assert wire.decode(value).write_time == T


def test_update_has_no_liveness_and_deletes_have_no_cells(decoder: ModuleType) -> None:
    table = simple()
    check(decoder, Update(table, KEY, [Row((b"\0\0\0\1",), {"v": Cell(b"\0\0\0\2", time=T)})]))
    check(decoder, Update(table, KEY, [Row((b"\0\0\0\1",), {"v": Cell(None, time=T, deleted_at=1_700_000_000)})]))
    check(decoder, Update(table, KEY, [Row((b"\0\0\0\1",), deletion=(T, 1_700_000_000))]))
    check(decoder, Update(table, KEY, [Row((b"\0\0\0\1",), deletion=(T, 1_700_000_000), shadowable=True)]))


def test_one_update_gives_partition_then_static_then_rows(decoder: ModuleType) -> None:
    rows = [Row((struct.pack(">i", i),), {"v": Cell(b"1234")}, time=T + i) for i in range(3)]
    static = Row(columns={"s": Cell(b"abcd", time=T + 9)})
    batch = check(decoder, Update(simple(), KEY, rows, static, deletion=(T - 1, 1_700_000_000), estimate=3))
    assert scopes(batch) == [
        (Scope.PARTITION, 0, 5),
        (Scope.STATIC, 1, 5),
        (Scope.ROW, 2, 5),
        (Scope.ROW, 3, 5),
        (Scope.ROW, 4, 5),
    ]


def test_without_clustering_columns(decoder: ModuleType) -> None:
    table = table_of("t", "pk int pk, v int")
    check(decoder, Update(table, KEY, [Row((), {"v": Cell(b"1234")}, time=T)]))
    batch = check(decoder, Update(table, KEY, deletion=(T, 1_700_000_000)))
    assert scopes(batch) == [(Scope.PARTITION, 0, 1)]
    assert batch.changes[0][2] == b"\x0e"


def test_newest_time_and_first_expiry(decoder: ModuleType) -> None:
    table = table_of("t", "pk int pk, v int, w int, x map<int, int>")
    row = Row(
        (),
        {
            "v": Cell(b"1234", time=T + 5, expires=(60, 1_800_000_000)),
            "w": Cell(b"1234", row_ttl=True),
            "x": Complex([Cell(b"1", time=T + 7, expires=(9, 1_750_000_000), path=b"2")], (T + 6, 1_700_000_000)),
        },
        time=T,
        expires=(100, 1_790_000_000),
    )
    change = wire.decode(check(decoder, Update(table, KEY, [row])).changes[0][3])
    assert (change.write_time, change.expires_at) == (T + 7, 1_750_000_000)


@pytest.mark.parametrize("time", [-(1 << 63) + 1, -1, 0, 1, T, (1 << 63) - 1])
@pytest.mark.parametrize("lowest", [-(1 << 63) + 1, -5, T, (1 << 63) - 1])
def test_times_wrap_at_64_bits(decoder: ModuleType, time: int, lowest: int) -> None:
    row = Row((), {"v": Cell(b"1234")}, time=time)
    table = table_of("t", "pk int pk, v int")
    batch = check(decoder, Update(table, KEY, [row], lowest=(lowest, 5, 3)))
    assert wire.decode(batch.changes[0][3]).write_time == time


@pytest.mark.parametrize("expiry", [0, 1_442_880_000, 0x7FFFFFFE, 0xFFFFFFFE])
def test_expiry_is_unsigned_32_bits(decoder: ModuleType, expiry: int) -> None:
    row = Row((), {"v": Cell(b"1234")}, time=T, expires=(1, expiry))
    check(decoder, Update(table_of("t", "pk int pk, v int"), KEY, [row], lowest=(T, 1_700_000_000, 0)))


def test_a_live_complex_deletion_is_no_time(decoder: ModuleType) -> None:
    table = table_of("t", "pk int pk, x map<int, int>, y set<int>")
    x = Complex([], (LIVE[0], 0x7FFFFFFF))
    row = Row((), {"x": x, "y": Complex([Cell(None, time=T, path=b"1")], (T - 1, 5))})
    check(decoder, Update(table, KEY, [row]))
    row = Row((), {"x": x})
    batch = check(decoder, Update(table, KEY, [row]))
    assert wire.decode(batch.changes[0][3]).write_time is None


def test_types_on_the_wire(decoder: ModuleType) -> None:
    """Fixed widths, and those that look fixed and are not; the row's end shows that all were walked."""
    types = (
        "ascii bigint blob boolean date decimal double duration float inet int smallint text time timestamp timeuuid "
        "tinyint uuid varint"
    ).split()
    widths = {"bigint": 8, "boolean": 1, "double": 8, "float": 4, "int": 4, "timestamp": 8, "timeuuid": 16, "uuid": 16}
    more = ["frozen<list<int>>", "vector<float, 3>", "vector<text, 3>", "tuple<int, text>", "list<int>", "counter"]
    table = table_of("t", "pk int pk, " + ", ".join(f"c{i} {t}" for i, t in enumerate(types + more)))
    for i, t in enumerate(types + more):
        cell = Cell(b"x" * widths.get(t, 12 if t.startswith("vector<float") else 7))
        column: Cell | Complex = cell
        if t == "list<int>":
            column = Complex([Cell(b"1234", path=b"p" * 16), Cell(b"", path=b"p" * 16)])
        check(decoder, Update(table, KEY, [Row((), {f"c{i}": column}, time=T)] * 2))
        # No value at all: an empty one, or a tombstone.
        if isinstance(column, Cell):
            check(decoder, Update(table, KEY, [Row((), {f"c{i}": Cell(b"")}, time=T)] * 2))


def test_a_column_of_type_empty_has_no_bytes(decoder: ModuleType) -> None:
    columns = (
        Column("pk", CqlType("int"), "partition_key", 0),
        Column("value", CqlType("custom", label="org.apache.cassandra.db.marshal.EmptyType")),
        Column("w", CqlType("int")),
    )
    table = Table("ks", "compact", simple().id, columns, True)
    row = Row((), {"value": Cell(b""), "w": Cell(b"1234")}, time=T)
    payload = mutation(Update(table, KEY, [row]))
    # Without the flag for no value: a fixed width of 0.
    length_offset = payload.index(b"1234") - 2
    assert payload[length_offset] == 12
    payload = payload[:length_offset] + b"\x08" + payload[length_offset + 1 :]
    batch = decode(decoder, [payload], table)
    assert (len(batch.changes), batch.problems) == (1, [])


@pytest.mark.parametrize("count", [1, 2, 63, 64, 65, 100])
def test_subsets_of_the_columns(decoder: ModuleType, count: int) -> None:
    names = [f"c{i:03}" for i in range(count)]
    table = table_of("t", "pk int pk, ck int ck, " + ", ".join(f"{n} int" for n in names))
    for chosen_names in (names[:1], names[: count // 2], names[: count // 2 + 1], names[:-1], names[1::3], []):
        rows = [
            Row((b"\0\0\0\1",), {n: Cell(b"1234") for n in names}, time=T),
            Row((b"\0\0\0\2",), {n: Cell(b"1234", time=T + 3) for n in chosen_names}),
        ]
        check(decoder, Update(table, KEY, rows))


def test_clustering_of_many_columns_with_empty_and_null(decoder: ModuleType) -> None:
    table = table_of("t", "pk int pk, " + ", ".join(f"c{i:02} text ck" for i in range(40)) + ", v int")
    values: tuple[bytes | None, ...] = tuple(b"" if i % 5 == 0 else b"v%d" % i for i in range(40))
    check(decoder, Update(table, KEY, [Row(values, {"v": Cell(b"1234")}, time=T)]))
    nothing = (*values[:35], None, *values[36:])
    check(decoder, Update(table, KEY, [Row(nothing, {"v": Cell(b"1234")}, time=T)]))


KEYS: dict[str, list[bytes]] = {
    "ascii": [b"a", b"x" * 200],
    "text": ["grüße".encode(), b"z" * 9000],
    "blob": [b"\0\xff"],
    "varint": [b"\0", b"\xff" * 20],
    "tinyint": [b"\xff", b"\x7f", b"\x80"],
    "smallint": [b"\xff\xfe", b"\x7f\xff"],
    "int": [b"\0\0\0\0", b"\x80\0\0\0", b"\x7f\xff\xff\xff"],
    "bigint": [b"\x80" + bytes(7), b"\x7f" + b"\xff" * 7, struct.pack(">q", -12345)],
    "timestamp": [struct.pack(">q", 1_700_000_000_123), struct.pack(">q", -1)],
    "time": [struct.pack(">q", 86_399_999_999_999)],
    "date": [bytes(4), b"\x80\0\0\0", b"\xff" * 4],
    "boolean": [b"\0", b"\1"],
    "float": [struct.pack(">f", 1.5)],
    "double": [struct.pack(">d", -2.25)],
    "uuid": [bytes(range(16))],
    "timeuuid": [bytes(range(16, 32))],
    "inet": [b"\x7f\0\0\1", bytes(15) + b"\1"],
    "decimal": [b"\0\0\0\2\x7b", b"\xff\xff\xff\xfe\x80\0"],
}


@pytest.mark.parametrize("name", KEYS)
def test_key_columns_are_exact(decoder: ModuleType, name: str) -> None:
    key_table = table_of("t", f"pk {name} pk, v int")
    several = table_of("t", f"pk {name} pk, p2 text pk, c1 {name} ck desc, c2 {name} ck, v int")
    for value in KEYS[name]:
        check(decoder, Update(key_table, value, [Row((), {"v": Cell(b"1234")}, time=T)]))
        key = struct.pack(">H", len(value)) + value + b"\0\0\2hi\0"
        check(decoder, Update(several, key, [Row((value, value), {"v": Cell(b"1234")}, time=T)]))
        check(decoder, Update(several, key, deletion=(T, 5)))


def test_key_columns_of_other_types(decoder: ModuleType) -> None:
    """The agent encodes all that `transcode` can turn into Avro, though only scalars can be read back."""
    with pytest.raises(ValueError, match=r"primary key|Avro"):
        decoder.plan_table(table_of("t", "pk frozen<list<int>> pk, v 'org.example.Type' ck"), 0)


def test_a_key_with_invalid_bytes_is_skipped(decoder: ModuleType) -> None:
    table = table_of("t", "pk int pk, ck frozen<list<int>> ck, v int")
    good = Row((b"\0\0\0\1\0\0\0\4abcd",), {"v": Cell(b"1234")}, time=T)
    hollow = Row((b"\0\0\0\1\0\0\0\0",), {"v": Cell(b"1234")}, time=T)
    batch = decode(decoder, [mutation(Update(table, KEY, [hollow, good])), mutation(Update(table, b"", [good]))], table)
    assert batch.skipped == ["malformed_key", "malformed_key"]
    assert scopes(batch) == [(Scope.ROW, 0, 1)]
    assert batch.problems == []


def test_a_value_of_no_bytes_in_a_composite_partition_key(decoder: ModuleType) -> None:
    """Cassandra accepts it, and the key notes it after its record: of rows, statics, a partition and a range."""
    table = table_of("t", "a int pk, b uuid pk, d text pk, ck int ck, s int static, v int")
    codec = KeyCodec(table)
    for values in itertools.product((b"", KEY), (b"", b"u" * 16), (b"", b"hi")):
        key = b"".join(struct.pack(">H", len(value)) + value + b"\0" for value in values)
        row = Row((KEY,), {"v": Cell(b"1234")}, time=T)
        ranged = [Marker(1, (), ((T, 5),)), Marker(6, (KEY,), ((T, 5),))]
        static = Row(columns={"s": Cell(b"abcd", time=T)})
        update = mutation(Update(table, key, [row], static, deletion=(T - 1, 5)), Update(table, key, ranged))
        batch = decode(decoder, [update], table)
        assert batch.skipped == []
        whole = codec.encode((*values, None))
        assert [change[2] for change in batch.changes] == [whole, whole, codec.encode((*values, KEY)), whole]
        assert {change[1] for change in batch.changes} == {key}


def test_booleans_that_are_neither_0_nor_1(decoder: ModuleType) -> None:
    """For a partition key's token they are others, for clustering they are true."""
    clustering = table_of("t", "pk int pk, ck boolean ck, v int")
    row = Row((b"\2",), {"v": Cell(b"1234")}, time=T)
    batch = decode(decoder, [mutation(Update(clustering, KEY, [row]))], clustering)
    assert [change[2] for change in batch.changes] == [KeyCodec(clustering).encode((KEY, b"\1"))]
    partition = table_of("t", "pk boolean pk, v int")
    updates = [mutation(Update(partition, pk, [Row((), {"v": Cell(b"1234")}, time=T)])) for pk in (b"\2", b"\1", b"\0")]
    batch = decode(decoder, updates, partition)
    assert batch.skipped == ["malformed_key"]
    assert [change[2] for change in batch.changes] == [KeyCodec(partition).encode((pk,)) for pk in (b"\1", b"\0")]


def test_clustering_values_of_no_bytes_are_null(decoder: ModuleType) -> None:
    """Those that have them as a value keep them."""
    table = table_of("t", "pk int pk, a int ck, b text ck, c varint ck, d uuid ck, v int")
    row = Row((b"", b"", b"", b""), {"v": Cell(b"1234")}, time=T)
    batch = decode(decoder, [mutation(Update(table, KEY, [row]))], table)
    assert batch.skipped == []
    assert [change[2] for change in batch.changes] == [KeyCodec(table).encode((KEY, b"", b"", b"", b""))]
    assert batch.changes[0][2].endswith(b"\0" + b"\2\0" + b"\2\0" + b"\0")


@pytest.mark.parametrize(
    ("name", "forms"),
    [
        ("varint", (b"\1", b"\0\1", b"\0\0\1")),
        ("double", (b"\x7f\xf8" + bytes(6), b"\xff\xf8" + bytes(6), b"\x7f\xf0" + bytes(5) + b"\1")),
        ("float", (b"\x7f\xc0\0\0", b"\xff\xc0\0\1")),
    ],
)
def test_equal_clustering_values_are_one_key(decoder: ModuleType, name: str, forms: tuple[bytes, ...]) -> None:
    table = table_of("t", f"pk {name} pk, ck {name} ck, v int")
    updates = [mutation(Update(table, forms[0], [Row((f,), {"v": Cell(b"1234")}, time=T)])) for f in forms]
    keys = {change[2] for change in decode(decoder, updates, table).changes}
    assert keys == {KeyCodec(table).encode((forms[0], forms[0]))}
    other = decode(decoder, [mutation(Update(table, forms[1], [Row((forms[0],), {}, time=T)]))], table)
    assert other.changes[0][2] not in keys, "they are two partitions"


def test_range_deletions(decoder: ModuleType) -> None:
    table = table_of("t", "pk int pk, a int ck, b text ck, v int")
    first, two = b"\0\0\0\1", b"\0\0\0\2"
    row = Row((first, b"x"), {"v": Cell(b"1234")}, time=T)
    markers = [
        Marker(1, (first,), ((T, 7),)),
        Marker(5, (first, b"b"), ((T, 7), (T + 1, 7))),
        Marker(2, (first, b"c"), ((T + 1, 7), (T + 2, 7))),
        Marker(6, (two,), ((T + 2, 7),)),
        Marker(7, (two, b"a"), ((T + 3, 7),)),
        Marker(6, (), ((T + 3, 7),)),
    ]
    batch = check(decoder, Update(table, KEY, [markers[0], row, *markers[1:], row]))
    assert batch.skipped == []
    decoded = [wire.decode(value) for _, _, _, value in batch.changes]
    assert [(c.scope, c.write_time, c.start, c.end) for c in decoded if c.scope is Scope.RANGE] == [
        (Scope.RANGE, T, Bound(True, (first,)), Bound(True, (first, b"b"))),
        (Scope.RANGE, T + 1, Bound(False, (first, b"b")), Bound(False, (first, b"c"))),
        (Scope.RANGE, T + 2, Bound(True, (first, b"c")), Bound(True, (two,))),
        (Scope.RANGE, T + 3, Bound(False, (two, b"a")), None),
    ]
    assert [(c.part, c.parts) for c in decoded] == [(part, 6) for part in range(6)]
    without_cdc = table_of("u", "pk int pk, a int ck, b text ck, v int", cdc=False)
    assert check(decoder, Update(without_cdc, KEY, markers), Update(table, KEY, [row])).skipped == []


@pytest.mark.parametrize(
    ("kinds", "problem"),
    [((0,), "did not start"), ((1, 7), "within another"), ((1,), "is not closed"), ((2,), "did not")],
)
def test_empty_ranges(decoder: ModuleType, kinds: tuple[int, ...], problem: str) -> None:
    table = table_of("t", "pk int pk, a int ck, v int")
    gone = (T, 7)
    markers = [Marker(kind, (b"1234",), (gone, gone) if kind == 2 else (gone,)) for kind in kinds]
    batch = decode(decoder, [mutation(Update(table, KEY, markers))], table)
    assert batch.changes == []
    assert problem in batch.problems[0][1]


def test_mutation_of_several_tables(decoder: ModuleType) -> None:
    first = table_of("a", "pk int pk, v int")
    second = table_of("b", "pk int pk, v list<int>", cdc=False)
    third = table_of("c", "pk int pk, ck text ck, v int")
    row = Row((), {"v": Cell(b"1234")}, time=T)
    complex_row = Row((), {"v": Complex([Cell(b"1234", time=T, path=b"p" * 16)], (T - 1, 5))})
    updates = [
        Update(second, KEY, [complex_row]),
        Update(first, KEY, [row]),
        Update(second, KEY),
        Update(third, KEY, [Row((b"x",), {"v": Cell(b"1234")}, time=T)]),
        Update(second, KEY, [complex_row]),
    ]
    batch = check(decoder, *updates)
    assert scopes(batch) == [(Scope.ROW, 0, 2), (Scope.ROW, 1, 2)]


def test_an_unknown_table_stops_decoding_until_the_agent_gives_up(decoder: ModuleType) -> None:
    known_table = table_of("a", "pk int pk, v int")
    other = table_of("b", "pk int pk, v int")
    row = Row((), {"v": Cell(b"1234")}, time=T)
    data = [
        mutation(Update(known_table, KEY, [row])),
        mutation(Update(known_table, KEY, [row]), Update(other, KEY, [row])),
    ]
    batch = decode(decoder, [*data, data[0]], known_table)
    assert (batch.unknown.table, batch.unknown.column) == (other.id.bytes, None)
    assert (len(batch.changes), batch.next, batch.mutations) == (1, len(data[0]) + 12, 1)
    assert batch.skipped == []

    table_plans = plans(decoder, known_table)
    table_plans[other.id.bytes] = decoder.TablePlan(is_known=False)
    stream = b"".join(entry(p) for p in [*data, data[0]])
    batch = decoder.decode(stream, 100, True, table_plans, NODE, SEGMENT, 8, 100)
    assert batch.unknown is None
    assert batch.skipped == ["unknown_table"]
    assert (scopes(batch), batch.problems) == ([(Scope.ROW, 0, 1)] * 3, [])


def test_an_unknown_table_hides_what_follows_it(decoder: ModuleType) -> None:
    known_table, other = table_of("a", "pk int pk, v int"), table_of("b", "pk int pk, v int")
    row = Row((), {"v": Cell(b"1234")}, time=T)
    table_plans = plans(decoder, known_table)
    table_plans[other.id.bytes] = decoder.TablePlan(is_known=False)
    updates = [Update(known_table, KEY, [row]), Update(other, KEY, [row]), Update(known_table, KEY, [row])]
    stream = entry(mutation(*updates)) + entry(mutation(updates[0]))
    batch = decoder.decode(stream, 100, True, table_plans, NODE, SEGMENT, 8, 100)
    # What precedes it is emitted. What follows it can't be separated from it: the segment has to be kept.
    assert (len(batch.changes), batch.skipped, batch.broken) == (2, ["unknown_table"], False)
    assert [position for position, _ in batch.problems] == [100]


def test_an_unknown_column_stops_decoding_until_the_agent_gives_up(decoder: ModuleType) -> None:
    now = table_of("a", "pk int pk, v int")
    then = table_of("a", "pk int pk, u text, v int")
    payload = mutation(Update(then, KEY, [Row((), {"u": Cell(b"x"), "v": Cell(b"1234")}, time=T)]))
    batch = decode(decoder, [payload], now)
    assert (batch.unknown.table, batch.unknown.column) == (now.id.bytes, b"u")
    table_plans = plans(decoder, now)
    table_plans[now.id.bytes].give_up(b"u")
    batch = decoder.decode(entry(payload) * 2, 100, True, table_plans, NODE, SEGMENT, 8, 100)
    assert [position for position, _ in batch.problems] == [100, 100 + len(payload) + 12]
    assert (batch.unknown, batch.changes, batch.broken) == (None, [], False)


def test_dropped_columns_are_known_by_the_schema(decoder: ModuleType) -> None:
    then = table_of("a", "pk int pk, l list<int>, u text, v int")
    now = table_of("a", "pk int pk, v int")
    now = Table(now.keyspace, now.name, now.id, now.columns, True, {c.name: c for c in then.values if c.name in "lu"})
    row = Row((), {"u": Cell(b"x"), "l": Complex([Cell(b"1234", path=b"p" * 16)]), "v": Cell(b"1234")}, time=T)
    payload = mutation(Update(then, KEY, [row]), Update(then, KEY, [row]))
    assert decode(decoder, [payload], now).changes == decode(decoder, [payload], then).changes != []


def test_reading_stops_after_a_schema_mutation(decoder: ModuleType) -> None:
    schema = table_of("tables", "pk text pk, ck text ck, v int", cdc=False, keyspace="system_schema")
    known_table = table_of("a", "pk int pk, v int")
    table_plans = plans(decoder, known_table)
    table_plans[schema.id.bytes] = decoder.plan_table(schema, schema=True)
    row = Row((), {"v": Cell(b"1234")}, time=T)
    ddl = entry(mutation(Update(schema, b"ks", [Row((b"a",), {"v": Cell(b"1234")}, time=T)])))
    dml = entry(mutation(Update(known_table, KEY, [row])))
    batch = decoder.decode(dml + ddl + dml, 100, True, table_plans, NODE, SEGMENT, 8, 100)
    assert batch.schema
    assert (len(batch.changes), batch.next) == (1, len(dml + ddl))


def test_reasons_of_tables_that_are_not_followed(decoder: ModuleType) -> None:
    table = table_of("a", "pk int pk, v int")
    row = Row((), {"v": Cell(b"1234")}, time=T)
    table_plans = {table.id.bytes: decoder.plan_table(table, reason="excluded")}
    batch = decoder.decode(entry(mutation(Update(table, KEY, [row]))), 0, True, table_plans, NODE, SEGMENT, 8, 9)
    assert (batch.skipped, batch.changes, batch.mutations) == (["excluded"], [], 1)


def test_limits_of_changes_and_pieces(decoder: ModuleType) -> None:
    table = table_of("t", "pk int pk, v int")
    section_entry = entry(mutation(Update(table, KEY, [Row((), {"v": Cell(b"1234")}, time=T)])))
    table_plans = plans(decoder, table)
    batch = decoder.decode(section_entry * 10, 0, True, table_plans, NODE, SEGMENT, 8, 4)
    assert (len(batch.changes), batch.next) == (4, 4 * len(section_entry))
    for cut in range(1, len(section_entry)):
        batch = decoder.decode(section_entry + section_entry[:cut], 0, False, table_plans, NODE, SEGMENT, 8, 99)
        assert (len(batch.changes), batch.next, batch.problems, batch.broken) == (1, len(section_entry), [], False)
        batch = decoder.decode(section_entry + section_entry[:cut], 0, True, table_plans, NODE, SEGMENT, 8, 99)
        # A small size begins with three zeros: as few at the end are padding.
        assert (len(batch.changes), len(batch.problems), batch.broken) == ((1, 1, True) if cut > 3 else (1, 0, False))


def test_zeros_end_a_section(decoder: ModuleType) -> None:
    table = table_of("t", "pk int pk, v int")
    section_entry = entry(mutation(Update(table, KEY, [Row((), {"v": Cell(b"1234")}, time=T)])))
    for zeros in (1, 4, 8, 11, 12, 13, 500):
        batch = decoder.decode(section_entry + bytes(zeros), 0, True, plans(decoder, table), NODE, SEGMENT, 8, 99)
        assert (len(batch.changes), batch.next, batch.problems) == (1, len(section_entry) + zeros, [])
    batch = decoder.decode(
        section_entry + bytes(20) + section_entry, 0, True, plans(decoder, table), NODE, SEGMENT, 8, 99
    )
    assert (len(batch.changes), batch.broken, [p for p, _ in batch.problems]) == (1, True, [len(section_entry)])


def test_bytes_after_the_last_sync_marker(decoder: ModuleType) -> None:
    """Every prefix of some entries, whatever follows: whole entries are decoded, the rest is left for later."""
    table = simple()
    entries = [entry(mutation(Update(table, KEY, [Row((bytes((0, 0, 0, n)),), time=T)]))) for n in range(2)]
    data = b"".join(entries)
    for cut in range(len(data)):
        for tail in (b"", bytes(len(data) - cut), b"\xff" * (len(data) - cut), bytes(5) + data[cut + 5 :]):
            batch = decoder.decode(data[:cut] + tail, 100, False, plans(decoder, table), NODE, SEGMENT, 8, 10**6, True)
            # The last bytes of an entry may by chance be what belongs there.
            whole = (data[:cut] + tail).startswith(entries[0]) + (data[:cut] + tail).startswith(data)
            assert (len(batch.changes), batch.next) == (whole, sum(map(len, entries[:whole])))
            assert (batch.problems, batch.broken) == ([], False)


def test_a_wrong_crc_costs_one_entry_if_the_size_is_right(decoder: ModuleType) -> None:
    table = table_of("t", "pk int pk, v int")
    good = entry(mutation(Update(table, KEY, [Row((), {"v": Cell(b"1234")}, time=T)])))
    bad = good[:-9] + bytes((good[-9] ^ 1,)) + good[-8:]
    batch = decoder.decode(good + bad + good, 7, True, plans(decoder, table), NODE, SEGMENT, 8, 99)
    assert (len(batch.changes), batch.broken) == (2, False)
    assert [p for p, _ in batch.problems] == [7 + len(good)]
    lost = bytes((0, 0, 0, good[3] ^ 1)) + good[4:]
    batch = decoder.decode(good + lost + good, 7, True, plans(decoder, table), NODE, SEGMENT, 8, 99)
    assert (len(batch.changes), batch.broken) == (1, True)


def test_undecodable_mutations_affect_no_others(decoder: ModuleType) -> None:
    table = table_of("t", "pk int pk, ck int ck, s int static, v int, l list<int>")
    good = mutation(Update(table, KEY, [Row((b"\0\0\0\1",), {"v": Cell(b"1234")}, time=T)]))
    head = b"\1" + table.id.bytes + vbytes(KEY)
    empty_header = vint(0) * 3
    bad = [
        vint(0) + bytes(20),
        b"\1" + table.id.bytes,
        b"\1" + table.id.bytes + b"\x80\xff" + KEY,
        b"\1" + table.id.bytes + b"\xff" * 9 + KEY,
        head + b"\0" + empty_header + b"\xff" * 9,
        head + b"\0" + empty_header + vint(0) + b"\2\3\0\0",  # a marker of kind 3
        head + b"\0" + empty_header + vint(0) + b"\2\1\0\2",  # a bound of more values than columns
        head + b"\0" + empty_header + vint(0) + b"\x80\1\0\0\0\0\1\1",  # a static row among rows
        head + b"\x08" + empty_header + vint(0) + vint(0) + b"\x04" + bytes(20),  # a static row without its mark
        head + b"\0" + empty_header + vint(0) + b"\x20\0\0\0\0\1\1\0",  # a byte too many
        good + b"\0",
        good[:-1],
    ]
    for payload in bad:
        batch = decode(decoder, [good, payload, good], table)
        assert (len(batch.changes), len(batch.problems), batch.broken) == (2, 1, False), payload
        assert batch.next == 2 * len(good) + len(payload) + 36


def test_events_do_not_depend_on_earlier_mutations(decoder: ModuleType) -> None:
    """More lists of columns than the decoder remembers."""
    names = [f"c{i:02}" for i in range(20)]
    table = table_of("t", "pk int pk, " + ", ".join(f"{n} int" for n in names))
    updates = [
        Update(table, KEY, [Row((), {n: Cell(b"1234") for n in names[: i % 20 + 1]}, time=T)]) for i in range(120)
    ]
    batch = decode(decoder, [mutation(u) for u in updates], table, base=0)
    position = 0
    expected = []
    for u in updates:
        position += len(mutation(u)) + 12
        expected += events([u], NODE, SEGMENT, position)
    assert events_of(batch, table) == expected
