"""Which segment is read next, which is finished, which is lost."""

from __future__ import annotations

from pathlib import Path

import pytest
from agent.fakes import HOST, Raw, write_of
from agent.writer import file_name, header, table_of
from prometheus_client import REGISTRY
from structlog.testing import capture_logs

from helenus_agent.commitlog import segment as segment_module
from helenus_agent.commitlog.segment import ReadMode, Segment
from helenus_agent.commitlog.segment_source import SegmentBytes, read_index
from helenus_agent.positions import Positions, SegmentMark
from helenus_agent.segments import segment_queue as follow_module
from helenus_agent.segments.segment_queue import SegmentQueue
from helenus_schemas.errors import HelenusError, Kind

TABLE = table_of("t", "pk int pk, v int")


def lost() -> float:
    return REGISTRY.get_sample_value("helenus_agent_lost_segments_total") or 0.0


@pytest.fixture
def raw(tmp_path: Path) -> Raw:
    return Raw(tmp_path / "cdc_raw")


def follow_of(raw: Raw, positions: Positions | None = None, mode: ReadMode = "marker") -> SegmentQueue:
    follow = SegmentQueue(raw.path, positions or Positions(HOST), mode)
    follow.refresh()
    return follow


def drain(follow: SegmentQueue) -> list[int]:
    """Read all there is; the ids of the segments, in the order of their sections."""
    has_news = follow.has_news()
    order = []
    while segment := follow.next():
        order.append(segment.id)
        segment.skip()
    assert has_news or not order
    return order


def test_oldest_first(raw: Raw) -> None:
    for number in (12, 10, 11):
        raw.segment(number)
        raw.write(number, write_of(TABLE, number))
        raw.write(number, write_of(TABLE, number))
    follow = follow_of(raw)
    assert drain(follow) == [10, 10, 11, 11, 12, 12]
    raw.write(12, write_of(TABLE, 1))
    raw.segment(13)
    assert drain(follow) == [12]
    follow.refresh()
    raw.write(13, write_of(TABLE, 1))
    assert drain(follow) == [13]
    follow.close()


@pytest.mark.parametrize("mode", ["idx", "marker", "eager"])
def test_news_are_what_follows_the_last_look(raw: Raw, mode: ReadMode) -> None:
    raw.segment(10)
    raw.segment(11)
    follow = follow_of(raw, mode=mode)
    assert drain(follow) == []
    assert not follow.has_news()
    raw.write(10, write_of(TABLE, 1))
    assert follow.has_news()
    raw.index(10, complete=False)
    assert drain(follow) == [10]
    assert not follow.has_news()
    raw.write(11, write_of(TABLE, 1))
    assert follow.has_news()
    follow.close()


def test_late_writes_to_the_older_segment_go_first(raw: Raw) -> None:
    """Both get a marker between two looks: the older one's entries come first, all of them."""
    for number in (10, 11):
        raw.segment(number)
    raw.write(10, write_of(TABLE, 1))
    follow = follow_of(raw)
    assert drain(follow) == [10]
    raw.write(10, write_of(TABLE, 2))
    raw.write(10, write_of(TABLE, 3))
    raw.write(11, write_of(TABLE, 4))
    assert drain(follow) == [10, 10, 11]
    follow.close()


def test_finished_only_when_complete_and_read(raw: Raw) -> None:
    raw.segment(10)
    raw.write(10, write_of(TABLE, 1))
    follow = follow_of(raw)
    raw.index(10)
    follow.refresh()
    assert drain(follow) == [10]
    assert follow.finished == []
    raw.write(10, write_of(TABLE, 2))
    raw.index(10, complete=True)
    follow.refresh()
    segment = follow.next()
    assert segment is not None
    assert follow.finished == []
    segment.skip()
    assert follow.next() is None
    assert follow.finished == [segment]
    assert follow.segments == []
    follow.refresh()
    assert follow.segments == []
    segment.close()


def test_an_older_segment_waits_until_its_index_is_complete(raw: Raw) -> None:
    for number in (10, 11):
        raw.segment(number)
        raw.write(number, write_of(TABLE, number))
    follow = follow_of(raw)
    assert drain(follow) == [10, 11]
    assert [s.is_open for s in follow.segments] == [False, True]
    raw.write(10, write_of(TABLE, 3))
    raw.index(10, complete=True)
    assert drain(follow) == []
    follow.refresh()
    assert drain(follow) == [10]
    assert [s.id for s in follow.finished] == [10]
    follow.close()


