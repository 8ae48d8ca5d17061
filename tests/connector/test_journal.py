"""What waits of a topic that is published exactly once: as the journal has it, and as the driver has it in memory."""

from __future__ import annotations

import dataclasses
import math
import random
from pathlib import Path
from typing import Any

import pytest
from connector.staged import DATA, EVENTS, NODE, Staged, int32, rows, table
from connector.test_batches import POISON, A, Frame, Query, fine
from connector.test_source import TOPIC, Planned, offset
from hypothesis import given
from hypothesis import strategies as st
from pyspark.sql.streaming.datasource import ReadMaxRows

from helenus_connector.config.connector import ConnectorSettings
from helenus_connector.config.worker import WorkerSettings
from helenus_connector.control.plan import QueryPlan
from helenus_connector.gate.waiting import WaitingChanges, WaitingLimits
from helenus_connector.interfaces.event import Event, WaitingChange
from helenus_connector.interfaces.gate import GateState
from helenus_connector.journal._entry import VERSION, JournalEntry, whole_entry
from helenus_connector.journal.support import obstacle
from helenus_connector.pipeline.batch_outcome import BatchOutcome
from helenus_connector.query import _spark_job as job
from helenus_connector.query._batch_planner import BatchPlanner
from helenus_connector.query._worker_task import TopicResult
from helenus_connector.unconfirmed.keys import UnconfirmedKeys
from helenus_connector.unconfirmed.unconfirmed_key import PublishedKeys, UnconfirmedKey
from helenus_connector.unconfirmed.unproven_changes import UnprovenChange, pack_changes, unstamp_changes
from helenus_schemas.errors import HelenusError, Kind
from helenus_schemas.event.change import Bound, Change, Effect, Scope
from helenus_schemas.event.wire import encode

FEW_KEYS = [bytes([n]) + bytes(2) for n in range(1, 6)]
keys = st.binary(max_size=40)
ids = st.binary(min_size=16, max_size=16)
ends = st.none() | st.builds(Bound, st.booleans(), st.lists(st.binary(max_size=9), max_size=3).map(tuple))
bounds = st.none() | st.tuples(ends, ends)
times = st.none() | st.integers(-(2**63) + 1, 2**63 - 1)
partitions = st.integers(0, 3)
changes = st.dictionaries(
    ids, st.builds(UnprovenChange, times, st.just(math.nan), st.integers(0, 2**62), st.none() | st.integers(1, 2**40))
)
waiting_keys = st.builds(
    UnconfirmedKey,
    st.just(TOPIC),
    partitions,
    keys,
    st.integers(0, 4),
    changes.map(pack_changes),
    st.none() | ids,
    st.integers(0, 9),
    st.integers(0, 9),
    bounds=bounds,
    since=st.floats(0, 1e10),
    pause_s=st.floats(0, 300),
    unread=st.integers(0, 2),
    stripe=st.integers(0, 9),
    newest=times,
    deleted_at=times,
)
events = st.builds(
    Event, st.just(TOPIC), partitions, st.integers(0, 2**62), st.integers(0, 2**62), st.none() | keys, st.none() | keys
)
at_gate = st.builds(
    GateState,
    st.lists(
        st.builds(
            WaitingChange, ids, events, st.lists(st.text(max_size=9)).map(tuple), st.integers(0, 9), st.floats(0, 1e9)
        )
    ),
    st.lists(st.tuples(partitions, ids)),
    st.lists(st.tuples(partitions, st.text(max_size=9))),
)


def published(*names: bytes, clustering: int = 1, marker: bool = False) -> PublishedKeys:
    publication = PublishedKeys(clustering)
    for name in names:
        publication.add(name, marker)
    return publication


entries = st.builds(
    JournalEntry,
    st.text(),
    st.just(TOPIC),
    st.booleans(),
    st.lists(st.tuples(partitions, keys | st.tuples(keys, bounds.filter(lambda b: b is not None)))),
    st.lists(waiting_keys),
    st.dictionaries(partitions, st.lists(keys, min_size=1).map(lambda names: published(*names))),
    at_gate,
)


