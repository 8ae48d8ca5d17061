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

    found: list[Any]
    finished: bool
    bad: bool

    @property
    def changes(self) -> list[Any]:
        return [c for c in self.found if c is not None]

    @property
    def before_problems(self) -> list[Any]:
        return self.found[: self.found.index(None)] if None in self.found else self.found


def read(decoder: ModuleType, directory: Path, some: list[list[Update]], mode: ReadMode, piece: int = 300) -> Read:
    """All of the segment that can be read, as the agent reads it."""
    tables = {u.table.id: u.table for updates in some for u in updates}
    known = plans(decoder, *tables.values())
    positions = Positions(NODE, {ID: SegmentMark(0)})
    follow = SegmentQueue(directory, positions, mode)
    follow.refresh()
    watched = follow.segments[0]
    found: list[Any] = []
    quiet = 0
    for _ in range(5000):
        was_bad = watched.bad
        segment = follow.next()
        if watched.bad and not was_bad:
            found.append(None)
        if segment is None:
            quiet += 1
            if quiet == 4:
                break
            continue
        live, padded = segment.live, segment.padded
        most = piece
        while True:
            try:
                data, base, final = segment.read(most)
            except Corrupt:
                segment.bad = True
                found.append(None)
                segment.skip()
                break
            batch = decoder.decode(data, base, final, known, NODE, ID, 3, live, padded)
            if batch.next or batch.broken or batch.unknown or live:
                found += batch.changes
                found += [None] * len(batch.problems)
                segment.bad = segment.bad or bool(batch.problems)
                if batch.broken:
                    segment.skip()
                else:
                    segment.advance(base + batch.next)
                    if batch.unknown is not None:
                        known[batch.unknown.table] = decoder.TablePlan(is_known=False)
                break
            most *= 2
    else:
        pytest.fail("it reads for ever")
    for one in follow.finished:
        one.close()
    follow.close()
    return Read(found, watched in follow.finished, watched.bad)


def write(directory: Path, data: bytes, index: int | None, version: int) -> None:
    """The segment's file; `index` None: it is still written."""
    for path in directory.iterdir():
        path.unlink()
    path = directory / file_name(ID, version)
    path.write_bytes(data)
    if index is not None:
        path.with_name(f"{path.stem}_cdc.idx").write_text(f"{index}\nCOMPLETED")


def sections(some: list[list[Update]]) -> list[bytes]:
    """A section for each two mutations."""
    entries = [entry(mutation(*updates)) for updates in some]
    return [b"".join(entries[n : n + 2]) for n in range(0, len(entries), 2)]


def end_of(compressor: str, contents: list[bytes]) -> int:
    return 18 + len(options(compressor)) + sum(8 + len(content) for content in contents)


def damaged(data: st.DataObject, whole: bytes, written: int) -> bytes:
    """`whole` with one to three damages, most of them in its first `written` bytes."""
    bad = bytearray(whole)
    for _ in range(data.draw(st.integers(1, 3))):
        at = data.draw(
            st.integers(0, max(len(bad) - 1, 0)) if data.draw(st.integers(0, 9)) == 0 else st.integers(0, written)
        )
        at = min(at, max(len(bad) - 1, 0))
        match data.draw(st.sampled_from(["flip", "byte", "zeros", "cut", "noise", "move"])):
            case "flip" if bad:
                bad[at] ^= 1 << data.draw(st.integers(0, 7))
            case "byte" if bad:
                bad[at] = data.draw(st.sampled_from([0, 1, 0x7F, 0x80, 0xFF]))
            case "zeros":
                size = data.draw(st.sampled_from([4, 8, 64, 512]))
                bad[at : at + size] = bytes(len(bad[at : at + size]))
            case "cut":
                del bad[at:]
            case "noise":
                size = data.draw(st.integers(1, 40))
                bad[at : at + size] = random.Random(at).randbytes(len(bad[at : at + size]))
            case "move":  # what follows it moves by some bytes
                del bad[at : at + data.draw(st.integers(1, 9))]
    return bytes(bad)


