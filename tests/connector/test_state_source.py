"""How far a batch of the state reads its topics."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from helenus_connector.log import choice
from helenus_connector.log.events import OffsetRange, Offsets
from helenus_connector.state.keys import _left_out, _source
from helenus_connector.state.keys._source import RecordsReader


class Planner:
    """Of topics with these ends, which begin at 0."""

    def __init__(self, ends: Offsets) -> None:
        self.ends = ends

    def partitions(self, topics: Sequence[str]) -> dict[str, int]:
        return {topic: len(self.ends[topic]) for topic in topics}

    def latest(self, counts: Mapping[str, int]) -> Offsets:
        return {topic: dict(self.ends[topic]) for topic in counts}

    def earliest(self, counts: Mapping[str, int]) -> Offsets:
        return {topic: dict.fromkeys(self.ends[topic], 0) for topic in counts}

    def ids(self, topics: Sequence[str]) -> dict[str, str]:
        return {topic: topic for topic in topics}

    def advance(self, offset_range: OffsetRange, max_records: int) -> int:
        return min(offset_range.end, offset_range.start + max_records)


def reader(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, ends: Offsets) -> RecordsReader:
    (tmp_path / "plan").write_bytes(b"")
    settings = SimpleNamespace(data="data")
    tables = {t: SimpleNamespace(settings=settings, markers=t == "markers") for t in ends}
    records_reader = RecordsReader(str(tmp_path / "plan"))
    plan: Any = SimpleNamespace(tables=tables, due_file=tmp_path / "due", checkpoint=tmp_path)
    records_reader._loaded_plan = plan
    records_reader._planners = dict.fromkeys((True, False), Planner(ends))  # type: ignore[arg-type]
    monkeypatch.setattr(_source, "_MAX_RECORDS", 1_000)
    return records_reader


def test_markers_wait_for_the_data_that_was_there_before_them(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """They ask what is known by then, and of a backlog that is not all."""
    made = reader(tmp_path, monkeypatch, {"markers": {"0": 1, "1": 1}, "data": {"0": 2_500, "1": 40}})
    offsets = made.latestOffset(made.initialOffset(), made.getDefaultReadLimit())
    assert offsets["topics"]["data"]["0"] < 2_500
    assert offsets["topics"]["markers"] == {"0": 0, "1": 1}
    for _ in range(9):
        before, offsets = offsets, made.latestOffset(offsets, made.getDefaultReadLimit())
        if offsets["topics"]["markers"]["0"]:
            break
        assert offsets["topics"]["data"]["0"] < 2_500
    assert before["topics"]["data"]["0"] == 1_500, "markers that wait take nothing of the batch"
    assert offsets["topics"] == {"markers": {"0": 1, "1": 1}, "data": {"0": 2_500, "1": 40}}


def test_topics_that_a_repeated_batch_leaves_out_are_read_when_they_are_followed_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A worker was killed, and the task of one of two tables comes later, or fails for a while."""
    ends = {"data": {"0": 40}, "other": {"0": 30}}
    both = reader(tmp_path, monkeypatch, ends)
    first = both.latestOffset(both.initialOffset(), both.getDefaultReadLimit())
    ends["data"]["0"], ends["other"]["0"] = 50, 35
    planned = both.latestOffset(first, both.getDefaultReadLimit())
    # It is repeated, and goes on, without the other table.
    alone = reader(tmp_path, monkeypatch, {"data": {"0": 60}})
    assert {r.topic for share in alone.partitions(first, planned) for r in share.ranges} == {"data"}  # type: ignore[attr-defined]
    later = alone.latestOffset(planned, alone.getDefaultReadLimit())
    assert later["topics"] == {"data": {"0": 60}, "other": {"0": 35}}
    # With both again, what was left out is read; also if that batch is repeated.
    ends["data"]["0"] = 60
    both = reader(tmp_path, monkeypatch, ends)
    resumed = both.latestOffset(later, both.getDefaultReadLimit())
    assert resumed["from"] == {"other": {"0": 30}}
    ranges = {r.topic: (r.start, r.end) for share in both.partitions(later, resumed) for r in share.ranges}  # type: ignore[attr-defined]
    assert ranges["other"] == (30, 35)
    ends["data"]["0"] = 61
    after = both.latestOffset(resumed, both.getDefaultReadLimit())
    both.commit(resumed)
    assert after["topics"] == ends
    assert "from" not in after
    assert _left_out.load_left_out(tmp_path) == {}


def test_partitions_are_behind_until_a_batch_reads_all_there_is(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    ends = {"data": {"0": 2_500, "1": 40}}
    made = reader(tmp_path, monkeypatch, ends)
    offsets = made.latestOffset(made.initialOffset(), made.getDefaultReadLimit())
    assert offsets["behind"] == {"data": ["0"]}
    assert {share.behind["data"][0] for share in made.partitions(made.initialOffset(), offsets)} == {"0"}  # type: ignore[attr-defined]
    behind = 1
    while "behind" in offsets:
        ends["data"]["0"] += 100
        before, offsets = offsets, made.latestOffset(offsets, made.getDefaultReadLimit())
        behind += 1
    assert before["topics"]["data"]["0"] < ends["data"]["0"] - 100
    assert offsets["topics"] == ends
    assert behind < 6
    ends["data"]["0"] += 5_000
    assert "behind" not in made.latestOffset(offsets, made.getDefaultReadLimit()), "it has caught up once"
    later_reader = reader(tmp_path, monkeypatch, {"data": {"0": 9, "1": 40}})
    assert later_reader.partitions(before, offsets)[0].behind == {}, "a repeated batch goes by its offset"  # type: ignore[attr-defined]


def test_markers_wait_while_the_data_topic_has_no_leader(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    made = reader(tmp_path, monkeypatch, {"markers": {"0": 5}, "data": {"0": 10}})
    monkeypatch.setattr(
        Planner, "latest", lambda planner, counts: {t: dict(planner.ends[t]) for t in counts if t != "data"}
    )
    assert made._limit_offsets({"markers": {"0": 0}}, {"markers": {"0": 5}}) == {"markers": {"0": 0}}


@pytest.mark.parametrize("tables", [["data"], ["data", "markers"]])
def test_ends_of_data_are_asked_for_where_markers_come_after_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, tables: list[str]
) -> None:
    """Kafka may say that a marker came before it says so of the data: the marker would overtake it."""
    made = reader(tmp_path, monkeypatch, {topic: {"0": 1} for topic in tables})
    made._loaded_plan.worker = None  # type: ignore[union-attr]
    made._planners.clear()
    watching: list[bool] = []
    monkeypatch.setattr(choice, "data_planner", lambda _, watches: watching.append(watches) or made)
    for markers in (True, False):
        made._planner(markers)
    assert watching == [True, len(tables) == 1]