def test_resumes_where_positions_say(raw: Raw) -> None:
    raw.segment(10)
    raw.write(10, write_of(TABLE, 1))
    end = raw.ends[10]
    raw.write(10, write_of(TABLE, 2))
    follow = follow_of(raw, Positions(HOST, {10: SegmentMark(end, True, True)}))
    segment = follow.next()
    assert segment is not None
    assert (segment.unread[0][0], segment.bad) == (end + 8, True)
    follow.close()


def test_rewinds_to_positions(raw: Raw) -> None:
    for number in (10, 11):
        raw.segment(number)
        raw.write(number, write_of(TABLE, 1))
        raw.write(number, write_of(TABLE, 2))
    raw.index(10, complete=True)
    positions = Positions(HOST)
    follow = follow_of(raw, positions)
    assert drain(follow) == [10, 10, 11, 11]
    assert [s.id for s in follow.finished] == [10]
    follow.rewind()
    assert follow.finished == []
    assert drain(follow) == [10, 10, 11, 11]
    positions.segments[11] = SegmentMark(raw.ends[11])
    follow.rewind()
    assert drain(follow) == [10, 10]
    for segment in follow.finished:
        segment.close()
    follow.close()


def test_processed_segments_that_come_back_are_finished_at_once(raw: Raw) -> None:
    raw.segment(10)
    raw.write(10, write_of(TABLE, 1))
    raw.index(10, complete=True)
    follow = follow_of(raw, Positions(HOST, done=[10]))
    assert [s.id for s in follow.finished] == [10]
    assert drain(follow) == []
    follow.rewind()
    assert [s.id for s in follow.finished] == [10]
    follow.refresh()
    assert [s.id for s in follow.finished] == [10]


def test_deleted_without_changes_of_cdc_tables(raw: Raw) -> None:
    before = lost()
    for number in (10, 11, 12):
        raw.segment(number)
        raw.write(number, write_of(TABLE, 1))
    follow = follow_of(raw)
    assert drain(follow) == [10, 11, 12]
    (raw.path / "CommitLog-7-10.log").unlink()
    follow.refresh()
    assert [s.id for s in follow.segments] == [11, 12]
    assert lost() == before
    follow.close()


def test_a_segment_deleted_before_it_was_read(raw: Raw) -> None:
    before = lost()
    raw.segment(10)
    raw.write(10, write_of(TABLE, 1))
    raw.index(10)
    follow = follow_of(raw)
    (raw.path / "CommitLog-7-10.log").unlink()
    follow.refresh()
    assert follow.segments == []
    assert drain(follow) == []
    assert lost() == before + 1


def test_a_segment_deleted_while_it_is_read(raw: Raw) -> None:
    """Held open, it is read to its end; nothing is lost."""
    before = lost()
    for number in (10, 11):
        raw.segment(number)
        raw.write(number, write_of(TABLE, 1))
        raw.write(number, write_of(TABLE, 2))
    raw.index(10)
    follow = follow_of(raw)
    segment = follow.next()
    assert segment is not None
    segment.skip()
    (raw.path / "CommitLog-7-10.log").unlink()
    follow.refresh()
    assert drain(follow) == [10, 11, 11]
    assert [s.id for s in follow.finished] == [10]
    # Not acknowledged after all: it can still be read again.
    follow.rewind()
    assert drain(follow) == [10, 10, 11, 11]
    assert lost() == before
    for segment in follow.finished:
        segment.close()
    follow.close()


def test_a_segment_deleted_while_the_agent_was_down(raw: Raw) -> None:
    before = lost()
    positions = Positions(HOST, {8: SegmentMark(100, False), 9: SegmentMark(100, True)})
    follow_of(raw, positions)
    assert lost() == before + 1
    assert positions.segments == {}


def test_a_broken_chain_finishes_as_bad(raw: Raw, monkeypatch: pytest.MonkeyPatch) -> None:
    path = raw.segment(10)
    raw.write(10, write_of(TABLE, 1))
    with open(path, "r+b") as file:
        file.seek(raw.ends[10])
        file.write(b"\0\0\4\0nope")
    raw.index(10, complete=True)
    raw.segment(11)
    raw.write(11, write_of(TABLE, 1))
    follow = follow_of(raw)
    assert drain(follow) == [10, 11]
    assert follow.finished == []
    monkeypatch.setattr(segment_module, "_TORN_READ_S", -1.0)
    assert drain(follow) == []
    assert drain(follow) == []
    assert [(s.id, s.bad) for s in follow.finished] == [(10, True)]
    follow.finished[0].close()
    follow.close()