@given(entries)
def test_an_entry_is_what_was_written(entry: JournalEntry) -> None:
    (record,) = entry.to_records()
    read = JournalEntry.from_record(record, "here")
    for publication in (*entry.published.values(), *read.published.values()):
        publication.touches(b"")  # sorts
    assert read == entry


@given(st.binary(max_size=300), entries, st.integers(0, 2**20))
def test_other_bytes_are_refused(noise: bytes, entry: JournalEntry, index: int) -> None:
    (record,) = entry.to_records()
    flipped = bytearray(record)
    flipped[index % len(record)] ^= 1 + index % 255
    for data in (noise, VERSION + noise, record[: index % len(record)], bytes(flipped)):
        refusals: list[HelenusError] = []
        try:
            JournalEntry.from_record(data, "here")
        except HelenusError as error:
            refusals.append(error)
        assert all(refusal.kind is Kind.STATE and "here" in str(refusal) for refusal in refusals)


def test_a_long_entry_is_several_records() -> None:
    waiting = [unconfirmed(n.to_bytes(3, "big"), image=bytes(16)) for n in range(20_000)]
    entry = whole_entry("c", TOPIC, waiting, [])
    records = list(entry.to_records())
    assert len(records) > 3
    assert max(map(len, records)) < 500_000
    read = [JournalEntry.from_record(record, "here") for record in records]
    assert [part.is_whole for part in read] == [True] + [False] * (len(records) - 1)
    assert [key.key for part in read for key in part.waiting] == [key.key for key in waiting]


def unconfirmed(key: bytes, change: bytes = b"c", image: bytes | None = None, **more: Any) -> UnconfirmedKey:
    awaited = pack_changes({change.ljust(16, b"\0"): UnprovenChange(5, math.nan)})
    return UnconfirmedKey(TOPIC, 0, key, Scope.ROW, awaited, image, **more)


def remembered(unconfirmed_keys: UnconfirmedKeys) -> dict[bytes, Any]:
    """What counts of keys, whenever they are due."""
    return {
        key.key: dataclasses.replace(key, awaited=unstamp_changes(key.awaited), due_at=0.0, handed=0.0)
        for key in unconfirmed_keys.of_topic(TOPIC)
    }


@pytest.mark.parametrize("seed", range(40))
def test_restored_keys_are_those_of_memory(tmp_path: Path, seed: int) -> None:
    """Batch after batch: keys come, come again, are read again, settled and overtaken."""
    chance = random.Random(seed)
    memory, restored = (UnconfirmedKeys({TOPIC: 2.0}, {TOPIC: 30.0}, tmp_path / name) for name in ("one", "other"))
    journal = [JournalEntry("c", TOPIC, True)]
    for now in range(100, 200):
        due_keys = [key for key in memory.select_due(now, 3) if chance.random() < 0.9]
        settled = [key for key in due_keys if chance.random() < 0.5]
        waiting = [
            dataclasses.replace(key, attempts=key.attempts + 1, image=chance.randbytes(16))
            for key in due_keys
            if key not in settled
        ]
        new_names = set(chance.sample(FEW_KEYS, 2)) - {key.key for key in due_keys}
        waiting += [
            unconfirmed(name, chance.randbytes(3), chance.randbytes(16), since=float(now)) for name in sorted(new_names)
        ]
        places = {0: published(*chance.sample(FEW_KEYS, 1), marker=chance.random() < 0.1)}
        names = [(key.partition, key.name_in_partition) for key in settled]
        entry = JournalEntry("c", TOPIC, False, names, waiting, places)
        journal += [JournalEntry.from_record(record, "here") for record in entry.to_records()]
        memory.apply(settled, waiting, float(now), {(TOPIC, 0): places[0]})
        if chance.random() < 0.05:
            whole = whole_entry("c", TOPIC, memory.of_topic(TOPIC), [])
            journal = [JournalEntry.from_record(record, "here") for record in whole.to_records()]
        restored.restore(TOPIC, [(e.settled, e.waiting, e.published) for e in map(copied, journal)], float(now))
        assert remembered(restored) == remembered(memory), f"at {now}"


