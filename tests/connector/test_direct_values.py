"""Records straight from cells, of any types and values: byte for byte what the long way makes, plain and compiled."""

from __future__ import annotations

import struct
from types import ModuleType
from uuid import UUID

import pytest
from agent.writer import Cell, Complex, Row, Update
from connector.test_direct import Both, direct, form, resolved  # noqa: F401  # fixtures
from connector.test_envelope import LOWEST, int32
from hypothesis import given
from hypothesis import strategies as st

from helenus_schemas.cql.table import Column, Table
from helenus_schemas.cql.types import CqlType
from helenus_schemas.cql.values import collection_bytes, part_bytes, vint_bytes
from helenus_schemas.event.change import Scope

T = 1_700_000_000_000_000
WIDTHS = {"tinyint": 1, "smallint": 2, "int": 4, "bigint": 8, "timestamp": 8, "time": 8, "date": 4, "float": 4}
WIDTHS |= {"double": 8, "uuid": 16, "timeuuid": 16}
SCALARS = [*WIDTHS, "ascii", "text", "blob", "boolean", "inet", "varint", "decimal", "duration"]
SETTINGS = [
    {},
    {"decimal.handling.mode": "double", "varint.handling.mode": "long", "time.precision.mode": "microseconds"},
    {"decimal.handling.mode": "string", "varint.handling.mode": "string"},
    {"columns": "v0|v1"},
    {"headers": "writetime,expires,op,node,segpos,digest,schema_id,origin"},
]


def frozen_types(scalars: list[str]) -> st.SearchStrategy[CqlType]:
    def larger(inner: st.SearchStrategy[CqlType]) -> st.SearchStrategy[CqlType]:
        pair = st.tuples(inner, inner)
        return st.one_of(
            inner.map(lambda t: CqlType("list", (t,), True)),
            inner.map(lambda t: CqlType("set", (t,), True)),
            pair.map(lambda args: CqlType("map", args, True)),
            pair.map(lambda args: CqlType("tuple", args, True)),
            pair.map(lambda args: CqlType("udt", args, True, f"u{abs(hash(args))}", ("a", 'b"%'))),
        )

    return st.recursive(st.sampled_from(scalars).map(CqlType), larger, max_leaves=4)


def column_types() -> st.SearchStrategy[CqlType]:
    inner = frozen_types([name for name in SCALARS if name != "duration"])
    many = st.one_of(
        inner.map(lambda t: CqlType("list", (t,))),
        inner.map(lambda t: CqlType("set", (t,))),
        st.tuples(inner, inner).map(lambda args: CqlType("map", args)),
        st.tuples(inner, inner).map(lambda args: CqlType("udt", args, False, f"u{abs(hash(args))}", ("a", "b"))),
    )
    return st.one_of(frozen_types(SCALARS), many)


@st.composite
def values(draw: st.DrawFn, t: CqlType, always_valid: bool = False) -> bytes:
    """CQL bytes of a type: most are a value."""
    if not always_valid and draw(st.integers(0, 29)) == 0:
        return draw(st.binary(max_size=17))
    if t.name in WIDTHS:
        return draw(st.binary(min_size=WIDTHS[t.name], max_size=WIDTHS[t.name]))
    if t.name in ("ascii", "text"):
        return draw(st.text(max_size=6) | st.sampled_from(['"', "\\\x01\x1f\x7f", "\b\t\n\f\r", "ü\u2028"])).encode()
    if t.name == "boolean":
        return draw(st.sampled_from([b"\0", b"\1"]))
    if t.name == "inet":
        return draw(st.sampled_from([bytes(4), bytes(range(16)), bytes(10) + b"\xff\xff\1\2\3\4"]))
    if t.name == "decimal":
        return int32(draw(st.integers(-40, 40))) + draw(st.binary(min_size=1, max_size=18))
    if t.name == "duration":
        return b"".join(vint_bytes(draw(st.integers(0, 1 << 40))) for _ in range(3))
    if t.name in ("list", "set", "map"):
        count = draw(st.integers(0, 3))
        parts = [draw(_parts(a, always_valid)) for _ in range(count) for a in t.args]
        return collection_bytes(count, parts)
    if t.name in ("tuple", "udt"):
        parts = [draw(_parts(a, always_valid) | st.none()) for a in t.args]
        return b"".join(map(part_bytes, parts[: draw(st.integers(0 if not always_valid else len(parts), len(parts)))]))
    return draw(st.binary(min_size=1, max_size=18))


@st.composite
def _parts(draw: st.DrawFn, t: CqlType, always_valid: bool) -> bytes | None:
    return None if not always_valid and draw(st.integers(0, 29)) == 0 else draw(values(t, always_valid))


@st.composite
def cells(draw: st.DrawFn, t: CqlType, path: bytes | None = None) -> Cell:
    cell = Cell(draw(values(t)), T, path=path)
    kind = draw(st.integers(0, 19))
    if kind == 0:
        cell.value, cell.deleted_at = None, 1_700_000_000
    elif kind in (1, 2):
        cell.expires = (60, 1_700_000_060)
    return cell


@st.composite
def columns(draw: st.DrawFn, t: CqlType) -> Cell | Complex:
    if not t.multicell:
        return draw(cells(t))
    made = []
    for n in range(draw(st.integers(0, 3))):
        if t.name == "udt":
            if n < len(t.args):
                made.append(draw(cells(t.args[n], struct.pack(">H", n))))
        elif t.name == "list":
            made.append(draw(cells(t.args[0], bytes((n, *range(15))))))
        else:
            path = draw(values(t.args[0]))
            made.append(draw(cells(t.args[1], path)) if t.name == "map" else Cell(b"", T, path=path))
    return Complex(made, draw(st.sampled_from([None, (T - 1, 1_700_000_000)])))


