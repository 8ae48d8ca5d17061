"""Segment files with damage anywhere: header, marker, compressed block, entry, end.

What holds for a segment that Cassandra has closed: every change that is read before the first problem is one of the
intact segment's, and they come in its order with none left out; what is missing in the end was reported as a problem,
and the segment is marked as bad. After a problem, too, nothing is read that the intact segment did not hold; only the
positions can differ there, if what was damaged is how many bytes a compressed section comes to.

One that is still written (no complete index) differs in one point: what is missing may be waited for.
"""

from __future__ import annotations

import random
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any, NamedTuple

import pytest
from agent.strategies import mutations
from agent.test_decoder import NODE, plans
from agent.writer import (
    COMPRESS,
    Cell,
    Marker,
    Row,
    Update,
    entry,
    file_name,
    mutation,
    options,
    segment_bytes,
    table_of,
)
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from helenus_agent.commitlog import segment as module
from helenus_agent.commitlog.segment import ReadMode
from helenus_agent.commitlog.segment_header import Corrupt
from helenus_agent.positions import Positions, SegmentMark
from helenus_agent.segments.segment_queue import SegmentQueue
from helenus_schemas.event import wire

ID = 1795262845123
COMPRESSORS = ["", *COMPRESS]
# Each test runs on a directory and a decoder of its own: what hypothesis asks of a fixture is given.
EXAMPLES = settings.default.max_examples
slow = settings(max_examples=EXAMPLES * 2 // 5, deadline=None, suppress_health_check=list(HealthCheck))


@pytest.fixture(scope="module", autouse=True)
def _no_patience() -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(module, "_TORN_READ_S", -1.0)
        yield


class Read(NamedTuple):
    """What came out of a segment: changes and, in their order, None for each problem; is it finished, is it bad."""

    changes_and_problems: list[Any]
    finished: bool
    bad: bool

    @property
    def changes(self) -> list[Any]:
        return [c for c in self.changes_and_problems if c is not None]

    @property
    def before_problems(self) -> list[Any]:
        return (
            self.changes_and_problems[: self.changes_and_problems.index(None)]
            if None in self.changes_and_problems
            else self.changes_and_problems
        )


def read(
    decoder: ModuleType, directory: Path, update_lists: list[list[Update]], mode: ReadMode, piece: int = 300
) -> Read:
    """All of the segment that can be read, as the agent reads it."""
    tables = {u.table.id: u.table for updates in update_lists for u in updates}
    table_plans = plans(decoder, *tables.values())
    positions = Positions(NODE, {ID: SegmentMark(0)})
    follow = SegmentQueue(directory, positions, mode)
    follow.refresh()
    watched = follow.segments[0]
    changes_and_problems: list[Any] = []
    quiet = 0
    for _ in range(5000):
        was_bad = watched.bad
        segment = follow.next()
        if watched.bad and not was_bad:
            changes_and_problems.append(None)
        if segment is None:
            quiet += 1
            if quiet == 4:
                break
            continue
        live, padded = segment.live, segment.padded
        max_bytes = piece
        while True:
            try:
                data, base, final = segment.read(max_bytes)
            except Corrupt:
                segment.bad = True
                changes_and_problems.append(None)
                segment.skip()
                break
            batch = decoder.decode(data, base, final, table_plans, NODE, ID, segment.version, 3, live, padded)
            if batch.next or batch.broken or batch.unknown or live:
                changes_and_problems += batch.changes
                changes_and_problems += [None] * len(batch.problems)
                segment.bad = segment.bad or bool(batch.problems)
                if batch.broken:
                    segment.skip()
                else:
                    segment.advance(base + batch.next)
                    if batch.unknown is not None:
                        table_plans[batch.unknown.table] = decoder.TablePlan(is_known=False)
                break
            max_bytes *= 2
    else:
        pytest.fail("it reads for ever")
    for segment_done in follow.finished:
        segment_done.close()
    follow.close()
    return Read(changes_and_problems, watched in follow.finished, watched.bad)


def write(directory: Path, data: bytes, index: int | None, version: int) -> None:
    """The segment's file; `index` None: it is still written."""
    for path in directory.iterdir():
        path.unlink()
    path = directory / file_name(ID, version)
    path.write_bytes(data)
    if index is not None:
        path.with_name(f"{path.stem}_cdc.idx").write_text(f"{index}\nCOMPLETED")


def sections(update_lists: list[list[Update]]) -> list[bytes]:
    """A section for each two mutations."""
    entries = [entry(mutation(*updates)) for updates in update_lists]
    return [b"".join(entries[n : n + 2]) for n in range(0, len(entries), 2)]


def end_of(compressor: str, contents: list[bytes]) -> int:
    return 18 + len(options(compressor)) + sum(8 + len(content) for content in contents)


def damaged(data: st.DataObject, whole: bytes, written: int) -> bytes:
    """`whole` with one to three damages, most of them in its first `written` bytes."""
    bad = bytearray(whole)
    for _ in range(data.draw(st.integers(1, 3))):
        position = data.draw(
            st.integers(0, max(len(bad) - 1, 0)) if data.draw(st.integers(0, 9)) == 0 else st.integers(0, written)
        )
        position = min(position, max(len(bad) - 1, 0))
        match data.draw(st.sampled_from(["flip", "byte", "zeros", "cut", "noise", "move"])):
            case "flip" if bad:
                bad[position] ^= 1 << data.draw(st.integers(0, 7))
            case "byte" if bad:
                bad[position] = data.draw(st.sampled_from([0, 1, 0x7F, 0x80, 0xFF]))
            case "zeros":
                size = data.draw(st.sampled_from([4, 8, 64, 512]))
                bad[position : position + size] = bytes(len(bad[position : position + size]))
            case "cut":
                del bad[position:]
            case "noise":
                size = data.draw(st.integers(1, 40))
                bad[position : position + size] = random.Random(position).randbytes(
                    len(bad[position : position + size])
                )
            case "move":  # what follows it moves by some bytes
                del bad[position : position + data.draw(st.integers(1, 9))]
    return bytes(bad)


def without_position(change: Any) -> Any:
    """A change but for its position."""
    index, partition, key, value = change
    decoded = wire.decode(value)
    return (
        index,
        partition,
        key,
        decoded.digest,
        decoded.scope,
        decoded.part,
        decoded.parts,
        decoded.write_time,
        decoded.start,
        decoded.end,
    )


@pytest.mark.parametrize("compressor", COMPRESSORS)
@settings(slow, max_examples=EXAMPLES // 5)
@given(update_lists=mutations(), version=st.sampled_from([6, 7, 8]), piece=st.integers(20, 2000))
def test_round_trip(
    plain: ModuleType,
    compiled: ModuleType,
    tmp_path: Path,
    compressor: str,
    update_lists: list[list[Update]],
    version: int,
    piece: int,
) -> None:
    """Whatever is written comes out, at the positions of the uncompressed file."""
    contents = sections(update_lists)
    write(tmp_path, segment_bytes(ID, contents, 20_000, version, compressor), end_of(compressor, contents), version)
    reads = [read(decoder, tmp_path, update_lists, "marker", piece) for decoder in (plain, compiled)]
    assert reads[0] == reads[1]
    assert (reads[0].finished, reads[0].bad) == (True, False)
    whole = []
    position = 18 + len(options(compressor))
    for content in contents:
        tables = {u.table.id: u.table for updates in update_lists for u in updates}
        whole += plain.decode(content, position + 8, True, plans(plain, *tables.values()), NODE, ID, 8, 10**9).changes
        position += 8 + len(content)
    assert reads[0].changes == whole


TABLE = table_of("t", "pk int pk, ck int ck, s int static, v int, w text")
OTHER = table_of("u", "pk int pk, v int", cdc=False)


def some_of(seed: int) -> list[Update]:
    """A mutation with rows, a range delete, a static row, and a table without CDC."""
    key, first, two = (n.to_bytes(4, "big") for n in (seed, 1, 2))
    rows = [
        Row((first,), {"v": Cell(b"1234", time=seed), "w": Cell(b"x" * (seed * 37 % 200), time=8)}),
        Marker(6, (two,), ((9, 10),)),
        Row((two,), deletion=(4, 5)),
    ]
    rows.insert(1, Marker(1, (first,), ((9, 10),)))
    return [
        Update(TABLE, key, rows, Row((), {"s": Cell(b"5678", time=7)})),
        Update(OTHER, key, [Row((), {"v": Cell(b"9abc", time=1)})]),
    ]


SOME = [some_of(seed) for seed in range(6)]


@pytest.mark.parametrize("compressor", COMPRESSORS)
@slow
@given(data=st.data())
def test_damage_in_a_closed_segment(
    plain: ModuleType, compiled: ModuleType, tmp_path: Path, compressor: str, data: st.DataObject
) -> None:
    contents = sections(SOME)
    end = end_of(compressor, contents)
    file = segment_bytes(ID, contents, 4000, 7, compressor)
    write(tmp_path, file, end, 7)
    whole = read(plain, tmp_path, SOME, "marker")
    assert (whole.finished, whole.bad) == (True, False)
    mode = data.draw(st.sampled_from(["marker", "idx", "eager"]))
    write(tmp_path, damaged(data, file, len(file) if compressor else end), end, 7)
    result = read(plain, tmp_path, SOME, mode)
    assert result == read(compiled, tmp_path, SOME, mode)
    assert result.finished
    assert result.before_problems == whole.changes[: len(result.before_problems)]
    if compressor:
        assert {without_position(c) for c in result.changes} <= {without_position(c) for c in whole.changes}
    else:
        assert all(c in whole.changes for c in result.changes)
    assert result.bad == (None in result.changes_and_problems)
    assert result.bad or result.changes == whole.changes


@pytest.mark.parametrize("mode", ["marker", "idx", "eager"])
@pytest.mark.parametrize("compressor", ["", "LZ4Compressor"])
@slow
@given(data=st.data())
def test_damage_in_a_segment_that_is_still_written(
    plain: ModuleType, compiled: ModuleType, tmp_path: Path, compressor: str, mode: ReadMode, data: st.DataObject
) -> None:
    contents = sections(SOME)
    file = segment_bytes(ID, contents, 4000, 7, compressor)
    write(tmp_path, file, end_of(compressor, contents), 7)
    whole = read(plain, tmp_path, SOME, "marker")
    write(tmp_path, damaged(data, file, end_of(compressor, contents)), None, 7)
    if mode == "idx":
        (tmp_path / f"CommitLog-7-{ID}_cdc.idx").write_text(str(data.draw(st.integers(0, 5000))))
    result = read(plain, tmp_path, SOME, mode)
    assert result == read(compiled, tmp_path, SOME, mode)
    assert not result.finished
    assert result.before_problems == whole.changes[: len(result.before_problems)]
    assert {without_position(c) for c in result.changes} <= {without_position(c) for c in whole.changes}
    assert result.bad == (None in result.changes_and_problems)


@pytest.mark.parametrize("is_open", [True, False])
@pytest.mark.parametrize("kept_entries", [0, 1])
def test_zeros_where_entries_were(
    plain: ModuleType, compiled: ModuleType, tmp_path: Path, is_open: bool, kept_entries: int
) -> None:
    """As a disk leaves pages that were not written when the power went: from an entry to its section's end."""
    contents = sections(SOME)
    file, end = bytearray(segment_bytes(ID, contents, 4000, 7, "")), end_of("", contents)
    write(tmp_path, bytes(file), end, 7)
    whole = read(plain, tmp_path, SOME, "marker").changes
    first = end_of("", contents[:1])
    start = first + 8 + kept_entries * len(entry(mutation(*SOME[2])))
    file[start : first + 8 + len(contents[1])] = bytes(first + 8 + len(contents[1]) - start)
    write(tmp_path, bytes(file), None if is_open else end, 7)
    result = read(plain, tmp_path, SOME, "eager")
    assert result == read(compiled, tmp_path, SOME, "eager")
    assert result.bad
    assert result.changes_and_problems.count(None) == 1
    assert result.before_problems == whole[: len(result.before_problems)]
    assert whole[-1] in result.changes, "sections after it are read"


@pytest.mark.parametrize("compressor", COMPRESSORS)
def test_every_cut_and_every_bit_of_a_small_segment(plain: ModuleType, tmp_path: Path, compressor: str) -> None:
    update_lists = SOME[2:4]
    contents = [entry(mutation(*updates)) for updates in update_lists]
    end = end_of(compressor, contents)
    file = segment_bytes(ID, contents, 0, 8, compressor)
    write(tmp_path, file, end, 8)
    whole = read(plain, tmp_path, update_lists, "marker")
    assert len(whole.changes) > 5
    bad = [file[:size] for size in range(0, len(file), 3)]
    for position in range(len(file)):
        flipped = bytearray(file)
        flipped[position] ^= 1 << position % 8
        bad.append(bytes(flipped))
    for data in bad:
        write(tmp_path, data, end, 8)
        result = read(plain, tmp_path, update_lists, "marker")
        assert result.finished
        assert result.before_problems == whole.changes[: len(result.before_problems)]
        assert {without_position(c) for c in result.changes} <= {without_position(c) for c in whole.changes}
        assert result.bad or result.changes == whole.changes
