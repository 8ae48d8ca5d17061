"""What becomes of positions when parts of a batch fail, or are not there: no Spark, a frame that answers."""

from __future__ import annotations

import json
import math
import os
import pickle
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from prometheus_client import REGISTRY
from structlog.testing import capture_logs

from helenus_connector import metrics
from helenus_connector.config.connector import ConnectorSettings
from helenus_connector.config.worker import WorkerSettings
from helenus_connector.control.plan import QueryPlan
from helenus_connector.control.positions import HeldPositions
from helenus_connector.control.status import Connector, Task
from helenus_connector.gate.waiting import WaitingChanges
from helenus_connector.interfaces.event import Event, Gap, WaitingChange
from helenus_connector.interfaces.gate import GateState, GateWaits
from helenus_connector.journal._entry import JournalEntry
from helenus_connector.pipeline.batch_outcome import BatchOutcome
from helenus_connector.query import _driver_batch as batches
from helenus_connector.query import _spark_job as job
from helenus_connector.query._driver_batch import DriverBatches
from helenus_connector.query._worker_task import TopicResult
from helenus_connector.unconfirmed.files import begins
from helenus_connector.unconfirmed.keys import UnconfirmedKeys
from helenus_connector.unconfirmed.unconfirmed_key import AWAY, UnconfirmedKey
from helenus_schemas.errors import HelenusError, Kind

A, B = "events-ks.a", "events-ks.b"
POISON = HelenusError(Kind.POISON_EVENT, "not an event", "somewhere")


class Frame:
    """A batch whose tasks say these."""

    def __init__(self, *results: TopicResult) -> None:
        self.done = results


class Query:
    """Two tables, of which some run; batch after batch, with what Spark writes down."""

    def __init__(self, directory: Path) -> None:
        self.worker = WorkerSettings.from_properties(
            {"bootstrap.servers": "h:1", "checkpoint.dir": str(directory)}, "worker"
        )
        self.directory = directory
        self.tasks = {topic: Task(0, self._settings(topic[-1])) for topic in (A, B)}
        self.running = {A, B}
        self.now = 0.0
        self.lost: list[tuple[str, str]] = []
        self.start()

    def start(self) -> None:
        self.held = HeldPositions(self.directory / "default")
        (self.directory / "default").mkdir(exist_ok=True)
        self.unconfirmed = UnconfirmedKeys({}, {}, self._planned()[0].unconfirmed_file)
        self.unconfirmed.load(0.0)
        self.waiting = WaitingChanges(self.directory / "default" / "gate.waiting", lambda: self.now)
        assert self.waiting.load()
        self.batches = DriverBatches(
            self._planned, self._planned, self.held, self.unconfirmed, self.waiting, self._lose
        )

    def _lose(self, task: Task, why: str) -> None:
        self.lost.append((task.table, why))

    def _settings(self, table: str) -> ConnectorSettings:
        return ConnectorSettings.from_properties(
            {"name": table, "keyspace": "ks", "table": table, "output.format": "json"}, table
        )

    def _planned(self) -> tuple[QueryPlan, dict[str, Task]]:
        tasks = {t: task for t, task in self.tasks.items() if t in self.running and not task.error}
        settings = {t: task.settings for t, task in tasks.items()}
        return QueryPlan(self.worker, settings, str(self.directory)), tasks

    def plan(self, batch: int, **ends: int) -> None:
        self._write("offsets", batch, {f"events-ks.{table}": {"0": end} for table, end in ends.items()})

    def commit(self, batch: int) -> None:
        self._write("commits", batch, {})

    def _write(self, name: str, batch: int, topics: dict[str, dict[str, int]]) -> None:
        folder = self.directory / "default" / name
        folder.mkdir(exist_ok=True)
        (folder / str(batch)).write_text(f"v1\n{{}}\n{json.dumps({'tick': 0, 'topics': topics})}")