def test_few_files_are_open(raw: Raw) -> None:
    for number in range(100, 160):
        raw.segment(number, size=1000)
        raw.write(number, write_of(TABLE, 1))
    follow = follow_of(raw)
    assert follow.next() is not None
    assert sum(s.is_open for s in follow.segments) <= 8
    assert len(drain(follow)) == 60
    follow.next()
    assert sum(s.is_open for s in follow.segments) == 1
    follow.close()


def test_a_backlog_of_many_segments_needs_few_files(raw: Raw, monkeypatch: pytest.MonkeyPatch) -> None:
    """At no time, not while it looks, nor of those that are read and not taken away, nor after going back."""
    numbers = list(range(100, 400))
    for number in numbers:
        raw.segment(number, size=200)
        raw.write(number, write_of(TABLE, 1))
        raw.index(number, complete=number < 398)
    opened: set[Segment] = set()
    most_opened = 0
    was_open, was_close = Segment._open, Segment.close

    def count_open(segment: Segment) -> SegmentBytes:
        nonlocal most_opened
        file = was_open(segment)
        opened.add(segment)
        most_opened = max(most_opened, len(opened))
        return file

    def count_close(segment: Segment) -> None:
        was_close(segment)
        opened.discard(segment)

    monkeypatch.setattr(Segment, "_open", count_open)
    monkeypatch.setattr(Segment, "close", count_close)
    follow = follow_of(raw)
    for _ in range(3):
        order = []
        while segment := follow.next():
            order.append(segment.id)
            segment.advance(segment.position + len(segment.read(1000)[0]))
        assert order == numbers
        assert sorted(s.id for s in follow.finished) == numbers[:298]
        follow.rewind()
    assert most_opened <= 24
    for segment in opened.copy():
        segment.close()


def test_a_backlog_of_small_sections_is_found_bit_by_bit(raw: Raw, monkeypatch: pytest.MonkeyPatch) -> None:
    """Neither memory nor the time to the first read depends on how much there is. All is read, in order."""
    monkeypatch.setattr(segment_module, "_MAX_SECTIONS", 10)
    numbers = list(range(100, 130))
    for number in numbers:
        raw.segment(number)
        for key in range(35 if number % 3 else 10):
            raw.write(number, write_of(TABLE, key))
        raw.index(number, complete=number % 5 > 0)
    expected = [number for number in numbers for _ in range(35 if number % 3 else 10)]
    follow = follow_of(raw)
    order: list[int] = []
    while segment := follow.next():
        assert sum(len(s.unread) for s in follow.segments) <= 8 * 10
        assert all(order.count(s.id) == expected.count(s.id) for s in follow.finished)
        order.append(segment.id)
        segment.skip()
    assert order == expected
    assert sorted(s.id for s in follow.finished) == [number for number in numbers if number % 5]
    assert [s.position for s in follow.finished] == [raw.ends[s.id] for s in follow.finished]
    for segment in follow.finished:
        segment.close()
    follow.close()


def test_the_newer_segment_waits_for_all_of_the_older_one(raw: Raw, monkeypatch: pytest.MonkeyPatch) -> None:
    """Also for what the older one gets while it is read; what was found after a last marker may have one by then."""
    monkeypatch.setattr(segment_module, "_MAX_SECTIONS", 3)
    for number in (10, 11):
        raw.segment(number)
    raw.write(11, write_of(TABLE, 1))
    follow = follow_of(raw, mode="eager")
    assert drain(follow) == [11]
    for key in range(5):
        raw.write(10, write_of(TABLE, key))
    raw.index(10, complete=True)
    raw.unmarked(11, write_of(TABLE, 2))
    follow.refresh()
    newer = follow.segments[1]
    segment = follow.next()
    assert segment is not None
    assert (segment.id, segment.looked, newer.live) == (10, False, True)
    segment.skip()
    raw.write(10, write_of(TABLE, 5))
    raw.write(11, write_of(TABLE, 2))
    read = []
    while segment := follow.next():
        read.append((segment.id, segment.live))
        segment.skip()
    assert read == [(10, False)] * 5 + [(11, False)]
    for segment in follow.finished:
        segment.close()
    follow.close()


def test_a_segment_deleted_between_two_looks_at_a_part(raw: Raw, monkeypatch: pytest.MonkeyPatch) -> None:
    """All that was found is read, but it was not all."""
    monkeypatch.setattr(segment_module, "_MAX_SECTIONS", 3)
    before = lost()
    raw.segment(10)
    for key in range(5):
        raw.write(10, write_of(TABLE, key))
    raw.index(10, complete=True)
    follow = follow_of(raw)
    for _ in range(3):
        segment = follow.next()
        assert segment is not None
        segment.skip()
    follow.close()
    raw.find(10).unlink()
    assert follow.next() is None
    follow.refresh()
    assert (follow.segments, follow.finished, lost()) == ([], [], before + 1)


