"""What a group's leader keeps on a real Pulsar: who may write it, and what the next leader finds."""

from __future__ import annotations

import threading
import time
import uuid
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, closing
from pathlib import Path
from typing import Any

import pytest

from helenus_connector.config.connector import ConnectorSettings
from helenus_connector.config.worker import WorkerSettings
from helenus_connector.control.positions import HeldPositions
from helenus_connector.control.status import Task
from helenus_connector.gate.waiting import WaitingChanges, WaitingLimits
from helenus_connector.group.shared_topic import SharedTopic
from helenus_connector.interfaces.event import Event, WaitingChange
from helenus_connector.journal import recovery
from helenus_connector.journal._positions import GroupPosition
from helenus_connector.journal.pulsar_journals import PulsarJournals, PulsarPositions
from helenus_connector.journal.recovery import DriverMemory, JournalOfRun
from helenus_connector.journal.transaction import outcome_entry
from helenus_connector.log._pulsar_fenced_topics import FencedTopics, Transactions
from helenus_connector.log.choice import events_log, fenced_topics
from helenus_connector.log.events import FencedRecord
from helenus_connector.pipeline.batch_outcome import BatchOutcome
from helenus_connector.unconfirmed.keys import UnconfirmedKeys
from helenus_connector.unconfirmed.unconfirmed_key import UnconfirmedKey
from helenus_schemas.errors import HelenusError, Kind
from helenus_sinks.pulsar.epochs import TermEpochs, first_epoch
from helenus_stack.stack import Stack

pytestmark = pytest.mark.integration

NOW_MS = int(time.time() * 1000)


def term(number: int) -> TermEpochs:
    return TermEpochs(first_epoch(NOW_MS + number, 0))


def worker_settings(stack: Stack, directory: Path, group: str) -> WorkerSettings:
    own = {"log": "pulsar", "checkpoint.dir": str(directory), "group.id": group}
    properties = {**stack.status().pulsar(), **own}
    return WorkerSettings.from_properties(properties, "worker")


@pytest.fixture
def worker(only_pulsar: Stack, tmp_path: Path) -> WorkerSettings:
    return worker_settings(only_pulsar, tmp_path, f"workers-{uuid.uuid4().hex[:8]}")


@pytest.fixture
def topics(worker: WorkerSettings) -> Iterator[Callable[[], FencedTopics]]:
    with ExitStack() as stack:

        def make() -> FencedTopics:
            made = fenced_topics(worker)
            stack.callback(made.close)
            return made

        yield make


def record(key: str, value: str | None = "v") -> FencedRecord:
    return FencedRecord(key.encode(), None if value is None else value.encode())


def read(topics: FencedTopics, name: str) -> list[tuple[str, str | None]]:
    content = topics.read([name])[name]
    assert content.error is None
    return [(r.key.decode(), None if r.value is None else r.value.decode()) for r in content.records]


def test_a_former_owner_writes_nothing(topics: Callable[[], FencedTopics], worker: WorkerSettings) -> None:
    name = worker.group_topic
    first, second = topics(), topics()
    first.create([name])
    first.own([name], term(1).take())
    first.commit({name: [record("a"), record("b", None)]}, 10)
    second.own([name], term(2).take())
    for _ in range(2):
        with pytest.raises(HelenusError, match="another worker writes these records") as failure:
            first.commit({name: [record("late")]}, 10)
        assert failure.value.kind is Kind.NOT_OWNER
        first.note_owned([name], term(1).take())  # as one that believes it leads
    with pytest.raises(HelenusError, match="another worker writes"):
        first.own([name], term(1).take())
    assert read(second, name) == [("a", "v"), ("b", None)]
    second.commit({name: [record("c")]}, 10)
    assert read(second, name) == [("a", "v"), ("b", None), ("c", "v")]