@pytest.fixture
def query(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Query]:
    def run(frame: Any, _: Path, function_for: Callable[[set[str]], object], __: object) -> list[TopicResult]:
        function_for({result.topic for result in frame.done})
        return [pickle.loads(pickle.dumps(result)) for result in frame.done]

    monkeypatch.setattr(job, "run", run)
    query = Query(tmp_path)
    yield query
    for task in query.tasks.values():
        metrics.forget(task.labels)


def fine(topic: str, start: int, epoch: int = 0) -> TopicResult:
    return TopicResult(topic, epoch, {"0": start}, outcome=BatchOutcome())


def failed(topic: str, start: int, epoch: int = 0, error: HelenusError = POISON) -> TopicResult:
    return TopicResult(topic, epoch, {"0": start}, error=error)


def test_a_failed_table_is_held_and_the_other_goes_on(query: Query) -> None:
    query.plan(0, a=10, b=10)
    query.batches.process(Frame(fine(A, 0), failed(B, 3)), 0)
    assert query.held.offsets() == {B: {"0": 3}}
    assert query.tasks[A].error is None
    assert str(query.tasks[B].error) == str(POISON)


def test_when_keys_are_due_is_written_when_it_changes(query: Query) -> None:
    query.plan(0, a=10, b=10)
    file = query._planned()[0].due_file
    query.batches.process(Frame(fine(A, 0)), 0)
    assert file.read_bytes() == b""
    file.unlink()
    query.batches.process(Frame(fine(A, 0)), 1)
    assert not file.exists()
    query.unconfirmed.apply([], [UnconfirmedKey(A, 0, b"k", 0, b"", since=time.time())], time.time())
    query.batches.process(Frame(fine(A, 0)), 2)
    assert float(file.read_bytes()) == query.unconfirmed.next_due()
    query.start()  # as after a failure: what an earlier query left there does not count
    file.write_text("1.0")
    query.plan(3, a=10, b=10)
    query.batches.process(Frame(fine(A, 0)), 3)
    assert file.read_bytes() == b""


def test_a_table_is_released_after_a_successful_retry(query: Query) -> None:
    query.plan(0, a=10, b=10)
    slow = HelenusError(Kind.CASSANDRA_READ, "slow", "b")
    query.batches.process(Frame(fine(A, 0), failed(B, 3, error=slow)), 0)
    assert query.tasks[B].trouble is not None
    query.batches.process(Frame(fine(B, 3)), 1)
    assert (query.held.offsets(), query.tasks[B].trouble) == ({}, None)


def test_a_topic_that_left_in_mid_batch_is_held(query: Query) -> None:
    query.plan(0, a=10, b=10)
    query.running = {A}
    query.batches.process(Frame(fine(A, 0), TopicResult(B, 0, {"0": 3})), 0)
    assert query.held.offsets() == {B: {"0": 3}}


@pytest.mark.parametrize("second_result", [fine, failed])
def test_an_operators_move_overrides_the_running_batch(
    query: Query, second_result: Callable[[str, int], TopicResult]
) -> None:
    query.plan(0, a=10, b=10)
    query.held.move(B, {"0": 1})
    query.batches.process(Frame(fine(A, 0), second_result(B, 3)), 0)
    assert query.held.offsets() == {B: {"0": 1}}
    assert query.tasks[B].error is None, "a batch of before says nothing of it"


def test_events_too_large_for_a_task_are_held(query: Query) -> None:
    query.plan(0, a=10, b=10)
    part = TopicResult(A, 0, {"0": 2, "1": 4}, {"1": 7}, BatchOutcome())
    query.batches.process(Frame(part, fine(B, 0)), 0)
    assert query.held.offsets() == {A: {"1": 7}}
    assert query.tasks[A].error is query.tasks[A].trouble is None
    query.batches.process(Frame(TopicResult(A, 0, {"1": 7}, {}, BatchOutcome())), 1)
    assert query.held.offsets() == {}
    query.held.move(A, {"0": 1})
    query.batches.process(Frame(part), 2)
    assert query.held.offsets()[A]["0"] == 1, "an operator moved it meanwhile"
    query.batches.process(Frame(TopicResult(A, 1, {"0": 1}, {"0": 9}, BatchOutcome())), 3)
    assert query.held.offsets() == {A: {"0": 9}}
    query.start()
    query.plan(4, a=12)
    query.batches.process(Frame(TopicResult(A, 1, {"0": 9}, {"0": 11}, BatchOutcome())), 4)
    assert query.held.offsets() == {A: {"0": 11}}, "also in another run"


