"""Cells that are written are those that are read."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from helenus_schemas.cql.types import parse
from helenus_schemas.event.cells import Cell, Cells, Deletion, Liveness, decode_cells
from helenus_schemas.event.cells_writer import encode_cells
from helenus_schemas.event.change import Scope

TYPES = {"a": parse("int"), "b": parse("text"), "l": parse("list<int>"), "m": parse("map<text, int>")}
TIMES = st.integers(-(1 << 62), 1 << 62)
SECONDS = st.integers(0, (1 << 32) - 1)
DELETIONS = st.builds(Deletion, TIMES, SECONDS)
LIVENESS = st.builds(Liveness, TIMES, st.none(), st.none()) | st.builds(Liveness, TIMES, SECONDS, SECONDS)


@st.composite
def cell(draw: st.DrawFn, column: str) -> Cell:
    path = draw(st.binary(max_size=40)) if TYPES[column].multicell else None
    time = draw(TIMES)
    value = draw(st.sampled_from([b"", b"\0\0\0\1"]) if column == "a" else st.binary(max_size=300))
    match draw(st.sampled_from(["live", "expires", "tombstone"])):
        case "tombstone":
            return Cell(column, time, None, path, deleted_at=draw(SECONDS))
        case "expires":
            return Cell(column, time, value, path, draw(SECONDS), draw(SECONDS))
        case _:
            return Cell(column, time, value, path)


@st.composite
def drawn_cells(draw: st.DrawFn) -> Cells:
    cells: list[Cell] = []
    for column, t in TYPES.items():
        max_cells = 3 if t.multicell else 1
        cells += draw(st.lists(cell(column), max_size=max_cells))
    deletions = draw(st.dictionaries(st.sampled_from(["l", "m"]), DELETIONS, max_size=2))
    names = {c.column for c in cells} | deletions.keys()
    columns = {name: t for name, t in TYPES.items() if name in names}
    liveness, deletion = draw(st.none() | LIVENESS), draw(st.none() | DELETIONS)
    return Cells(b"t" * 16, b"s" * 16, columns, liveness, deletion, deletions, tuple(cells))


@given(drawn_cells())
def test_what_is_written_is_read(cells: Cells) -> None:
    assert decode_cells(encode_cells(cells), Scope.ROW) == cells


def test_nothing_but_a_deletion() -> None:
    cells = Cells(b"t" * 16, b"s" * 16, {}, deletion=Deletion(5, 7))
    assert decode_cells(encode_cells(cells), Scope.ROW) == cells