def without_position(found: Any) -> Any:
    """A change but for its position."""
    index, partition, key, value = found
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
@given(some=mutations(), version=st.sampled_from([6, 7, 8]), piece=st.integers(20, 2000))
def test_round_trip(
    plain: ModuleType,
    compiled: ModuleType,
    tmp_path: Path,
    compressor: str,
    some: list[list[Update]],
    version: int,
    piece: int,
) -> None:
    """Whatever is written comes out, at the positions of the uncompressed file."""
    contents = sections(some)
    write(tmp_path, segment_bytes(ID, contents, 20_000, version, compressor), end_of(compressor, contents), version)
    found = [read(decoder, tmp_path, some, "marker", piece) for decoder in (plain, compiled)]
    assert found[0] == found[1]
    assert (found[0].finished, found[0].bad) == (True, False)
    whole = []
    at = 18 + len(options(compressor))
    for content in contents:
        tables = {u.table.id: u.table for updates in some for u in updates}
        whole += plain.decode(content, at + 8, True, plans(plain, *tables.values()), NODE, ID, 8, 10**9).changes
        at += 8 + len(content)
    assert found[0].changes == whole


TABLE = table_of("t", "pk int pk, ck int ck, s int static, v int, w text")
OTHER = table_of("u", "pk int pk, v int", cdc=False)


def some_of(seed: int) -> list[Update]:
    """A mutation with rows, a range delete, a static row, and a table without CDC."""
    key, one, two = (n.to_bytes(4, "big") for n in (seed, 1, 2))
    rows = [
        Row((one,), {"v": Cell(b"1234", time=seed), "w": Cell(b"x" * (seed * 37 % 200), time=8)}),
        Marker(6, (two,), ((9, 10),)),
        Row((two,), deletion=(4, 5)),
    ]
    rows.insert(1, Marker(1, (one,), ((9, 10),)))
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
    found = read(plain, tmp_path, SOME, mode)
    assert found == read(compiled, tmp_path, SOME, mode)
    assert found.finished
    assert found.before_problems == whole.changes[: len(found.before_problems)]
    if compressor:
        assert {without_position(c) for c in found.changes} <= {without_position(c) for c in whole.changes}
    else:
        assert all(c in whole.changes for c in found.changes)
    assert found.bad == (None in found.found)
    assert found.bad or found.changes == whole.changes


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
    found = read(plain, tmp_path, SOME, mode)
    assert found == read(compiled, tmp_path, SOME, mode)
    assert not found.finished
    assert found.before_problems == whole.changes[: len(found.before_problems)]
    assert {without_position(c) for c in found.changes} <= {without_position(c) for c in whole.changes}
    assert found.bad == (None in found.found)


@pytest.mark.parametrize("is_open", [True, False])
@pytest.mark.parametrize("kept", [0, 1])
def test_zeros_where_entries_were(
    plain: ModuleType, compiled: ModuleType, tmp_path: Path, is_open: bool, kept: int
) -> None:
    """As a disk leaves pages that were not written when the power went: from an entry to its section's end."""
    contents = sections(SOME)
    file, end = bytearray(segment_bytes(ID, contents, 4000, 7, "")), end_of("", contents)
    write(tmp_path, bytes(file), end, 7)
    whole = read(plain, tmp_path, SOME, "marker").changes
    first = end_of("", contents[:1])
    start = first + 8 + kept * len(entry(mutation(*SOME[2])))
    file[start : first + 8 + len(contents[1])] = bytes(first + 8 + len(contents[1]) - start)
    write(tmp_path, bytes(file), None if is_open else end, 7)
    found = read(plain, tmp_path, SOME, "eager")
    assert found == read(compiled, tmp_path, SOME, "eager")
    assert found.bad
    assert found.found.count(None) == 1
    assert found.before_problems == whole[: len(found.before_problems)]
    assert whole[-1] in found.changes, "sections after it are read"


@pytest.mark.parametrize("compressor", COMPRESSORS)
def test_every_cut_and_every_bit_of_a_small_segment(plain: ModuleType, tmp_path: Path, compressor: str) -> None:
    some = SOME[2:4]
    contents = [entry(mutation(*updates)) for updates in some]
    end = end_of(compressor, contents)
    file = segment_bytes(ID, contents, 0, 8, compressor)
    write(tmp_path, file, end, 8)
    whole = read(plain, tmp_path, some, "marker")
    assert len(whole.changes) > 5
    bad = [file[:size] for size in range(0, len(file), 3)]
    for at in range(len(file)):
        flipped = bytearray(file)
        flipped[at] ^= 1 << at % 8
        bad.append(bytes(flipped))
    for data in bad:
        write(tmp_path, data, end, 8)
        found = read(plain, tmp_path, some, "marker")
        assert found.finished
        assert found.before_problems == whole.changes[: len(found.before_problems)]
        assert {without_position(c) for c in found.changes} <= {without_position(c) for c in whole.changes}
        assert found.bad or found.changes == whole.changes