def test_a_gap_is_counted_once(query: Query) -> None:
    """It is in every partition. What a new run steps back to was counted before; in a recreated topic nothing was."""

    def batch(start: int, *gaps: Gap, lost: int = 0) -> tuple[float, int]:
        outcome = BatchOutcome(gaps=list(gaps), lost=lost)
        with capture_logs() as logs:
            query.batches.process(Frame(TopicResult(A, 0, {"0": start, "1": 0}, outcome=outcome)), 0)
        counted = REGISTRY.get_sample_value(
            "helenus_connector_gaps_total", dict(zip(("connector", "keyspace", "table"), ("a", "ks", "a"), strict=True))
        )
        return counted or 0.0, sum(entry["event"] == "events.gap" for entry in logs)

    first, second = Gap(0, 4, "n", 100), Gap(0, 7, "n", 200)
    query.plan(0, a=6)
    assert batch(0, Gap(1, 3, "n", 100), first, first._replace(offset=5)) == (1, 1)
    query.commit(0)
    query.start()
    assert batch(2, first) == (1, 0)
    assert batch(2, first, second) == (2, 1)
    assert batch(8, second._replace(offset=9), Gap(0, 10, "m", 200)) == (3, 1)
    query.start()
    assert batch(0, Gap(0, 1, "n", 300), lost=1) == (4, 1)


def test_a_batch_repeated_without_a_topic_keeps_its_range(query: Query) -> None:
    """A run dies in batch 1; the next one begins with it, and B is paused by now."""
    query.plan(0, a=10, b=10)
    query.commit(0)
    query.plan(1, a=20, b=20)
    query.running = {A}
    query.start()
    query.batches.process(Frame(fine(A, 10)), 1)
    assert query.held.offsets() == {B: {"0": 10}}


def test_a_repeated_batch_keeps_no_topic_that_was_not_in_it(query: Query) -> None:
    query.plan(0, a=10, b=10)
    query.commit(0)
    query.plan(1, a=20, b=10)
    query.running = {A}
    query.start()
    query.batches.process(Frame(fine(A, 10)), 1)
    assert query.held.offsets() == {}


@pytest.mark.parametrize("batch", [0, 1])
def test_a_topic_that_joined_with_the_batch_is_kept_where_it_joined(query: Query, batch: int) -> None:
    """That is where its log began, which may be far after 0: what was before is not lost with it."""
    if batch:
        query.plan(0, a=10)
        query.commit(0)
    query.plan(batch, a=10, b=5000)
    query.running = {A}
    query.start()
    query.batches.process(Frame(fine(A, 10)), batch)
    assert query.held.offsets() == {B: {"0": 5000}}


def test_a_topic_that_joined_at_a_held_position_is_kept_there(query: Query) -> None:
    query.plan(0, a=10)
    query.commit(0)
    query.held.move(B, {"0": 7})
    query.plan(1, a=10, b=5000)
    query.running = {A}
    query.start()
    query.batches.process(Frame(fine(A, 10)), 1)
    assert query.held.offsets() == {B: {"0": 7}}


def test_a_held_position_replaces_the_one_of_spark(query: Query) -> None:
    """B went from 5 to 15 where Spark had it at 100, and the run died before Spark knew."""
    query.plan(0, a=10, b=100)
    query.commit(0)
    query.plan(1, a=20, b=15)
    query.running = {A}
    query.start()
    query.batches.process(Frame(fine(A, 10)), 1)
    assert query.held.offsets() == {B: {"0": 15}}