def copied(entry: JournalEntry) -> JournalEntry:
    (record,) = entry.to_records()
    return JournalEntry.from_record(record, "here")


@pytest.mark.parametrize("seed", range(20))
def test_restored_changes_at_the_gate_are_those_of_memory(tmp_path: Path, seed: int) -> None:
    chance = random.Random(seed)
    memory, restored = (WaitingChanges(tmp_path / name, lambda: 0.0) for name in ("one", "other"))
    for changes_at_gate in (memory, restored):
        changes_at_gate.use({TOPIC: WaitingLimits(600.0, 1 << 20, True, 30.0)})
    journal = [JournalEntry("c", TOPIC, True)]
    for now in range(50):
        state = GateState()
        for change in chance.sample(FEW_KEYS, 2):
            nodes = tuple(sorted(chance.sample("abc", chance.randint(1, 2))))
            event = Event(TOPIC, chance.randrange(2), now, now, change, b"v")
            state.waits.append(WaitingChange(change.ljust(16, b"\0"), event, nodes, len(nodes)))
        state.gone = [(chance.randrange(2), chance.choice(FEW_KEYS).ljust(16, b"\0"))]
        state.truncated = [(0, "a")] if chance.random() < 0.1 else []
        journal += [copied(JournalEntry("c", TOPIC, at_gate=state))]
        memory.apply(TOPIC, dataclasses.replace(state, waits=[dataclasses.replace(w) for w in state.waits]), None, now)
        if chance.random() < 0.1:
            journal = [copied(whole_entry("c", TOPIC, [], memory.export_changes([TOPIC])))]
        restored.restore(TOPIC, [entry.at_gate for entry in map(copied, journal)])
        assert waits(restored) == waits(memory), f"at {now}"


def waits(changes_at_gate: WaitingChanges) -> dict[tuple[int, bytes], Any]:
    exported = changes_at_gate.export_changes([TOPIC])
    return {(w.event.partition, w.id): (w.nodes, w.copies, w.event) for w in exported}


def test_how_long_a_change_has_waited_is_kept(tmp_path: Path) -> None:
    clock = [0.0]
    memory = WaitingChanges(tmp_path / "one", lambda: clock[0])
    memory.use({TOPIC: WaitingLimits(600.0, 1 << 20, True, 30.0)})
    waiting = WaitingChange(bytes(16), Event(TOPIC, 0, 1, 1, b"k", b"v"), ("a",), 1)
    memory.tick(TOPIC, 1000.0)
    memory.apply(TOPIC, GateState([waiting]), None, 0.0)
    clock[0] = 40.0
    memory.tick(TOPIC, 1040.0)
    entry = copied(whole_entry("c", TOPIC, [], memory.export_changes([TOPIC])))
    restored = WaitingChanges(tmp_path / "other", lambda: 0.0)
    restored.use({TOPIC: WaitingLimits(600.0, 1 << 20, True, 30.0)})
    restored.restore(TOPIC, [entry.at_gate])
    assert [w.since for w in restored.export_changes([TOPIC])] == [40.0]


def test_offsets_are_committed_where_a_batch_moves_on() -> None:
    result = TopicResult("t", 0, {"0": 5, "1": 5, "2": 5, "3": 5}, {"1": 7}, read={2: 20, 3: 8})
    result.planned_ends = {"0": 5, "1": 9, "2": 12, "3": 9}
    assert result.ends_to_commit == {1: 7, 3: 9}


def test_a_repeated_batch_waits_until_the_past_was_read(tmp_path: Path) -> None:
    """The batch in which a run was killed is planned: without what came before it, it would publish copies."""
    planned = Planned(tmp_path, {"0": 7})
    planned.change(exactly_once={TOPIC: {"0": 7}}, held={TOPIC: {"0": 11}})
    planned.broker.ends = {TOPIC: {"0": 14}}
    planned.reader = BatchPlanner(str(planned.plan.file))  # of another run
    planned.reader._client = planned.broker
    start, repeated = offset(0, 10), offset(1, 12)
    assert planned.ranges(start, repeated) == []
    end = planned.reader.latest_offset(repeated, ReadMaxRows(50))
    (((part,),),) = [planned.tasks(repeated, end)]
    assert [(r.start, r.end) for r in part.ranges] == [(7, 14)]
    assert part.read == {0: 11}


