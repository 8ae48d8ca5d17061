"""BatchPlanner of batches: limits, steps back, partitions."""

from __future__ import annotations

import dataclasses
import io
import json
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pyspark.serializers import CPickleSerializer
from pyspark.sql.streaming.datasource import ReadAllAvailable, ReadMaxRows
from structlog.testing import capture_logs

from helenus_connector.config.connector import ConnectorSettings
from helenus_connector.config.worker import WorkerSettings
from helenus_connector.control.connectors import Connectors
from helenus_connector.control.plan import QueryPlan
from helenus_connector.control.positions import HeldPositions
from helenus_connector.log.events import OffsetRange
from helenus_connector.query import _batch_planner, _task_reader, _topic_losses
from helenus_connector.query import _worker_task as tasks
from helenus_connector.query._batch_limits import limited, shared_out
from helenus_connector.query._batch_planner import BatchPlanner
from helenus_connector.query._topic_losses import lineages_in, other_partitions
from helenus_connector.query.batch_parts import TaskRanges, TopicRanges, note_planned, read_planned
from helenus_connector.query.event_packs import pack_events, unpack_events
from helenus_connector.query.events_query import EventsQuery
from helenus_connector.query.source import EventsReader
from helenus_connector.testing.broker import MemoryMessage, MemoryPlanner
from helenus_schemas.errors import HelenusError, Kind

TOPIC = "events-ks.t"
OTHER = "events-ks.u"
offsets = st.dictionaries(st.sampled_from("0123"), st.integers(0, 10_000), min_size=1)


@given(offsets, offsets, st.integers(1, 5_000))
def test_a_limit_is_shared_and_nothing_moves_back(start: dict[str, int], more: dict[str, int], limit: int) -> None:
    latest = {p: start.get(p, 0) + n for p, n in more.items()}
    end = limited({TOPIC: start}, {TOPIC: latest}, ReadMaxRows(limit), MemoryPlanner(), {})[TOPIC]
    events_taken = {p: last - start.get(p, 0) for p, last in end.items()}
    assert all(events_taken[p] >= 0 and end[p] <= max(latest.get(p, 0), start.get(p, 0)) for p in end)
    assert all(events_taken.get(p, 0) > 0 for p, n in more.items() if n)
    assert sum(events_taken.values()) <= limit + len(more)
    assert sum(events_taken.values()) >= min(limit, sum(more.values()))
    everything = limited({TOPIC: start}, {TOPIC: latest}, ReadAllAvailable(), MemoryPlanner(), {})[TOPIC]
    assert all(everything[p] == last for p, last in latest.items() if last > start.get(p, 0))


def test_a_long_backlog_of_one_table_leaves_the_next_its_share() -> None:
    latest = {TOPIC: {"0": 1_000_000}, OTHER: {"0": 300, "1": 0}}
    assert limited({}, latest, ReadMaxRows(1000), MemoryPlanner(), {}) == {TOPIC: {"0": 700}, OTHER: {"0": 300, "1": 0}}


class Planned:
    """A reader whose plan is in a file, as the driver leaves it."""

    def __init__(self, directory: Path, earliest: dict[str, int] | None = None, tasks: int = 1) -> None:
        worker = WorkerSettings.from_properties(
            {"bootstrap.servers": "h:1", "checkpoint.dir": str(directory)}, "worker"
        )
        keys = {"name": "t", "keyspace": "ks", "table": "t", "value.converter.schema.registry.url": "http://r"}
        self.connector = ConnectorSettings.from_properties({**keys, "tasks.max": str(tasks)}, "t")
        self.plan = QueryPlan(worker, {TOPIC: self.connector}, str(directory))
        self.plan.save()
        self.broker = MemoryPlanner(earliest)
        self.reader = BatchPlanner(str(self.plan.file))
        self.reader._client = self.broker

    def change(self, **fields: Any) -> None:
        self.plan = dataclasses.replace(self.plan, **fields)
        self.plan.save()

    def tasks(self, start: dict[str, Any], end: dict[str, Any]) -> list[list[TopicRanges]]:
        planned = self.reader.partitions(start, end)
        return [list(task.parts) for task in planned if isinstance(task, TaskRanges)]

    def ranges(self, start: dict[str, Any], end: dict[str, Any]) -> list[list[tuple[int, int, int]]]:
        tasks = self.tasks(start, end)
        return [[(r.partition, r.start, r.end) for part in task for r in part.ranges] for task in tasks]


def offset(tick: int, *ends: int, topic: str = TOPIC) -> dict[str, Any]:
    return {"tick": tick, "topics": {topic: {str(p): end for p, end in enumerate(ends)}}}


def test_first_batch_alone_steps_back_each_time_it_is_planned(tmp_path: Path) -> None:
    planned = Planned(tmp_path, {"0": 7, "1": -1, "2": 30, "3": 0})
    planned.broker.ends = {TOPIC: {"0": 12, "1": 10, "2": 20, "3": 0}}
    first, third = offset(0, 10, 10, 20, 0), offset(0, 13, 10, 20, 0)
    second = planned.reader.latest_offset(first, ReadMaxRows(5))
    assert second == offset(0, 12, 10, 20, 0)
    stepped = [[(0, 7, 12), (1, 10, 10), (2, 20, 20), (3, 0, 0)]]
    assert planned.ranges(first, second) == stepped
    assert planned.ranges(first, second) == stepped
    planned.broker.ends[TOPIC]["0"] = 13
    assert planned.reader.latest_offset(second, ReadMaxRows(5)) == third
    assert planned.ranges(second, third) == [[(0, 12, 13)]]


