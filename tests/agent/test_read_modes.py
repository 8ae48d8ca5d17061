"""The agent in its read modes: events once, positions that any mode can go on from."""

from __future__ import annotations

from typing import get_args

import pytest
from agent.fakes import write_of
from agent.test_agent import TABLE, Bench, bench
from agent.writer import COMPRESS, Cell, Row, Update, entry, file_name, header, mutation, segment_bytes

from helenus_agent.commitlog.segment import ReadMode
from helenus_agent.positions import SegmentMark

__all__ = ["bench"]
MODES = get_args(ReadMode)


@pytest.mark.parametrize("mode", MODES)
def test_as_cassandra_writes(bench: Bench, mode: str) -> None:
    """Each mode at its time, and each event once."""
    bench.raw.segment(10)
    bench.raw.write(10, write_of(TABLE, 0))
    bench.start(read_mode=mode)
    bench.run_agent()
    assert bench.keys == ([] if mode == "idx" else [0])
    bench.raw.index(10)
    bench.run_agent()
    assert bench.keys == [0]
    bench.raw.unmarked(10, write_of(TABLE, 1), write_of(TABLE, 2))
    bench.run_agent()
    assert bench.keys == ([0, 1, 2] if mode == "eager" else [0])
    bench.raw.unmarked(10, write_of(TABLE, 1), write_of(TABLE, 2), write_of(TABLE, 3))
    bench.raw.write(10, write_of(TABLE, 1), write_of(TABLE, 2), write_of(TABLE, 3))
    bench.run_agent()
    assert bench.keys == ([0] if mode == "idx" else [0, 1, 2, 3])
    bench.raw.index(10, complete=True)
    bench.run_agent()
    assert bench.keys == [0, 1, 2, 3]
    assert bench.raw.names == []


@pytest.mark.parametrize("first", MODES)
@pytest.mark.parametrize("then", MODES)
def test_another_mode_goes_on(bench: Bench, first: str, then: str) -> None:
    bench.raw.segment(10)
    bench.raw.write(10, *(write_of(TABLE, n) for n in range(10)))
    bench.raw.index(10)
    bench.raw.unmarked(10, *(write_of(TABLE, n) for n in range(10, 13)))
    bench.start(read_mode=first)
    bench.run_agent()
    ahead = 13 if first == "eager" else 10
    assert bench.keys == list(range(ahead))
    bench.raw.write(10, *(write_of(TABLE, n) for n in range(10, 16)))
    bench.raw.index(10, complete=True)
    bench.start(read_mode=then)
    bench.run_agent()
    assert bench.keys == list(range(16))


def test_eager_goes_back_to_what_is_acknowledged(bench: Bench) -> None:
    bench.raw.segment(10)
    bench.raw.write(10, write_of(TABLE, 0))
    bench.start(read_mode="eager")
    bench.run_agent()
    bench.raw.unmarked(10, write_of(TABLE, 1), write_of(TABLE, 2))
    bench.log.refuse_flush = 1
    bench.run(until=3)
    assert bench.keys == [0, 1, 2]


def test_eager_with_large_entries_and_many(bench: Bench) -> None:
    """More than is read at once, and an entry that is larger than that."""
    large = mutation(Update(TABLE, b"\0\0\0\1", [Row((), {"v": Cell(b"1234", time=1)}) for _ in range(19_000)]))
    assert len(entry(large)) > 1 << 17
    bench.raw.segment(10, size=4_000_000)
    bench.raw.write(10, write_of(TABLE, 0))
    bench.raw.unmarked(10, *(write_of(TABLE, n) for n in range(5000)), large, write_of(TABLE, 7))
    bench.start(read_mode="eager")
    bench.run_agent()
    assert len(bench.keys) == 1 + 5000 + 19_000 + 1
    assert bench.keys[:6] == [0, 0, 1, 2, 3, 4]
    assert bench.keys[-1] == 7


@pytest.mark.parametrize(
    "compressor", [c if c.startswith("LZ4") else pytest.param(c, marks=pytest.mark.long) for c in COMPRESS]
)
def test_stopped_in_a_compressed_section(bench: Bench, compressor: str) -> None:
    contents = [b"".join(entry(write_of(TABLE, n)) for n in range(first, first + 5000)) for first in (0, 5000)]
    path = bench.raw.path / file_name(10, 8)
    path.write_bytes(segment_bytes(10, contents, version=8, compressor=compressor))
    agent = bench.start()
    assert agent.step()
    assert agent.commit()
    assert 0 < len(bench.keys) < 5000
    mark = bench.saved.segments[10]
    assert isinstance(mark, SegmentMark)
    assert mark.offset < len(contents[0])
    path.with_name(f"{path.stem}_cdc.idx").write_text(f"{path.stat().st_size}\nCOMPLETED")
    bench.start()
    bench.run_agent()
    assert bench.keys == list(range(10_000))
    assert bench.raw.names == []
    assert bench.saved.done == [10]


@pytest.mark.parametrize("mode", MODES)
def test_version_6_is_read_and_taken_away(bench: Bench, mode: str) -> None:
    """Cassandra 3.11 moves its segments here when they are complete, without index."""
    for segment, compressor in ((10, ""), (11, "DeflateCompressor")):
        content = b"".join(entry(write_of(TABLE, segment * 100 + n)) for n in range(50))
        path = bench.raw.path / file_name(segment, 6)
        path.write_bytes(segment_bytes(segment, [content, content], 1 << 20, 6, compressor))
    bench.start(read_mode=mode)
    bench.run_agent()
    keys = [segment * 100 + n for segment in (10, 11) for _ in range(2) for n in range(50)]
    assert bench.keys == keys
    assert bench.raw.names == []
    assert bench.saved.done == [10, 11] or bench.saved.done == [11, 10]


def test_an_encrypted_segment_is_quarantined_and_the_others_go_on(bench: Bench) -> None:
    path = bench.raw.path / file_name(9)
    options = b'{"encCipher":"AES/CBC/PKCS5Padding","encKeyAlias":"k","encIV":"00"}'
    path.write_bytes(header(9, 7, options) + bytes(1000))
    path.with_name(f"{path.stem}_cdc.idx").write_text("500\nCOMPLETED")
    bench.raw.segment(10)
    bench.raw.write(10, write_of(TABLE, 1))
    agent = bench.start()
    bench.run_agent()
    assert bench.keys == [1]
    assert sorted(p.name for p in (bench.state.directory / "quarantine").iterdir()) == [
        "CommitLog-7-9.log",
        "CommitLog-7-9_cdc.idx",
    ]
    assert "could not be read wholly" in (agent.ready() or "")
