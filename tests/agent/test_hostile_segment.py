"""A commit log that somebody made up, under right checksums: refused by steps and memory in proportion to its bytes."""

from __future__ import annotations

import struct
import subprocess
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import hostile
import pytest
from agent.test_decoder import NODE, SEGMENT, plans
from agent.test_fuzz import plainly, rich
from agent.writer import Cell, Complex, Marker, Row, Update, entry, file_name, header, mutation, segment_bytes, table_of
from hostile import JSON_TEXTS, damaged, unsigned_vint
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from helenus_agent.commitlog.segment import Segment
from helenus_agent.commitlog.segment_header import Corrupt, read_header
from helenus_agent.commitlog.segment_source import read_index

slow = settings(deadline=None, suppress_health_check=list(HealthCheck))
KEY = struct.pack(">i", 7)
ONE = struct.pack(">i", 1)
WIDE = table_of("w", "k int pk, c int ck, v vector<float,3>, m map<int,text>, d frozen<list<int>>, s int static")
VALID = [
    Update(WIDE, KEY, [Row((ONE,), {"v": Cell(bytes(12)), "m": Complex([Cell(b"x", path=ONE)], (3, 4))}, time=9)]),
    Update(
        WIDE, KEY, [Marker(1, (ONE,), ((9, 10),)), Marker(6, (ONE,), ((9, 10),))], Row((), {"s": Cell(ONE)}), (1, 2)
    ),
]


def decode(decoder: ModuleType, payload: bytes, tables: Any, cells: bool = True) -> Any:
    table_plans = plans(decoder, *tables)
    if cells:
        table_plans = {t.id.bytes: decoder.plan_table(t, 0, cells=True) for t in tables}
    while len(payload) < 10:
        payload += b"\0"
    return decoder.decode(entry(payload), 4000, True, table_plans, NODE, SEGMENT, 8, 10**9)


@slow
@given(cells=st.booleans(), data=st.data())
def test_mutations(plain: ModuleType, compiled: ModuleType, cells: bool, data: st.DataObject) -> None:
    updates = rich()
    payload = data.draw(damaged(mutation(*updates)))
    tables = {u.table.id: u.table for u in updates}.values()
    batch = hostile.run(lambda: decode(plain, payload, tables, cells), len(payload) + 500)
    assert plainly(batch) == plainly(decode(compiled, payload, tables, cells))


@pytest.mark.parametrize("update", range(len(VALID)))
def test_mutations_that_end_early(plain: ModuleType, compiled: ModuleType, update: int) -> None:
    whole = mutation(VALID[update])
    for cut in range(40, len(whole)):
        batch = decode(compiled, whole[:cut], [WIDE])
        assert plainly(batch) == plainly(decode(plain, whole[:cut], [WIDE]))
        assert not batch.changes
        assert batch.problems


def test_a_value_whose_type_is_wider_than_what_is_there(plain: ModuleType, compiled: ModuleType) -> None:
    """In C the cells of a row are taken by a pointer: beyond the mutation's end is other memory, or, after 400 MB, most
    likely none. So this runs in a process of its own.
    """
    table = table_of("w", "k int pk, c int ck, v vector<float,100000000>")
    whole = mutation(Update(table, KEY, [Row((ONE,), {"v": Cell(bytes(40))}, time=9)]))
    assert decode(plain, whole, [table]).problems
    script = f"""
import sys
sys.path.insert(0, "tests")
import twice
from pathlib import Path
from agent.test_hostile_segment import decode
from agent.writer import table_of
decoder = twice.load("compiled.decoder", Path({compiled.__file__!r}))
table = table_of("w", "k int pk, c int ck, v vector<float,100000000>")
assert decoder.COMPILED
for cut in range(60, {len(whole)}):
    assert decode(decoder, bytes.fromhex({whole.hex()!r})[:cut], [table]).problems
print("done")
"""
    process = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=False)
    assert (process.returncode, process.stdout) == (0, "done\n"), process.stderr


def test_columns_that_are_named_again_and_again(plain: ModuleType) -> None:
    """Rows that have none of a header's columns would take time for all of them."""
    table = table_of("t", "k int pk, c int ck, v int")
    count, rows = 2_000, 2_000
    head = bytes(plain_update(table, count))
    row = b"\x00" + b"\x00" + ONE + unsigned_vint(count)  # flags, clustering, and how many columns are missing
    payload = b"\1" + head + row * rows + b"\1"
    batch = hostile.run(lambda: decode(plain, payload, [table]), len(payload))
    assert [problem for _, problem in batch.problems] == ["more columns than the table has, table ks.t"]


def plain_update(table: Any, count: int) -> bytes:
    """An update's head, whose header names one column so many times."""
    low = unsigned_vint(0)
    return table.id.bytes + b"\4" + KEY + b"\0" + low * 3 + unsigned_vint(count) + b"\1v" * count


OPTIONS = [b"{}", b'{"compressionClass":"LZ4Compressor"}', b'{"encCipher":"x"}']


@slow
@given(options=st.sampled_from([*OPTIONS, *JSON_TEXTS]), data=st.data())
def test_headers(options: bytes, data: st.DataObject) -> None:
    whole = header(SEGMENT, 7, options[:65_000])
    hostile.run(lambda: read_header(whole, 7, SEGMENT), len(whole), Corrupt)
    bad = data.draw(damaged(whole))
    hostile.run(lambda: read_header(bad, 7, SEGMENT), len(bad), Corrupt)


@pytest.mark.parametrize("text", ["", "x", "9" * 5000, "12\nCOMPLETED", "12" + "\n" * 10_000_000, "\0", "-1"])
def test_indexes(tmp_path: Path, text: str) -> None:
    path = tmp_path / file_name(SEGMENT, 7)
    (tmp_path / f"{path.stem}_cdc.idx").write_text(text)
    index = hostile.run(lambda: read_index(path), 0)
    assert index in (None, (12, True), (12, False), (-1, False))


@pytest.mark.parametrize("compressor", ["", "LZ4Compressor", "SnappyCompressor", "DeflateCompressor", "ZstdCompressor"])
@slow
@given(data=st.data())
def test_segments(tmp_path: Path, compressor: str, data: st.DataObject) -> None:
    """Lengths of sections and of blocks that are none."""
    file = segment_bytes(SEGMENT, [entry(mutation(*rich())), b"x" * 300], 2000, 7, compressor)
    bad = data.draw(damaged(file))
    path = tmp_path / file_name(SEGMENT, 7)
    path.write_bytes(bad)

    def read() -> None:
        segment = Segment(path)
        segment.complete = True
        try:
            for _ in range(6):
                if not segment.look():
                    break
                segment.read(100)
                segment.skip()
        finally:
            segment.close()

    hostile.run(read, len(bad) + 1000, Corrupt)