def test_a_clock_that_was_set_back_holds_up_no_batch(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A quiet table's keys would wait to be read again for as long as the clock was set back."""
    monkeypatch.setattr(_batch_planner, "_KEEP_WARM_S", 0.0)
    monkeypatch.setattr(_batch_planner, "_WAIT_S", 0.05)
    planned = Planned(tmp_path)
    planned.broker.ends = {TOPIC: {"0": 12}}
    idle = planned.reader.latest_offset(offset(0, 10), ReadMaxRows(5))
    planned.plan.due_file.write_text(str(time.time() + 3600))
    planned.reader._last_batch += 3600
    assert planned.reader.latest_offset(idle, ReadMaxRows(5))["tick"] == idle["tick"] + 1


@pytest.mark.parametrize("change", ["event", "due", "held", "partitions", "recreated"])
def test_what_changes_while_an_idle_query_waits_is_seen(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, change: str
) -> None:
    """Looks at topics where nothing changed are short; the first of them is not, and one after a change."""
    planned = Planned(tmp_path)
    broker = planned.broker
    broker.ends, broker.topic_ids = {TOPIC: {"0": 12, "1": 10}}, {TOPIC: "one"}
    broker.epochs = {TOPIC: {"0": 1, "1": 1, "2": 1}}
    idle = planned.reader.latest_offset(offset(0, 10, 10), ReadMaxRows(5))
    looks = []
    losses = planned.reader._topic_losses.find
    monkeypatch.setattr(planned.reader._topic_losses, "find", lambda *arguments: looks.append(1) or losses(*arguments))
    pauses: list[float] = []

    def sleep(seconds: float) -> None:
        pauses.append(seconds)
        if len(pauses) < 5:
            return
        if change == "event":
            broker.ends[TOPIC]["1"] = 11
        elif change == "due":
            planned.plan.due_file.write_text("1")
        elif change == "held":
            planned.change(held={TOPIC: {"0": 3}})
        elif change == "partitions":
            broker.ends[TOPIC]["2"] = 0
            planned.reader._counted_at = 0.0
        elif change == "recreated":
            broker.topic_ids = {TOPIC: "two"}
            planned.reader._counted_at = 0.0

    monkeypatch.setattr(_batch_planner.time, "sleep", sleep)
    end = planned.reader.latest_offset(idle, ReadMaxRows(5))
    assert (len(pauses), len(looks)) == (5, 2)
    assert end != idle
    assert end["topics"] == (offset(0, 12, 11) if change == "event" else idle)["topics"]
    assert list(planned.reader._errors) == ([TOPIC] if change in ("partitions", "recreated") else [])


def test_an_idle_query_checks_for_losses_once_and_not_in_each_trigger(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A close look at hundreds of topics takes some ms. One from another position is close again."""
    monkeypatch.setattr(_batch_planner, "_WAIT_S", 0.0)
    monkeypatch.setattr(_batch_planner.time, "sleep", lambda _: None)
    planned = Planned(tmp_path)
    planned.broker.ends = {TOPIC: {"0": 12, "1": 10}}
    idle = planned.reader.latest_offset(offset(0, 10, 10), ReadMaxRows(5))
    looks = []
    losses = planned.reader._topic_losses.find
    monkeypatch.setattr(planned.reader._topic_losses, "find", lambda *arguments: looks.append(1) or losses(*arguments))
    for _ in range(3):
        assert planned.reader.latest_offset(json.loads(json.dumps(idle)), ReadMaxRows(5)) == idle
    assert len(looks) == 1
    before = {**idle, "topics": {TOPIC: {"0": 12, "1": 9}}}
    assert planned.reader.latest_offset(before, ReadMaxRows(5))["topics"] == idle["topics"]
    assert len(looks) == 2
    planned.broker.ends[TOPIC]["0"] = 11  # a leader that may not know its end for a moment
    for _ in range(3):
        planned.reader.latest_offset(idle, ReadMaxRows(5))
    assert len(looks) == 5


def test_with_state_a_repeated_batch_has_the_same_events_and_the_same_time(tmp_path: Path) -> None:
    planned = Planned(tmp_path, {"0": 7, "1": 3})  # where a run without state would step back to
    planned.change(places=(0, 1))
    planned.broker.ends = {TOPIC: {"0": 12, "1": 10}}
    start = offset(0, 10, 10)
    end = planned.reader.latest_offset(start, ReadMaxRows(5))
    assert (end["topics"], end["tick"]) == ({TOPIC: {"0": 12, "1": 10}}, 1)
    expected = [[(0, 10, 12), (1, 10, 10)]]  # all partitions: something of each may be due
    (first,) = planned.reader.partitions(start, end)
    assert isinstance(first, TaskRanges)
    assert (planned.ranges(start, end), first.now) == (expected, end["now"])
    later = BatchPlanner(str(planned.plan.file))  # of another run
    later._client = planned.broker
    (repeated,) = later.partitions(start, end)
    assert isinstance(repeated, TaskRanges)
    assert ([r for part in repeated.parts for r in part.ranges], repeated.now) == (
        list(first.parts[0].ranges),
        first.now,
    )
    idle = planned.reader.latest_offset(end, ReadMaxRows(5))
    assert idle == end  # time alone makes no batch


def test_a_run_begins_with_batches_of_the_usual_size(tmp_path: Path) -> None:
    """What came in the time that it steps back may be a hundred times that."""
    planned = Planned(tmp_path, {"0": 100})
    planned.change(connectors={TOPIC: planned.connector.model_copy(update={"max_batch_size": 20})})
    planned.broker.ends = {TOPIC: {"0": 160}}
    position, read = offset(5, 150), []
    for _ in range(3):
        end = planned.reader.latest_offset(position, ReadMaxRows(1))
        ((offset_range,),) = planned.ranges(position, end)
        read.append(offset_range)
        position = end
    assert read == [(0, 100, 120), (0, 120, 140), (0, 140, 160)]


def test_a_first_batch_reads_everything_again(tmp_path: Path) -> None:
    """An earlier run has read it: the topic may have dropped it since, and a broker heard that it may."""
    planned = Planned(tmp_path, {"0": 100})
    planned.change(connectors={TOPIC: planned.connector.model_copy(update={"max_batch_size": 30})})
    position, wrong, committed = offset(5, 150), [], []
    for dropped, last in ([], 160), (["0"], 160), (["0"], 170):
        planned.broker.dropped, planned.broker.ends, planned.broker.committed = dropped, {TOPIC: {"0": last}}, {}
        end = planned.reader.latest_offset(position, ReadMaxRows(1))
        ((part,),) = planned.tasks(position, end)
        wrong.append(part.error is not None)
        planned.reader.commit(end)
        committed.append(bool(planned.broker.committed))
        position = end
    assert wrong == [False, False, True]
    assert committed == [False, True, True]


def test_failed_first_batch_reads_all_again_when_its_table_returns(tmp_path: Path) -> None:
    """It was left out until its next try, and held where it was to be read from; the others went on."""
    planned = Planned(tmp_path, {"0": 100})
    both = {TOPIC: planned.connector, OTHER: planned.connector.model_copy(update={"name": "other"})}
    planned.change(connectors=both)
    planned.broker.ends = {TOPIC: {"0": 160}, OTHER: {"0": 160}}
    position: dict[str, Any] = {"tick": 5, "topics": {TOPIC: {"0": 150}, OTHER: {"0": 150}}}
    first = planned.reader.latest_offset(position, ReadMaxRows(1_000))
    planned.change(connectors={OTHER: both[OTHER]})
    planned.broker.ends[OTHER]["0"] = 165
    second = planned.reader.latest_offset(first, ReadMaxRows(1_000))
    assert [part.ranges for task in planned.tasks(first, second) for part in task] == [
        (OffsetRange(OTHER, 0, 160, 165),)
    ]
    planned.change(connectors=both, held={TOPIC: {"0": 100}})
    planned.broker.dropped = ["0"]
    third = planned.reader.latest_offset(second, ReadMaxRows(1_000))
    parts_by_topic = {part.ranges[0].topic: part for task in planned.tasks(second, third) for part in task}
    assert (parts_by_topic[TOPIC].ranges, parts_by_topic[TOPIC].read) == ((OffsetRange(TOPIC, 0, 100, 160),), {0: 150})
    assert parts_by_topic[TOPIC].error is None
    planned.reader.commit(third)
    assert list(planned.broker.committed) == ["helenus-other"]


def test_only_topics_with_new_events_are_checked_and_committed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    planned = Planned(tmp_path)
    both = {TOPIC: planned.connector, OTHER: planned.connector.model_copy(update={"name": "other"})}
    planned.change(connectors=both)
    planned.broker.ends = {TOPIC: {"0": 5}, OTHER: {"0": 5}}
    position = planned.reader.latest_offset({"tick": 5, "topics": {TOPIC: {"0": 5}, OTHER: {"0": 4}}}, ReadMaxRows(1))
    planned.reader.commit(position)
    assert planned.broker.committed == {"helenus-t": {TOPIC: {"0": 5}}, "helenus-other": {OTHER: {"0": 5}}}
    planned.broker.ends[OTHER]["0"] = 6
    topics_checked: list[str] = []
    monkeypatch.setattr(planned.broker, "gone", lambda _, starts: topics_checked.extend(starts) or [])
    end = planned.reader.latest_offset(position, ReadMaxRows(1))
    assert [part.ranges for task in planned.tasks(position, end) for part in task] == [(OffsetRange(OTHER, 0, 5, 6),)]
    assert topics_checked == [OTHER]
    planned.broker.committed = {}
    planned.reader.commit(end)
    assert planned.broker.committed == {"helenus-other": {OTHER: {"0": 6}}}
    # What the broker refused is committed with the next batch, whosever that is; and all of it once in a while.
    planned.broker.committed, planned.broker.refused = {}, {OTHER: HelenusError(Kind.BROKER_REFUSED, "not now")}
    third = {"tick": 5, "topics": {TOPIC: {"0": 5}, OTHER: {"0": 7}}}
    with capture_logs():
        planned.reader.commit(third)
    planned.broker.refused = {}
    planned.reader.commit({"tick": 5, "topics": {TOPIC: {"0": 8}, OTHER: {"0": 7}}})
    assert planned.broker.committed == {"helenus-t": {TOPIC: {"0": 8}}, "helenus-other": {OTHER: {"0": 7}}}
    planned.broker.committed = {}
    monkeypatch.setattr(_batch_planner, "_COMMIT_ALL_S", -1.0)
    planned.reader.commit({"tick": 5, "topics": {TOPIC: {"0": 8}, OTHER: {"0": 7}}})
    assert len(planned.broker.committed) == 2


def test_offsets_read_by_an_earlier_run_are_noted_until_they_are_reread(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In every batch of it; not after an operator moved the topic, and not where it lost what was read."""
    monkeypatch.setattr(_task_reader, "read", lambda *_: (chunk for chunk in ()))
    planned = Planned(tmp_path, {"0": 100, "1": 7})
    planned.change(connectors={TOPIC: planned.connector.model_copy(update={"max_batch_size": 30})})
    planned.broker.ends = {TOPIC: {"0": 165, "1": 7}}
    position, read = offset(5, 150, 7), []
    for _ in range(3):
        end = planned.reader.latest_offset(position, ReadMaxRows(1))
        ((part,),) = planned.tasks(position, end)
        notes, _ = _task_reader.read_parts(planned.plan.worker, TaskRanges([part], 100))
        read.append([(note.partition, note.read) for note in notes if note.end is None])
        position = end
    assert read == [[(0, 150), (1, 0)], [(0, 150)], [(0, 0)]], "the third batch has what is new"
    for change in ("moved", "recreated", "nothing is known"):
        (tmp_path / change).mkdir()
        planned = Planned(tmp_path / change, {"0": 100})
        planned.broker.ends, planned.broker.topic_ids = {TOPIC: {"0": 160}}, {TOPIC: "a"}
        planned.broker.epochs, planned.broker.start = {TOPIC: {"0": 1}}, 0
        if change == "nothing is known":
            planned.plan.unconfirmed_file.parent.mkdir(parents=True, exist_ok=True)
            planned.plan.unconfirmed_file.write_bytes(b"damaged")
        more = {"errors_data_loss": "continue", "max_batch_size": 10}
        planned.change(connectors={TOPIC: planned.connector.model_copy(update=more)})
        first = planned.reader.latest_offset(offset(5, 150), ReadMaxRows(10))
        if change == "moved":
            planned.change(epochs={TOPIC: 1}, held={TOPIC: {"0": 120}})
        elif change == "recreated":
            planned.broker.topic_ids = {TOPIC: "b"}
            planned.reader._counted_at = 0.0  # which is looked at once in a while
        second = planned.reader.latest_offset(first, ReadMaxRows(10))
        ((part,),) = planned.tasks(first, second)
        assert (part.ranges[0].start < 150, part.read) == (True, {}), change


def test_a_run_starts_at_once(tmp_path: Path) -> None:
    """What waits is known by its events, and by the first batch."""
    for first_offset in (9, 4):
        planned = Planned(tmp_path, {"0": first_offset})
        planned.broker.ends = {TOPIC: {"0": 9}}
        position = offset(7, 9)
        end = planned.reader.latest_offset(position, ReadMaxRows(5))
        assert end == offset(8, 9)
        assert planned.ranges(position, end) == [[(0, first_offset, 9)]]
        assert planned.reader.latest_offset(end, ReadMaxRows(5)) == end


def test_available_now_steps_back_too(tmp_path: Path) -> None:
    for first_offset, tick in ((9, 7), (4, 8)):
        planned = Planned(tmp_path, {"0": first_offset})
        planned.broker.ends = {TOPIC: {"0": 9}}
        planned.reader.prepare_available_now()
        end = planned.reader.latest_offset(offset(7, 9), ReadMaxRows(5))
        assert end == offset(tick, 9)


def test_a_topic_that_joins_later_steps_back_then(tmp_path: Path) -> None:
    planned = Planned(tmp_path, {"0": 2})
    planned.broker.ends = {TOPIC: {"0": 1}, OTHER: {"0": 9}}
    planned.reader.latest_offset(offset(0, 0), ReadMaxRows(5))
    planned.change(connectors={OTHER: planned.connector})
    joined = offset(0, 5, topic=OTHER)
    end = planned.reader.latest_offset(joined, ReadMaxRows(5))
    assert planned.ranges(joined, end) == [[(0, 2, 9)]]
    assert planned.ranges(end, offset(0, 11, topic=OTHER)) == [[(0, 9, 11)]]


def test_a_topic_whose_journal_was_read_does_not_step_back(tmp_path: Path) -> None:
    """What waits is in the driver's memory. Its first batch comes at once, and is done without an event."""
    planned = Planned(tmp_path, {"0": 2})
    planned.change(restored=frozenset({TOPIC}), held={TOPIC: {"0": 7}})
    planned.broker.ends = {TOPIC: {"0": 9}}
    end = planned.reader.latest_offset(offset(0, 5), ReadMaxRows(5))
    assert planned.ranges(offset(0, 5), end) == [[(0, 7, 9)]]


def test_topic_that_cannot_step_back_fails_alone_and_recovers(tmp_path: Path) -> None:
    planned = Planned(tmp_path, {"0": 2})
    planned.change(connectors={TOPIC: planned.connector, OTHER: planned.connector})
    planned.broker.ends = {TOPIC: {"0": 9}, OTHER: {"0": 9}}
    start: dict[str, Any] = {"tick": 0, "topics": {TOPIC: {"0": 5}, OTHER: {"0": 5}}}
    refused = HelenusError(Kind.BROKER_UNREACHABLE, "a ledger that cannot be read")
    planned.broker.unsearchable = {OTHER: refused}
    end = planned.reader.latest_offset(start, ReadMaxRows(5))
    parts = {part.ranges[0].topic: part for task in planned.tasks(start, end) for part in task}
    assert parts[TOPIC] == TopicRanges((OffsetRange(TOPIC, 0, 2, 9),), "fail", 0, events=7, read={0: 5})
    assert parts[OTHER].error is refused
    assert parts[OTHER].ranges[0].start == 5, "it is held there"
    planned.broker.unsearchable = {}
    planned.change(held={OTHER: {"0": 5}})
    next_end = planned.reader.latest_offset(end, ReadMaxRows(5))
    ((part,),) = [[part for part in task if part.ranges[0].topic == OTHER] for task in planned.tasks(end, next_end)]
    assert (part.ranges, part.error) == ((OffsetRange(OTHER, 0, 2, 9),), None)


def test_a_topic_that_is_refused_leaves_the_others_their_batches(tmp_path: Path) -> None:
    """By the broker that is asked how many partitions it has. Its end is asked too, and the answer says why."""
    planned = Planned(tmp_path)
    planned.broker.ends = {TOPIC: {str(p): 9 for p in range(4)}}
    position = offset(0, 5, 5, 5, 5)
    position = planned.reader.latest_offset(position, ReadMaxRows(5))
    planned.change(connectors={TOPIC: planned.connector, OTHER: planned.connector})
    planned.broker.refused = {OTHER: HelenusError(Kind.BROKER_REFUSED, "not authorized")}
    planned.broker.ends = {TOPIC: {str(p): 12 for p in range(4)}}
    assert planned.reader.latest_offset(position, ReadMaxRows(5)) == offset(0, 12, 12, 12, 12)


def test_a_tick_plans_every_partition_for_its_due_keys(tmp_path: Path) -> None:
    planned = Planned(tmp_path, tasks=2)
    planned.ranges(offset(0, 0, 0, 0, 0), offset(0, 1, 1, 1, 1))
    assert planned.ranges(offset(0, 1, 1, 1, 1), offset(1, 1, 1, 1, 1)) == [
        [(0, 1, 1), (2, 1, 1)],
        [(1, 1, 1), (3, 1, 1)],
    ]


def test_a_batch_that_keeps_workers_alone_has_a_few_topics_in_turns(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """All of a thousand take half a second of CPU. Where something is due, and in another process, it has all."""
    monkeypatch.setattr(_batch_planner, "_WARM_TOPICS", 2)
    planned = Planned(tmp_path)
    topics = [f"events-ks.{n}" for n in range(6)]
    planned.change(connectors=dict.fromkeys(topics, planned.connector))
    planned.broker.ends = {topic: {"0": 5} for topic in topics}
    position = {"tick": 0, "topics": planned.broker.ends}
    position = planned.reader.latest_offset(position, ReadMaxRows(5))  # its first batch steps back

    def next_topics() -> list[str]:
        nonlocal position
        planned.reader._last_batch -= 30.0
        start, position = position, planned.reader.latest_offset(position, ReadMaxRows(5))
        assert position["tick"] == start["tick"] + 1
        other = BatchPlanner(str(planned.plan.file))
        other._client = planned.broker
        assert sum(len(task.parts) for task in other.partitions(start, position)) == 6  # type: ignore[attr-defined]
        return sorted(part.ranges[0].topic for task in planned.tasks(start, position) for part in task)

    turns = [next_topics() for _ in range(3)]
    assert [len(turn) for turn in turns] == [2, 2, 2]
    assert sorted(topic for turn in turns for topic in turn) == topics
    planned.plan.due_file.write_text("1")
    assert next_topics() == topics
    planned.plan.due_file.write_text("")
    assert len(next_topics()) == 2
    # What comes next is in all topics, though the tick stays as it is.
    planned.broker.ends = {topic: {"0": 7} for topic in topics}
    start, position = position, planned.reader.latest_offset(position, ReadMaxRows(50))
    assert (position["tick"], position["topics"]) == (start["tick"], planned.broker.ends)
    assert sorted(part.ranges[0].topic for task in planned.tasks(start, position) for part in task) == topics
    planned.change(held={topics[3]: {"0": 3}})
    assert next_topics() == topics


def test_a_held_topic_is_read_again_without_new_events_until_released(tmp_path: Path) -> None:
    planned = Planned(tmp_path)
    planned.broker.ends = {TOPIC: {"0": 20, "1": 20}}
    planned.tasks(offset(0, 20, 20), offset(0, 20, 20))
    planned.change(held={TOPIC: {"1": 12}})
    end = planned.reader.latest_offset(offset(0, 20, 20), ReadMaxRows(5))
    assert end == offset(1, 20, 20)
    assert planned.ranges(offset(0, 20, 20), end) == [[(0, 20, 20), (1, 12, 20)]]
    planned.change(held={})
    assert planned.reader.latest_offset(end, ReadMaxRows(5)) == end


def test_joining_topic_begins_at_its_first_event_in_the_next_batch(tmp_path: Path) -> None:
    planned = Planned(tmp_path)
    planned.broker.ends = {TOPIC: {str(p): 90 for p in range(4)}}
    nothing = {"tick": 0, "topics": {}}
    joined = planned.reader.latest_offset(nothing, ReadMaxRows(8))
    assert joined == offset(0, 40, 40, 40, 40)
    assert planned.ranges(nothing, joined) == [[(p, 40, 40) for p in range(4)]]
    assert planned.reader.latest_offset(joined, ReadMaxRows(8))["topics"][TOPIC]["0"] > 40


def test_a_topic_whose_first_offset_is_not_known_yet_joins_later(tmp_path: Path) -> None:
    """What lies before the end that it would join with is not read."""
    planned = Planned(tmp_path)
    planned.broker.ends = {TOPIC: {str(p): 90 for p in range(4)}}
    planned.broker.earliest = lambda partitions: {}  # type: ignore[method-assign]
    nothing = {"tick": 0, "topics": {}}
    assert planned.reader.latest_offset(nothing, ReadMaxRows(8))["topics"] == {}


def test_a_first_batch_that_was_killed_steps_back_from_where_its_topic_joined(tmp_path: Path) -> None:
    """That may have been a held position, which is released, and what was unconfirmed after it is forgotten."""
    planned = Planned(tmp_path, {"0": 7})
    planned.broker.ends = {TOPIC: {"0": 25, "1": 0}}
    joined = offset(0, 20, 0)
    assert planned.ranges({"tick": 0, "topics": {}}, joined) == [], "it is done again as it is"
    end = planned.reader.latest_offset(joined, ReadMaxRows(5))
    assert planned.ranges(joined, end) == [[(0, 7, 25), (1, 0, 0)]]


def test_a_range_before_the_operators_position_is_not_done(tmp_path: Path) -> None:
    """The batch was planned before the move: done as an empty range, it would mark the move as processed."""
    planned = Planned(tmp_path)
    planned.tasks(offset(0, 0, 0), offset(0, 1, 1))
    planned.reader.plan = dataclasses.replace(planned.plan, held={TOPIC: {"0": 500}})
    assert planned.ranges(offset(0, 1, 1), offset(1, 9, 9)) == [[(1, 1, 9)]]


def test_a_topic_with_other_partitions_fails_its_own_connector_alone(tmp_path: Path) -> None:
    planned = Planned(tmp_path)
    planned.change(connectors={TOPIC: planned.connector, OTHER: planned.connector})
    planned.broker.ends = {TOPIC: {"0": 5, "1": 0}, OTHER: {"0": 8}}
    start = {"tick": 0, "topics": {TOPIC: {"0": 1}, OTHER: {"0": 1}}}
    end = planned.reader.latest_offset(start, ReadMaxRows(planned.plan.max_batch_size))
    assert end == {"tick": 1, "topics": {TOPIC: {"0": 1}, OTHER: {"0": 8}}}
    errors = {part.ranges[0].topic: part.error for task in planned.tasks(start, end) for part in task}
    assert errors[OTHER] is None
    error = errors[TOPIC]
    assert error is not None
    assert error.kind is Kind.PARTITIONS_CHANGED


def test_partitions_added_to_a_topic_are_reported(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing else would show it: the ends of those that are known are asked for, and no more."""
    planned = Planned(tmp_path)
    planned.change(connectors={TOPIC: planned.connector, OTHER: planned.connector})
    planned.broker.ends = {TOPIC: {"0": 9, "1": 9}, OTHER: {"0": 8}}
    position: dict[str, Any] = {"tick": 0, "topics": {TOPIC: {"0": 1, "1": 1}, OTHER: {"0": 1}}}
    position = planned.reader.latest_offset(position, ReadMaxRows(5))
    planned.broker.ends = {TOPIC: {"0": 12, "1": 9, "2": 5, "3": 0}, OTHER: {"0": 9}}
    later = planned.reader.latest_offset(position, ReadMaxRows(5))
    assert later["topics"] == {TOPIC: {"0": 12, "1": 9}, OTHER: {"0": 9}}
    assert planned.broker.counted == [[TOPIC, OTHER]], "not at every look"
    monkeypatch.setattr(_batch_planner, "pace_s", lambda _: -1.0)
    planned.broker.ends[OTHER] = {"0": 10}
    end = planned.reader.latest_offset(later, ReadMaxRows(5))
    assert end["topics"] == {TOPIC: {"0": 12, "1": 9}, OTHER: {"0": 10}}
    errors = {part.ranges[0].topic: part.error for task in planned.tasks(later, end) for part in task}
    assert errors[OTHER] is None
    error = errors[TOPIC]
    assert error is not None
    assert (error.kind, error.what) == (Kind.PARTITIONS_CHANGED, f"{TOPIC} has 4 partitions, and had 2")


def test_a_topic_that_cannot_be_counted_has_what_it_had(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """One of its partitions has no leader just now, or nobody answers."""
    monkeypatch.setattr(_batch_planner, "pace_s", lambda _: -1.0)
    planned = Planned(tmp_path)
    planned.change(connectors={TOPIC: planned.connector, OTHER: planned.connector})
    planned.broker.ends = {TOPIC: {"0": 5}, OTHER: {"0": 5}}
    position: dict[str, Any] = {"tick": 0, "topics": {TOPIC: {"0": 1}, OTHER: {"0": 1}}}
    position = planned.reader.latest_offset(position, ReadMaxRows(5))
    for away in ([OTHER], [TOPIC, OTHER]):
        planned.broker.refused = dict.fromkeys(away, HelenusError(Kind.BROKER_UNREACHABLE, "away"))
        for topic in (TOPIC, OTHER):
            planned.broker.ends[topic]["0"] += 1
        position = planned.reader.latest_offset(position, ReadMaxRows(5))
        assert position["topics"] == planned.broker.ends


def test_positions_that_a_batch_left_held_are_not_committed(tmp_path: Path) -> None:
    """Or a broker that keeps what a subscription waits for might drop it."""
    planned = Planned(tmp_path)
    planned.tasks(offset(0, 0, 0), offset(0, 20, 20))
    planned.change(held={TOPIC: {"1": 12}})
    planned.reader.commit(offset(0, 20, 20))
    assert planned.broker.committed == {"helenus-t": {TOPIC: {"0": 20, "1": 12}}}


def test_a_table_that_leaves_between_a_batchs_end_and_its_plan(tmp_path: Path) -> None:
    """Spark writes a batch's end, then commits the one before, then has the ranges planned: paused in between, its
    events are read all the same, and held by the driver.
    """
    planned = Planned(tmp_path)
    planned.change(connectors={TOPIC: planned.connector, OTHER: planned.connector})
    planned.broker.ends = {TOPIC: {"0": 9, "1": 9}, OTHER: {"0": 8}}
    start = {"tick": 0, "topics": {TOPIC: {"0": 1, "1": 1}, OTHER: {"0": 1}}}
    end = planned.reader.latest_offset(start, ReadMaxRows(planned.plan.max_batch_size))
    planned.change(connectors={OTHER: planned.connector})
    planned.reader.commit(start)
    assert {r.topic for task in planned.tasks(start, end) for part in task for r in part.ranges} == {TOPIC, OTHER}


def test_a_planner_without_an_answer_informs_the_driver(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It makes no batch then, and so no error of a batch."""
    worker = Planned(tmp_path).plan.worker
    query = EventsQuery(worker, Connectors(worker, lambda _: {}), "default", tmp_path, lambda *_: None)
    query.refresh()
    planned = Planned(tmp_path)
    query.progress.batches_done = 1
    planned.broker.ends = {TOPIC: {"0": 5}}
    away = HelenusError(Kind.BROKER_UNREACHABLE, "no answer")
    monkeypatch.setattr("helenus_connector.query.query_runner._BROKER_AWAY_AFTER_S", -1.0)
    monkeypatch.setattr(planned.reader, "stop", lambda: None)
    monkeypatch.setattr(_batch_planner.time, "sleep", lambda _: None)
    for refused, why in (({}, ""), ({TOPIC: away}, "no answer"), ({TOPIC: away}, "no answer"), ({}, "")):
        planned.broker.refused, planned.reader._partitions = dict(refused), {}
        planned.reader.latest_offset(offset(0, 1), ReadMaxRows(5))
        assert why in (query.trouble() or "")
        assert bool(query.trouble()) is bool(why)
    monkeypatch.undo()
    planned.plan.away_file.write_text("a moment ago")
    assert query.trouble() is None
    restarted = BatchPlanner(str(planned.plan.file))
    restarted._client = planned.broker
    restarted.latest_offset(offset(0, 1), ReadMaxRows(5))
    assert not planned.plan.away_file.exists(), "of an earlier planner"


@pytest.mark.parametrize(
    "error", [HelenusError(Kind.BROKER_UNREACHABLE, "busy"), OverflowError("int too big"), ValueError("out of range")]
)
def test_a_failed_commit_of_one_connector_stops_no_other(tmp_path: Path, error: Exception) -> None:
    """A client's library has errors of its own for a position that no topic can have."""
    planned = Planned(tmp_path)
    second = planned.connector.model_copy(update={"name": "u"})
    planned.change(connectors={TOPIC: planned.connector, OTHER: second})
    planned.broker.refused = {TOPIC: error}
    with capture_logs() as logs:
        planned.reader.commit({"tick": 0, "topics": {TOPIC: {"0": 2**63}, OTHER: {"0": 7}}})
    assert planned.broker.committed == {"helenus-u": {OTHER: {"0": 7}}}
    logged = [(entry["event"], entry["group"], entry["log_level"]) for entry in logs]
    assert logged == [("source.commit_failed", "helenus-t", "warning")]


def test_topics_that_left_the_plan_are_released(tmp_path: Path) -> None:
    """Another group's planner, or an operator, may want the subscription."""
    planned = Planned(tmp_path)
    for connectors in ({TOPIC: planned.connector}, {TOPIC: planned.connector, OTHER: planned.connector}, {}):
        planned.change(connectors=connectors)
        for _ in range(2):
            planned.reader.latest_offset(offset(0), ReadAllAvailable())
    assert planned.broker.kept == [{"helenus-t": [TOPIC]}, {"helenus-t": [TOPIC, OTHER]}, {}]


@pytest.mark.parametrize("loss", ["fail", "continue"])
def test_events_that_were_dropped_before_they_were_read(tmp_path: Path, loss: str) -> None:
    planned = Planned(tmp_path)
    connector = planned.connector.model_copy(update={"errors_data_loss": loss})
    planned.change(connectors={TOPIC: connector})
    planned.broker.ends = {TOPIC: {"0": 9, "1": 9}}
    planned.broker.dropped = ["1"]
    end = planned.reader.latest_offset(offset(0, 5, 5), ReadMaxRows(5))
    ((part,),) = planned.tasks(offset(0, 5, 5), end)
    if loss == "fail":
        assert part.error
        assert part.error.kind is Kind.OFFSETS_LOST
        assert "partition 1" in part.error.where
    else:
        assert (part.error, part.lost) == (None, 1)


def test_an_empty_partition_is_not_taken_for_a_recreated_topic(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(_topic_losses, "_SHORT_S", -1.0)
    for nothing, wrong in ((-1, False), (0, True)):
        planned = Planned(tmp_path)
        planned.broker.ends = {TOPIC: {"0": nothing}}
        end = planned.reader.latest_offset(offset(0, 5), ReadMaxRows(5))
        assert end["topics"] == {TOPIC: {"0": 5}}
        assert bool(planned.reader._errors) is wrong


def replaced(planned: Planned, how: str) -> dict[str, int]:
    """Another topic, or others than the records that were read, in the place of what was; returns from where on."""
    planned.broker.ends = {TOPIC: {"0": 900, "1": 900}}
    if how == "recreated":
        planned.broker.topic_ids = {TOPIC: "new"}
        planned.broker.epochs = {TOPIC: {"0": 0, "1": 0}}
        return {"0": 40, "1": 40}
    planned.broker.epochs = {TOPIC: {"0": 7, "1": 8}}
    planned.broker.truncated = {"1": 250}
    return {"1": 250}


@pytest.fixture
def read_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> tuple[Planned, dict[str, Any]]:
    """A topic of which all was read, and what the end of that batch says."""
    monkeypatch.setattr(_batch_planner, "pace_s", lambda _: -1.0)
    planned = Planned(tmp_path)
    planned.broker.ends = {TOPIC: {"0": 300, "1": 300}}
    planned.broker.topic_ids, planned.broker.epochs = {TOPIC: "old"}, {TOPIC: {"0": 7, "1": 7}}
    position = planned.reader.latest_offset(offset(0, 299, 299), ReadMaxRows(5))
    assert position["topics"] == {TOPIC: {"0": 300, "1": 300}}
    planned.tasks(offset(0, 299, 299), position)
    return planned, position


@pytest.mark.parametrize("later", [False, True])
@pytest.mark.parametrize("how", ["recreated", "truncated"])
def test_records_that_replaced_others_stop_the_connector(
    read_once: tuple[Planned, dict[str, Any]], how: str, later: bool
) -> None:
    """Though the topic is longer than before; also when the worker was away meanwhile. Until somebody has reset it."""
    planned, position = read_once
    replaced(planned, how)
    if later:
        broker, planned.reader = planned.broker, BatchPlanner(str(planned.plan.file))
        planned.reader._client = broker
    for _ in range(2):
        end = planned.reader.latest_offset(position, ReadMaxRows(5))
        assert end["topics"] == position["topics"], "nothing is read on from the old offsets"
        ((part,),) = planned.tasks(position, end)
        assert part.error is not None
        assert part.error.kind is Kind.OFFSETS_LOST
        position = end
    planned.change(held={TOPIC: {"0": 40, "1": 40}}, epochs={TOPIC: 1})
    end = planned.reader.latest_offset(position, ReadMaxRows(5_000))
    ((part,),) = planned.tasks(position, end)
    assert (part.error, part.lost) == (None, 0)
    assert part.ranges == (OffsetRange(TOPIC, 0, 40, 900), OffsetRange(TOPIC, 1, 40, 900))


@pytest.mark.parametrize("how", ["recreated", "truncated"])
@pytest.mark.parametrize(
    ("state", "advice"),
    [("none", "reset the connector's offsets"), ("rows", "delete the directory orders in its checkpoint.dir")],
)
def test_what_to_do_after_a_loss_is_possible_with_each_state(
    read_once: tuple[Planned, dict[str, Any]], how: str, state: str, advice: str
) -> None:
    """Positions can't be moved over REST where rows are kept."""
    planned, position = read_once
    settings = planned.connector.model_copy(update={"state": state, "query_group": "orders"})
    planned.change(connectors={TOPIC: settings})
    replaced(planned, how)
    end = planned.reader.latest_offset(position, ReadMaxRows(5))
    ((part,),) = planned.tasks(position, end)
    assert part.error is not None
    assert advice in str(part.error)
    assert "re-snapshot the table" in str(part.error)


@pytest.mark.parametrize("how", ["recreated", "truncated"])
def test_records_that_replaced_others_are_read_and_the_loss_counted(
    read_once: tuple[Planned, dict[str, Any]], how: str
) -> None:
    planned, position = read_once
    planned.change(connectors={TOPIC: planned.connector.model_copy(update={"errors_data_loss": "continue"})})
    first = replaced(planned, how)
    end = planned.reader.latest_offset(position, ReadMaxRows(5_000))
    restarted = BatchPlanner(str(planned.plan.file))  # a worker that was killed does the batch as it is
    restarted._client = planned.broker
    for reader in (planned.reader, restarted):
        planned.reader = reader
        ((part,),) = planned.tasks(position, end)
        assert (part.error, part.lost) == (None, len(first))
        assert part.ranges == tuple(OffsetRange(TOPIC, p, first.get(str(p), 300), 900) for p in (0, 1))
    planned.broker.ends = {TOPIC: {"0": 901, "1": 900}}
    after = planned.reader.latest_offset(end, ReadMaxRows(5_000))
    ((part,),) = planned.tasks(end, after)
    assert (part.error, part.lost, part.ranges[0]) == (None, 0, OffsetRange(TOPIC, 0, 900, 901))


def test_new_leader_with_same_records_is_no_loss(
    read_once: tuple[Planned, dict[str, Any]],
) -> None:
    planned, position = read_once
    planned.broker.ends, planned.broker.topic_ids = {TOPIC: {"0": 310, "1": 300}}, {}
    planned.broker.epochs = {TOPIC: {"0": 9, "1": 9}}
    end = planned.reader.latest_offset(position, ReadMaxRows(50))
    assert end["topics"] == planned.broker.ends
    assert lineages_in(end) == {TOPIC: {"id": "old", "leaders": {"0": 9, "1": 9}, "epoch": 0}}
    ((part,),) = planned.tasks(position, end)
    assert (part.error, part.lost) == (None, 0)


def test_another_worker_that_has_read_further_is_no_loss(read_once: tuple[Planned, dict[str, Any]]) -> None:
    """Its brokers elected leaders meanwhile, and a journal says how far it was: the epoch that is known here ended
    before.
    """
    planned, position = read_once
    replaced(planned, "truncated")
    planned.change(held={TOPIC: {"0": 700, "1": 700}})
    end = planned.reader.latest_offset(position, ReadMaxRows(5_000))
    ((part,),) = planned.tasks(position, end)
    assert (part.error, part.lost) == (None, 0)
    assert part.ranges == (OffsetRange(TOPIC, 0, 700, 900), OffsetRange(TOPIC, 1, 700, 900))


def test_lineages_of_an_earlier_version_count(read_once: tuple[Planned, dict[str, Any]]) -> None:
    """It had them in an offset as they are, not as a text. A batch without an event writes them as a text."""
    planned, position = read_once
    old = {**position, "logs": lineages_in(position)}
    assert old["logs"] == {TOPIC: {"id": "old", "leaders": {"0": 7, "1": 7}, "epoch": 0}}
    assert planned.reader.latest_offset(old, ReadMaxRows(5)) == position
    replaced(planned, "recreated")
    end = planned.reader.latest_offset(old, ReadMaxRows(5))
    ((part,),) = planned.tasks(old, end)
    assert part.error is not None
    assert part.error.kind is Kind.OFFSETS_LOST


@pytest.mark.parametrize("text", ["", "no Base64!", "bm90IGNvbXByZXNzZWQ=", "eJwDAAAAAAE="])
def test_damaged_lineages_are_said(read_once: tuple[Planned, dict[str, Any]], text: str) -> None:
    planned, position = read_once
    with pytest.raises(HelenusError, match="Spark's checkpoint is damaged") as raised:
        planned.reader.latest_offset({**position, "logs": text}, ReadMaxRows(5))
    assert raised.value.kind is Kind.STATE


def test_another_number_of_partitions_is_refused() -> None:
    assert other_partitions(TOPIC, {TOPIC: {"0": 1}}, {TOPIC: {"0": 5}}) is None
    error = other_partitions(TOPIC, {TOPIC: {"0": 1}}, {TOPIC: {"0": 5, "1": 0}})
    assert error is not None
    assert error.kind is Kind.PARTITIONS_CHANGED


def test_a_topic_that_appears_later_is_taken_in_whole() -> None:
    latest = {TOPIC: {"0": 3, "1": 0}}
    end = limited({}, latest, ReadMaxRows(10), MemoryPlanner(), {})
    assert end == latest
    assert other_partitions(TOPIC, end, latest) is None


def test_many_parts_go_to_few_tasks_of_like_size() -> None:
    parts = [TopicRanges((OffsetRange(f"t{n}", 0, 0, n),), "fail", 0, events=n) for n in (1, 2, 3, 100, 4)]
    tasks = shared_out(parts, 2)
    assert [sum(part.events for part in task) for task in tasks] == [100, 10]
    assert shared_out(parts, 5) == [[part] for part in parts]


def test_a_topic_whose_events_cannot_be_counted_stays_and_the_others_go_on() -> None:
    class Broken(MemoryPlanner):
        def advance(self, offset_range: OffsetRange, events: int) -> int:
            if offset_range.topic == OTHER:
                raise HelenusError(Kind.BROKER_UNREACHABLE, "a ledger that cannot be read")
            return super().advance(offset_range, events)

    wrong: dict[str, HelenusError] = {}
    latest = {TOPIC: {"0": 5}, OTHER: {"0": 8}}
    end = limited({TOPIC: {"0": 1}, OTHER: {"0": 2}}, latest, ReadMaxRows(10), Broken(), wrong)
    assert end == {TOPIC: {"0": 5}, OTHER: {"0": 2}}
    assert list(wrong) == [OTHER]


def test_available_now_is_read_in_batches_and_no_more(tmp_path: Path) -> None:
    planned = Planned(tmp_path)
    planned.change(connectors={TOPIC: planned.connector.model_copy(update={"max_batch_size": 10})})
    planned.broker.ends = {TOPIC: {str(p): 8 for p in range(4)}}
    planned.reader.prepare_available_now()
    planned.broker.ends = {TOPIC: {str(p): 90 for p in range(4)}}
    position, steps = offset(0, 0, 0, 0, 0), 0
    while (end := planned.reader.latest_offset(position, ReadMaxRows(1))) != position:
        assert sum(end["topics"][TOPIC].values()) - sum(position["topics"][TOPIC].values()) <= 10
        position, steps = end, steps + 1
    assert position == offset(0, 8, 8, 8, 8)
    assert steps == 4


@given(st.lists(st.tuples(st.integers(0, 2**100), st.none() | st.binary(), st.none() | st.binary(max_size=10))))
def test_events_go_through_spark_in_packs(records: list[tuple[int, bytes | None, bytes | None]]) -> None:
    messages: list[Any] = [MemoryMessage("t", 3, offset, (1, 5), key, value) for offset, key, value in records]
    events = [event for pack in pack_events(messages) for event in unpack_events(pack)]
    assert events == [("t", 3, offset, 5, key, value) for offset, key, value in records]
    if messages:
        size = sum(16 + len(key or b"") + len(value or b"") for _, key, value in records)
        assert _task_reader.events_of(messages) == (events, size)


def test_packs_are_limited_in_size() -> None:
    many: list[Any] = [MemoryMessage("t", 0, n, (1, 5), b"k", b"v") for n in range(2_500)]
    large: list[Any] = [MemoryMessage("t", 0, n, (1, 5), b"k", b"v" * 600_000) for n in range(4)]
    assert [len(list(unpack_events(pack))) for pack in pack_events(many)] == [1_000, 1_000, 500]
    assert [len(list(unpack_events(pack))) for pack in pack_events(large)] == [2, 2]


def test_a_topic_with_fewer_partitions_goes_on_when_an_operator_resets_it(tmp_path: Path) -> None:
    planned = Planned(tmp_path)
    planned.broker.ends = {TOPIC: {"0": 50, "1": 50}}
    position = offset(0, 45, 45, 45)
    checkpoint = tmp_path / "default"
    for name in ("offsets", "commits"):
        (checkpoint / name).mkdir(parents=True)
        (checkpoint / name / "0").write_text(f"v1\n{{}}\n{json.dumps(position)}")
    end = planned.reader.latest_offset(position, ReadMaxRows(100))
    errors = {part.error.kind for task in planned.tasks(position, end) for part in task if part.error}
    assert errors == {Kind.PARTITIONS_CHANGED}
    held_positions = HeldPositions(checkpoint)
    held_positions.move(TOPIC, {"0": 40, "1": 40})
    assert held_positions.read_offsets() == {TOPIC: {"0": 40, "1": 40}}
    planned.change(held=held_positions.offsets(), epochs={TOPIC: 1})
    later = planned.reader.latest_offset(end, ReadMaxRows(100))
    assert later["topics"] == {TOPIC: {"0": 50, "1": 50}}
    ((part,),) = planned.tasks(end, later)
    assert part.error is None
    assert [(r.partition, r.start, r.end) for r in part.ranges] == [(0, 40, 50), (1, 40, 50)]
    assert held_positions.release(TOPIC, ["0", "1"], 1)
    assert HeldPositions(checkpoint).offsets() == {}


def test_a_task_reads_no_more_bytes_than_it_can_hold(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever number of events a batch may take: the rest is held, and read by the next one."""
    planned = Planned(tmp_path)
    planned.change(connectors={TOPIC: planned.connector.model_copy(update={"max_batch_size_in_bytes": 4 << 20})})
    planned.broker.ends = {TOPIC: {"0": 90, "1": 3, "2": 7}}
    start = offset(0, 80, 0, 7)
    end = planned.reader.latest_offset(start, ReadMaxRows(1))
    source = EventsReader(str(planned.plan.file))
    source._batch_planner = planned.reader
    assert source.partitions(start, end) == [], "Spark's source reads nothing"
    events_read: list[tuple[int, int]] = []

    def read(worker: object, places: list[OffsetRange], *_: object) -> Iterator[list[Any]]:
        for offset_range in sorted(places, key=lambda p: -p.partition):
            for n in range(offset_range.start, offset_range.end):
                events_read.append((offset_range.partition, n))
                yield [MemoryMessage(TOPIC, offset_range.partition, n, (1, 5), b"k", b"v" * (1 << 20))]

    monkeypatch.setattr(_task_reader, "read", read)
    monkeypatch.setattr(tasks, "_run", lambda plan, settings, events, *_: ran.extend(e[1:3] for e in events))
    ran: list[tuple[int, int]] = []
    rows = io.BytesIO(planned.plan.parts_file.read_bytes())
    (result,) = tasks.topic_task(planned.plan, {})(CPickleSerializer().load_stream(rows))
    assert events_read == ran == [(1, 0), (1, 1), (1, 2), (0, 80)]
    assert (result.starts, result.ends) == ({"0": 80, "1": 0, "2": 7}, {"0": 81})
    assert result.error is None
    planned.change(held={TOPIC: {"0": 81}})
    after = planned.reader.latest_offset(end, ReadMaxRows(1))
    assert planned.ranges(end, after) == [[(0, 81, 90), (1, 3, 3), (2, 7, 7)]]


def test_a_topic_whose_partitions_are_divided_among_tasks_is_read_whole_in_one_call(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As small batches are: with `tasks.max` of two the events of all but the last task's partitions were left out."""
    planned = Planned(tmp_path, tasks=2)
    planned.broker.ends = {TOPIC: {"0": 2, "1": 1, "2": 3}}
    start = offset(0, 0, 0, 0)
    end = planned.reader.latest_offset(start, ReadMaxRows(10))
    parts = [task for task in planned.reader.partitions(start, end) if isinstance(task, TaskRanges)]
    assert len(parts) == 2

    def read(worker: object, places: list[OffsetRange], *_: object) -> Iterator[list[Any]]:
        for r in places:
            yield [MemoryMessage(TOPIC, r.partition, n, (1, 5), b"k", b"v") for n in range(r.start, r.end)]

    ran: list[tuple[int, int]] = []
    monkeypatch.setattr(_task_reader, "read", read)
    monkeypatch.setattr(tasks, "_run", lambda plan, settings, events, *_: ran.extend(e[1:3] for e in events))
    (result,) = tasks.topic_task(planned.plan, {})(iter(parts))
    assert sorted(ran) == [(0, 0), (0, 1), (1, 0), (2, 0), (2, 1), (2, 2)]
    assert result.planned_ends == {"0": 2, "1": 1, "2": 3}


def test_available_now_is_read_to_its_end_though_it_is_too_many_bytes(tmp_path: Path) -> None:
    planned = Planned(tmp_path)
    planned.broker.ends = {TOPIC: {"0": 8}}
    planned.reader.prepare_available_now()
    position = planned.reader.latest_offset(offset(0, 0), ReadMaxRows(1))
    planned.change(held={TOPIC: {"0": 5}})
    end = planned.reader.latest_offset(position, ReadMaxRows(1))
    assert planned.ranges(position, end) == [[(0, 5, 8)]]
    planned.change(held={})
    assert planned.reader.latest_offset(end, ReadMaxRows(1)) == end


def test_parts_are_those_of_the_batch_that_ends_there(tmp_path: Path) -> None:
    """Spark may begin a batch before it asks what it reads: what is there then is of the one before."""
    file = tmp_path / "parts"
    end = {"tick": 1, "topics": {"t": {"0": 5}}, "now": 1.5}
    assert read_planned(file, end) is None
    note_planned(file, end, [TaskRanges([TopicRanges((), "fail", 0, events=3)], 7)])
    (task,) = read_planned(file, json.loads(json.dumps(end))) or ()
    assert (task.most_bytes, task.parts[0].events) == (7, 3)
    for other in ({**end, "tick": 2}, {**end, "topics": {"t": {"0": 6}}}, {**end, "now": 1.6}):
        assert read_planned(file, other) is None
