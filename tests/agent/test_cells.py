"""Events with cells: all that a mutation says can be read from them, by a module that the agent does not use itself."""

from __future__ import annotations

import contextlib
import io
from dataclasses import replace
from types import ModuleType
from typing import Any

import fastavro
import pytest
from agent.strategies import mutations
from agent.writer import LIVE, Cell, Complex, Marker, Row, Update, entry, mutation, table_of
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from helenus_schemas.cql.table import Table
from helenus_schemas.cql.types import CqlType, parse
from helenus_schemas.cql.values import Malformed
from helenus_schemas.event import cells as wanted
from helenus_schemas.event import wire
from helenus_schemas.event.cells import Cells, Deletion, Liveness, decode_cells
from helenus_schemas.event.change import Change, Scope
from helenus_schemas.event.own_format import match_own_format, parse_match

NODE = "ad310466-96a7-4cb2-acf4-59535a960812"
T = 1_700_000_000_000_000
KEY = b"\0\0\0\7"


def decoded(decoder: ModuleType, updates: list[list[Update]], cells: bool) -> Any:
    tables = {update.table.id: update.table for parts in updates for update in parts}
    followed = [table for table in tables.values() if table.cdc]
    plans = {
        t.id.bytes: decoder.plan_table(t, followed.index(t) if t.cdc else -1, cells=cells and t.cdc)
        for t in tables.values()
    }
    data = b"".join(entry(mutation(*parts)) for parts in updates)
    return decoder.decode(data, 100, True, plans, NODE, 1795262845123, 8, 10**6)


def of_row(table: Table, row: Row) -> tuple[Any, ...]:
    """What the cells of a row are, by the description that it was written from."""
    types = {c.name: c.type for c in (*table.values, *table.dropped.values())}
    liveness = None if row.time is None else Liveness(row.time, *(row.expires or (None, None)))
    deletions, cells = {}, []
    for name in sorted(row.columns, key=lambda name: (types[name].multicell, name.encode())):
        column = row.columns[name]
        if isinstance(column, Complex) and column.deletion not in (None, LIVE):
            assert column.deletion
            deletions[name] = Deletion(*column.deletion)
        for cell in column.cells if isinstance(column, Complex) else [column]:
            time = row.time if cell.time is None else cell.time
            expires = row.expires if cell.row_ttl else cell.expires
            gone = cell.deleted_at is not None
            ttl = (None, None) if gone or expires is None else expires
            assert time is not None
            value = None if gone else cell.value
            cells.append(wanted.Cell(name, time, value, cell.path, *ttl, cell.deleted_at))
    return liveness, row.deletion and Deletion(*row.deletion), deletions, tuple(cells)


def is_written_by_cassandra(row: Row) -> bool:
    """A cell takes times of its row only if that has some, and a tombstone never a TTL."""
    cells = [
        cell for column in row.columns.values() for cell in (column.cells if isinstance(column, Complex) else [column])
    ]
    return all(
        (cell.time is not None or row.time is not None)
        and (not cell.row_ttl or (row.expires is not None and cell.deleted_at is None))
        for cell in cells
    )


def expected(update: Update) -> list[tuple[Scope, tuple[Any, ...]]]:
    wanted_cells: list[tuple[Scope, tuple[Any, ...]]] = []
    if update.deletion is not None:
        wanted_cells.append((Scope.PARTITION, (None, Deletion(*update.deletion), {}, ())))
    if update.static is not None:
        wanted_cells.append((Scope.STATIC, of_row(update.table, update.static)))
    for item in update.rows:
        if isinstance(item, Row):
            wanted_cells.append((Scope.ROW, of_row(update.table, item)))
        elif item.kind not in (1, 7):
            wanted_cells.append((Scope.RANGE, (None, Deletion(*item.deletions[0]), {}, ())))
    return wanted_cells


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None)
@given(mutations())
def test_cells_say_all_that_mutations_do(decoder: ModuleType, updates: list[list[Update]]) -> None:
    updates = [
        [
            replace(
                update,
                rows=[row for row in update.rows if isinstance(row, Marker) or is_written_by_cassandra(row)],
                static=update.static if update.static and is_written_by_cassandra(update.static) else None,
            )
            for update in parts
        ]
        for parts in updates
    ]
    light, full = decoded(decoder, updates, False), decoded(decoder, updates, True)
    assert (full.problems, full.next, full.skipped) == (light.problems, light.next, light.skipped)
    wishes = [
        (update.table, wish) for parts in updates for update in parts if update.table.cdc for wish in expected(update)
    ]
    assert len(full.changes) == len(light.changes) == len(wishes)
    for (*first, value), (*same, bare), (table, (scope, wish)) in zip(full.changes, light.changes, wishes, strict=True):
        assert first == same
        assert wire.without_cells(value) == bare
        change = wire.decode(value)
        assert change.scope is scope
        assert change.cells is not None
        decoded_cells = decode_cells(change.cells, scope)
        assert (decoded_cells.table, decoded_cells.schema.hex()) == (table.id.bytes, table.schema_id)
        assert decoded_cells[3:] == wish
        types = {c.name: c.type for c in (*table.values, *table.dropped.values())}
        assert all(types[name] == of_column for name, of_column in decoded_cells.columns.items())


