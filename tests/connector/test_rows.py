"""Rows of a native-protocol result as bytes: by the driver's compiled parser, and by ours where there is none."""

from __future__ import annotations

import io
import struct

import pytest
from cassandra.protocol import ResultMessage
from hypothesis import given
from hypothesis import strategies as st

from helenus_connector.reread import _ordinary, rows
from helenus_connector.reread.rows import Page, RawRow, parse, row_factory

values = st.none() | st.binary(max_size=6)
results = st.integers(1, 5).flatmap(
    lambda columns: st.tuples(st.just(columns), st.lists(st.tuples(*[values] * columns)))
)


def body(found: list[RawRow]) -> bytes:
    cells = (struct.pack(">i", -1) if v is None else struct.pack(">i", len(v)) + v for row in found for v in row)
    return struct.pack(">i", len(found)) + b"".join(cells)


@given(results)
def test_both_parsers_give_the_bytes_that_were_sent(result: tuple[int, list[RawRow]]) -> None:
    columns, found = result
    data = body(found)
    for page in (parse(data, columns), rows._parse(data, columns)):
        assert (list(page), page.size) == (found, len(data))


def test_a_result_that_ends_early_is_an_error() -> None:
    data = body([(b"abc", b"d")])[:-1]
    for read in (parse, rows._parse):
        with pytest.raises((EOFError, ValueError, struct.error)):
            read(data, 2)


@pytest.mark.parametrize("keyspace", ["systems", "system_orders", "ks", "system", "system_schema"])
def test_only_cassandras_own_tables_are_read_as_values(keyspace: str) -> None:
    names = b"".join(struct.pack(">H", len(name)) + name for name in (keyspace.encode(), b"t", b"a"))
    an_int = 9
    data = struct.pack(">ii", 1, 1) + names + struct.pack(">H", an_int) + body([(b"\0\0\0\7",)])
    result = rows.RawProtocolHandler.message_types_by_opcode[ResultMessage.opcode](2)
    result.recv_results_rows(io.BytesIO(data), 4, {}, None, None)
    own = keyspace in {"system", "system_schema"}
    assert list(result.parsed_rows) == [(7,) if own else (b"\0\0\0\7",)]


def test_rows_of_user_tables_stay_as_they_are() -> None:
    page = Page([(b"a",)])
    assert row_factory(["a"], page) is page
    assert row_factory(["a"], [(1,)])[0].a == 1


@pytest.mark.parametrize(
    ("times", "newest"),
    [([], None), ([None], None), ([5, None, 70], 70), ([-5, 3], 3), ([-5, -1], -1), ([-5, -5], -5), ([0], 0)],
)
def test_the_newest_of_write_times(times: list[int | None], newest: int | None) -> None:
    assert _ordinary.newest(tuple([None if t is None else struct.pack(">q", t) for t in times])) == newest