def test_empty_older_segments_do_not_hide_newer_ones(raw: Raw) -> None:
    for number in range(100, 130):
        raw.segment(number, size=200)
    raw.segment(130)
    raw.write(130, write_of(TABLE, 1))
    follow = follow_of(raw)
    assert drain(follow) == [130]
    assert drain(follow) == []
    for path in raw.path.glob("CommitLog-7-10?.log"):
        path.unlink()
    raw.write(130, write_of(TABLE, 1))
    assert drain(follow) == [130]
    follow.close()


def test_more_segments_gone_than_are_checked(raw: Raw) -> None:
    for number in range(100, 120):
        raw.segment(number, size=200)
        raw.write(number, write_of(TABLE, 1))
    follow = follow_of(raw)
    for number in range(100, 119):
        raw.find(number).unlink()
    assert drain(follow) == [119]
    assert [s.id for s in follow.segments] == [119]
    follow.close()


def test_only_the_indexes_there_are_get_read(raw: Raw, monkeypatch: pytest.MonkeyPatch) -> None:
    for number in range(100, 120):
        raw.segment(number)
        raw.write(number, write_of(TABLE, 1))
    raw.index(105)
    raw.index(107, complete=True)
    indexes_read: list[Path] = []

    def read(path: Path) -> tuple[int, bool] | None:
        indexes_read.append(path)
        return read_index(path)

    monkeypatch.setattr(follow_module, "read_index", read)
    follow = follow_of(raw)
    assert indexes_read == [raw.find(105), raw.find(107)]
    assert [(s.id, s.complete) for s in follow.segments if s.indexed] == [(105, False), (107, True)]
    follow.refresh()
    assert indexes_read[2:] == [raw.find(105)]


def test_other_files_are_ignored(raw: Raw) -> None:
    (raw.path / "README").write_text("")
    (raw.path / "x.log").write_text("")
    (raw.path / "CommitLog-7-9_cdc.idx").write_text("12")
    assert follow_of(raw).segments == []


def test_a_directory_that_disappears(raw: Raw) -> None:
    follow = follow_of(raw)
    raw.path.rmdir()
    with pytest.raises(HelenusError) as error:
        follow.refresh()
    assert error.value.kind is Kind.CDC_DIRECTORY


def test_a_segment_deleted_between_listing_and_look(raw: Raw) -> None:
    """Complete, but never read: that is not finished."""
    before = lost()
    raw.segment(10)
    raw.write(10, write_of(TABLE, 1))
    raw.index(10, complete=True)
    follow = follow_of(raw)
    (raw.path / "CommitLog-7-10.log").unlink()
    assert follow.next() is None
    assert follow.finished == []
    follow.refresh()
    assert follow.segments == []
    assert lost() == before + 1


def test_processed_segments_that_are_linked_again_wait_for_their_index(raw: Raw) -> None:
    """Taken away at once, the restarted node would write the index later, for nobody."""
    raw.segment(10)
    raw.write(10, write_of(TABLE, 1))
    follow = follow_of(raw, Positions(HOST, done=[10]))
    raw.index(10)
    follow.refresh()
    assert (follow.finished, follow.segments, drain(follow)) == ([], [], [])
    raw.index(10, complete=True)
    follow.refresh()
    assert [s.id for s in follow.finished] == [10]


def test_replayed_after_a_crash(raw: Raw) -> None:
    """The index then says complete, and the size of the file: it is read on to the last section, and finished."""
    for mode in ("marker", "idx", "eager"):
        path = raw.segment(10)
        raw.write(10, write_of(TABLE, 1))
        raw.index(10)
        follow = follow_of(raw, mode=mode)
        assert drain(follow) == [10]
        raw.write(10, write_of(TABLE, 2))
        path.with_name("CommitLog-7-10_cdc.idx").write_text(f"{path.stat().st_size}\nCOMPLETED")
        follow.refresh()
        assert drain(follow) == [10]
        assert [(s.id, s.bad, s.position) for s in follow.finished] == [(10, False, raw.ends[10])]
        follow.finished[0].close()
        follow.close()