def cells_of(decoder: ModuleType, update: Update) -> tuple[Change, Cells]:
    (changed,) = decoded(decoder, [[update]], True).changes
    change = wire.decode(changed[3])
    assert change.cells is not None
    return change, decode_cells(change.cells, change.scope)


def test_an_insert_with_ttl(decoder: ModuleType) -> None:
    table = table_of("t", "pk int pk, v int, w text, x map<int, int>")
    cells = {"v": Cell(b"1234", row_ttl=True), "w": Cell(b"", row_ttl=True), "x": Complex([], (T - 1, 1_700_000_000))}
    row = Row((), cells, time=T, expires=(60, 1_700_000_060))
    _, decoded_cells = cells_of(decoder, Update(table, KEY, [row], lowest=(T - 1, 1_700_000_000, 60)))
    assert decoded_cells.liveness == Liveness(T, 60, 1_700_000_060)
    assert decoded_cells.cells == (
        wanted.Cell("v", T, b"1234", ttl=60, expires=1_700_000_060),
        wanted.Cell("w", T, b"", ttl=60, expires=1_700_000_060),
    )
    assert decoded_cells.deletions == {"x": Deletion(T - 1, 1_700_000_000)}
    assert {name: str(t) for name, t in decoded_cells.columns.items()} == {
        "v": "int",
        "w": "text",
        "x": "map<int, int>",
    }


def test_types_come_with_the_types_that_they_name(decoder: ModuleType) -> None:
    inner = CqlType("udt", (parse("int"),), label="Inner", fields=("a b",))
    outer = CqlType("udt", (parse("text"), replace(inner, frozen=True)), label="outer", fields=("x", "y"))
    table = table_of("t", "pk int pk, v int")
    columns = (table.columns[0], replace(table.columns[1], type=outer))
    path = [Cell(b"1", time=T, path=b"\0\1")]
    _, decoded_cells = cells_of(decoder, Update(replace(table, columns=columns), KEY, [Row((), {"v": Complex(path)})]))
    assert decoded_cells.columns == {"v": outer}


def test_matched_and_decoded_alike_and_avro_reads_it(decoder: ModuleType) -> None:
    table = table_of("t", "pk int pk, v int")
    (changed,) = decoded(decoder, [[Update(table, KEY, [Row((), {"v": Cell(b"1234")}, time=T)])]], True).changes
    change, match = wire.decode(changed[3]), match_own_format(changed[3])
    assert match is not None
    assert parse_match(match) == change._replace(segment=-1, position=-1)
    assert wire.encode(change) == changed[3]
    seen = fastavro.schemaless_reader(io.BytesIO(changed[3]), fastavro.parse_schema(wire.SCHEMA_WITH_CELLS))
    assert isinstance(seen, dict)
    assert seen["cells"]["table"] == table.id.bytes
    assert seen["cells"]["columns"] == '{"columns":[["v","int"]]}'
    assert (seen["origin"], seen["writeTime"]) == ("LOG", T)


@given(st.data())
def test_broken_bytes_are_malformed(data: st.DataObject) -> None:
    text = b'{"columns":[["v","int"],["m","map<int, int>"]]}'
    row = bytes((0x24 | 64, 5, 8)) + b"1234" + bytes((5, 6, 1, 0, 7, 1, 9, 1, 8))
    good = b"\2" + bytes(32) + bytes((len(text) << 1,)) + text + b"\2\4\6" + bytes((len(row) << 1,)) + row
    decoded_cells = decode_cells(good, Scope.ROW)
    assert [(cell.column, cell.value, cell.path) for cell in decoded_cells.cells] == [
        ("v", b"1234", None),
        ("m", b"\x08", b"\x09"),
    ]
    position = data.draw(st.integers(0, len(good) - 1))
    broken = data.draw(
        st.sampled_from(
            [
                good[:position],
                good + b"\0",
                good[:position] + data.draw(st.binary(min_size=1, max_size=4)) + good[position:],
            ]
        )
    )
    with contextlib.suppress(Malformed):  # and nothing else
        decode_cells(broken, data.draw(st.sampled_from([Scope.ROW, Scope.STATIC, Scope.PARTITION, Scope.RANGE])))


def test_cells_of_a_newer_version_are_refused() -> None:
    with pytest.raises(Malformed, match="cells of version 2, where 1 is known: an agent that is newer than this"):
        decode_cells(b"\4" + bytes(60), Scope.ROW)