def test_a_topic_without_a_past_begins_at_its_position(tmp_path: Path) -> None:
    planned = Planned(tmp_path, {"0": 7})
    planned.change(exactly_once={TOPIC: {}}, held={TOPIC: {"0": 11}})
    planned.broker.ends = {TOPIC: {"0": 14}}
    end = planned.reader.latest_offset(offset(1, 12), ReadMaxRows(50))
    assert planned.ranges(offset(1, 12), end) == [[(0, 11, 14)]]


def test_positions_are_left_to_the_transactions(tmp_path: Path) -> None:
    planned = Planned(tmp_path)
    planned.change(exactly_once={TOPIC: {}})
    planned.reader.commit(offset(1, 12))
    assert planned.broker.committed == {}
    later = BatchPlanner(str(planned.plan.file))
    later._client = planned.broker
    planned.change(exactly_once={})
    later.commit(offset(1, 12))
    assert planned.broker.committed != {}


KEYS = table(("k", "int", "partition_key"))


class MemoryTransaction:
    """What a stage does with its transaction, and an error that the broker has for it."""

    def __init__(self, staged: Staged, error: HelenusError | None = None) -> None:
        self.outcomes: list[BatchOutcome] = []
        self._staged = staged
        self._error = error

    def flush(self, timeout: float) -> None:
        self._staged.log.flush(timeout)

    def abort(self) -> None:
        self._staged.log.close()

    def commit(self, outcome: BatchOutcome, timeout: float) -> None:
        assert timeout > 0
        if self._error is not None:
            raise self._error
        self.outcomes.append(outcome)


def event(staged: Staged, offset: int, node: str = NODE, digest: str = "1" * 32, effect: Effect = Effect.LIVE) -> Event:
    change = Change(digest, node, segment=1, position=offset, write_time=1, effect=int(effect))
    return Event(EVENTS, 0, offset, 1000, staged.codec.encode((int32(1),)), encode(change))


def test_nothing_is_marked_of_a_transaction_that_was_not_committed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    staged = Staged(KEYS, tmp_path, monkeypatch)
    staged.live = dict(rows(((int32(1),), int32(1))))
    failing = MemoryTransaction(staged, HelenusError(Kind.APPEND_FAILED, "no answer", "here"))
    with pytest.raises(HelenusError, match="no answer"):
        staged.stage.run([event(staged, 1)], (), True, transaction=failing)
    appended = len(staged.appended)
    transaction = MemoryTransaction(staged)
    outcome = staged.stage.run([event(staged, 1)], (), True, transaction=transaction)
    assert (outcome.published, len(staged.appended)) == (1, appended + 1)
    assert transaction.outcomes == [outcome]