def test_idx_waits_for_the_index(raw: Raw) -> None:
    for number in (10, 11):
        raw.segment(number)
        raw.write(number, write_of(TABLE, number))
    follow = follow_of(raw, mode="idx")
    assert drain(follow) == []
    raw.index(10)
    assert drain(follow) == [10]
    raw.write(10, write_of(TABLE, 1))
    assert drain(follow) == []
    raw.index(10, complete=True)
    raw.index(11)
    follow.refresh()
    assert drain(follow) == [10, 11]
    assert [s.id for s in follow.finished] == [10]
    follow.finished[0].close()
    follow.close()


def test_idx_with_many_that_have_no_index(raw: Raw) -> None:
    """Those that are not held open are opened again when there is something to read."""
    for number in range(100, 130):
        raw.segment(number)
        raw.write(number, write_of(TABLE, number))
    follow = follow_of(raw, mode="idx")
    for _ in range(2):
        assert drain(follow) == []
        assert [s.id for s in follow.segments if s.is_open] == list(range(100, 108))
    raw.index(125)
    assert drain(follow) == [125]
    raw.write(125, write_of(TABLE, 1))
    raw.write(129, write_of(TABLE, 1))
    raw.index(129)
    raw.index(125, complete=True)
    follow.refresh()
    assert drain(follow) == [125, 129, 129]
    assert [s.id for s in follow.finished] == [125]
    follow.finished[0].close()
    follow.close()


def test_eager_reads_a_new_segment_when_the_older_one_is_marked(raw: Raw) -> None:
    """An entry of the older one may be on its way while the newer one has some: the newer one's marker decides."""
    for number in (10, 11):
        raw.segment(number)
    raw.write(10, write_of(TABLE, 1))
    follow = follow_of(raw, mode="eager")
    assert drain(follow) == [10]
    raw.unmarked(11, write_of(TABLE, 3))
    assert drain(follow) == []
    raw.unmarked(10, write_of(TABLE, 2))
    segment = follow.next()
    assert segment is not None
    assert (segment.id, segment.live) == (10, True)
    position = segment.position
    segment.skip()
    raw.write(10, write_of(TABLE, 2))
    raw.write(11, write_of(TABLE, 3))
    segment = follow.next()
    assert segment is not None
    assert (segment.id, segment.live, segment.position) == (10, False, position)
    assert drain(follow) == [10, 11]
    raw.unmarked(11, write_of(TABLE, 4))
    segment = follow.next()
    assert segment is not None
    assert (segment.id, segment.live) == (11, True)
    follow.close()


def test_version_6_is_finished_when_it_is_read(raw: Raw) -> None:
    for number in (10, 11):
        raw.segment(number, version=6)
        raw.write(number, write_of(TABLE, number))
    for mode in ("marker", "idx", "eager"):
        follow = follow_of(raw, mode=mode)
        assert drain(follow) == [10, 11]
        assert sorted((s.id, s.indexed, s.bad) for s in follow.finished) == [(10, True, False), (11, True, False)]
        for segment in follow.finished:
            segment.close()


def test_the_log_says_how_much_is_left_unread(raw: Raw, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(segment_module, "_TORN_READ_S", -1.0)
    path = raw.segment(10)
    raw.write(10, write_of(TABLE, 1))
    broken = raw.ends[10]
    raw.write(10, write_of(TABLE, 2))
    raw.write(10, write_of(TABLE, 3))
    raw.index(10, complete=True)
    with open(path, "r+b") as file:
        file.seek(broken)
        file.write(b"\0\0\4\0nope")
    follow = follow_of(raw)
    with capture_logs() as logs:
        assert drain(follow) == [10]
        assert drain(follow) == []
    follow.close()
    assert [line["left_unread_bytes"] for line in logs if line["event"] == "segment.corrupt"] == [raw.ends[10] - broken]


def test_an_encrypted_segment_does_not_affect_others(raw: Raw, monkeypatch: pytest.MonkeyPatch) -> None:
    path = raw.path / file_name(10)
    path.write_bytes(header(10, 7, b'{"encCipher":"AES/CBC/PKCS5Padding","encKeyAlias":"k","encIV":"00"}') + bytes(500))
    raw.ends[10] = 500
    raw.index(10, complete=True)
    raw.segment(11)
    raw.write(11, write_of(TABLE, 1))
    follow = follow_of(raw)
    with capture_logs() as logs:
        assert drain(follow) == [11]
    assert "encrypted segments are not supported" in next(line["error"] for line in logs if "error" in line)
    assert [(s.id, s.bad) for s in follow.finished] == [(10, True)]
    follow.finished[0].close()
    follow.close()