def test_due_keys_are_distributed_in_turns(query: Query, monkeypatch: pytest.MonkeyPatch) -> None:
    """No more than a batch may have events; and what a batch published is a waiting key's image no longer."""
    handed_out: list[list[UnconfirmedKey]] = []

    def task(plan: QueryPlan, due_keys: dict[str, list[UnconfirmedKey]], may_wait: int, *_: object) -> None:
        handed_out.append(due_keys.get(A, []))

    monkeypatch.setattr(batches, "topic_task", task)
    max_batch = 50  # with thousands, on a busy machine, the first of them are due again before the second batch
    for of_topic in query.tasks.values():
        of_topic.settings = of_topic.settings.model_copy(update={"max_batch_size": max_batch})
    waiting_keys = [UnconfirmedKey(A, 0, b"%d" % i, 0, image=b"i") for i in range(max_batch + 5)]
    query.batches.unconfirmed.apply([], waiting_keys, 0.0)
    result = fine(A, 0)
    assert result.outcome is not None
    result.outcome.places[A, 0].add(b"7", False)
    query.plan(0, a=10)
    for number in range(2):
        query.batches.process(Frame(result), number)
    assert [len(keys) for keys in handed_out] == [max_batch, 5]
    assert [p.key for p in waiting_keys if p.image is None] == [b"7"]