def test_what_was_trimmed_is_read_no_more(topics: Callable[[], FencedTopics], worker: WorkerSettings) -> None:
    name = worker.group_topic
    first, second = topics(), topics()
    first.create([name])
    epochs = term(1)
    first.own([name], epochs.take())
    first.commit({name: [record("a")]}, 10)
    end = first.ends([name])[name]
    first.commit({name: [record("b"), record("c")]}, 10)
    first.trim({name: end})
    first.own([name], epochs.take())  # of the same leader, after an error
    first.commit({name: [record("d")]}, 10)
    second.own([name], term(2).take())
    assert read(second, name) == [("b", "v"), ("c", "v"), ("d", "v")]


def test_large_transactions_are_whole(topics: Callable[[], FencedTopics], worker: WorkerSettings) -> None:
    name = worker.group_topic
    first = topics()
    first.create([name])
    first.own([name], term(1).take())
    records = [record(str(n), "x" * 200_000) for n in range(60)]
    first.commit({name: records}, 30)
    assert len(read(first, name)) == 60


def transaction(name: bytes, index: int, is_last: bool = False) -> dict[str, bytes | None]:
    return {"t": name, "i": str(index).encode(), **({"last": b"1"} if is_last else {})}


def test_transactions_that_are_cut_off_or_sent_twice() -> None:
    transactions = Transactions()
    sent = [
        ("cut off", b"5-1", 0, False),
        ("a", b"6-1", 0, False),
        ("a", b"6-1", 0, False),
        ("b", b"6-1", 1, True),
        ("a", b"6-1", 0, False),
        ("b", b"6-1", 1, True),
        ("cut off", b"6-2", 0, False),
        ("c", b"8-1", 0, True),
        ("late", b"7-1", 0, True),
    ]
    for key, name, index, is_last in sent:
        transactions.add(record(key), transaction(name, index, is_last))
    assert [r.key for r in transactions.records] == [b"a", b"b", b"c"]
    for headers in ({}, {"t": b"x", "i": b"0"}, {"t": b"9-1", "i": b"1"}):
        with pytest.raises(ValueError):  # noqa: PT011
            transactions.add(record("d"), headers)


def shared(worker: WorkerSettings, epochs: TermEpochs) -> SharedTopic:
    return SharedTopic(worker, lambda _: (epochs.take(), False))


def test_the_groups_topic(worker: WorkerSettings) -> None:
    with ExitStack() as stack:
        first, second, third = (shared(worker, term(number)) for number in (1, 2, 3))
        for topic in (first, second, third):
            stack.callback(topic.close)
        first.create()
        number = first.lead("one", lambda: {"a": "first of one"}).number
        first.update(lambda _: {"b": 1, "c": 1})
        assert second.lead("two", lambda: {"a": "first of two"}).number == number + 1
        assert second.former is not None
        assert second.former.term == "one"
        for _ in range(2):
            with pytest.raises(HelenusError) as failure:
                first.update(lambda _: {"b": 2})
            assert failure.value.kind is Kind.NOT_OWNER
        second.update(lambda _: {"b": 3, "c": None})
        third.lead("three", dict)
        values = {key: value for key, value in third.values().items() if key in ("a", "b", "c")}
        assert values == {"a": "first of one", "b": 3}


def test_the_groups_topic_without_its_begin(topics: Callable[[], FencedTopics], worker: WorkerSettings) -> None:
    owner = topics()
    owner.create([worker.group_topic])
    owner.own([worker.group_topic], term(1).take())
    owner.commit({worker.group_topic: [record("connector-a", "{}")]}, 10)
    with closing(shared(worker, term(2))) as topic, pytest.raises(HelenusError, match="lost the begin") as failure:
        topic.lead("two", dict)
    assert failure.value.kind is Kind.STATE


def test_the_groups_topic_of_which_all_expired(topics: Callable[[], FencedTopics], worker: WorkerSettings) -> None:
    """As by a message TTL: it looks as empty as a new one, and had all connectors."""
    with closing(shared(worker, term(1))) as topic:
        topic.create()
        topic.lead("one", lambda: {"a": 1})
    other, name = topics(), worker.group_topic
    other.trim({name: other.ends([name])[name]})
    with closing(shared(worker, term(2))) as topic, pytest.raises(HelenusError, match="lost the begin") as failure:
        topic.lead("two", dict)
    assert failure.value.kind is Kind.STATE