def test_copies_of_past_events_are_not_published(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    staged = Staged(KEYS, tmp_path, monkeypatch)
    staged.live = dict(rows(((int32(1),), int32(1))))
    staged.stage.note_past([event(staged, 1)], (), (), None)
    outcome = staged.stage.run([event(staged, 2, "00000000-0000-0000-0000-000000000002")], (), True)
    assert (outcome.confirmed, outcome.published) == (1, 0)
    outcome = staged.stage.run([event(staged, 3, digest="2" * 32)], (), True)
    assert outcome.published == 1
    assert [record.topic for record in staged.appended] == [DATA]


def test_a_past_change_that_was_believed_for_its_age_is_heard_once_more(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As without a restart: its row shows nothing of it, and a node that reports it may have written it late."""
    staged = Staged(KEYS, tmp_path, monkeypatch)
    staged.live = dict(rows(((int32(1),), int32(1))))
    staged.stage.note_past([event(staged, 1, effect=Effect(0))], (), (), None)
    late = event(staged, 2, "00000000-0000-0000-0000-000000000002", effect=Effect(0))
    outcome = staged.stage.run([late], (), True)
    assert (outcome.confirmed, len(outcome.waiting)) == (0, 1)


@pytest.mark.parametrize("is_at_gate", [False, True])
def test_a_past_change_that_waits_is_not_confirmed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, is_at_gate: bool
) -> None:
    """A copy of one that was published waits with its key; one at the gate is not published yet."""
    staged = Staged(KEYS, tmp_path, monkeypatch)
    staged.live = dict(rows(((int32(1),), int32(1))))
    (admitted,) = staged.stage._gate.begin_batch(staged.codec, 0.0).admit([event(staged, 1)])
    waiting = {admitted.id or b""}
    staged.stage.note_past([event(staged, 1)], () if is_at_gate else waiting, waiting if is_at_gate else (), None)
    outcome = staged.stage.run([event(staged, 2, "00000000-0000-0000-0000-000000000002")], (), True)
    assert outcome.confirmed == 0
    assert outcome.published == is_at_gate


@pytest.fixture
def query(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Query:
    monkeypatch.setattr(job, "run", lambda frame, *_: frame.done)
    return Query(tmp_path)


def once(query: Query, monkeypatch: pytest.MonkeyPatch) -> None:
    """Have the first table published exactly once."""
    planned = query._planned

    def planned_once() -> tuple[QueryPlan, Any]:
        plan, tasks = planned()
        return dataclasses.replace(plan, exactly_once={A: {}}), tasks

    monkeypatch.setattr(query, "_planned", planned_once)
    query.start()
    query.plan(0, a=6, b=6)


def test_what_a_failed_transaction_published_is_known(query: Query, monkeypatch: pytest.MonkeyPatch) -> None:
    """It published nothing: so the images of before are those on the topic."""
    once(query, monkeypatch)
    key = UnconfirmedKey(A, 0, b"k", Scope.ROW, image=b"i")
    query.unconfirmed.apply([], [key], 0.0)
    query.batches.process(Frame(TopicResult(A, 0, {"0": 5}, error=POISON)), 0)  # type: ignore[arg-type]
    assert [waiting.image for waiting in query.unconfirmed.of_topic(A)] == [b"i"]


def test_a_run_ends_where_it_does_not_know_what_was_committed(query: Query, monkeypatch: pytest.MonkeyPatch) -> None:
    once(query, monkeypatch)
    error = HelenusError(Kind.APPEND_FAILED, "no answer", "here")
    uncertain = TopicResult(A, 0, {"0": 5}, error=error, is_uncertain=True)
    with pytest.raises(HelenusError, match="no answer"):
        query.batches.process(Frame(uncertain, fine("events-ks.b", 3)), 0)  # type: ignore[arg-type]


PULSAR = {"pulsar.service.url": "pulsar://h:1"}


@pytest.mark.parametrize(
    ("worker", "connector", "reason"),
    [
        ({}, {}, ""),
        ({"fence.writers": "false"}, {}, "fence.writers=true"),
        ({"log": "pulsar", **PULSAR}, {}, "Kafka's transactions"),
        ({"data.log": "pulsar", **PULSAR}, {}, "Kafka's transactions"),
        ({}, {"state": "keys"}, ""),
        ({}, {"state": "rows", "query.group": "own"}, ""),
        ({"spark.master": "yarn"}, {"state": "keys"}, "spark.master=local"),
        ({"spark.master": "yarn"}, {"state": "rows", "query.group": "own"}, ""),
    ],
)
def test_what_publishes_exactly_once(
    tmp_path: Path, worker: dict[str, str], connector: dict[str, str], reason: str
) -> None:
    properties = {"bootstrap.servers": "h:1", "checkpoint.dir": str(tmp_path), **worker}
    table_properties = {"name": "t", "keyspace": "ks", "table": "t", "output.format": "json", **connector}
    settings = ConnectorSettings.from_properties(table_properties, "t")
    problem = obstacle(WorkerSettings.from_properties(properties, "worker"), settings)
    assert reason in problem
    assert bool(problem) == bool(reason)
