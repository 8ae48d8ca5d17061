"""What a real Cassandra wrote comes to what its statements say."""

from __future__ import annotations

import gzip
import json
from dataclasses import replace
from pathlib import Path
from types import ModuleType
from typing import Any, get_args

import pytest
from agent import golden
from agent.golden import NODE, PLAIN, RECORDINGS, STATEMENTS, Expected, Recording, read

from helenus_agent.commitlog.segment import ReadMode, Segment
from helenus_agent.commitlog.segment_name import parse_name
from helenus_agent.positions import Positions, SegmentMark
from helenus_agent.segments.segment_queue import SegmentQueue
from helenus_schemas.event import wire


def follow_of(recording: Recording, directory: Path, mode: ReadMode = "marker", positions: Any = None) -> SegmentQueue:
    recording.unpack(directory)
    follow = SegmentQueue(directory, positions or Positions(NODE), mode)
    follow.refresh()
    return follow


@pytest.mark.parametrize("mode", get_args(ReadMode))
@pytest.mark.parametrize("name", RECORDINGS)
def test_statements(decoder: ModuleType, tmp_path: Path, name: str, mode: ReadMode) -> None:
    recording = golden.load(name)
    followed = recording.followed
    by_name = {t.name: t for t in followed}
    follow = follow_of(recording, tmp_path, mode)
    changes, skipped, mutations = read(decoder, follow, recording.plans(decoder, followed))
    decoded = [(followed[index], partition, key, wire.decode(value)) for index, partition, key, value in changes]
    expected: list[Expected] = []
    for _, wanted_changes in STATEMENTS:
        if len({want.table for want in wanted_changes}) > 1:
            # A batch has its tables in the order of their ids, which are chance.
            names = [table.name for table, *_ in decoded[len(expected) :][: len(wanted_changes)]]
            ordered = sorted(wanted_changes, key=lambda want: names.index(want.table))
            wanted_changes = [replace(want, part=part) for part, want in enumerate(ordered)]
        expected += wanted_changes

    assert len(decoded) == len(expected)
    for (table, _, key, change), want in zip(decoded, expected, strict=True):
        assert (table.name, change.scope.name) == (want.table, want.scope)
        assert key == golden.expected_key(by_name[want.table], want.key)
        assert (change.part, change.parts) == (want.part, want.parts)
        assert want.time is None or change.write_time == want.time
        assert change.write_time is not None
        assert (change.expires_at is not None) == want.expires
        assert change.node == NODE
        assert (change.start, change.end) == (want.start, want.end)
    assert sorted(skipped) == ["unknown_table"]
    assert mutations > len(STATEMENTS)
    # The first segment is complete, and all of it is read: its last section ends where Cassandra's index says.
    if index := min((name for name in recording.files if name.endswith("_cdc.idx")), default=None):
        assert [s.position for s in follow.finished] == [int(recording.files[index].split(b"\n")[0])]
    assert [s.bad for s in follow.finished + follow.segments] == [False, False]
    for segment in follow.finished:
        segment.close()
    follow.close()


@pytest.mark.parametrize("name", RECORDINGS)
def test_decoding_resumes_at_every_change(plain: ModuleType, tmp_path: Path, name: str) -> None:
    """Stopped and started at the position of any change, within sections too: it goes on with the next one."""
    recording = golden.load(name)
    plans = recording.plans(plain, recording.followed)
    follow = follow_of(recording, tmp_path)
    changes, _, _ = read(plain, follow, plans)
    spots = sorted({(c.segment, c.position) for c in (wire.decode(value) for *_, value in changes)})
    assert len(spots) > 30
    first = min(segment for segment, _ in spots)
    for segment, position in spots[:: len(spots) // 8]:
        positions = Positions(NODE, {segment: SegmentMark(position)}, [] if segment == first else [first])
        follow = follow_of(recording, tmp_path, positions=positions)
        resumed_changes, _, _ = read(plain, follow, plans)
        after = [c for c in changes if (wire.decode(c[3]).segment, wire.decode(c[3]).position) > (segment, position)]
        assert resumed_changes == after
        follow.close()


@pytest.mark.parametrize("name", [n for n in RECORDINGS if n.endswith("plain") and not n.startswith("6")])
def test_eager_reads_past_the_last_marker(decoder: ModuleType, tmp_path: Path, name: str) -> None:
    """The segments written once more, a section's entries first and its marker later: each entry is read once. Those of
    3.11 are complete when they are there.
    """
    recording = golden.load(name)
    plans = recording.plans(decoder, recording.followed)
    whole, _, _ = read(decoder, follow_of(recording, tmp_path), recording.plans(decoder, recording.followed))
    for path in tmp_path.iterdir():
        path.unlink()
    follow = SegmentQueue(tmp_path, Positions(NODE), "eager")
    changes: list[Any] = []
    ahead = 0
    for file, data in recording.files.items():
        if not file.endswith(".log"):
            continue
        segment = Segment(tmp_path / file)
        segment.path.write_bytes(data)
        segment.look()
        sections = list(segment.unread)
        segment.close()
        written = bytearray(data[: sections[0].base - 8].ljust(len(data), b"\0"))
        segment.path.write_bytes(written)
        follow.refresh()
        for n, section in enumerate(sections):
            written[section.base : section.end] = data[section.base : section.end]
            segment.path.write_bytes(written)
            early, _, _ = read(decoder, follow, plans)
            if n == 0:
                assert early == []  # the segment before might not be wholly written, for all we know
            written[section.base - 8 : section.base] = data[section.base - 8 : section.base]
            segment.path.write_bytes(written)
            late, _, _ = read(decoder, follow, plans)
            if n > 0:
                assert late == []
            ahead += len(early)
            changes += early + late
    assert changes == whole
    assert ahead > len(whole) / 2
    follow.close()


def test_every_table_can_be_walked(decoder: ModuleType, tmp_path: Path) -> None:
    """All tables of the node followed, its own system tables too: what is skipped elsewhere is decoded here."""
    recording = golden.load()
    followed = list(recording.tables.values())
    changes, _, _ = read(decoder, follow_of(recording, tmp_path), recording.plans(decoder, followed))
    assert {followed[index].keyspace for index, *_ in changes} >= {"system", "system_schema", "g"}


def test_recorded_events_stay_the_same(decoder: ModuleType, tmp_path: Path) -> None:
    """Byte for byte what they were when the golden segments were recorded: others read them."""
    recording = golden.load()
    plans = recording.plans(decoder, recording.followed)
    changes, _, _ = read(decoder, follow_of(recording, tmp_path), plans)
    with gzip.open(golden.DIRECTORY / PLAIN / "events.json.gz", "rt") as file:
        assert golden.events_json(recording.followed, changes) == json.load(file)


def test_recordings_hold_what_their_names_say() -> None:
    for name in RECORDINGS:
        versions = {(parse_name(file) or (0, 0))[0] for file in golden.load(name).files if file.endswith(".log")}
        assert versions == {int(name[0])}