def test_writes_from_many_threads(worker: WorkerSettings) -> None:
    with closing(shared(worker, term(1))) as topic, closing(shared(worker, term(2))) as later:
        topic.create()
        topic.lead("one", dict)
        threads = [threading.Thread(target=topic.update, args=(lambda _, n=n: {f"key {n}": n},)) for n in range(20)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        later.lead("two", dict)
        assert {f"key {n}": n for n in range(20)}.items() <= later.values().items()


class Leaders:
    """Leaders of a group, one after the other, each with a disk of its own."""

    def __init__(self, worker: WorkerSettings, directory: Path, stack: ExitStack) -> None:
        self.worker, self.directory, self._stack = worker, directory, stack
        self.name = worker.group_id
        self.settings = ConnectorSettings.from_properties(
            {
                "name": self.name,
                "keyspace": "shop",
                "table": f"t{self.name.replace('-', '_')}",
                "cassandra.contact.points": "h",
                "cassandra.local.dc": "dc1",
                "value.converter.schema.registry.url": "http://h:1",
            },
            "connector",
        )
        with closing(events_log(worker)) as log:
            log.create(self.settings.events, 2, {})
        self.number = 0
        self.next()

    def next(self) -> PulsarJournals:
        self.number += 1
        self.journals = PulsarJournals(self.worker, term(self.number))
        self._stack.callback(self.journals.close)
        disk = self.directory / f"{self.number}"
        disk.mkdir()
        times = {self.settings.events: 30.0}
        self.memory = DriverMemory(
            HeldPositions(disk), UnconfirmedKeys(times, times, disk / "unconfirmed"), WaitingChanges(disk / "waiting")
        )
        self.memory.waiting.use({self.settings.events: WaitingLimits(600.0, 1 << 20, True, 30.0)})
        return self.journals

    def begin(self) -> JournalOfRun:
        journal = JournalOfRun(self.worker, None, self.memory, store=self.journals)
        assert journal.begin({self.settings.events: Task(0, self.settings)}) == {}
        return journal

    def commit(self, offsets: Mapping[int, int], outcome: BatchOutcome | None = None, epoch: int = 0) -> None:
        topic, outcome = self.settings.events, outcome or BatchOutcome()
        entry = outcome_entry(self.name, topic, outcome, has_waiting=True)
        positions = {str(partition): GroupPosition(offset, epoch, NOW_MS) for partition, offset in offsets.items()}
        entries = {} if entry.is_empty else {topic: list(entry.to_records())}
        self.journals.commit_records({topic: self.name}, entries, {topic: positions})

    @property
    def offsets(self) -> Mapping[str, int]:
        return self.memory.held_positions.read_offsets().get(self.settings.events, {})

    @property
    def waiting(self) -> tuple[set[bytes], set[bytes]]:
        topic = self.settings.events
        keys = {key.key for key in self.memory.unconfirmed.of_topic(topic)}
        return keys, {change.rstrip() for change in self.memory.waiting.awaited_changes(topic)}

    def outcome(self, *names: bytes) -> BatchOutcome:
        outcome = BatchOutcome()
        for name in names:
            outcome.waiting.append(UnconfirmedKey(self.settings.events, 0, name, 0))
            event = Event(self.settings.events, 1, 3, 4, name, b"v")
            outcome.at_gate.waits.append(WaitingChange(name.ljust(16), event, ("a",), 1))
        return outcome


@pytest.fixture
def leaders(worker: WorkerSettings, tmp_path: Path) -> Iterator[Leaders]:
    with ExitStack() as stack:
        yield Leaders(worker, tmp_path, stack)


FAR = (7 << 64) + (3 << 32) + 1


def test_the_next_leader_goes_on_where_the_last_one_was(leaders: Leaders) -> None:
    leaders.begin()
    leaders.commit({0: FAR, 1: 5}, leaders.outcome(b"a", b"b"))
    settled = BatchOutcome()
    settled.done.append(UnconfirmedKey(leaders.settings.events, 0, b"a", 0))
    leaders.commit({1: 6}, settled)
    former = leaders.journals
    leaders.next()
    leaders.begin()
    assert leaders.offsets == {"0": FAR, "1": 6}
    assert leaders.waiting == ({b"b"}, {b"a", b"b"})
    with pytest.raises(HelenusError) as failure:
        former.commit_records({leaders.settings.events: leaders.name}, {leaders.settings.events: [b"late"]}, {})
    assert failure.value.kind is Kind.NOT_OWNER
    leaders.next()
    leaders.begin()
    assert leaders.offsets == {"0": FAR, "1": 6}
    assert leaders.waiting == ({b"b"}, {b"a", b"b"})


def test_a_long_journal_is_written_anew(leaders: Leaders, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(recovery, "_LONGEST_JOURNAL", 0)
    journal = leaders.begin()
    leaders.commit({0: FAR})
    for name in (b"a", b"b"):
        outcome = leaders.outcome(name)
        leaders.commit({1: 5}, outcome)
        leaders.memory.unconfirmed.apply(outcome.done, outcome.waiting, time.time(), outcome.places)
        leaders.memory.waiting.apply(leaders.settings.events, outcome.at_gate, None, time.time())
        journal.note_batch(100)
    leaders.next()
    content = leaders.journals
    content.create([leaders.name])
    entries = content.read([leaders.name])[leaders.name].entries[leaders.settings.events]
    assert len(entries) == 1, "the others are trimmed"
    leaders.begin()
    assert leaders.offsets == {"0": FAR, "1": 5}
    assert leaders.waiting == ({b"a", b"b"}, {b"a", b"b"})


def test_moved_positions(leaders: Leaders) -> None:
    leaders.begin()
    leaders.commit({0: FAR, 1: 5})
    leaders.next()
    positions, topic = PulsarPositions(leaders.journals), leaders.settings.events
    position = positions.read(leaders.settings, {topic: 2})[topic]
    assert (position.offsets, position.epoch, position.is_loose) == ({"0": FAR, "1": 5}, 0, False)
    positions.move(leaders.settings, topic, {"0": 3, "1": 4}, 1)
    leaders.next()
    leaders.begin()
    assert leaders.offsets == {"0": 3, "1": 4}
    assert leaders.memory.held_positions.epoch(topic) == 1


def test_positions_of_a_disk_go_into_the_journal_once(leaders: Leaders) -> None:
    """An upgrade of a worker without a group."""
    leaders.memory.held_positions.hold(leaders.settings.events, {"0": FAR, "1": 9})
    outcome = leaders.outcome(b"a")
    leaders.memory.unconfirmed.apply(outcome.done, outcome.waiting, time.time(), outcome.places)
    leaders.begin()
    leaders.next()
    leaders.memory.held_positions.hold(leaders.settings.events, {"0": 1, "1": 1})  # of an earlier time
    leaders.begin()
    assert leaders.offsets == {"0": FAR, "1": 9}
    assert leaders.waiting[0] == {b"a"}


def test_a_damaged_journal_fails_its_connector_alone(leaders: Leaders, topics: Callable[[], FencedTopics]) -> None:
    leaders.begin()
    owner, name = topics(), leaders.worker.journal_topic(leaders.name)
    owner.own([name], term(9).take())
    owner.commit({name: [FencedRecord(b"positions", b'{"v": 2}')]}, 10)
    leaders.number = 9
    leaders.next()
    journal = JournalOfRun(leaders.worker, None, leaders.memory, store=leaders.journals)
    errors: dict[str, Any] = journal.begin({leaders.settings.events: Task(0, leaders.settings)})
    assert errors[leaders.settings.events].kind is Kind.STATE
