"""Rows read cell by cell: plain and compiled read the same, of whatever bytes."""

from __future__ import annotations

from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import twice
from hostile import avro_long, damaged, unsigned_vint
from hypothesis import given
from hypothesis import strategies as st
from schemas.test_cells_writer import drawn_cells

from helenus_schemas.cql.values import Malformed
from helenus_schemas.event import cells, row_cursor
from helenus_schemas.event.cells import Cells, decode_cells, head_of
from helenus_schemas.event.cells_writer import encode_cells
from helenus_schemas.event.change import Scope

SOURCE = Path(row_cursor.__file__).with_name("row_cursor.py")
PLAIN = twice.plain(SOURCE)
COLUMNS = b'{"columns":[%b]}' % b",".join(b'["v%d","%b"]' % (n, (b"int", b"text")[n % 2]) for n in range(70))


@pytest.fixture(scope="module")
def compiled(tmp_path_factory: pytest.TempPathFactory) -> ModuleType:
    return twice.compiled(SOURCE, tmp_path_factory)


def read(module: Any, data: bytes, scope: Scope = Scope.ROW) -> Any:
    """What the cells say, read by this form; or why they are refused."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(cells, "RowCursor", module.RowCursor)
        try:
            return decode_cells(data, scope)
        except Malformed as error:
            return str(error)


def with_row(head: bytes, row: bytes) -> bytes:
    """The field `cells` of a row of these bytes, after the version, the ids and the columns."""
    return head + avro_long(5) + avro_long(6) + avro_long(7) + avro_long(len(row)) + row


@given(drawn_cells(), st.sampled_from([Scope.ROW, Scope.STATIC, Scope.PARTITION, Scope.RANGE]), st.data())
def test_both_read_the_same(compiled: ModuleType, written: Cells, scope: Scope, data: st.DataObject) -> None:
    whole = encode_cells(written)
    assert read(PLAIN, whole) == read(compiled, whole) == written
    changed = data.draw(damaged(whole))
    assert read(PLAIN, changed, scope) == read(compiled, changed, scope)
    changed = with_row(head_of(whole), data.draw(damaged(whole[len(head_of(whole)) + 4 :])))
    assert read(PLAIN, changed, scope) == read(compiled, changed, scope)


@given(st.binary(max_size=200))
def test_both_read_the_same_of_a_row_of_many_columns(compiled: ModuleType, row: bytes) -> None:
    data = with_row(b"\2" + bytes(32) + avro_long(len(COLUMNS)) + COLUMNS, row)
    assert read(PLAIN, data) == read(compiled, data)


@pytest.mark.parametrize("number", [0, 127, 128, (1 << 63) - 1, 1 << 63, (1 << 64) - 1])
def test_numbers_of_any_size(compiled: ModuleType, number: int) -> None:
    """Sizes, and differences of times, are unsigned and have up to 64 bits."""
    for module in (PLAIN, compiled):
        cursor = module.RowCursor()
        cursor.begin_row(b"\x24" + unsigned_vint(number), 0, 5, 6, 7)
        cursor.read_head(1)
        assert cursor.write_time == (number + 5 + (1 << 63)) % (1 << 64) - (1 << 63)
        cursor = module.RowCursor()
        cursor.begin_row(b"\x20\0\0" + unsigned_vint(number), 0, 5, 6, 7)
        cursor.read_head(1)
        if number:
            with pytest.raises(Malformed, match=f"they end {number} bytes after the data"):
                cursor.read_cell(-1, False)