def test_a_key_that_falls_due_after_planning_is_read_in_the_next_batch(
    query: Query, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The next one has all partitions, unless its topic is gone: then it waits as after a read."""
    handed_out: list[list[bytes]] = []

    def task(plan: QueryPlan, due_keys: dict[str, list[UnconfirmedKey]], *_: object) -> None:
        handed_out.append(sorted(unconfirmed.key for keys in due_keys.values() for unconfirmed in keys))

    monkeypatch.setattr(batches, "topic_task", task)
    keys = [UnconfirmedKey(topic, 0, topic.encode(), 0) for topic in (A, B)]
    query.batches.unconfirmed.apply([], keys, 0.0)
    query.plan(0, a=10, b=10)
    due_file = query._planned()[0].due_file
    query.batches.process(Frame(fine(A, 0)), 0)
    assert float(due_file.read_bytes()) <= time.time(), "the planner makes a batch of all partitions at once"
    query.batches.process(Frame(fine(A, 10)), 1)
    assert float(due_file.read_bytes()) > time.time()
    query.batches.process(Frame(fine(A, 10)), 2)
    assert handed_out == [[A.encode(), B.encode()], [B.encode()], []]


def test_unconfirmed_keys_are_saved_before_their_position_is_released(
    query: Query, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Killed in between, nothing would lead back to events that are older than what a run steps back."""
    query.plan(0, a=10, b=10)
    query.held.hold(A, {"0": 3})

    def killed(*_: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(query.batches.unconfirmed, "save", killed)
    with pytest.raises(KeyboardInterrupt):
        query.batches.process(Frame(fine(A, 3)), 0)
    assert HeldPositions(query.directory / "default").offsets()[A] == {"0": 3}


@pytest.mark.parametrize("batch", [1, 2])
def test_a_repeated_batch_moves_no_step_back(query: Query, batch: int) -> None:
    """It is done as it was planned. Killed after it, the next run would step back from here, and not far enough."""
    query.plan(0, a=10, b=10)
    query.commit(0)
    query.plan(1, a=20, b=20)
    query.start()
    query.plan(2, a=30, b=30)
    query.batches.process(Frame(fine(A, 10), fine(B, 10)), batch)
    begin = [begins(query._planned()[0].unconfirmed_file)(topic, 0.0, math.inf) for topic in (A, B)]
    assert [offset == math.inf for offset in begin] == [batch == 1] * 2


@pytest.mark.parametrize("moved", ["apply", "save"])
@pytest.mark.parametrize("second_result", [fine, failed])
def test_an_operators_move_at_the_end_of_a_batch_is_not_lost(
    query: Query, second_result: Callable[[str, int], TopicResult], moved: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """While the driver keeps what waits, say: it looked at the epoch already."""
    query.plan(0, a=10, b=10)
    query.held.hold(B, {"0": 3})
    original = getattr(query.unconfirmed, moved)

    def move(*args: Any) -> None:
        query.held.move(B, {"0": 1})
        original(*args)

    monkeypatch.setattr(query.unconfirmed, moved, move)
    query.batches.process(Frame(fine(A, 0), second_result(B, 3)), 0)
    assert query.held.offsets() == {B: {"0": 1}}
    assert HeldPositions(query.directory / "default").offsets() == {B: {"0": 1}}


def test_a_restarted_query_knows_its_unconfirmed_keys(query: Query) -> None:
    """With the events that wait, or they would have no outcome; what was published last is not known any more."""
    query.plan(0, a=10)
    result = fine(A, 0)
    assert result.outcome is not None
    result.outcome.waiting.append(UnconfirmedKey(A, 0, b"k", 0, image=b"i", copies=26, since=time.time()))
    query.batches.process(Frame(result), 0)
    query.commit(0)
    query.plan(1, a=20)
    restarted = DriverBatches(
        query._planned, query._planned, query.held, query.unconfirmed, query.waiting, lambda *_: None
    )
    restarted.process(Frame(fine(A, 10)), 1)
    assert restarted.unconfirmed.counts(A) == (1, 26)
    assert [p.image for p in restarted.unconfirmed.select_due(math.inf, 9)] == [None]


def test_what_a_batch_left_is_written_to_a_journal_before_it_ends(query: Query) -> None:
    """As it was before the driver's memory took it over; of a table that failed nothing."""
    written: list[tuple[int, dict[str, list[bytes]]]] = []
    error = HelenusError(Kind.BROKER_UNREACHABLE, "no answer")
    errors: list[HelenusError] = []

    def commit(batch: int, entries: Mapping[str, list[bytes]]) -> None:
        assert query.held.offsets() == {B: {"0": 3}}, "the outcome is applied"
        written.append((batch, dict(entries)))
        if errors:
            raise errors.pop()

    journaled = DriverBatches(
        query._planned,
        query._planned,
        query.held,
        query.unconfirmed,
        query.waiting,
        lambda *_: None,
        commit_outcomes=commit,
    )
    query.plan(0, a=10, b=10)
    result = fine(A, 0)
    assert result.outcome is not None
    result.outcome.waiting.append(UnconfirmedKey(A, 0, b"k", 0, copies=26, since=time.time()))
    journaled.process(Frame(result, failed(B, 3)), 0)
    ((batch, entries),) = written
    assert (batch, entries.keys()) == (0, {A})
    (entry,) = (JournalEntry.from_record(record, "") for record in entries[A])
    assert [(key.key, key.copies) for key in entry.waiting] == [(b"k", 26)]
    query.plan(1, a=20, b=20)
    errors.append(error)
    with pytest.raises(HelenusError, match="no answer"):  # Spark commits nothing, and the next run reads the journal
        journaled.process(Frame(fine(A, 10), failed(B, 3)), 1)
    assert written[1] == (1, {A: []}), "the positions moved"


def test_held_positions_are_on_disk_before_the_batch_ends(query: Query, monkeypatch: pytest.MonkeyPatch) -> None:
    """And what is held no more, not before Spark's own word of where the batch ends is."""
    steps: list[str] = []
    fsync = os.fsync

    def seen(handle: int) -> None:
        steps.append("/".join(Path(f"/proc/self/fd/{handle}").readlink().parts[-2:]))
        fsync(handle)

    query.plan(0, a=10, b=10)
    query.batches.process(Frame(fine(A, 0), fine(B, 0)), 0)
    monkeypatch.setattr(os, "fsync", seen)
    query.plan(1, a=20, b=20)
    slow = HelenusError(Kind.CASSANDRA_READ, "slow", "b")
    query.batches.process(Frame(fine(A, 10), failed(B, 10, error=slow)), 1)
    directory = f"{query.directory.name}/default"
    assert steps == ["default/held.new", directory]
    steps.clear()
    query.batches.process(Frame(fine(A, 20), failed(B, 10, error=slow)), 2)
    assert steps == [], "nothing changed"
    query.plan(3, a=20, b=30)
    query.batches.process(Frame(fine(B, 10)), 3)
    assert steps == ["offsets/3", "default/offsets", "default/held.new", directory]


def shown(task: Task) -> tuple[str, str | None]:
    """A task as its connector's status has it."""
    (status,) = Connector({}, task.settings, tasks={"t": task}).status().tasks
    return status.state, status.trace


def test_keys_that_cannot_be_read_are_shown_with_the_task(query: Query, monkeypatch: pytest.MonkeyPatch) -> None:
    """It runs, as other keys do; and no more of them wait than the driver holds."""
    room: list[int] = []
    monkeypatch.setattr(batches, "topic_task", lambda plan, due_keys, may_wait, *_: room.append(may_wait))
    monkeypatch.setattr(batches, "MOST_WAITING", 5)
    task = query.tasks[A]
    task.ready = True
    cause = HelenusError(Kind.CASSANDRA_READ, "not enough replicas", "ks.a, k = 5")
    waits = [UnconfirmedKey(A, 0, b"%d" % i, 0, unread=AWAY, copies=1) for i in range(3)]
    query.plan(0, a=10)
    query.batches.process(Frame(TopicResult(A, 0, {"0": 0}, {}, BatchOutcome(error=cause, unread=3, waiting=waits))), 0)
    assert shown(task) == ("RUNNING", str(cause))
    assert metrics.KEYS_UNREAD.labels(*task.labels)._value.get() == 3
    query.batches.process(Frame(TopicResult(A, 0, {"0": 0}, {}, BatchOutcome(done=waits))), 1)
    assert shown(task) == ("RUNNING", None)
    assert metrics.KEYS_UNREAD.labels(*task.labels)._value.get() == 0
    assert room == [5, 2]


def test_tasks_are_sent_the_settings_of_the_tables_that_they_read(
    query: Query, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Those of hundreds take some ms in each batch. The caches of all tables stay."""
    sent: list[QueryPlan] = []
    monkeypatch.setattr(batches, "topic_task", lambda plan, *_: sent.append(plan))
    query.plan(0, a=10, b=10)
    query.batches.process(Frame(fine(B, 0)), 0)
    plan, _ = query._planned()
    assert list(sent[0].connectors) == [B]
    assert len(plan.connectors) > 1
    assert (sent[0].tables, sent[0].checkpoint, sent[0].start) == (plan.tables, plan.checkpoint, plan.start)


def test_what_waits_at_the_gate_is_handed_to_the_next_batch(query: Query, monkeypatch: pytest.MonkeyPatch) -> None:
    handed_out: list[Any] = []
    monkeypatch.setattr(batches, "topic_task", lambda plan, due_keys, may_wait, waits, *_: handed_out.append(waits))
    query.tasks[A].settings = ConnectorSettings.from_properties(
        {"name": "a", "keyspace": "ks", "table": "a", "output.format": "json", "gate": "quorum"}, "a"
    )
    waiting = WaitingChange(bytes(16), Event(A, 0, 5, 1000, b"k", b"v"), ("n",), 3)
    result = fine(A, 0)
    assert result.outcome is not None
    result.outcome.read, result.outcome.at_gate = 3, GateState(waits=[waiting])
    query.plan(0, a=10, b=10)
    query.batches.process(Frame(result, fine(B, 0)), 0)
    labels = dict(zip(("connector", "keyspace", "table"), query.tasks[A].labels, strict=True))
    assert REGISTRY.get_sample_value("helenus_connector_gate_waiting_changes", labels) == 1
    assert REGISTRY.get_sample_value("helenus_connector_gate_waiting_events", labels) == 3
    query.batches.process(Frame(failed(A, 10), fine(B, 10)), 1)
    assert handed_out[1][A].reports == {0: {bytes(16): (("n",), 3)}}
    assert B not in handed_out[1], "of a table at level one nothing waits"


def test_a_change_that_is_overdue_after_planning_is_in_the_next_batch(
    query: Query, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The next one has all partitions. If it has not, as of a topic that is gone, the change waits as after a try."""
    handed_out: list[list[tuple[str, bool]]] = []

    def task(plan: QueryPlan, due_keys: object, may_wait: int, waits: dict[str, GateWaits], *_: object) -> None:
        overdue = [waiting for topic_waits in waits.values() for waiting in topic_waits.overdue]
        handed_out.append(sorted((waiting.event.topic, waiting.is_recount) for waiting in overdue))

    clock = SimpleNamespace(time=lambda: 1e9 + query.now, monotonic=time.monotonic)
    monkeypatch.setattr(batches, "time", clock)
    monkeypatch.setattr(batches, "topic_task", task)
    for topic, table in ((A, "a"), (B, "b")):
        properties = {"name": table, "keyspace": "ks", "table": table, "output.format": "json", "gate": "quorum"}
        query.tasks[topic].settings = ConnectorSettings.from_properties(properties, table)
    first_results = []
    for topic in (A, B):
        first_results.append(fine(topic, 0))
        waiting = WaitingChange(bytes(16), Event(topic, 0, 5, 1000, b"k", b"v"), ("n",), 3)
        assert first_results[-1].outcome is not None
        first_results[-1].outcome.at_gate = GateState(waits=[waiting])
    query.plan(0, a=10, b=10)
    query.batches.process(Frame(*first_results), 0)
    due_file = query._planned()[0].due_file
    for batch in range(1, 3):  # the clock runs between batches that read the topics
        query.now += 6
        query.batches.process(Frame(fine(A, 10), fine(B, 10)), batch)
    query.batches.process(Frame(fine(A, 10)), 3)
    assert float(due_file.read_bytes()) <= clock.time(), "the planner makes a batch of all partitions at once"
    query.batches.process(Frame(fine(A, 10)), 4)
    assert float(due_file.read_bytes()) > clock.time()
    query.batches.process(Frame(fine(A, 10), fine(B, 10)), 5)
    assert handed_out[3:] == [[(A, True), (B, True)], [(B, True)], []]


def test_a_table_at_which_no_more_may_wait_pauses(query: Query) -> None:
    """It says why; and it goes on at once where something that waited went on."""
    result = fine(A, 0)
    assert result.outcome is not None
    result.outcome.at_gate = GateState(stopped={0: 7})
    result.ends["0"] = 7
    query.plan(0, a=10, b=10)
    query.batches.process(Frame(result, fine(B, 0)), 0)
    assert query.held.offsets() == {A: {"0": 7}}
    trouble = query.tasks[A].trouble
    assert trouble is not None
    assert trouble.kind is Kind.GATE_FULL
    result.outcome.at_gate = GateState(stopped={0: 7}, gone=[(0, bytes(16))])
    query.batches.process(Frame(result), 1)
    assert query.tasks[A].trouble is None


def test_a_topic_of_which_one_share_is_stuck_fails_at_each_batch(query: Query) -> None:
    """Its pauses grow, and `errors.retry.timeout` ends it, although its other partitions go on."""
    query.tasks[A].settings = query.tasks[A].settings.model_copy(update={"errors_retry_timeout": 1})
    stuck = TopicResult(A, 0, {"1": 0}, {"1": 7}, BatchOutcome(at_gate=GateState(stopped={1: 7})))
    query.plan(0, a=10, b=10)
    query.batches.process(Frame(fine(A, 0), stuck, fine(B, 0)), 0)
    assert query.tasks[A].error is None
    time.sleep(0.01)
    query.batches.process(Frame(fine(A, 0), stuck), 1)
    assert query.tasks[A]._failures == 2
    assert query.tasks[A].error is not None
    assert query.tasks[A].error.kind is Kind.GATE_FULL