@st.composite
def written(draw: st.DrawFn) -> tuple[Table, Update]:
    types = draw(st.lists(column_types(), min_size=1, max_size=5))
    clustering = draw(frozen_types([name for name in SCALARS if name != "duration"]))
    is_static = draw(st.integers(0, 4)) == 0
    kind = "static" if is_static else "regular"
    table_columns = [Column("k", CqlType("int"), "partition_key", 0), Column('c"ü', clustering, "clustering", 0)]
    table_columns += [Column(f"v{n}", t, kind) for n, t in enumerate(types)]
    table = Table("ks", "t", UUID(int=1), (*table_columns, Column("w", CqlType("text"))), cdc=True)
    row_columns = {f"v{n}": draw(columns(t)) for n, t in enumerate(types) if draw(st.integers(0, 4))}
    time = draw(st.sampled_from([None, T]))
    expires = draw(st.sampled_from([None, (60, 1_700_000_060)])) if time is not None else None
    if is_static:
        return table, Update(table, int32(7), static=Row((), row_columns), lowest=LOWEST)
    key = (draw(values(clustering, always_valid=True)),)
    return table, Update(table, int32(7), [Row(key, row_columns, time=time, expires=expires)], lowest=LOWEST)


@given(written(), st.sampled_from(SETTINGS))
def test_any_value_is_the_same(
    direct: ModuleType,  # noqa: F811
    form: dict[str, str],  # noqa: F811
    table_and_update: tuple[Table, Update],
    more: dict[str, str],
) -> None:
    table, update = table_and_update
    if not (update.rows or update.static.columns):
        return
    both = Both(direct, table, form, **more)
    both.straight(resolved(both, update))


def test_an_insert_with_a_ttl_goes_straight(direct: ModuleType, form: dict[str, str]) -> None:  # noqa: F811
    """A column that expires, one that is deleted, and a collection of elements that expire."""
    names = CqlType("map", (CqlType("text"), CqlType("int")))
    table_columns = [Column("k", CqlType("int"), "partition_key", 0), Column("v", CqlType("int"))]
    table_columns += [Column("w", CqlType("text")), Column("m", names)]
    table = Table("ks", "t", UUID(int=1), tuple(table_columns), cdc=True)
    element = Cell(int32(1), path=b"a", row_ttl=True)
    row_columns = {"v": Cell(int32(1), row_ttl=True), "w": Cell(None, deleted_at=1_700_000_000)}
    row = Row((), {**row_columns, "m": Complex([element], (T - 1, 1_700_000_000))}, time=T, expires=(60, 1_700_000_060))
    both = Both(direct, table, form)
    made = resolved(both, Update(table, int32(7), [row], lowest=LOWEST))
    assert made.scope is Scope.ROW
    assert both.straight(made)


def test_removed_elements_go_straight(direct: ModuleType, form: dict[str, str]) -> None:  # noqa: F811
    """An element of a map, of a set and of a list, and a field of a UDT; and of each one that is written."""
    text, number = CqlType("text"), CqlType("int")
    types = [CqlType("map", (text, number)), CqlType("set", (text,)), CqlType("list", (number,))]
    types.append(CqlType("udt", (text, text), False, "u", ("a", "b")))
    paths = [(b"a", b"b"), (b"a", b"b"), (bytes(16), bytes(range(16))), (b"\0\0", b"\0\1")]
    elements = [int32(1), b"", int32(1), b"x"]
    table_columns = [Column(f"v{n}", t) for n, t in enumerate(types)]
    table = Table("ks", "t", UUID(int=1), (Column("k", number, "partition_key", 0), *table_columns), cdc=True)
    row_columns: dict[str, Cell | Complex] = {}
    for n, ((first, second), element) in enumerate(zip(paths, elements, strict=True)):
        removed = Cell(None, path=first, time=T, deleted_at=1_700_000_000)
        row_columns[f"v{n}"] = Complex([removed, Cell(element, path=second, time=T)])
    both = Both(direct, table, form)
    for chosen in (row_columns, {"v0": Complex([Cell(None, path=b"a", time=T, deleted_at=1_700_000_000)])}):
        assert both.straight(resolved(both, Update(table, int32(7), [Row((), chosen)], lowest=LOWEST)))


def test_a_cleared_collection_goes_straight(direct: ModuleType, form: dict[str, str]) -> None:  # noqa: F811
    names = CqlType("map", (CqlType("text"), CqlType("int")))
    table = Table(
        "ks", "t", UUID(int=1), (Column("k", CqlType("int"), "partition_key", 0), Column("m", names)), cdc=True
    )
    both = Both(direct, table, form)
    row = Row((), {"m": Complex([], (T, 1_700_000_000))})
    assert both.straight(resolved(both, Update(table, int32(7), [row], lowest=LOWEST)))


@pytest.mark.parametrize("handling", ["precise", "string", "double"])
def test_decimals_go_straight(direct: ModuleType, form: dict[str, str], handling: str) -> None:  # noqa: F811
    table_columns = (Column("k", CqlType("int"), "partition_key", 0), Column("v", CqlType("decimal")))
    table = Table("ks", "t", UUID(int=1), table_columns, cdc=True)
    update = Update(table, int32(7), [Row((), {"v": Cell(int32(1) + b"\5")}, time=T)], lowest=LOWEST)
    both = Both(direct, table, form, **{"decimal.handling.mode": handling})
    assert both.straight(resolved(both, update))
